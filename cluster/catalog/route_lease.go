package catalog

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/proto/peerpb"
)

const (
	leaseEvery  = LeaseTime / 4          // between two renewals
	leaseRest   = 2 * leaseEvery         // between two renewals of a lease that is not used
	leaseUnused = 10                     // checks without a use after which it is not
	leaseRetry  = 50 * time.Millisecond  // between two attempts without a lease
	leaseReturn = 200 * time.Millisecond // bounds how long a lease is given back
	leaseWarn   = time.Second            // without a lease, after which that is logged
	cedeRest    = time.Second            // after a leadership has been ceded
)

// routeLease is this node's right to route by its view: until it ends, the view
// holds everything that anybody has been told is done.
type routeLease struct {
	voters func() []string
	// ask asks a voter, which may be this node.
	ask     func(ctx context.Context, node string, l *peerpb.Lease) (*peerpb.CatalogReply, error)
	apply   func(ctx context.Context, granted *peerpb.CatalogReply) error // returns when the view holds what was granted
	renewed func(granted *peerpb.CatalogReply)                            // is called when the lease has been extended
	spawn   func(f func())
	node    string // this one
	slog    *slog.Logger
	worker  *worker.Worker

	begin time.Time    // of the process; instants are counted from it
	until atomic.Int64 // ns
	lost  atomic.Uint64
	over  atomic.Bool  // it is given back
	takes atomic.Int64 // ns, what a renewal takes of late, from the question to the lease
	used  atomic.Bool  // since the last check

	// Of the goroutine that renews.
	requested         time.Time // when the last renewal began
	unused            int       // checks since the last use
	had, ever, warned bool
	without           time.Time // since when there is no lease
}

func newRouteLease(node string, log *slog.Logger) routeLease {
	now := time.Now()
	return routeLease{node: node, slog: log, worker: worker.New(worker.Options{}), begin: now, without: now}
}

// left is how much of the lease is left; at most 0: nothing.
func (l *routeLease) left() time.Duration {
	return time.Duration(l.until.Load()) - time.Since(l.begin)
}

// extend makes the lease last until an instant at least.
func (l *routeLease) extend(to time.Time) {
	for ns := int64(to.Sub(l.begin)); ; {
		was := l.until.Load()
		if ns <= was || l.over.Load() || l.until.CompareAndSwap(was, ns) {
			return
		}
	}
}

// length is how long a lease has to be to last for LeaseTime when it has been got.
func (l *routeLease) length() time.Duration {
	return min(LeaseTime+time.Duration(l.takes.Load()), longestLease)
}

// took notes what a renewal took. One that took long counts for some more.
func (l *routeLease) took(d time.Duration) {
	l.takes.Store(int64(max(d, time.Duration(l.takes.Load())*7/8)))
}

// keep renews the lease, until ctx ends.
func (l *routeLease) keep(ctx context.Context) {
	l.worker.Run(ctx.Done(), func(now time.Time) time.Duration {
		fresh := l.left() > 0
		l.note(fresh, now)
		if again := l.rest(now); again > 0 {
			return again
		}
		l.requested = now
		relay := l.left() < LeaseTime/2
		l.spawn(func() { l.renew(ctx, relay) })
		if fresh {
			return min(leaseEvery, max(l.left(), leaseRetry))
		}
		return min(max(now.Sub(l.without)/4, leaseRetry), leaseEvery)
	})
}

// rest returns the time until the next renewal, if the last one has succeeded and the lease is not used;
// 0: it has to be renewed.
func (l *routeLease) rest(now time.Time) (again time.Duration) {
	if l.unused++; l.used.Swap(false) {
		l.unused = 0
	}
	const early = leaseEvery / 8
	again = worker.Next(leaseRest)
	renewed := l.left() > LeaseTime-leaseEvery-2*early
	if l.unused < leaseUnused || !renewed || now.Sub(l.requested) < leaseEvery-early || again > leaseEvery+early {
		return 0
	}
	return again
}

// note counts and logs when the lease is lost, and when there is one again.
func (l *routeLease) note(fresh bool, now time.Time) {
	switch {
	case fresh && !l.had && l.warned:
		l.slog.Info("routes are up to date again", "after", now.Sub(l.without).Round(time.Millisecond))
	case !fresh && l.had:
		l.lost.Add(1)
		l.without, l.warned = now, false
	case !fresh && l.ever && !l.warned && now.Sub(l.without) > leaseWarn: // one that starts has none yet
		l.warned = true
		l.slog.Warn("publishes wait: the catalog's leader does not confirm that this node is up to date")
	}
	l.had, l.ever = fresh, l.ever || fresh
}

// drop gives the lease back, so that nobody waits for this node.
func (l *routeLease) drop() {
	l.over.Store(true)
	l.until.Store(0)
	ctx, cancel := context.WithTimeout(context.Background(), leaseReturn)
	defer cancel()
	voters := l.voters()
	worker.Each(-1, voters, func(_ int, node string) {
		if node != l.node {
			_, _ = l.ask(ctx, node, &peerpb.Lease{Over: true}) // else it runs out
		}
	})
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
func (l *routeLease) renew(ctx context.Context, relay bool) {
	began, length := time.Now(), l.length()
	ctx, cancel := context.WithTimeout(ctx, longestLease)
	defer cancel()
	voters := l.voters()
	votes := make(chan vote, 2*len(voters))
	left := 0
	ask := func(node, as string, relay bool) {
		left++
		l.spawn(func() {
			r, err := l.ask(ctx, node, &peerpb.Lease{Relay: relay, Millis: uint32(length.Milliseconds())})
			if err != nil {
				r = nil
			}
			votes <- vote{as, r}
		})
	}
	for _, node := range voters {
		ask(node, node, false)
		if relay && node != l.node {
			ask(node, "", true)
		}
	}
	answers := newTally(len(voters))
	for ; left > 0; left-- {
		var v vote
		select {
		case v = <-votes:
		case <-ctx.Done():
			return
		}
		if g, length := answers.take(v); g != nil {
			if l.apply(ctx, g) == nil {
				l.took(time.Since(began))
				l.extend(began.Add(length))
				l.renewed(g)
			}
			return
		}
	}
}

// tally is what the answers to one question for a lease come to.
type tally struct {
	voters int
	said   map[string]*peerpb.CatalogReply // by voters, of themselves
	grants []*peerpb.CatalogReply
}

func newTally(voters int) *tally {
	return &tally{voters: voters, said: map[string]*peerpb.CatalogReply{}}
}

// take takes an answer, and returns a grant that holds, and for how long: a majority of the voters has not
// gone beyond its term, and knows of leases of that length; nil: there is none so far. Who says no term has
// not opened its log, and may have been in any.
func (t *tally) take(v vote) (grant *peerpb.CatalogReply, length time.Duration) {
	if v.reply == nil || v.reply.Term == 0 {
		return nil, 0
	}
	if v.node != "" {
		t.said[v.node] = v.reply
	}
	if v.reply.Ok {
		t.grants = append(t.grants, v.reply)
	}
	for _, g := range t.grants {
		n, length := 0, leaseLength(g.GrantedMillis)
		for _, said := range t.said {
			if said.Term <= g.GrantedIn {
				n, length = n+1, min(length, leaseLength(said.LongestMillis))
			}
		}
		if n > t.voters/2 {
			return g, length
		}
	}
	return nil, 0
}

// Fresh reports whether this node may route by its view. The view is read
// after that: one that was read before may be older.
func (k *Catalog) Fresh() bool {
	if !k.lease.used.Load() { // mostly it is: this is asked for each message
		k.lease.used.Store(true)
	}
	return k.lease.left() > 0
}

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
	k.lease.worker.Wake()
	return k.convergence.awaitChange(ctx, "a lease", k.Fresh) // which a renewal changes, by what it has learnt
}

// askLease asks one voter, which may be this node.
func (k *Catalog) askLease(ctx context.Context, node string, l *peerpb.Lease) (*peerpb.CatalogReply, error) {
	k.adaptElections() // while there is no leader, too
	l.Node, l.Incarnation, l.Applied = k.Node(), k.config.Incarnation[:], k.convergence.appliedIndex()
	var reply *peerpb.CatalogReply
	var err error
	if node == k.Node() {
		reply = k.onLease(ctx, node, l)
	} else if reply, err = peer.Ask[peerpb.CatalogReply](ctx, k.config.Mesh, node, k.config.Kind, &peerpb.CatalogRequest{Lease: l}); err != nil {
		return nil, err
	}
	k.convergence.learnLongest(node, k.Voters(), reply)
	return reply, nil
}

// onLease answers a node that wants a lease.
func (k *Catalog) onLease(ctx context.Context, from string, l *peerpb.Lease) *peerpb.CatalogReply {
	r := k.Raft()
	if r == nil || !k.mayHold(from, l) {
		return &peerpb.CatalogReply{}
	}
	k.convergence.answersFor(leaseLength(l.Millis)) // before it says its term
	reply := &peerpb.CatalogReply{}
	if term, ok := k.beginTerm(ctx); ok {
		k.grant(from, l, term, reply)
	} else if leader := k.Leader(); l.Relay && leader != "" && leader != l.Node && leader != k.Node() {
		l.Relay = false
		if granted, err := peer.Ask[peerpb.CatalogReply](ctx, k.config.Mesh, leader, k.config.Kind, &peerpb.CatalogRequest{Lease: l}); err == nil {
			reply = granted
		}
	}
	reply.Term = r.CurrentTerm()
	reply.LongestMillis = uint32(k.convergence.longest().Milliseconds()) // after that
	return reply
}

// mayHold reports whether there is such a node: what is committed waits for all
// that may hold a lease.
func (k *Catalog) mayHold(from string, l *peerpb.Lease) bool {
	known := l.Node == from || l.Node == k.Node()
	for _, p := range k.config.Mesh.Peers() {
		known = known || p.Node == l.Node
	}
	return known && len(l.Incarnation) <= len(k.config.Incarnation)
}

// grant decides as the leader.
func (k *Catalog) grant(from string, l *peerpb.Lease, term uint64, reply *peerpb.CatalogReply) {
	k.convergence.grant(l, term, reply)
	if l.Applied < reply.Index && from != l.Node && !k.config.Mesh.Alive(l.Node) {
		k.cede(from)
	}
}

// cede hands the leadership to a node that reaches one that this node does not
// reach, and that cannot learn what the catalog holds therefore. If each reaches
// one that the other does not, it does not go back at once.
func (k *Catalog) cede(to string) {
	if k.MayMove() && k.ceding.CompareAndSwap(false, true) {
		k.tasks.Go(func() {
			defer k.ceding.Store(false)
			err := k.Transfer(to)
			k.slog.Info("handing the leadership over to a node that reaches more of the others", "to", to, "error", err)
			select {
			case <-time.After(cedeRest):
			case <-k.Ending():
			}
		})
	}
}

// beginTerm returns the term in which this node leads the catalog and holds
// all that earlier leaders have committed.
func (k *Catalog) beginTerm(ctx context.Context) (term uint64, ok bool) {
	if term, ok = k.LeadsIn(); !ok || k.IsClosed() {
		return 0, false
	}
	begun, open := k.convergence.begin(term, time.Now())
	if begun {
		opens := term // what is returned may be 0
		k.tasks.Go(func() { k.convergence.open(opens, k.wait(k.Raft().Barrier(0))) })
	}
	if open {
		return term, true
	}
	if k.convergence.awaitOpen(ctx, term) != nil {
		return 0, false
	}
	now, leads := k.LeadsIn()
	return term, leads && now == term && k.convergence.isOpen(term)
}

// Converge returns when all nodes that may route hold what this node's view
// holds: what is there without having been proposed here may not be at another
// node yet.
func (k *Catalog) Converge(ctx context.Context) error {
	index := k.View().Index()
	for {
		if k.convergence.convergedIndex() >= index {
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
	case k.Node():
		if _, ok := k.beginTerm(ctx); !ok {
			return errNoCatalogLeader
		}
		return k.convergence.awaitConverged(ctx, index)
	}
	reply, err := peer.Ask[peerpb.CatalogReply](ctx, k.config.Mesh, leader, k.config.Kind, &peerpb.CatalogRequest{Hold: index})
	switch {
	case err != nil:
		return err
	case !reply.Ok:
		return errNoCatalogLeader
	}
	k.convergence.learn(reply.Held)
	return nil
}

// onHold answers askHeld.
func (k *Catalog) onHold(ctx context.Context, index uint64) *peerpb.CatalogReply {
	ctx, cancel := context.WithTimeout(ctx, catalogApplyWait)
	defer cancel()
	_, leads := k.beginTerm(ctx)
	ok := leads && k.convergence.awaitConverged(ctx, index) == nil
	return &peerpb.CatalogReply{Ok: ok, Held: k.convergence.convergedIndex()}
}

// appliedSize is that of a message that says what a node has applied.
const appliedSize = 16 + 8

// reportApplied tells the leader what this node has applied, until the catalog
// closes.
func (k *Catalog) reportApplied() {
	last := uint64(0)
	for {
		if k.convergence.await(k.tasks.Life(), last+1) != nil {
			return
		}
		last = k.convergence.appliedIndex()
		leader := k.Leader()
		if leader == "" || leader == k.Node() {
			continue
		}
		m := binary.BigEndian.AppendUint64(slices.Clone(k.config.Incarnation[:]), last)
		if k.config.Mesh.Send(leader, k.config.KindApplied, m) != nil {
			k.lease.worker.Wake() // the question for a lease says it, too
		}
	}
}

// onApplied takes what another node says it has applied.
func (k *Catalog) onApplied(from string, head, _ []byte) {
	if len(head) != appliedSize {
		return
	}
	k.convergence.reached(from, string(head[:16]), binary.BigEndian.Uint64(head[16:]))
}

// PeerChanged is called when a node came or went.
func (k *Catalog) PeerChanged(ev peer.Event) {
	switch {
	case ev.Up:
		k.lease.worker.Wake()
		return
	case ev.Reason == peer.Restarted:
		k.convergence.over(ev.Node, string(ev.Incarnation[:]))
	}
	if k.Started() && k.needsLeader(ev) {
		k.tasks.Go(func() { k.succeed(ev.Node) })
	}
}

// needsLeader reports whether the catalog needs another leader because a node went down. Raft may know no
// leader any more: its own timer may have been first. If the node is merely silent, and this one has a
// lease, the leader lives and has granted that through another voter. What was granted over the silent
// link itself has ended, for a lease is shorter than the time after which the mesh suspects a node, by 0.3 s,
// and both are longer by the round trip of the link.
func (k *Catalog) needsLeader(ev peer.Event) bool {
	if leader := k.Leader(); leader != "" && leader != ev.Node {
		return false
	}
	return ev.Reason != peer.Suspected || k.lease.left() <= 0
}

// campaignStep is the pause between the campaigns of those who may follow a
// dead leader, beside the time that an answer takes.
const campaignStep = 200 * time.Millisecond

// succeed stands for election in the place of a leader that is dead, unless
// somebody before this node in the order of the voters has been elected.
func (k *Catalog) succeed(dead string) {
	voters := slices.DeleteFunc(k.Voters(), func(n string) bool { return !k.config.Mesh.Alive(n) })
	place := slices.Index(voters, k.Node())
	if place < 0 {
		return
	}
	select {
	case <-k.Ending():
		return
	case <-time.After(time.Duration(place) * (campaignStep + k.config.Mesh.Slack(k.Voters()...))):
	}
	if leader := k.Leader(); (leader == dead || leader == "") && !k.config.Mesh.Alive(dead) {
		replica.Stand(k.config.Mesh, replica.CatalogGroup, k.Node(), k)
	}
}
