package catalog

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/peerpb"
)

const (
	// LeaseTime is how long a node routes by its view of the catalog after it
	// has learnt that this is up to date. Its lease counts from the question, so
	// it asks for one that is longer by what renewals take.
	LeaseTime = time.Second
	// longestLease bounds that.
	longestLease = 3 * time.Second
	// leaseDrift is which part of a lease a leader waits longer than that lasts:
	// clocks do not run alike.
	leaseDrift = 20
	// leaseLag bounds for how long a node's lease is renewed while the node
	// does not apply what the leader has applied, beside what renewals take.
	leaseLag = LeaseTime / 2
	// leaseSlack is by how many entries a node without a lease may lag to get one.
	leaseSlack = 64
)

// convergence is how far this node's view of the catalog is and, as far as this node
// knows, those of the others. What is proposed is answered when all nodes that may
// route have applied it.
//
//	holders.last ≤ index if holders.open; converged never falls
type convergence struct {
	node string // this one

	mu        sync.Mutex
	changed   sync.Cond // something that follows has
	closed    bool
	index     uint64 // of the last entry in the view, and its term
	term      uint64
	nodes     []string // of the cluster, by the view
	holders   holders
	converged uint64          // index that all nodes have applied that may route
	requested requestedLeases // of this node, as a voter
	timer     *time.Timer     // to count the holders again
}

func (c *convergence) init(node string) {
	c.node = node
	c.changed.L = &c.mu
}

func (c *convergence) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.timer != nil {
		c.timer.Stop()
	}
}

// applied notes that an entry is in this node's view.
func (c *convergence) applied(view *catalog.View, index, term uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index, c.term = index, term
	c.nodes = c.nodes[:0]
	for _, n := range view.Nodes() {
		c.nodes = append(c.nodes, n.Name)
	}
	if c.holders.open && term == c.holders.term {
		c.holders.last = index
		c.recount()
	}
	c.changed.Broadcast()
}

// appliedIndex is that of the last entry in the view.
func (c *convergence) appliedIndex() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.index
}

// await returns when this node has applied index.
func (c *convergence) await(ctx context.Context, index uint64) error {
	return c.awaitChange(ctx, "an entry", func() bool { return c.index >= index })
}

// awaitConverged returns when all nodes that may route have applied an entry that this
// node has committed as the leader.
func (c *convergence) awaitConverged(ctx context.Context, index uint64) error {
	return c.awaitChange(ctx, "all nodes", func() bool { return c.converged >= index })
}

// awaitChange returns when done, which is called under mu, is true.
func (c *convergence) awaitChange(ctx context.Context, what string, done func() bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return awaitCond(ctx, &c.changed, what, done)
}

// awaitCond returns when done is true. The caller holds the lock of changed, under which done is called.
func awaitCond(ctx context.Context, changed *sync.Cond, what string, done func() bool) error {
	stop := context.AfterFunc(ctx, func() {
		changed.L.Lock()
		defer changed.L.Unlock()
		changed.Broadcast()
	})
	defer stop()
	for !done() {
		if ctx.Err() != nil {
			return fmt.Errorf("catalog: wait for %s: %w", what, ctx.Err())
		}
		changed.Wait()
	}
	return nil
}

// committed is the term in which this node leads, or has led last, and the newest
// entry in its view.
func (c *convergence) committed() (leads, index, term uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.holders.term, c.index, c.term
}

// begin begins a term in which this node leads, if it has not begun yet, and
// reports whether it is open: the entries of earlier terms are applied.
func (c *convergence) begin(term uint64, now time.Time) (begun, open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if begun = c.holders.term != term; begun {
		c.holders = newHolders(term, now)
	}
	return begun, c.holders.open
}

// open opens a term after a barrier, which err is the result of.
func (c *convergence) open(term uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holders.term != term {
		return
	}
	if err != nil || c.term > term {
		c.holders = holders{} // it is tried again, if this node leads still
	} else {
		c.holders.open, c.holders.last = true, c.index
	}
	c.recount()
	c.changed.Broadcast()
}

// awaitOpen returns when a term has been opened, or has ended.
func (c *convergence) awaitOpen(ctx context.Context, term uint64) error {
	return c.awaitChange(ctx, "the entries of earlier terms", func() bool { return c.holders.open || c.holders.term != term })
}

func (c *convergence) isOpen(term uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.holders.term == term && c.holders.open
}

// grant answers a node that asks for a lease, as the leader of a term.
func (c *convergence) grant(l *peerpb.Lease, term uint64, reply *peerpb.CatalogReply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := &c.holders; h.term == term {
		reply.Ok = h.grant(l, c.index, time.Now())
		reply.GrantedMillis = uint32(leaseLength(l.Millis).Milliseconds())
	}
	reply.GrantedIn, reply.Index, reply.Held = term, c.index, c.converged
	c.recount()
}

// answersFor notes that this node is about to say its term to somebody who wants a lease of a length.
func (c *convergence) answersFor(length time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requested.note(length, time.Now())
}

// longest is the longest lease that may rest on what this node has said.
func (c *convergence) longest() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requested.longest()
}

// learnLongest notes what a voter that is in a term knows of the leases of earlier ones.
func (c *convergence) learnLongest(voter string, voters []string, reply *peerpb.CatalogReply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := &c.holders; h.term != 0 && reply.Term >= h.term && h.noteLongest(voter, voters, leaseLength(reply.LongestMillis)) {
		c.recount()
	}
}

// reached notes what another node says it has applied.
func (c *convergence) reached(node, incarnation string, index uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holders.open {
		c.holders.reached(node, incarnation, index)
		c.recount()
	}
}

// over notes that a process is known to have ended.
func (c *convergence) over(node, incarnation string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holders.open {
		c.holders.ended(node, incarnation)
		c.recount()
	}
}

// recount finds out what all nodes have applied, and wakes those who wait. mu is held.
func (c *convergence) recount() {
	if !c.holders.open {
		return
	}
	now := time.Now()
	index, again := c.holders.converged(c.nodes, c.node, now)
	if index > c.converged {
		c.converged = index
		c.changed.Broadcast()
	}
	switch {
	case again.IsZero() || c.closed:
	case c.timer == nil:
		c.timer = time.AfterFunc(again.Sub(now), c.recountLater)
	default:
		c.timer.Reset(again.Sub(now))
	}
}

func (c *convergence) recountLater() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recount()
}

// learn takes up an index that all nodes have applied, and wakes those who wait.
func (c *convergence) learn(converged uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.converged = max(c.converged, converged)
	c.changed.Broadcast()
}

// convergedIndex is an index that all nodes have applied.
func (c *convergence) convergedIndex() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.converged
}

// holders is what a leader of the catalog knows of the nodes that may route. A
// node that has applied an entry, or has no lease, need not be waited for.
//
//	until(n) ≥ the end of any lease that n may have, whoever granted it
//	applied  ≤ what the node has applied in this incarnation
//	longest  ≥ any lease that an earlier leader has granted, at most longestLease
type holders struct {
	term    uint64    // in which this node leads, or has led last; 0: it never has
	since   time.Time // it leads, or later
	open    bool      // the entries of earlier terms are applied
	last    uint64    // newest entry applied of those and of this term
	longest time.Duration
	said    map[string]time.Duration // that voters have answered for no longer ones
	all     map[string]*holder
}

// holder is one node.
type holder struct {
	incarnation string
	until       time.Time // of what this leader has granted it; zero: nothing
	over        bool      // it has given its lease back, or its process has ended
	applied     uint64
	goal        uint64    // an index above applied; 0: none
	lagging     time.Time // since when goal has been waited for
}

// newHolders begins a term: before, anybody may have had a lease.
func newHolders(term uint64, now time.Time) holders {
	return holders{term: term, since: now, longest: longestLease, said: map[string]time.Duration{}, all: map[string]*holder{}}
}

// noteLongest notes that a voter which has gone on to this leader's term has answered for no lease of an earlier one
// that is longer. Such a lease needs the answers of a majority, so those of another majority are all that
// this leader needs. It reports whether it has them.
func (h *holders) noteLongest(voter string, voters []string, longest time.Duration) bool {
	if !slices.Contains(voters, voter) {
		return false
	}
	h.said[voter] = longest
	said := slices.Sorted(maps.Values(h.said))
	enough := len(said) > len(voters)/2
	if enough {
		h.longest = min(h.longest, said[len(voters)/2])
	}
	return enough
}

// leaseLength is how long a lease is that was asked for.
func leaseLength(millis uint32) time.Duration {
	return min(max(time.Duration(millis)*time.Millisecond, LeaseTime), longestLease)
}

// leaseEnd is when a leader takes a lease for ended that is so long and began at from at the latest.
func leaseEnd(from time.Time, length time.Duration) time.Time {
	return from.Add(length + length/leaseDrift)
}

// requestedLeases is how long the leases were that a voter was asked for lately.
//
//	longest() ≥ any that was asked for within the last longestLease
type requestedLeases struct {
	since       time.Time // of now
	now, before time.Duration
}

func (a *requestedLeases) note(length time.Duration, at time.Time) {
	switch passed := at.Sub(a.since); {
	case passed > 2*longestLease:
		a.since, a.now, a.before = at, 0, 0
	case passed > longestLease:
		a.since, a.now, a.before = at, 0, a.now
	}
	a.now = max(a.now, length)
}

func (a *requestedLeases) longest() time.Duration { return max(a.now, a.before) }

// until is when a node's lease has ended at the latest.
func (h *holders) until(node string) time.Time {
	until := leaseEnd(h.since, h.longest)
	if x := h.all[node]; x != nil {
		if x.over {
			return time.Time{}
		}
		if x.until.After(until) {
			return x.until
		}
	}
	return until
}

// grant answers a node that asks for a lease; applied is what this node, the
// leader, has applied.
func (h *holders) grant(l *peerpb.Lease, applied uint64, now time.Time) bool {
	x := h.holder(l.Node, string(l.Incarnation))
	if x == nil {
		x = &holder{incarnation: string(l.Incarnation)}
		h.all[l.Node] = x
	}
	if l.Over {
		x.over = true
		return false
	}
	x.reached(l.Applied)
	length := leaseLength(l.Millis)
	held := now.Before(h.until(l.Node)) && !x.over
	switch {
	case !held && x.applied+leaseSlack < applied:
		return false // it has to catch up first
	case x.goal == 0 && x.applied < applied:
		x.goal, x.lagging = applied, now
	case x.goal != 0 && now.Sub(x.lagging) > leaseLag+length-LeaseTime:
		return false // nobody waits for it much longer
	}
	if until := leaseEnd(now, length); until.After(x.until) {
		x.until = until
	}
	x.over = false
	return true
}

// holder finds a node's record, if it is about this incarnation.
func (h *holders) holder(node, incarnation string) *holder {
	if x := h.all[node]; x != nil && x.incarnation == incarnation {
		return x
	}
	return nil
}

func (x *holder) reached(applied uint64) {
	x.applied = max(x.applied, applied)
	if x.applied >= x.goal {
		x.goal = 0
	}
}

// reached takes a node's word on what it has applied.
func (h *holders) reached(node, incarnation string, applied uint64) {
	if h.all[node] == nil {
		h.all[node] = &holder{incarnation: incarnation}
	}
	if x := h.holder(node, incarnation); x != nil {
		x.reached(applied)
	}
}

// ended notes that a process is known to have ended.
func (h *holders) ended(node, incarnation string) {
	if x := h.holder(node, incarnation); x != nil {
		x.over = true
	}
}

// converged returns up to which index every node that may route has applied the
// entries of this term and of those before, and when that may change by time
// alone; zero: never. self is this node, which has applied up to last.
func (h *holders) converged(nodes []string, self string, now time.Time) (index uint64, again time.Time) {
	index = h.last
	for node := range h.all {
		if !slices.Contains(nodes, node) {
			nodes = append(nodes[:len(nodes):len(nodes)], node)
		}
	}
	for _, node := range nodes {
		x, until := h.all[node], h.until(node)
		if node == self || !now.Before(until) {
			continue
		}
		applied := uint64(0)
		if x != nil {
			applied = x.applied
		}
		if applied < h.last && (again.IsZero() || until.Before(again)) {
			again = until
		}
		index = min(index, applied)
	}
	return index, again
}
