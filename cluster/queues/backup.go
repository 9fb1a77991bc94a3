package queues

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/placement"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

const (
	// maxCuts bounds how many cuts a node keeps for backups at a time: each keeps the
	// pieces of a queue's state in memory that have changed since.
	maxCuts = 4
	// cutIdle is how long a cut is kept that nobody asks for.
	cutIdle = time.Minute
	// cutPage is how many bytes of payloads a page has at least, if there are so many,
	// and a piece of a message at most.
	cutPage = 1 << 20
	// cutRecords bounds the messages of a page.
	cutRecords = 4096
	// cutTimeout bounds how long a leader may take for a page.
	cutTimeout = 30 * time.Second
	// cutBusy is the pause before a node is asked again that keeps too many cuts.
	cutBusy = time.Second
)

// ErrCutLost is returned for a backup of a queue that has to begin anew: its leader
// has gone, or has forgotten the cut.
var ErrCutLost = errors.New("the leader of the queue no longer has the state that is being backed up")

// Backups reads queues for backups, and brings back what is in one. A cut is the
// state of a queue at one entry, as its leader had it; it is read page by page, at
// the pace of the reader, while the queue goes on.
type Backups struct {
	node    *self.Node
	routes  *stream.Table
	leaders *Leaders
	placer  *placement.Placer

	mu        sync.Mutex
	cuts      map[uint64]*cut
	last      uint64 // number of the newest cut
	restoring map[fsm.QueueID]bool
}

// listen registers the handlers.
func (x *Backups) listen() {
	peer.HandleAsk(x.node.Mesh, self.KindBackup, x.page)
	peer.HandleAsk(x.node.Mesh, self.KindRestored, x.restored)
}

// Cut describes what a backup of a queue is of.
type Cut struct {
	Index, Term uint64
	Clock       fsm.Time
	Sources     []queue.Source
}

// Backup reads a queue: begin is called once, then message for each message with its
// encoded record. Both may keep the reader waiting. settled is how many messages had
// gone before they were read. gone: the queue has ended, and nothing was called.
func (x *Backups) Backup(ctx context.Context, q *catalog.Queue, begin func(Cut) error, message func(state, payload []byte) error) (settled uint64, gone bool, err error) {
	req := &peerpb.BackupRequest{Group: uint32(q.Group), Queue: uint64(q.ID)}
	r, from, err := x.begin(ctx, q, req)
	if err != nil || r == nil {
		return 0, err == nil, err
	}
	defer func() {
		x.askPage(context.WithoutCancel(ctx), from, &peerpb.BackupRequest{Cut: req.Cut, End: true})
	}()
	c := Cut{Index: r.Index, Term: r.Term, Clock: fsm.Time(r.Clock)}
	for i, id := range r.Sources {
		if i < len(r.SourceNext) {
			c.Sources = append(c.Sources, queue.Source{ID: fsm.QueueID(id), Next: r.SourceNext[i]})
		}
	}
	if err := begin(c); err != nil {
		return 0, false, err
	}
	req.Cut, req.Page = r.Cut, 1
	var state, payload []byte
	for {
		for _, p := range r.Pieces {
			if len(p.State) > 0 {
				state, payload = p.State, nil
			}
			if payload = append(payload, p.Payload...); p.More {
				continue
			}
			if err := message(state, payload); err != nil {
				return 0, false, err
			}
		}
		settled += r.Settled
		if !r.More {
			return settled, false, nil
		}
		req.Page++
		if r = x.askPage(ctx, from, req); r == nil { // perhaps only the answer was lost
			r = x.askPage(ctx, from, req)
		}
		if r == nil || r.Lost {
			return 0, false, ErrCutLost
		}
	}
}

// begin asks the leader for a cut; nil without an error: the queue has ended.
func (x *Backups) begin(ctx context.Context, q *catalog.Queue, req *peerpb.BackupRequest) (r *peerpb.BackupReply, from string, err error) {
	for {
		gone, err := x.leaders.Ask(ctx, q, func(leader string) bool {
			r, from = x.askPage(ctx, leader, req), leader
			return r != nil && r.Leader
		})
		switch {
		case err != nil:
			return nil, "", err
		case gone || r.Gone:
			return nil, "", nil
		case !r.Busy:
			return r, from, nil
		}
		select {
		case <-ctx.Done():
			return nil, "", ctx.Err()
		case <-time.After(cutBusy):
		}
	}
}

// askPage asks one node; nil: it does not answer.
func (x *Backups) askPage(ctx context.Context, node string, req *peerpb.BackupRequest) *peerpb.BackupReply {
	r, err := self.Ask(ctx, x.node, node, cutTimeout, self.KindBackup, req, func() *peerpb.BackupReply { return x.page(req) })
	if err != nil {
		return nil
	}
	return r
}

// page answers a request for a cut or for one of its pages.
func (x *Backups) page(r *peerpb.BackupRequest) *peerpb.BackupReply {
	switch {
	case r.End:
		x.forget(r.Cut)
		return &peerpb.BackupReply{Leader: true}
	case r.Cut == 0:
		return x.cut(r)
	}
	x.mu.Lock()
	c := x.cuts[r.Cut]
	x.mu.Unlock()
	if c == nil {
		return &peerpb.BackupReply{Leader: true, Lost: true}
	}
	return c.page(r.Page)
}

// cut takes the state of a led queue, and answers with the first page. The empty
// entry committed first ensures that this node does lead the queue: what was confirmed
// before is in the cut.
func (x *Backups) cut(r *peerpb.BackupRequest) *peerpb.BackupReply {
	g := x.node.LedGroup(fsm.GroupID(r.Group), fsm.QueueID(r.Queue))
	if g == nil || g.Barrier(statsTimeout) != nil || g.Expire(statsTimeout) != nil {
		return &peerpb.BackupReply{}
	}
	c := &cut{group: g}
	if !x.keep(c) {
		return &peerpb.BackupReply{Leader: true, Busy: true}
	}
	var s *queue.Snapshot
	ended := false
	g.View(func(m *queue.Machine) {
		if ended = m.Stats().Phase != queue.Active; !ended {
			s = m.Snapshot()
		}
	})
	if s == nil || g.Leading() == 0 {
		x.forget(c.number)
		return &peerpb.BackupReply{Leader: ended, Gone: ended}
	}
	c.begin(s)
	a := c.page(1)
	a.Cut = c.number
	index, term, clock := s.Position()
	a.Index, a.Term, a.Clock = index, term, int64(clock)
	for _, source := range s.Sources() {
		a.Sources, a.SourceNext = append(a.Sources, uint64(source.ID)), append(a.SourceNext, source.Next)
	}
	return a
}

// keep gives a cut its number, unless there are too many.
func (x *Backups) keep(c *cut) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.cuts) >= maxCuts {
		return false
	}
	x.last++
	c.number = x.last
	x.cuts[c.number] = c
	c.idle = time.AfterFunc(cutIdle, func() { x.forget(c.number) })
	return true
}

// forget ends a cut.
func (x *Backups) forget(number uint64) {
	x.mu.Lock()
	c := x.cuts[number]
	delete(x.cuts, number)
	x.mu.Unlock()
	if c != nil {
		c.end()
	}
}

// cut is the state of a queue at one entry, and how far it has been read. The pages
// are read in order, and each may be asked for again until the next one.
type cut struct {
	number uint64
	group  *group.Group
	idle   *time.Timer

	mu     sync.Mutex
	next   func() (*logpb.MessageState, bool) // nil: it has ended
	stop   func()
	rest   []byte // of a payload that did not fit into the last page
	read   uint64 // number of the last page
	newest *peerpb.BackupReply
}

// begin makes the cut one of a state.
func (c *cut) begin(s *queue.Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next, c.stop = iter.Pull(s.Backup())
}

// end forgets the state.
func (c *cut) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle.Stop()
	if c.stop != nil {
		c.stop()
	}
	c.next, c.newest, c.rest = nil, nil, nil
}

// page returns a page, the last one again or the one after it.
func (c *cut) page(number uint64) *peerpb.BackupReply {
	c.mu.Lock()
	defer c.mu.Unlock()
	lost := &peerpb.BackupReply{Leader: true, Lost: true}
	if c.next == nil {
		return lost
	}
	c.idle.Reset(cutIdle)
	switch {
	case number == c.read && c.newest != nil:
		return c.newest
	case number != c.read+1:
		return lost
	}
	r := &peerpb.BackupReply{Leader: true}
	if err := c.fill(r); err != nil {
		return lost
	}
	c.read, c.newest = number, r
	return r
}

// fill reads a page. A message whose payload is gone has been settled since the cut;
// if it has not, the page cannot be read.
func (c *cut) fill(r *peerpb.BackupReply) error {
	bytes := 0
	for bytes < cutPage && len(r.Pieces) < cutRecords {
		if len(c.rest) > 0 {
			bytes += c.piece(r, nil, c.rest)
			continue
		}
		st, ok := c.next()
		if !ok {
			return nil
		}
		payload, err := c.group.Payload(fsm.Ref{Index: st.Index, Offset: st.Offset, Size: st.Size})
		if errors.Is(err, raftlog.ErrNoPayload) && !c.live(st.Index) {
			r.Settled++
			continue
		}
		if err != nil {
			return err
		}
		state, err := st.MarshalVT()
		if err != nil {
			return err
		}
		bytes += c.piece(r, state, payload) + len(state)
	}
	r.More = true
	return nil
}

// piece adds a message to a page, or as much of it as one piece may have.
func (c *cut) piece(r *peerpb.BackupReply, state, payload []byte) int {
	n := min(len(payload), cutPage)
	c.rest = payload[n:]
	r.Pieces = append(r.Pieces, &peerpb.BackedUpPiece{State: state, Payload: payload[:n], More: len(c.rest) > 0})
	return n
}

// live reports whether the queue still has messages of an entry.
func (c *cut) live(index uint64) (yes bool) {
	c.group.View(func(m *queue.Machine) { yes = m.Live(index) })
	return yes
}
