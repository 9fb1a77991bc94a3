package peer

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// groups are the raft groups that this node has a member of, and what came for
// groups that it has none of yet.
type groups struct {
	spawn    func(func()) // runs a function on a goroutine that the mesh waits for
	complain func(node, what string, err error)
	memory   budget                            // for the requests of all of them
	missing  atomic.Pointer[func(fsm.GroupID)] // see Mesh.OnMissing

	// mu guards what follows. A group is in byID or has requests in early, never
	// both; once closed there is nothing in either.
	mu     sync.RWMutex
	closed bool
	byID   map[fsm.GroupID]*transport
	early  earlyRequests
}

func (g *groups) init(m *Mesh) {
	g.spawn, g.complain = m.done.Go, m.Complain
	g.memory.limit = inboundBudget
	g.byID = make(map[fsm.GroupID]*transport)
	g.early.init(m.cfg.EarlyWait, g.expire)
}

// find returns a group's transport; nil: there is none.
func (g *groups) find(id fsm.GroupID) *transport {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.byID[id]
}

// forget drops what the groups know of a node that has left the cluster.
func (g *groups) forget(node string) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, t := range g.byID {
		t.followers.forget(node)
	}
}

// deliver hands a request to its group. It does not block.
func (g *groups) deliver(id fsm.GroupID, r request) {
	t := g.find(id)
	if t == nil {
		g.mu.Lock()
		if t = g.byID[id]; t == nil {
			kept := !g.closed && g.early.add(id, r)
			g.mu.Unlock()
			if !kept {
				r.respond(nil, ErrUnknownGroup)
			}
			if f := g.missing.Load(); f != nil {
				(*f)(id)
			}
			return
		}
		g.mu.Unlock()
	}
	t.inbox.take(r)
}

// add returns the transport of a group, which is made if there is none.
func (g *groups) add(id fsm.GroupID, make func() *transport) *transport {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t := g.byID[id]; t != nil {
		return t
	}
	t := make()
	if g.closed {
		t.shut()
		return t
	}
	g.byID[id] = t
	for _, r := range g.early.take(id) {
		t.inbox.enqueue(r)
	}
	return t
}

// remove takes a group out, if this is its transport; nil: whichever it is. It
// returns what was taken out.
func (g *groups) remove(id fsm.GroupID, t *transport) *transport {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.byID[id]
	if t != nil && now != t {
		return nil
	}
	delete(g.byID, id)
	return now
}

// close shuts all transports. Requests are refused from then on.
func (g *groups) close() {
	g.mu.Lock()
	all := g.byID
	g.closed, g.byID = true, nil
	g.early.clear()
	g.mu.Unlock()
	for _, t := range all {
		t.shut()
	}
}

// expire refuses what came too early for its group to appear in time.
func (g *groups) expire() {
	g.mu.Lock()
	late := g.early.expire(time.Now())
	g.mu.Unlock()
	for i := range late {
		late[i].respond(nil, ErrUnknownGroup)
	}
}

// Arriving returns the payloads (Log.Extensions) of an entry that has come for a group and that raft has not
// answered yet; nil: there is none of this index and term. Raft's answer comes after the entry is in the log.
func (m *Mesh) Arriving(group fsm.GroupID, index, term uint64) []byte {
	if t := m.groups.find(group); t != nil {
		return t.inbox.arriving(index, term)
	}
	return nil
}

// Transport returns the raft transport of a group; the same one until the
// group is dropped. Its ServerID and ServerAddress are both the node's name.
//
// Entries handed to it are kept by reference until sent: nobody may change
// their Data and Extensions. AppendEntries and InstallSnapshot wait for a broken
// link (Timing.ReconnectWait), so DropGroup must be called between
// Raft.Shutdown and waiting for its future, or that wait may take as long.
func (m *Mesh) Transport(group fsm.GroupID) raft.Transport { return m.TransportFor(group, nil) }

// TransportFor is Transport for a group whose validator says what it takes; that
// counts where the transport is made.
func (m *Mesh) TransportFor(group fsm.GroupID, v Validator) raft.Transport {
	return m.groups.add(group, func() *transport { return newTransport(m, group, v) })
}

// TransportOfLeader is TransportFor for a member that is to stand for election before it hears of anything else.
func (m *Mesh) TransportOfLeader(group fsm.GroupID, v Validator) raft.Transport {
	return m.groups.add(group, func() *transport {
		t := newTransport(m, group, v)
		t.campaign()
		return t
	})
}

// Waits reports whether requests wait for a group that this node has none of.
func (m *Mesh) Waits(group fsm.GroupID) bool {
	m.groups.mu.RLock()
	defer m.groups.mu.RUnlock()
	return len(m.groups.early.byGroup[group]) > 0
}

// OnMissing has f called when a request has come for a group that this node has none of yet, and waits for it. f
// must not block.
func (m *Mesh) OnMissing(f func(fsm.GroupID)) { m.groups.missing.Store(&f) }

// Prompt makes the heartbeats of a group urgent: its timers are too short to
// let them wait for company. The group's transport must exist.
func (m *Mesh) Prompt(group fsm.GroupID) {
	if t := m.groups.find(group); t != nil {
		t.prompt.Store(true)
	}
}

// Withhold keeps from the local member of a group, while yes says so, what
// would make it a candidate, whoever asks for that, and answers for it whoever
// asks whether it would vote. Raft sees what asks for a vote: it learns the
// term from it, and must find out by its store that it has none to give. The
// group's transport must exist.
func (m *Mesh) Withhold(group fsm.GroupID, yes func() bool) {
	if t := m.groups.find(group); t != nil {
		t.inbox.withheld.Store(&yes)
	}
}

// DropGroup forgets a group's transport: everything it has pending fails, and
// requests for the group are those for an unknown one.
func (m *Mesh) DropGroup(group fsm.GroupID) {
	if t := m.groups.remove(group, nil); t != nil {
		t.shut()
	}
}

// Campaign makes the local member of group stand for election at once, as if
// its leader had sent TimeoutNow. It does nothing if the group is unknown or
// does not keep up with its requests.
func (m *Mesh) Campaign(group fsm.GroupID) {
	if t := m.groups.find(group); t != nil {
		t.campaign()
	}
}

// StepDown makes the local member of group, if it is a candidate in an earlier
// term, a follower in this one: it injects a request for a vote for another
// member whose log is said to be empty, so that no vote is given. It does
// nothing if the group is unknown or does not keep up with its requests.
func (m *Mesh) StepDown(group fsm.GroupID, term uint64, other string) {
	if t := m.groups.find(group); t != nil {
		t.stepDown(term, other, false)
	}
}

// Resign makes the local member of group, if it leads in an earlier term, a
// follower in this one: as StepDown, but a vote that is asked for as if the
// leader had agreed, so that it counts with members that know a leader.
func (m *Mesh) Resign(group fsm.GroupID, term uint64, other string) {
	if t := m.groups.find(group); t != nil {
		t.stepDown(term, other, true)
	}
}

const (
	maxEarly      = 4096
	maxEarlyBytes = 16 << 20
)

// earlyRequests wait for groups that do not exist yet: the members of a new group
// are created at slightly different times. They are guarded by their owner's lock.
//
//	count = Σ len(byGroup[g]) ≤ maxEarly, none of which is 0
//	bytes = Σ size ≤ maxEarlyBytes
//	the requests of a group are in the order in which they came
//	timing, if count > 0
type earlyRequests struct {
	wait    time.Duration // negative: nothing is kept
	byGroup map[fsm.GroupID][]earlyRequest
	count   int
	bytes   int
	timer   *time.Timer
	timing  bool
	due     func() // runs on a goroutine of its own; has expire called
}

type earlyRequest struct {
	request
	until time.Time
}

func (e *earlyRequests) init(wait time.Duration, due func()) {
	e.wait, e.due = wait, due
	e.byGroup = make(map[fsm.GroupID][]earlyRequest)
}

// add keeps r if it may.
func (e *earlyRequests) add(group fsm.GroupID, r request) bool {
	if e.wait < 0 || e.count >= maxEarly || e.bytes+r.size > maxEarlyBytes {
		return false
	}
	e.byGroup[group] = append(e.byGroup[group], earlyRequest{r, time.Now().Add(e.wait)})
	e.count++
	e.bytes += r.size
	e.arm(e.wait)
	return true
}

func (e *earlyRequests) arm(d time.Duration) {
	switch {
	case e.timing:
		return
	case e.timer == nil:
		e.timer = time.AfterFunc(d, e.due)
	default:
		e.timer.Reset(d)
	}
	e.timing = true
}

// take removes what is kept for a group.
func (e *earlyRequests) take(group fsm.GroupID) []request {
	var all []request
	for _, r := range e.byGroup[group] {
		e.count--
		e.bytes -= r.size
		all = append(all, r.request)
	}
	delete(e.byGroup, group)
	return all
}

// expire removes what has been kept for long enough. It is called when due says
// so.
func (e *earlyRequests) expire(now time.Time) []request {
	var late []request
	e.timing = false
	for group, kept := range e.byGroup {
		for len(kept) > 0 && !kept[0].until.After(now) {
			late = append(late, kept[0].request)
			e.count--
			e.bytes -= kept[0].size
			kept = kept[1:]
		}
		if e.byGroup[group] = kept; len(kept) == 0 {
			delete(e.byGroup, group)
		}
	}
	if e.count > 0 {
		e.arm(e.wait/8 + time.Millisecond)
	}
	return late
}

// clear drops everything: nobody waits for answers any more.
func (e *earlyRequests) clear() {
	if e.timer != nil {
		e.timer.Stop()
	}
	clear(e.byGroup)
	e.count, e.bytes = 0, 0
}
