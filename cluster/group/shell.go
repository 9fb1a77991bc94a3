package group

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// Group is this node's replica of one queue. While nothing happens in the queue the replica sleeps: it has no raft, no
// goroutine and no timers, only a record. Whatever needs more than the record wakes it, and nobody outside of this
// package can tell. See DESIGN.md, "Sleep".
//
//	asleep = nil ⇒ running ≠ nil
//	asleep ≠ nil ∧ running ≠ nil: it is being woken, and the record still answers for it
type Group struct {
	spec Spec
	node *Node

	running  atomic.Pointer[Instance]
	asleep   atomic.Pointer[Record]
	changing worker.LongLock // one change between these states at a time
	ended    atomic.Bool     // it wakes no more
	calling  atomic.Bool     // somebody is about to wake it, see Call

	sleepless atomic.Int64 // how many times longer than others it has to be idle before it sleeps

	mu      sync.Mutex
	waiting []Batch // submitted to a leader that is being woken, in order
}

// maxWaiting is how many batches wait for a leader to wake. Those who submit more send them again.
const maxWaiting = 64

// awake returns the instance of a group that serves nobody from its record; nil: the group sleeps, or is being woken.
func (g *Group) awake() *Instance {
	i, _ := g.read()
	return i
}

// read gives either the instance or the record of a group: no instance that is being woken.
func (g *Group) read() (i *Instance, r *Record) {
	for {
		i = g.running.Load() // first: who reads it last may have slept through a sleep
		if r = g.asleep.Load(); r != nil {
			return nil, r
		}
		if i != nil { // else it has woken since
			return i, nil
		}
	}
}

// Record returns what is left of a group that sleeps, or is being woken; nil: it is awake. It is replaced as a whole.
func (g *Group) Record() *Record { return g.asleep.Load() }

// Ended reports whether the group is closed.
func (g *Group) Ended() bool { return g.ended.Load() }

// End ends a local queue.
func (g *Group) End() { g.running.Load().order.end() }

// ID returns the number of the group.
func (g *Group) ID() fsm.GroupID { return g.spec.Group }

// Spec returns what the group was opened with.
func (g *Group) Spec() Spec { return g.spec }

// IsLocal reports whether the group is a local queue's.
func (g *Group) IsLocal() bool { return g.spec.Local }

// Asleep reports whether the group has no running raft.
func (g *Group) Asleep() bool { return g.asleep.Load() != nil }

// Leading returns the term in which this replica leads and serves, or 0.
func (g *Group) Leading() uint64 {
	i, r := g.read()
	switch {
	case r == nil:
		return i.leadership.leading()
	case !r.leads || g.node.withdrawn.Load() || g.ended.Load():
		return 0
	}
	return r.at.Raft
}

// Term returns the raft term of this replica.
func (g *Group) Term() uint64 {
	i, r := g.read()
	if r != nil {
		return r.at.Raft
	}
	return i.order.term()
}

// Leader returns the name of the leading node, as far as this replica knows.
func (g *Group) Leader() string {
	i, r := g.read()
	switch {
	case r == nil:
		return i.order.leader()
	case g.node.Restarted(r):
		return ""
	}
	return r.leader
}

// Progress reports the log position of the replica.
func (g *Group) Progress() replica.Progress {
	i, r := g.read()
	if r != nil {
		return r.progress(g.node.config.Node)
	}
	return i.order.progress()
}

// SnapshotIndex returns the index of the newest snapshot, or -1 if there is none.
func (g *Group) SnapshotIndex() int64 {
	i, r := g.read()
	if r != nil {
		return r.snapshot
	}
	return i.order.snapshot()
}

// LogBytes returns the size of the payloads that the log keeps for live messages.
func (g *Group) LogBytes() uint64 {
	i, r := g.read()
	switch {
	case r != nil:
		return r.live
	case i.store == nil:
		return 0
	}
	return uint64(i.store.LiveBytes())
}

// AppliedIndex returns the index of the last entry applied to the machine.
func (g *Group) AppliedIndex() uint64 {
	i, r := g.read()
	if r != nil {
		return r.at.Index
	}
	return i.order.applied()
}

// Configuration returns the members of the group as this replica knows them. A
// replica that has just been added knows none.
func (g *Group) Configuration() []replica.Member {
	i, r := g.read()
	if r != nil {
		return r.members
	}
	return i.Configuration()
}

// Voters returns the names of the voting members, in the order of the Spec: the preferred
// leader comes first.
func (g *Group) Voters() []string {
	i, r := g.read()
	if r != nil {
		return replica.VotersOf(r.members, g.spec.Members)
	}
	return i.Voters()
}

// MayMove reports whether a transfer is tried: for a while after one that has failed, none is.
func (g *Group) MayMove() bool {
	i := g.awake()
	return i == nil || i.MayMove()
}

// Doubt returns why the replica does not vote on this node, or nil if it does.
func (g *Group) Doubt() *replica.Doubt {
	if i := g.awake(); i != nil {
		return i.Doubt()
	}
	return nil
}

// Quarantined says why the group does not lead on this node; nil: it may.
func (g *Group) Quarantined() *Quarantine {
	if i := g.running.Load(); i != nil {
		return i.Quarantined()
	}
	return nil
}

// LiftQuarantine lets the group lead on this node again.
func (g *Group) LiftQuarantine() error {
	if i := g.running.Load(); i != nil {
		return i.LiftQuarantine()
	}
	return ErrNotQuarantined
}

// Guard does something for this group alone. A panic goes no further: it
// quarantines the group on this node, which does not fall asleep meanwhile. Guard reports whether there was none.
//
// The locks that f takes must be released by defer, or hold nothing that can
// panic: what has the lock after a panic keeps it for ever.
func (g *Group) Guard(doing string, f func()) (ok bool) {
	_ = g.with(nil, func(i *Instance) error { // or it has ended, and nothing is done
		ok = i.guard.run(doing, f)
		return nil
	})
	return ok
}

// View runs f on the machine between two entries. f must be quick, and must neither change nor
// retain the machine. If the group turns out to be quarantined afterwards, discard what f has set.
func (g *Group) View(f func(m *queue.Machine)) {
	for {
		if i := g.running.Load(); i != nil {
			if i.applier.view(f) {
				return
			}
		}
		if r := g.asleep.Load(); r != nil && r.view(g.node, &g.spec, f) {
			return
		}
		if g.Wake() == nil {
			return
		}
	}
}

// HashAt returns the hash of the machine's state at an entry, and the index of that
// entry. at 0 stands for the newest one. If at is above the newest one, it waits for
// the first entry from there on. Replicas that are asked for the same entry before
// they have applied it return the same index and, if they are equal, the same hash.
//
// The state is frozen between two entries, in the time that a snapshot takes, and
// hashed outside of the lock.
func (g *Group) HashAt(at uint64, wait time.Duration) (index uint64, hash string, err error) {
	end := time.Now().Add(wait)
	err = g.with(replica.ErrNotReached, func(i *Instance) (err error) {
		index, hash, err = i.applier.probes.HashAt(at, time.Until(end), i.Ending())
		return err
	})
	return index, hash, err
}

// with does something with the instance, which does not fall asleep meanwhile. It returns ended if the group has ended.
func (g *Group) with(ended error, f func(i *Instance) error) error {
	for g.Wake() != nil {
		if i := g.awake(); i != nil && i.users.begin() {
			defer i.users.end()
			return f(i)
		}
		g.changing.Lock() // until it is decided whether it falls asleep
		g.changing.Unlock()
	}
	return ended
}

// Replay gives a queue's history on this node to a reader, up to the last entry
// that was applied when it began. It may fail because a snapshot was replaced
// meanwhile; then it can be tried again, with a new reader.
func (g *Group) Replay(to Replayer) error {
	return g.with(ErrNoHistory, func(i *Instance) error {
		if i.store == nil {
			return ErrNoHistory
		}
		s, err := replay(i.store, i.order.applied(), to)
		return errors.Join(err, s.Failure())
	})
}

// Resync reads the messages a consumer holds after a delivery, up to the size limit of an answer,
// and sends them in order among the deliveries, together with the notice of messages taken from
// the consumer or of its cancellation. Only the leader answers. It does not wait for a group that sleeps.
func (g *Group) Resync(to fsm.ConsumerID, after uint64) {
	g.soon(func(i *Instance) {
		defer i.guard.contain("answer a resync")
		i.applier.resync(to, after, func() bool { return i.leadership.term.Load() != 0 })
	})
}

// Recall answers what has been applied of a session's commands from a number on, and first says which one
// is expected next (fsm.Gap), be it the first of these: what is before that is on its way to an answer.
// Only the leader does this. It does not wait for a group that sleeps.
func (g *Group) Recall(s fsm.SessionID, from uint64) {
	g.soon(func(i *Instance) {
		i.proposer.recall(func() {
			i.applier.recall(s, from, func(next uint64) uint64 { return i.proposer.expects(s, next) })
		})
	})
}

// soon does something with the instance, now or when the group is awake.
func (g *Group) soon(f func(i *Instance)) {
	if i := g.awake(); i != nil && i.users.begin() {
		defer i.users.end()
		f(i)
		return
	}
	g.node.Tasks.Go(func() {
		_ = g.with(nil, func(i *Instance) error { // or it has ended, and there is nobody to answer
			f(i)
			return nil
		})
	})
}

// Payload reads the payload of one message. It may be gone if the message is.
func (g *Group) Payload(ref fsm.Ref) ([]byte, error) {
	if i := g.Wake(); i != nil {
		defer i.outgoing.steps.Add(1)
		return i.order.payload(ref)
	}
	return nil, errReleased
}

// HeldBy says where a member finds a payload that this leader would send to it. It finds it if it has
// acknowledged the entry, or if the entry is ahead of what is sent now. What is in memory here should be
// there, too; if not, the member says so (Missed).
func (g *Group) HeldBy(node string, ref fsm.Ref) (at Shared, ok bool) {
	i := g.awake()
	if i == nil {
		return Shared{}, false
	}
	lead := i.leadership.serving()
	if i.store == nil || lead == 0 || i.sharing.since(node) >= ref.Index {
		return Shared{}, false
	}
	payloads, term := i.store.Recent(ref.Index)
	if payloads == nil || i.Reached(node, lead).Index < ref.Index && i.Transport().Sent(node, lead) < ref.Index {
		return Shared{}, false
	}
	return Shared{ref, term}, true
}

// Missed notes that a node has not found a payload where it was said to be: it may have begun after the
// entries that there are, or have let go of them. It is sent what they carried.
func (g *Group) Missed(node string) {
	if i := g.awake(); i != nil && i.store != nil && i.order.opened() {
		i.sharing.miss(node, i.order.applied())
	}
}

// Stored returns a payload that a leader shares with this member; nil: it is not in memory. The entry may
// still be on its way into the log, where its arrival ends.
func (g *Group) Stored(at Shared) []byte {
	i := g.running.Load()
	if i == nil || i.store == nil {
		return nil
	}
	payloads := i.node.config.Mesh.Arriving(i.spec.Group, at.Index, at.Term)
	if payloads == nil {
		var term uint64
		if payloads, term = i.store.Recent(at.Index); term != at.Term {
			return nil
		}
	}
	end := uint64(at.Offset) + uint64(at.Size)
	if end > uint64(len(payloads)) {
		return nil
	}
	return payloads[at.Offset:end:end]
}

// Now returns the stamp an entry would get. Only the leader knows it.
func (g *Group) Now() fsm.Time {
	i, r := g.read()
	if r != nil {
		return r.now(g.node)
	}
	return i.proposer.now()
}

// Barrier lets followers learn what is committed, by committing an entry without content. Only the
// leader can do this.
func (g *Group) Barrier(timeout time.Duration) error {
	return g.with(replica.ErrNotLeading, func(i *Instance) error { return i.order.barrier(timeout) })
}

// Expire proposes ticks until nothing is due, so that counts read afterwards include no expired
// message. It gives up after timeout.
func (g *Group) Expire(timeout time.Duration) error {
	if r := g.asleep.Load(); r != nil && r.leads && (r.stats.NextDeadline == 0 || r.stats.NextDeadline > r.now(g.node)) {
		return nil
	}
	return g.with(replica.ErrNotLeading, func(i *Instance) error { return i.Expire(timeout) })
}

// Add makes a node a non-voting member. Only the leader can do this.
func (g *Group) Add(node string) error {
	return g.with(replica.ErrNotLeading, func(i *Instance) error { return i.Add(node) })
}

// Promote gives a member a vote. Only the leader can do this.
func (g *Group) Promote(node string) error {
	return g.with(replica.ErrNotLeading, func(i *Instance) error { return i.Promote(node) })
}

// Remove removes a node from the members. Only the leader can do this, and it cannot remove
// itself: it has to transfer its leadership first.
func (g *Group) Remove(node string) error {
	return g.with(replica.ErrNotLeading, func(i *Instance) error { return i.Remove(node) })
}

// Transfer makes another member the leader and returns when this replica no
// longer leads. First the entries that raft has taken are committed, maxPending
// and a few more if members are far. What is queued is kept: it goes on if the transfer fails, and back
// to the submitters if it succeeds. What comes meanwhile they keep.
//
// to must be up, and is given a second, and a round trip, to get what its log lacks. If it does not
// win in time, this replica goes on, and refuses the next attempts for a while:
// each of them stops the queue for a moment.
func (g *Group) Transfer(to string) error {
	return g.with(replica.ErrNotLeading, func(i *Instance) error { return i.Transfer(to) })
}

// Snapshot writes a snapshot now, and waits for it. Nothing is written if nothing was applied since the last
// one.
func (g *Group) Snapshot(ctx context.Context) error {
	return g.with(replica.ErrNotLeading, func(i *Instance) error {
		if i.IsLocal() {
			return ErrNoLog
		}
		if err := i.attendant.Snapshot(ctx); !errors.Is(err, raft.ErrNothingNewToSnapshot) {
			return err
		}
		return nil
	})
}

// Submit queues commands for the log. Those for a leader that sleeps wait until it is awake.
func (g *Group) Submit(b Batch) error {
	if i := g.awake(); i != nil {
		return i.proposer.submit(b)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	i, r := g.read() // it may have woken, which ends under the lock
	switch {
	case r == nil:
		return i.proposer.submit(b)
	case !r.leads || g.ended.Load():
		return replica.ErrNotLeading
	case g.node.withdrawn.Load():
		g.Call() // so that others hear that it must not lead
		return replica.ErrNotLeading
	case len(g.waiting) >= maxWaiting:
		return ErrFull
	}
	g.waiting = append(g.waiting, b)
	g.Call()
	return nil
}

// Call wakes the group without waiting for it.
func (g *Group) Call() {
	if g.calling.CompareAndSwap(false, true) {
		g.node.Tasks.Go(func() {
			slots := g.node.wakes.followers
			if r := g.asleep.Load(); r != nil && r.leads {
				slots = g.node.wakes.leaders
			}
			slots <- struct{}{}
			defer func() { <-slots }()
			g.calling.Store(false)
			g.Wake()
		})
	}
}

// wakes has groups that are called wake in the order of their calls, wakesAtOnce at a time. If a crowd woke at once on a busy
// machine, none would be awake before all are: their leaders would be taken for stuck ones. Followers have slots of their
// own: who waits for one is a leader of another node, which is awake.
type wakes struct{ leaders, followers chan struct{} }

const wakesAtOnce = 8

func newWakes() wakes {
	return wakes{make(chan struct{}, wakesAtOnce), make(chan struct{}, wakesAtOnce)}
}
