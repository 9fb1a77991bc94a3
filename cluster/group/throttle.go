package group

import (
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// A member that lags much gets its entries one request after the other. To get
// them as fast as it can would take processors, disk and links from clients.
const (
	// pursuitShare is which part of the time it is worked on, at least; and
	// pursuitSpeed is how many times faster than the log grows it gets on, at
	// least: one that lags by a minute has caught up after two or three.
	pursuitShare = 0.1
	pursuitSpeed = 1.5
	// leastPause is what is worth a pause, and mostPause bounds one.
	leastPause = 2 * time.Millisecond
	mostPause  = 250 * time.Millisecond
	// pursuitBytes is what a node sends at a time to all members that lag, of
	// all groups that it leads, the pauses behind included: with hundreds of
	// them each one's share is no bound. A request counts as leastPursuit at
	// least.
	pursuitBytes = 2 * maxRequestBytes
	leastPursuit = 64 << 10
	// pursuitLook is how often one that waits for its turn looks whether its
	// member is needed by now.
	pursuitLook = 100 * time.Millisecond
)

// allowance is what all of a node's pursuits share. Who comes first is served
// first.
//
//	0 ≤ free ≤ what there is; free < waiting[0].bytes
type allowance struct {
	mu      sync.Mutex
	free    int
	waiting []*turn
}

// turn is somebody's place among those that wait.
type turn struct {
	bytes int
	come  chan struct{} // closed: it has come
}

// take takes a part of the allowance, if it is free. Else the turn comes later.
func (a *allowance) take(bytes int) (come *turn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := &turn{bytes, make(chan struct{})}
	a.waiting = append(a.waiting, t)
	a.serve()
	return t
}

// give gives a part back, whether or not its turn had come.
func (a *allowance) give(t *turn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := slices.Index(a.waiting, t); i >= 0 {
		a.waiting = slices.Delete(a.waiting, i, i+1)
	} else {
		a.free += t.bytes
	}
	a.serve()
}

// serve serves those whose turn it is. The caller holds mu.
func (a *allowance) serve() {
	for len(a.waiting) > 0 && a.free >= a.waiting[0].bytes {
		a.free -= a.waiting[0].bytes
		close(a.waiting[0].come)
		a.waiting = a.waiting[1:]
	}
}

// pursuits are how far the members of a group that lag are on their way.
type pursuits struct {
	mu      sync.Mutex
	members map[raft.ServerID]*pursuit
}

// pursuit is what a member was sent last.
type pursuit struct {
	at   time.Time     // when it had it
	last uint64        // the end of the log then
	owed time.Duration // of a pause
}

// of returns a member's pursuit.
func (p *pursuits) of(id raft.ServerID) *pursuit {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.members == nil {
		p.members = map[raft.ServerID]*pursuit{}
	}
	if p.members[id] == nil {
		p.members[id] = &pursuit{}
	}
	return p.members[id]
}

// sent notes that a request with so many entries was under way for a time, and
// returns the pause before the next one. last is the end of the log.
func (p *pursuit) sent(now time.Time, took time.Duration, entries int, last uint64) (pause time.Duration) {
	over, grown := now.Sub(p.at), last-min(p.last, last)
	if p.at.IsZero() || over > time.Second {
		over = 0 // nothing is known of how the log grows
	}
	p.at, p.last = now, last
	pause = time.Duration(float64(took) * (1 - pursuitShare) / pursuitShare)
	if over > 0 && grown > 0 {
		pause = min(pause, max(0, time.Duration(float64(over)*float64(entries)/(pursuitSpeed*float64(grown)))-took))
	}
	p.owed += pause
	if p.owed < leastPause {
		return 0
	}
	pause = min(p.owed, mostPause)
	p.owed = 0
	return pause
}

// pace pauses before a member that lags much is sent more, unless what waits to
// be committed may need it.
func (g *Group) pace(id raft.ServerID, took time.Duration, entries int) {
	pause := g.pursuits.of(id).sent(time.Now(), took, entries, g.last())
	if pause == 0 || g.needs(string(id)) {
		return
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-g.host.stop:
	}
}

// share waits until the node may send so much to a member that lags, unless what
// waits to be committed may need that one; done is called after the pause.
func (g *Group) share(id raft.ServerID, bytes int) (done func()) {
	if g.needs(string(id)) {
		return func() {}
	}
	a := &g.host.pursued
	t := a.take(min(max(bytes, leastPursuit), pursuitBytes))
	look := time.NewTicker(pursuitLook)
	defer look.Stop()
	for {
		select {
		case <-t.come:
		case <-g.ending:
		case <-g.host.stop:
		case <-look.C:
			if !g.needs(string(id)) {
				continue
			}
		}
		return func() { a.give(t) }
	}
}

// needs reports whether the members that can be reached are no majority without
// this one.
func (g *Group) needs(node string) bool {
	up, voters := 0, 0
	for _, m := range g.Configuration() {
		if !m.Voter {
			continue
		}
		voters++
		if m.Node == g.host.config.Node || m.Node != node && g.host.config.Mesh.Alive(m.Node) {
			up++
		}
	}
	return up <= voters/2
}
