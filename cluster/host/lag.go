package host

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/group"
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
	// lagBeat is how often they are told all the same while the cluster's version is below group.Timerless: members
	// of that time wait for their leaders for as little as 30 s.
	lagBeat = 10 * time.Second
)

// lagWatch watches members that lack entries and are sent none, or have not been told what is committed.
// Raft sends when it has something new, and goes on while that works; after a failure, and after the last
// entry, it waits for the next one, which an idle group does not have.
type lagWatch struct {
	node    string
	alive   func(node string) bool
	behind  map[groupMember]lag
	resting []resting // each group once, those that have rested longest first
	// beats reports whether nodes of a version below group.Timerless may be members.
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
func (a *awake) completed() (c *complete, lacked uint64) { return &a.complete, a.Lacked() }

func newLagWatch(c *Config) *lagWatch {
	return &lagWatch{
		node: c.Node, alive: c.Mesh.Alive, behind: map[groupMember]lag{},
		beats: func() bool { return c.Version() < group.Timerless },
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
