package group

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/proto/peerpb"
)

const (
	leaseEvery  = LeaseTime / 4          // between two renewals
	leaseRetry  = 50 * time.Millisecond  // between two attempts without a lease
	leaseReturn = 200 * time.Millisecond // bounds how long a lease is given back
	leaseSilent = time.Second            // without a lease, after which that is logged
	yieldEvery  = 5 * time.Second        // between two leaderships given away for a node out of reach
)

// lease is this node's right to route by its view: until it ends, the view
// holds everything that anybody has been told is done.
type lease struct {
	begin time.Time    // of the process; instants are counted from it
	until atomic.Int64 // ns
	lost  atomic.Uint64
	kick  chan struct{}
	over  atomic.Bool // it is given back
}

func newLease() lease { return lease{begin: time.Now(), kick: make(chan struct{}, 1)} }

// left is how much of the lease is left; at most 0: nothing.
func (l *lease) left() time.Duration {
	return time.Duration(l.until.Load()) - time.Since(l.begin)
}

// extend makes the lease last until an instant at least.
func (l *lease) extend(to time.Time) {
	for ns := int64(to.Sub(l.begin)); ; {
		was := l.until.Load()
		if ns <= was || l.over.Load() || l.until.CompareAndSwap(was, ns) {
			return
		}
	}
}

// hasten has the lease renewed at once.
func (l *lease) hasten() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// Fresh reports whether this node may route by its view. The view is read
// after that: one that was read before may be older.
func (k *Catalog) Fresh() bool { return k.lease.left() > 0 }

// LeaseLeft is for how long this node may route without asking again, and how
// often it has found itself without a lease; at most 0: publishes wait.
func (k *Catalog) LeaseLeft() (left time.Duration, lost uint64) {
	return k.lease.left(), k.lease.lost.Load()
}

// Refresh returns when this node's view holds everything that anybody has been
// told is done.
func (k *Catalog) Refresh(ctx context.Context) error {
	if k.Fresh() {
		return nil
	}
	k.lease.hasten()
	return k.awaitChange(ctx, "a lease", k.Fresh)
}

// keepLease renews the lease, until the catalog closes.
func (k *Catalog) keepLease() {
	had, ever, without, said := false, false, time.Now(), false
	for {
		fresh := k.Fresh()
		switch now := time.Now(); {
		case fresh && !had && said:
			k.config.Logger.Info("routes are up to date again", "after", now.Sub(without).Round(time.Millisecond))
		case !fresh && had:
			k.lease.lost.Add(1)
			without, said = now, false
		case !fresh && ever && !said && now.Sub(without) > leaseSilent: // one that starts has none yet
			said = true
			k.config.Logger.Warn("publishes wait: the catalog's leader does not say that this node is up to date")
		}
		had, ever = fresh, ever || fresh
		relay := k.lease.left() < LeaseTime/2
		k.done.Go(func() { k.renew(relay) })
		pause := leaseRetry
		if fresh {
			pause = min(leaseEvery, max(k.lease.left(), leaseRetry))
		}
		select {
		case <-k.ending:
			return
		case <-time.After(pause):
		case <-k.lease.kick:
		}
	}
}

// dropLease gives the lease back, so that nobody waits for this node.
func (k *Catalog) dropLease() {
	k.lease.over.Store(true)
	k.lease.until.Store(0)
	ctx, cancel := context.WithTimeout(context.Background(), leaseReturn)
	defer cancel()
	var wait sync.WaitGroup
	for _, node := range k.Voters() {
		if node != k.config.Node {
			wait.Go(func() { _, _ = k.askLease(ctx, node, &peerpb.Lease{Over: true}) }) // else it runs out
		}
	}
	wait.Wait()
}

// vote is a voter's answer to a question for a lease.
type vote struct {
	node  string // empty: it was relayed
	reply *peerpb.CatalogReply
}

// renew asks all voters for the term they are in, and the one that leads for a
// lease. If a majority has not gone beyond the leader's term after the question
// was asked, then there was no later leader that could have told anybody
// anything before.
func (k *Catalog) renew(relay bool) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(k.life, LeaseTime)
	defer cancel()
	voters := k.Voters()
	votes := make(chan vote, 2*len(voters))
	left := 0
	ask := func(node, as string, relay bool) {
		left++
		k.done.Go(func() {
			r, err := k.askLease(ctx, node, &peerpb.Lease{Relay: relay})
			if err != nil {
				r = nil
			}
			votes <- vote{as, r}
		})
	}
	for _, node := range voters {
		ask(node, node, false)
		if relay && node != k.config.Node {
			ask(node, "", true)
		}
	}
	answers := newTally(len(voters))
	for ; left > 0; left-- {
		g := answers.take(<-votes)
		if g == nil {
			continue
		}
		if k.await(ctx, g.Index) == nil {
			k.lease.extend(began.Add(LeaseTime))
			k.learn(g.Held)
		}
		return
	}
}

// tally is what the answers to one question for a lease come to.
type tally struct {
	voters int
	terms  map[string]uint64 // in which voters are
	grants []*peerpb.CatalogReply
}

func newTally(voters int) *tally { return &tally{voters: voters, terms: map[string]uint64{}} }

// take takes an answer, and returns a grant that holds: a majority of the voters
// has not gone beyond its term; nil: there is none so far.
func (t *tally) take(v vote) *peerpb.CatalogReply {
	if v.reply == nil {
		return nil
	}
	if v.node != "" {
		t.terms[v.node] = v.reply.Term
	}
	if v.reply.Ok {
		t.grants = append(t.grants, v.reply)
	}
	for _, g := range t.grants {
		if upTo(t.terms, g.GrantedIn) > t.voters/2 {
			return g
		}
	}
	return nil
}

// upTo counts the voters that have not gone beyond a term.
func upTo(terms map[string]uint64, term uint64) (n int) {
	for _, t := range terms {
		if t <= term {
			n++
		}
	}
	return n
}

// askLease asks one voter, which may be this node.
func (k *Catalog) askLease(ctx context.Context, node string, l *peerpb.Lease) (*peerpb.CatalogReply, error) {
	l.Node, l.Incarnation, l.Applied = k.config.Node, k.config.Incarnation[:], k.appliedIndex()
	if node == k.config.Node {
		return k.onLease(ctx, node, l), nil
	}
	return peer.Ask[peerpb.CatalogReply](ctx, k.config.Mesh, node, k.config.Kind, &peerpb.CatalogRequest{Lease: l})
}

// onLease answers a node that wants a lease.
func (k *Catalog) onLease(ctx context.Context, from string, l *peerpb.Lease) *peerpb.CatalogReply {
	r := k.raft.Load()
	if r == nil || !k.mayHold(from, l) {
		return &peerpb.CatalogReply{}
	}
	reply := &peerpb.CatalogReply{}
	if term, ok := k.enterOffice(ctx); ok {
		k.grant(from, l, term, reply)
	} else if leader := k.Leader(); l.Relay && leader != "" && leader != l.Node && leader != k.config.Node {
		l.Relay = false
		if granted, err := peer.Ask[peerpb.CatalogReply](ctx, k.config.Mesh, leader, k.config.Kind, &peerpb.CatalogRequest{Lease: l}); err == nil {
			reply = granted
		}
	}
	reply.Term = r.CurrentTerm()
	return reply
}

// mayHold reports whether there is such a node: what is committed waits for all
// that may hold a lease.
func (k *Catalog) mayHold(from string, l *peerpb.Lease) bool {
	known := l.Node == from || l.Node == k.config.Node
	for _, p := range k.config.Mesh.Peers() {
		known = known || p.Node == l.Node
	}
	return known && len(l.Incarnation) <= len(k.config.Incarnation)
}

// grant decides as the leader.
func (k *Catalog) grant(from string, l *peerpb.Lease, term uint64, reply *peerpb.CatalogReply) {
	k.mu.Lock()
	if h := &k.holders; h.term == term {
		reply.Ok = h.grant(l, k.applied, time.Now())
	}
	reply.GrantedIn, reply.Index, reply.Held = term, k.applied, k.held
	lags := l.Applied < k.applied
	k.recount()
	k.mu.Unlock()
	if lags && from != l.Node && !k.config.Mesh.Alive(l.Node) {
		k.yield(from)
	}
}

// yield hands the leadership to a node that reaches one that this node does not
// reach, and that cannot learn what the catalog holds therefore.
func (k *Catalog) yield(to string) {
	k.mu.Lock()
	now := time.Now()
	if k.closed || now.Sub(k.yielded) < yieldEvery {
		k.mu.Unlock()
		return
	}
	k.yielded = now
	k.done.Go(func() {
		err := k.Transfer(to)
		k.config.Logger.Info("the catalog's leadership goes to a node that reaches more others", "to", to, "error", err)
	})
	k.mu.Unlock()
}

// leadsIn returns the term in which this node leads the catalog's group.
func (k *Catalog) leadsIn() (term uint64, ok bool) {
	r := k.raft.Load()
	if r == nil {
		return 0, false
	}
	// Raft ceases to lead before it goes on to another term.
	term = r.CurrentTerm()
	return term, r.State() == raft.Leader && r.CurrentTerm() == term
}

// enterOffice returns the term in which this node leads the catalog and holds
// all that earlier leaders have committed.
func (k *Catalog) enterOffice(ctx context.Context) (term uint64, ok bool) {
	if term, ok = k.leadsIn(); !ok {
		return 0, false
	}
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return 0, false
	}
	if k.holders.term != term {
		k.holders = newHolders(term, time.Now())
		begun := term // what is returned may be 0
		k.done.Go(func() { k.openOffice(begun) })
	}
	open := k.holders.open
	k.mu.Unlock()
	if open {
		return term, true
	}
	if k.awaitChange(ctx, "the entries of earlier terms", func() bool { return k.holders.open || k.holders.term != term }) != nil {
		return 0, false
	}
	now, leads := k.leadsIn()
	return term, leads && now == term && k.holdersOf(term)
}

func (k *Catalog) holdersOf(term uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.holders.term == term && k.holders.open
}

// openOffice makes this node hold all that earlier leaders have committed.
func (k *Catalog) openOffice(term uint64) {
	err := k.ask(k.raft.Load().Barrier(0))
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.holders.term != term {
		return
	}
	if err != nil || k.appliedTerm > term {
		k.holders = holders{} // it is tried again, if this node leads still
	} else {
		k.holders.open, k.holders.last = true, k.applied
	}
	k.recount()
	k.changed.Broadcast()
}

// recount finds out what all nodes hold, and wakes those who wait. mu is held.
func (k *Catalog) recount() {
	if !k.holders.open {
		return
	}
	now := time.Now()
	held, again := k.holders.held(k.nodes, k.config.Node, now)
	if held > k.held {
		k.held = held
		k.changed.Broadcast()
	}
	switch {
	case again.IsZero() || k.closed:
	case k.timer == nil:
		k.timer = time.AfterFunc(again.Sub(now), k.recountLater)
	default:
		k.timer.Reset(again.Sub(now))
	}
}

func (k *Catalog) recountLater() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.recount()
}

// learn notes an index that all nodes hold, and wakes those who wait.
func (k *Catalog) learn(held uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held = max(k.held, held)
	k.changed.Broadcast()
}

// awaitHeld returns when all nodes that may route hold an entry that this node
// has committed as the leader.
func (k *Catalog) awaitHeld(ctx context.Context, index uint64) error {
	return k.awaitChange(ctx, "all nodes", func() bool { return k.held >= index })
}

// Converge returns when all nodes that may route hold what this node's view
// holds: what is there without having been proposed here may not be at another
// node yet.
func (k *Catalog) Converge(ctx context.Context) error {
	index := k.View().Index()
	for {
		k.mu.Lock()
		held := k.held
		k.mu.Unlock()
		if held >= index {
			return nil
		}
		err := k.askHeld(ctx, index)
		if err == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(catalogRetry):
		}
	}
}

func (k *Catalog) askHeld(ctx context.Context, index uint64) error {
	leader := k.Leader()
	switch leader {
	case "":
		return errNoCatalogLeader
	case k.config.Node:
		if _, ok := k.enterOffice(ctx); !ok {
			return errNoCatalogLeader
		}
		return k.awaitHeld(ctx, index)
	}
	reply, err := peer.Ask[peerpb.CatalogReply](ctx, k.config.Mesh, leader, k.config.Kind, &peerpb.CatalogRequest{Hold: index})
	switch {
	case err != nil:
		return err
	case !reply.Ok:
		return errNoCatalogLeader
	}
	k.learn(reply.Held)
	return nil
}

// onHold answers askHeld.
func (k *Catalog) onHold(ctx context.Context, index uint64) *peerpb.CatalogReply {
	ctx, cancel := context.WithTimeout(ctx, catalogApplyWait)
	defer cancel()
	_, leads := k.enterOffice(ctx)
	ok := leads && k.awaitHeld(ctx, index) == nil
	k.mu.Lock()
	defer k.mu.Unlock()
	return &peerpb.CatalogReply{Ok: ok, Held: k.held}
}

// appliedSize is that of a message that says what a node has applied.
const appliedSize = 16 + 8

// reportApplied tells the leader what this node has applied, until the catalog
// closes.
func (k *Catalog) reportApplied() {
	last := uint64(0)
	for {
		if k.awaitChange(k.life, "an entry", func() bool { return k.applied > last }) != nil {
			return
		}
		last = k.appliedIndex()
		leader := k.Leader()
		if leader == "" || leader == k.config.Node {
			continue
		}
		m := binary.BigEndian.AppendUint64(slices.Clone(k.config.Incarnation[:]), last)
		if k.config.Mesh.Send(leader, k.config.KindApplied, m) != nil {
			k.lease.hasten() // the question for a lease says it, too
		}
	}
}

// onApplied takes what another node says it has applied.
func (k *Catalog) onApplied(from string, head, _ []byte) {
	if len(head) != appliedSize {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.holders.open {
		k.holders.reached(from, string(head[:16]), binary.BigEndian.Uint64(head[16:]))
		k.recount()
	}
}

// PeerChanged is told when a node came or went.
func (k *Catalog) PeerChanged(ev peer.Event) {
	switch {
	case ev.Up:
		k.lease.hasten()
		return
	case ev.Reason == peer.Restarted:
		k.mu.Lock()
		if k.holders.open {
			k.holders.ended(ev.Node, string(ev.Incarnation[:]))
			k.recount()
		}
		k.mu.Unlock()
	}
	if k.Started() && k.Leader() == ev.Node {
		k.mu.Lock()
		if !k.closed {
			k.done.Go(func() { k.succeed(ev.Node) })
		}
		k.mu.Unlock()
	}
}

// campaignStep is the pause between the campaigns of those who may follow a
// dead leader.
const campaignStep = 200 * time.Millisecond

// succeed stands for election in the place of a leader that is dead, unless
// somebody before this node in the order of the voters has been elected.
func (k *Catalog) succeed(dead string) {
	voters := slices.DeleteFunc(k.Voters(), func(n string) bool { return !k.config.Mesh.Alive(n) })
	place := slices.Index(voters, k.config.Node)
	if place < 0 {
		return
	}
	select {
	case <-k.ending:
		return
	case <-time.After(time.Duration(place) * campaignStep):
	}
	if leader := k.Leader(); (leader == dead || leader == "") && !k.config.Mesh.Alive(dead) {
		k.config.Mesh.Campaign(catalogGroup)
	}
}
