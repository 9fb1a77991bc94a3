package group

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
)

// Pauses before a member that lacks entries, and is sent none, is sent some.
const (
	lagEvery = 500 * time.Millisecond // how often it is checked
	lagFirst = time.Second
	lagLast  = 30 * time.Second
	// lagAgain is for how long a group all of whose members have everything, and have been told what is committed, is
	// not looked at unless that may have changed.
	lagAgain = 30 * time.Second
	// lagBeat is how often they are told all the same while the cluster's version is below timerless: members
	// of that time wait for their leaders for as little as 30 s.
	lagBeat   = 10 * time.Second
	timerless = 3
)

// lagWatch watches members that lack entries and are sent none, or have not been told what is committed.
// Raft sends when it has something new, and goes on while that works; after a failure, and after the last
// entry, it waits for the next one, which an idle group does not have.
type lagWatch struct {
	node    string
	alive   func(node string) bool
	behind  map[groupMember]lag
	resting []resting // each group once, those that have rested longest first
	// beats reports whether nodes of a version below timerless may be members.
	beats func() bool

	silences silences

	mu    sync.Mutex
	noted []ledGroup // each once
}

// resting is a group that is looked at again at a time, also if it is not noted.
type resting struct {
	group ledGroup
	until time.Time
}

// groupMember is a member of a group that this node leads.
type groupMember struct {
	group fsm.GroupID
	node  string
}

// lag is how far a member was when it was last checked.
type lag struct {
	index   uint64
	due     time.Time // when it is sent something, unless it has got further by then
	pause   time.Duration
	checked time.Time
}

// complete is when all members of a group had everything in its log: they have until another term
// begins, the log grows, or one of them turns out to have less than it acknowledged. Each has the group
// noted. Only the lagWatch uses it.
type complete struct {
	noted              atomic.Bool // among those that are looked at next
	rests              bool        // among those that rest
	term, last, lacked uint64
	until              time.Time // the members are asked again then
	reminded           bool      // of what is committed
}

// same reports whether nothing has changed.
func (c *complete) same(term, last, lacked uint64) bool {
	return c.term == term && c.last == last && c.lacked == lacked
}

// still reports whether the members have everything, and need not be asked.
func (c *complete) still(term, last, lacked uint64, now time.Time) bool {
	return c.same(term, last, lacked) && now.Before(c.until)
}

// ledGroup is what a lagWatch needs of a group.
type ledGroup interface {
	ID() fsm.GroupID
	// completed returns the group's own record, and how often a member had less than it acknowledged.
	completed() (c *complete, lacked uint64)
	LeadsIn() (term uint64, ok bool)
	LastStored() uint64
	Configuration() []replica.Member
	Reached(node string, term uint64) peer.Reached
	Nudge()
	// Remind tells a member what is committed.
	Remind(node string)
}

// completed implements ledGroup.
func (g *instance) completed() (c *complete, lacked uint64) { return &g.complete, g.Lacked() }

func newLagWatch(c *Config) *lagWatch {
	return &lagWatch{
		node: c.Node, alive: c.Mesh.Alive, behind: map[groupMember]lag{},
		beats: func() bool { return c.Version() < timerless },
	}
}

// note has a group looked at, if it is led here: what its members have may not be everything.
func (l *lagWatch) note(g ledGroup) {
	c, _ := g.completed()
	if c.noted.Load() {
		return
	}
	if _, leads := g.LeadsIn(); !leads || c.noted.Swap(true) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noted = append(l.noted, g)
}

// round looks at the groups that are noted, and at those that have rested for long.
func (l *lagWatch) round(now time.Time) {
	l.mu.Lock()
	due := l.noted
	l.noted = nil
	l.mu.Unlock()
	for _, g := range due {
		c, _ := g.completed()
		c.noted.Store(false) // whatever happens from now on is noted
	}
	for len(l.resting) > 0 && !now.Before(l.resting[0].until) {
		g := l.resting[0].group
		l.resting[0] = resting{} // it may have fallen asleep, and nobody else has it
		l.resting = l.resting[1:]
		c, _ := g.completed()
		c.rests = false
		due = append(due, g)
	}
	for _, g := range due {
		c, _ := g.completed()
		switch again := l.check(g, now); {
		case again.IsZero() || again.After(now) && c.rests:
		case again.After(now):
			c.rests, l.resting = true, append(l.resting, resting{g, again})
		default:
			l.note(g)
		}
	}
	l.forget(now)
}

// check sends something to those members of a group that have not got further for a while. It returns when to
// look again if nothing changes; zero: this node does not lead the group.
func (l *lagWatch) check(g ledGroup, now time.Time) (again time.Time) {
	term, leads := g.LeadsIn()
	if !leads {
		return time.Time{}
	}
	done, lacked := g.completed() // before the members are asked: what one lacks from now on counts next time
	last, nudge, all := g.LastStored(), false, true
	if done.still(term, last, lacked, now) {
		return done.until
	}
	members := g.Configuration()
	for _, m := range members {
		if m.Node == l.node {
			continue
		}
		r := g.Reached(m.Node, term)
		if r.Index >= last {
			continue
		}
		all = false
		if r.Busy || !l.alive(m.Node) {
			continue
		}
		key := groupMember{g.ID(), m.Node}
		was, known := l.behind[key]
		switch {
		case !known || was.index != r.Index:
			was = lag{index: r.Index, due: now.Add(lagFirst), pause: lagFirst}
		case !now.Before(was.due):
			nudge = true
			was.pause = min(2*was.pause, lagLast)
			was.due = now.Add(was.pause)
		}
		was.checked = now
		l.behind[key] = was
	}
	if all {
		rests, beats, pause := done.same(term, last, lacked), l.beats(), lagAgain
		if rests && (beats || !done.reminded) {
			l.tell(g, members)
		}
		switch {
		case !rests:
			pause = 0 // they are told next time
		case beats:
			pause = lagBeat
		}
		done.term, done.last, done.lacked, done.until, done.reminded = term, last, lacked, now.Add(pause), rests
		return done.until
	}
	if nudge {
		g.Nudge()
	}
	return now
}

// tell tells the members what is committed.
func (l *lagWatch) tell(g ledGroup, members []replica.Member) {
	for _, m := range members {
		if m.Node != l.node && l.alive(m.Node) {
			g.Remind(m.Node)
		}
	}
}

// forget drops those that were not behind when last checked.
func (l *lagWatch) forget(now time.Time) {
	for key, was := range l.behind {
		if was.checked != now {
			delete(l.behind, key)
		}
	}
}

// A member that lags much gets its entries one request after the other. To get
// them as fast as it can would take processors, disk and links from clients.
const (
	// catchUpShare is which part of the time it is worked on, at least; and
	// catchUpSpeed is how many times faster than the log grows it gets on, at
	// least: one that lags by a minute has caught up after two or three.
	catchUpShare = 0.1
	catchUpSpeed = 1.5
	// minPause is what is worth a pause, and maxPause bounds one.
	minPause = 2 * time.Millisecond
	maxPause = 250 * time.Millisecond
	// catchUpBytes is what a node sends at a time to all members that lag, of
	// all groups that it leads, the pauses behind included: with hundreds of
	// them each one's share is no bound. A request counts as minCatchUpBytes at
	// least.
	catchUpBytes    = 2 * replica.MaxRequestBytes
	minCatchUpBytes = 64 << 10
	// neededEvery is how often one that waits for the budget checks whether its
	// member is needed by now.
	neededEvery = 100 * time.Millisecond
)

// catchUpBudget is what a node may send at a time to members that lag, in bytes.
// Who comes first is served first.
//
//	0 ≤ free ≤ catchUpBytes; waiting is empty, or free < waiting[0].bytes
type catchUpBudget struct {
	mu      sync.Mutex
	free    int
	waiting []*reservation
}

// reservation is a part of the budget, or somebody's place among those that wait
// for one.
type reservation struct {
	bytes   int
	granted chan struct{} // closed: it is a part of the budget
}

// reserve takes a part of the budget, if it is free. Else it is granted later.
func (b *catchUpBudget) reserve(bytes int) *reservation {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := &reservation{bytes, make(chan struct{})}
	b.waiting = append(b.waiting, r)
	b.grant()
	return r
}

// release gives a part back, or a place among those that wait.
func (b *catchUpBudget) release(r *reservation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.waiting, r); i >= 0 {
		b.waiting = slices.Delete(b.waiting, i, i+1)
	} else {
		b.free += r.bytes
	}
	b.grant()
}

// grant serves those that wait. The caller holds mu.
func (b *catchUpBudget) grant() {
	for len(b.waiting) > 0 && b.free >= b.waiting[0].bytes {
		b.free -= b.waiting[0].bytes
		close(b.waiting[0].granted)
		b.waiting = b.waiting[1:]
	}
}

// throttle slows down what a leader sends to members of its group that lag much,
// but not to one without which nothing can be committed.
type throttle struct {
	budget *catchUpBudget         // of the node
	needs  func(node string) bool // there is no majority without it
	last   func() uint64          // the end of the log
	ending <-chan struct{}        // of the group
	stop   <-chan struct{}        // of the node

	mu      sync.Mutex
	members map[raft.ServerID]*catchUp
}

// catchUp is what a member that lags was sent last.
type catchUp struct {
	at   time.Time     // when it had it
	last uint64        // the end of the log then
	owed time.Duration // of a pause
}

// of returns what is known of a member.
func (t *throttle) of(id raft.ServerID) *catchUp {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.members == nil {
		t.members = map[raft.ServerID]*catchUp{}
	}
	if t.members[id] == nil {
		t.members[id] = &catchUp{}
	}
	return t.members[id]
}

// sent notes that a request with so many entries was under way for a time, and
// returns the pause before the next one. last is the end of the log.
func (c *catchUp) sent(now time.Time, took time.Duration, entries int, last uint64) (pause time.Duration) {
	over, grown := now.Sub(c.at), last-min(c.last, last)
	if c.at.IsZero() || over > time.Second {
		over = 0 // nothing is known of how the log grows
	}
	c.at, c.last = now, last
	pause = time.Duration(float64(took) * (1 - catchUpShare) / catchUpShare)
	if over > 0 && grown > 0 {
		pause = min(pause, max(0, time.Duration(float64(over)*float64(entries)/(catchUpSpeed*float64(grown)))-took))
	}
	c.owed += pause
	if c.owed < minPause {
		return 0
	}
	pause = min(c.owed, maxPause)
	c.owed = 0
	return pause
}

// Pause waits before a member that lags much is sent more, unless what waits to
// be committed may need it. The last request had so many entries and took so long.
func (t *throttle) Pause(id raft.ServerID, took time.Duration, entries int) {
	pause := t.of(id).sent(time.Now(), took, entries, t.last())
	if pause == 0 || t.needs(string(id)) {
		return
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.stop:
	}
}

// Reserve waits until the node may send so much to a member that lags, unless what
// waits to be committed may need that one; done is called after the pause.
func (t *throttle) Reserve(id raft.ServerID, bytes int) (done func()) {
	if t.needs(string(id)) {
		return func() {}
	}
	r := t.budget.reserve(min(max(bytes, minCatchUpBytes), catchUpBytes))
	check := time.NewTicker(neededEvery)
	defer check.Stop()
	for {
		select {
		case <-r.granted:
		case <-t.ending:
		case <-t.stop:
		case <-check.C:
			if !t.needs(string(id)) {
				continue
			}
		}
		return func() { t.budget.release(r) }
	}
}
