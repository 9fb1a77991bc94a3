package queues

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

const (
	// Bounds of what a restore has under way in one queue.
	restoreWindow = 1024
	restoreBytes  = 4 << 20
	// restoreStall is how long a restore waits for a queue that answers nothing.
	restoreStall = time.Minute

	// RestoredSource is set in the ids that backups have as sources of messages: no queue
	// has such an id, so no catalog ever finds that it is gone.
	RestoredSource = 1 << 63
)

// Define brings a definition back, with the queue's or the store's replicas placed on
// the nodes of this cluster. One that is there with the same content is no error.
func (x *Backups) Define(ctx context.Context, c *logpb.CatalogCommand) error {
	switch m := c.Body.(type) {
	case *logpb.CatalogCommand_DeclareQueue:
		m.DeclareQueue.Members = x.placer.Place(m.DeclareQueue)
	case *logpb.CatalogCommand_DeclareExchange:
		m.DeclareExchange.StoreMembers = nil
		if m.DeclareExchange.Type == catalog.Delayed {
			m.DeclareExchange.StoreMembers = x.placer.Place(&logpb.DeclareQueue{})
		}
	}
	_, err := x.node.Propose(ctx, "restore a definition", c)
	return err
}

// View is the newest view of the catalog.
func (x *Backups) View() *catalog.View { return x.node.View() }

// restored says how much of a backup a led queue holds.
func (x *Backups) restored(r *peerpb.RestoredRequest) *peerpb.RestoredReply {
	g := x.node.LedGroup(fsm.GroupID(r.Group), fsm.QueueID(r.Queue))
	if g == nil || g.Barrier(statsTimeout) != nil {
		return &peerpb.RestoredReply{}
	}
	a := &peerpb.RestoredReply{Leader: true}
	g.View(func(m *queue.Machine) {
		a.Next, a.Gone = queue.NextOf(m, fsm.QueueID(r.Source)), m.Stats().Phase != queue.Active
	})
	if g.Leading() == 0 {
		return &peerpb.RestoredReply{}
	}
	return a
}

// Restore begins to bring messages back to a queue, as those of a source, which names
// the backup and the queue it was made of. The messages must come in the same order
// each time: the queue takes each of them once, however often they are brought.
func (x *Backups) Restore(ctx context.Context, q *catalog.Queue, source fsm.QueueID) (*Restorer, error) {
	if !x.take(q.ID) {
		return nil, fsm.Refuse(fsm.Precondition, fmt.Sprintf("queue '%s' in vhost '%s' is being restored already", q.Name, q.VHost))
	}
	r, err := x.restorer(ctx, q, source)
	if err != nil {
		x.release(q.ID)
	}
	return r, err
}

func (x *Backups) restorer(ctx context.Context, q *catalog.Queue, source fsm.QueueID) (*Restorer, error) {
	req := &peerpb.RestoredRequest{Group: uint32(q.Group), Queue: uint64(q.ID), Source: uint64(source)}
	wait, cancel := context.WithTimeout(ctx, LeaderWait) // the queue may be a new one
	defer cancel()
	if err := x.leaders.Await(wait, q); err != nil {
		return nil, err
	}
	a, err := askLeader(ctx, x.leaders, q, statsTimeout, self.KindRestored, req, func() *peerpb.RestoredReply { return x.restored(req) })
	switch {
	case err != nil:
		return nil, err
	case a.Gone:
		return nil, NoQueue(q)
	}
	r := &Restorer{all: x, queue: q, skip: a.Next - 1, changed: make(chan struct{}, 1)}
	r.stream = stream.New(r, nil, fsm.SessionID{Boot: uint64(source)}, x.routes.Route(q))
	r.Lock()
	defer r.Unlock()
	r.stream.Skip(r.skip)
	r.stream.Route().Attach(r.stream)
	return r, nil
}

func (x *Backups) take(id fsm.QueueID) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.restoring[id] {
		return false
	}
	x.restoring[id] = true
	return true
}

func (x *Backups) release(id fsm.QueueID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.restoring, id)
}

// Restorer brings messages back to one queue. It owns the stream that carries them.
type Restorer struct {
	all   *Backups
	queue *catalog.Queue
	skip  uint64 // messages that the queue has from an earlier run

	mu      sync.Mutex
	stream  *stream.Stream
	brought uint64 // all so far, those of earlier runs included
	bytes   int    // under way
	refused uint64
	answers uint64
	failure error
	changed chan struct{} // has room for one
}

// Add brings one message, unless the queue has it. It waits while too much is under
// way.
func (r *Restorer) Add(ctx context.Context, e *logpb.Enqueue, payload []byte) error {
	r.mu.Lock()
	r.brought++
	had := r.brought <= r.skip
	r.mu.Unlock()
	if had {
		return nil
	}
	if fsm.Payload(payload).IsBare() && r.all.View().FSMVersion() < fsm.BareSince {
		return fsm.Refuse(fsm.Precondition, fmt.Sprintf("a message of AMQP 1.0 needs a cluster of fsm_version %d", fsm.BareSince))
	}
	err := r.await(ctx, func() bool { return r.stream.Waiting() < restoreWindow && r.bytes < restoreBytes })
	if err != nil {
		return err
	}
	r.Lock()
	defer r.Unlock()
	if r.stream.Over() {
		return r.over()
	}
	r.bytes += len(payload)
	r.stream.Add(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: e}, stream.Pending{Payload: payload})
	return nil
}

// Tally is the property by whose values the queue counts its messages; empty: by none.
func (r *Restorer) Tally() string { return r.all.View().Needs(r.queue).Tally }

// Close waits until everything is answered. had is how many of the messages an earlier
// run has brought, refused how many the queue does not take.
func (r *Restorer) Close(ctx context.Context) (had, refused uint64, err error) {
	err = r.await(ctx, func() bool { return r.stream.Waiting() == 0 })
	r.stream.Route().Detach(r.stream)
	r.all.release(r.queue.ID)
	r.mu.Lock()
	defer r.mu.Unlock()
	return min(r.skip, r.brought), r.refused, err
}

// await waits until done, which is asked with the lock held.
func (r *Restorer) await(ctx context.Context, done func() bool) error {
	stall := time.NewTimer(restoreStall)
	defer stall.Stop()
	for answered := uint64(0); ; {
		r.mu.Lock()
		ok, err, answers := done(), r.over(), r.answers
		r.mu.Unlock()
		if err != nil || ok {
			return err
		}
		if answers != answered {
			answered = answers
			stall.Reset(restoreStall)
		}
		select {
		case <-r.changed:
		case <-stall.C:
			return Leaderless(r.queue)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// over is why nothing more can be brought; nil: it can. The lock is held.
func (r *Restorer) over() error {
	if r.failure == nil && r.stream.Gone() {
		r.failure = NoQueue(r.queue)
	}
	return r.failure
}

// Lock takes the restorer's lock.
func (r *Restorer) Lock() { r.mu.Lock() }

// Unlock gives it back, and wakes who waits.
func (r *Restorer) Unlock() {
	r.mu.Unlock()
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// Answered counts a message that the queue has, or does not take.
func (r *Restorer) Answered(p *stream.Pending, a fsm.Result) {
	r.bytes -= len(p.Payload)
	r.answers++
	switch a.Code {
	case fsm.OK:
	case fsm.Gone:
		r.failure = NoQueue(r.queue)
	default:
		r.refused++
	}
}

var errRestoreBroken = errors.New("the queue no longer accepts the backup: run the restore again")

// Lost ends the restorer: the queue knows other messages of the source.
func (r *Restorer) Lost() {
	r.stream.Abandon()
	r.failure = errRestoreBroken
}

// Failed is Lost.
func (r *Restorer) Failed() { r.Lost() }

// Gone is called when the catalog has lost the queue.
func (r *Restorer) Gone() {
	r.Lock()
	defer r.Unlock()
	r.failure = NoQueue(r.queue)
}
