package catalog

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/peerpb"
)

// ledTable is a leader's table of holders with three nodes, in a time of its own.
type ledTable struct {
	t *testing.T
	holders
	now   time.Time
	nodes []string
}

func newLedTable(t *testing.T) *ledTable {
	o := &ledTable{t: t, now: time.Unix(1000, 0), nodes: []string{"n1", "n2", "n3"}}
	o.holders = newHolders(5, o.now)
	o.open = true
	for _, voter := range o.nodes[:2] {
		o.noteLongest(voter, o.nodes, LeaseTime)
	}
	return o
}

func (o *ledTable) pass(d time.Duration) { o.now = o.now.Add(d) }

func (o *ledTable) ask(node string, applied uint64) bool {
	return o.grant(&peerpb.Lease{Node: node, Incarnation: []byte("1"), Applied: applied}, o.last, o.now)
}

func (o *ledTable) expect(want uint64, again time.Duration) {
	o.t.Helper()
	index, at := o.converged(o.nodes, "n1", o.now)
	left := time.Duration(0)
	if !at.IsZero() {
		left = at.Sub(o.now)
	}
	if index != want || left != again {
		o.t.Errorf("held %d, again after %v; want %d, %v", index, left, want, again)
	}
}

const whole = LeaseTime + LeaseTime/leaseDrift

// TestHolders follows what a leader waits for.
func TestHolders(t *testing.T) {
	for name, run := range map[string]func(o *ledTable){
		"a new leader waits for whoever an earlier one may have granted a lease": func(o *ledTable) {
			o.last = 10
			o.expect(0, whole)
			o.pass(whole - 1)
			o.expect(0, 1)
			o.pass(1)
			o.expect(10, 0)
		},
		"until a majority of voters has said more, it waits for the longest there may be": func(o *ledTable) {
			o.holders = newHolders(6, o.now)
			o.open, o.last = true, 10
			o.expect(0, longestLease+longestLease/leaseDrift)
			o.noteLongest("n1", o.nodes, LeaseTime)
			o.noteLongest("n9", o.nodes, LeaseTime) // no voter
			o.expect(0, longestLease+longestLease/leaseDrift)
			o.noteLongest("n2", o.nodes, 2*LeaseTime)
			o.expect(0, 2*whole)
			o.noteLongest("n3", o.nodes, LeaseTime) // with n1 it is a majority, too
			o.expect(0, whole)
		},
		"a long lease is waited for to its end, whatever was granted after it": func(o *ledTable) {
			long := &peerpb.Lease{Node: "n3", Incarnation: []byte("1"), Millis: 2000}
			o.grant(long, o.last, o.now)
			o.pass(LeaseTime / 2)
			o.ask("n3", 0)
			o.reached("n2", "1", 1)
			o.last = 1
			o.expect(0, 2*whole-LeaseTime/2)
			long.Millis = 3_600_000
			o.grant(long, o.last, o.now)
			o.expect(0, longestLease+longestLease/leaseDrift)
		},
		"a node whose answers take a second has that time to apply": func(o *ledTable) {
			o.last = 1
			o.reached("n2", "1", 1)
			refused := time.Duration(0)
			for at := time.Duration(0); at < 3*time.Second && refused == 0; at += leaseEvery {
				if !o.grant(&peerpb.Lease{Node: "n3", Incarnation: []byte("1"), Millis: 2000}, o.last, o.now) {
					refused = at
				}
				o.pass(leaseEvery)
			}
			if refused < leaseLag+LeaseTime || refused > leaseLag+LeaseTime+leaseEvery {
				o.t.Errorf("refused after %v", refused)
			}
		},
		"a node that has applied an entry is not waited for": func(o *ledTable) {
			o.last = 10
			o.reached("n2", "1", 10)
			o.expect(0, whole)
			o.reached("n3", "1", 9)
			o.expect(9, whole)
			o.reached("n3", "1", 12)
			o.expect(10, 0)
		},
		"a lease is waited for from its grant on": func(o *ledTable) {
			o.ask("n2", 0)
			o.ask("n3", 0)
			o.pass(time.Second / 2)
			o.ask("n3", 0)
			o.pass(time.Second)
			o.last = 1
			o.expect(0, whole-time.Second)
			o.pass(whole - time.Second)
			o.expect(1, 0)
		},
		"a lease that is given back is not waited for": func(o *ledTable) {
			for _, n := range o.nodes {
				o.ask(n, 0)
			}
			o.last = 1
			o.reached("n2", "1", 1)
			o.grant(&peerpb.Lease{Node: "n3", Incarnation: []byte("1"), Over: true}, o.last, o.now)
			o.expect(1, 0)
			if !o.ask("n3", 0) {
				o.t.Error("no new lease")
			}
			o.expect(0, whole)
		},
		"the lease of a process that has ended is not waited for, that of its successor is": func(o *ledTable) {
			o.ask("n3", 0)
			o.last = 1
			o.reached("n2", "1", 1)
			o.ended("n3", "other")
			o.expect(0, whole)
			o.ended("n3", "1")
			o.expect(1, 0)
			o.grant(&peerpb.Lease{Node: "n3", Incarnation: []byte("2")}, o.last, o.now)
			o.ended("n3", "1")
			o.reached("n3", "1", 1) // said by the one that has ended
			o.expect(0, whole)
		},
		"a node that does not answer is not waited for again before it has caught up": func(o *ledTable) {
			o.pass(whole)
			o.last = 1000
			o.expect(1000, 0)
			if o.ask("n3", 1000-leaseSlack-1) {
				o.t.Error("a lease for a node that lags")
			}
			o.expect(1000, 0)
			if !o.ask("n3", 1000-leaseSlack) {
				o.t.Error("no lease for a node that has caught up")
			}
			o.expect(1000-leaseSlack, whole)
		},
		"a node that asks and does not apply loses its lease": func(o *ledTable) {
			o.ask("n2", 0)
			o.ask("n3", 0)
			o.last = 1
			o.reached("n2", "1", 1)
			refused := time.Duration(0)
			for at := time.Duration(0); at < 3*time.Second; at += leaseEvery {
				if !o.ask("n3", 0) && refused == 0 {
					refused = at
				}
				o.ask("n2", 1)
				o.pass(leaseEvery)
			}
			if refused == 0 || refused > leaseLag+leaseEvery {
				o.t.Errorf("refused after %v", refused)
			}
			o.expect(1, 0)
			if !o.ask("n3", 1) {
				o.t.Error("no lease for a node that has caught up")
			}
		},
		"a node that applies and is never quite there keeps its lease": func(o *ledTable) {
			for range 100 {
				o.last += 10
				if !o.ask("n3", o.last-5) {
					o.t.Fatal("refused")
				}
				o.pass(leaseEvery)
			}
		},
		"a node that has a lease and is not in the view is waited for": func(o *ledTable) {
			o.pass(whole)
			o.ask("n4", 0)
			o.last = 1
			o.expect(0, whole)
		},
	} {
		t.Run(name, func(t *testing.T) { run(newLedTable(t)) })
	}
}

// A grant holds when a majority of the voters says that it has not gone beyond
// its term: what was relayed is a grant, and nobody's word on a term.
func TestTally(t *testing.T) {
	in := func(term uint64) *peerpb.CatalogReply { return &peerpb.CatalogReply{Term: term} }
	grant := func(term uint64) *peerpb.CatalogReply {
		return &peerpb.CatalogReply{Term: term, Ok: true, GrantedIn: term}
	}
	for name, c := range map[string]struct {
		answers []vote
		want    uint64 // term of the grant that holds; 0: none
	}{
		"a majority of three":       {[]vote{{"n1", grant(5)}, {"n2", in(5)}}, 5},
		"one of three":              {[]vote{{"n1", grant(5)}, {"n2", nil}}, 0},
		"two have gone on":          {[]vote{{"n1", grant(5)}, {"n2", in(6)}, {"n3", in(6)}}, 0},
		"one has gone on":           {[]vote{{"n1", grant(5)}, {"n2", in(6)}, {"n3", in(4)}}, 5},
		"nobody grants":             {[]vote{{"n1", in(5)}, {"n2", in(5)}, {"n3", in(5)}}, 0},
		"relayed only":              {[]vote{{"", grant(5)}, {"n2", in(5)}}, 0},
		"relayed, and a majority":   {[]vote{{"", grant(5)}, {"n2", in(5)}, {"n3", in(5)}}, 5},
		"a former leader and a new": {[]vote{{"n1", grant(5)}, {"n2", grant(6)}, {"n3", in(6)}}, 6},
		"half of four":              {[]vote{{"n1", grant(5)}, {"n2", in(5)}, {"n3", in(6)}, {"n4", in(6)}}, 0},
		"one has no term yet":       {[]vote{{"n1", grant(5)}, {"n2", in(0)}}, 0},
		"three of four":             {[]vote{{"n1", grant(5)}, {"n2", in(5)}, {"n3", in(5)}, {"n4", nil}}, 5},
	} {
		answers := newTally(max(3, len(c.answers)))
		got := uint64(0)
		for _, v := range c.answers {
			if g, _ := answers.take(v); g != nil {
				got = g.GrantedIn
				break
			}
		}
		if got != c.want {
			t.Errorf("%s: the grant of term %d holds, want %d", name, got, c.want)
		}
	}
}

// A lease is as long as its leader has granted and each voter that counts has noted. Who does not say how
// long that is means a second.
func TestTallyOfLengths(t *testing.T) {
	for name, c := range map[string]struct {
		granted, first, second uint32
		want                   time.Duration
	}{
		"all know":            {2000, 2000, 2500, 2 * time.Second},
		"the leader does not": {0, 2000, 2000, time.Second},
		"a voter does not":    {2000, 0, 2000, time.Second},
		"it may be too long":  {5000, 5000, 5000, longestLease},
	} {
		answers := newTally(3)
		answers.take(vote{"n1", &peerpb.CatalogReply{Ok: true, Term: 5, GrantedIn: 5, GrantedMillis: c.granted, LongestMillis: c.first}})
		if g, length := answers.take(vote{"n2", &peerpb.CatalogReply{Term: 5, LongestMillis: c.second}}); g == nil || length != c.want {
			t.Errorf("%s: %v", name, length)
		}
	}
}

// A voter remembers the longest lease that it was asked for until that has ended, and not much longer.
func TestRequestedLeases(t *testing.T) {
	var a requestedLeases
	now := time.Unix(1000, 0)
	a.note(2*time.Second, now)
	for range 200 {
		last := now
		now = now.Add(50 * time.Millisecond)
		a.note(time.Second, now)
		if held := last.Sub(time.Unix(1000, 0)) < longestLease; held && a.longest() != 2*time.Second {
			t.Fatalf("%v after %v", a.longest(), last.Sub(time.Unix(1000, 0)))
		}
	}
	if a.longest() != time.Second {
		t.Errorf("%v after 10 s", a.longest())
	}
}

// member is a node of a simulated cluster.
type member struct {
	name      string
	term      uint64
	applied   uint64
	until     time.Time // of its lease
	table     holders   // as the leader that it is, or takes itself for
	leads     bool
	requested requestedLeases
	far       bool      // it asks for long leases
	cut       time.Time // until then it hears nobody, and nobody it
}

// question is one for a lease, on its way.
type question struct {
	of      *member
	began   time.Time
	lease   *peerpb.Lease
	answers *tally
}

// simulation is a cluster whose messages take any time, and whose leaders
// change without knowing of each other.
type simulation struct {
	t         *testing.T
	random    *rand.Rand
	now       time.Time
	nodes     []*member
	names     []string
	term      uint64
	committed uint64
	under     []func() // messages under way
	held      int      // entries that were found to be held by all
	distant   bool     // some nodes ask for long leases
}

// TestHeldIsHeld lets leaders come and go, nodes lag and messages be late, and
// checks that no node has a lease that lacks what any leader says all hold.
func TestHeldIsHeld(t *testing.T) {
	held := 0
	for seed := range uint64(120) {
		s := &simulation{t: t, random: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1000, 0), names: []string{"n1", "n2", "n3"}, term: 1, distant: seed%2 == 1}
		for _, name := range s.names {
			s.nodes = append(s.nodes, &member{name: name, term: 1})
		}
		for range 4000 {
			s.step()
			if s.check(); t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
		held += s.held
	}
	if held < 10_000 {
		t.Errorf("only %d entries were held", held)
	}
}

func (s *simulation) any() *member { return s.nodes[s.random.IntN(len(s.nodes))] }

func (s *simulation) step() {
	m := s.any()
	switch n := s.random.IntN(100); {
	case n < 25:
		s.now = s.now.Add(time.Duration(s.random.IntN(60)) * time.Millisecond)
	case n < 45:
		if !s.distant || s.random.IntN(3) == 0 { // leases are got soon after they are asked for
			s.ask(m)
		}
	case n < 85 && len(s.under) > 0:
		i := s.random.IntN(len(s.under))
		f := s.under[i]
		s.under = slices.Delete(s.under, i, i+1)
		if s.random.IntN(20) > 0 {
			f()
		}
	case n < 90:
		s.commit()
	case n < 98:
		s.apply(m)
	case n < 99 && s.random.IntN(6) == 0:
		s.elect(m)
	case s.distant && s.random.IntN(10) == 0:
		m.far = !m.far
	case s.distant && s.random.IntN(3) == 0:
		m.cut = s.now.Add(time.Duration(s.random.IntN(4000)) * time.Millisecond)
	case s.random.IntN(20) == 0: // it restarts, and knows no more what it was asked
		m.requested = requestedLeases{}
		m.requested.note(longestLease, s.now)
	}
}

func (s *simulation) send(f func()) { s.under = append(s.under, f) }

func (s *simulation) cut(m *member) bool { return m.cut.After(s.now) }

// elect makes m the leader of a new term, with the votes of a majority.
func (s *simulation) elect(m *member) {
	voter := s.any()
	for voter == m {
		voter = s.any()
	}
	if s.cut(m) || s.cut(voter) {
		return
	}
	s.term++
	m.term, voter.term, voter.leads = s.term, s.term, false
	m.leads, m.applied = true, s.committed
	m.table = newHolders(s.term, s.now)
	m.table.open, m.table.last = true, m.applied
}

// commit adds an entry to the log of the newest leader.
func (s *simulation) commit() {
	for _, m := range s.nodes {
		if m.leads && m.term == s.term && !s.cut(m) {
			s.committed++
			m.applied, m.table.last = s.committed, s.committed
		}
	}
}

// apply brings a node forward, and lets some leader know.
func (s *simulation) apply(m *member) {
	if s.cut(m) {
		return
	}
	if m.applied < s.committed {
		m.applied += 1 + s.random.Uint64N(s.committed-m.applied)
	}
	applied, to := m.applied, s.any()
	s.send(func() {
		if to.leads {
			to.table.reached(m.name, "", applied)
		}
	})
}

func (s *simulation) ask(m *member) {
	q := &question{of: m, began: s.now, lease: &peerpb.Lease{Node: m.name, Applied: m.applied}, answers: newTally(len(s.nodes))}
	if m.far {
		q.lease.Millis = 1000 + s.random.Uint32N(2000)
	}
	for _, to := range s.nodes {
		if s.random.IntN(3) == 0 || s.cut(m) && to != m {
			continue // it is out of reach
		}
		s.send(func() {
			if s.cut(to) && to != m {
				return
			}
			reply := &peerpb.CatalogReply{}
			to.requested.note(leaseLength(q.lease.Millis), s.now)
			if to.leads {
				reply.Ok = to.table.grant(q.lease, to.applied, s.now)
				reply.GrantedIn, reply.Index, reply.GrantedMillis = to.table.term, to.applied, q.lease.Millis
			}
			reply.Term, reply.LongestMillis = to.term, uint32(to.requested.longest().Milliseconds())
			s.send(func() { s.answered(q, to, reply) })
		})
	}
}

func (s *simulation) answered(q *question, from *member, r *peerpb.CatalogReply) {
	if m := q.of; m.leads && r.Term >= m.term {
		m.table.noteLongest(from.name, s.names, leaseLength(r.LongestMillis))
	}
	g, length := q.answers.take(vote{from.name, r})
	if g != nil && q.of.applied >= g.Index && q.began.Add(length).After(q.of.until) {
		q.of.until = q.began.Add(length)
	}
}

// check holds what leaders say against the leases.
func (s *simulation) check() {
	for _, l := range s.nodes {
		if !l.leads {
			continue
		}
		held, _ := l.table.converged(s.names, l.name, s.now)
		for _, m := range s.nodes {
			if m.until.After(s.now) && m.applied < held {
				s.t.Errorf("%s says that all hold %d; %s routes by %d", l.name, held, m.name, m.applied)
			}
		}
		if l.term == s.term && held == s.committed {
			s.held++
		}
	}
}

// A term of the catalog's leader opens with all that was applied before; who waits
// for an entry goes on when this node has applied it, and who waits for all nodes
// when the others have, too, or have no lease.
func TestConvergenceAlone(t *testing.T) {
	c := &convergence{}
	c.init("n1")
	view := (&catalog.Catalog{}).View()
	c.applied(view, 3, 1)
	if begun, open := c.begin(2, time.Now()); !begun || open {
		t.Errorf("begun %v, open %v", begun, open)
	}
	c.open(2, io.ErrUnexpectedEOF)
	if c.isOpen(2) {
		t.Error("a term opens without a barrier")
	}
	c.begin(2, time.Now().Add(-2*LeaseTime)) // leases of former leaders are over
	c.applied(view, 4, 2)
	c.open(2, nil)
	if leads, index, term := c.committed(); !c.isOpen(2) || leads != 2 || index != 4 || term != 2 {
		t.Errorf("it leads in term %d, its view is that of entry %d of term %d", leads, index, term)
	}
	if err := c.awaitConverged(t.Context(), 4); err != nil {
		t.Error(err)
	}
	c.mu.Lock()
	c.holders.all["n2"] = &holder{incarnation: "i", until: time.Now().Add(time.Hour), applied: 4}
	c.mu.Unlock()
	c.applied(view, 5, 2)
	if err := c.await(t.Context(), 5); err != nil {
		t.Error(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := c.awaitConverged(ended, 5); !errors.Is(err, context.Canceled) {
		t.Errorf("n2 is not waited for: %v", err)
	}
	c.reached("n2", "another process", 5)
	if c.convergedIndex() != 4 {
		t.Error("another process speaks for n2")
	}
	c.reached("n2", "i", 5)
	if err := c.awaitConverged(t.Context(), 5); err != nil {
		t.Error(err)
	}
	c.close()
}
