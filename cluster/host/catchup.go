package host

import (
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/replica"
)

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

func newThrottle(b *catchUpBudget, of *replica.Replica, stop <-chan struct{}) *throttle {
	return &throttle{budget: b, needs: of.Needs, last: of.LastIndex, ending: of.Ending(), stop: stop}
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
