package catalog

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/proto/peerpb"
)

const kindLease peer.Kind = 16

// asking is a node n2 of three that reaches n3, whose answers are the test's,
// and not n1. It follows one of them.
type asking struct {
	*Catalog
	answering sync.Mutex
	answer    func(*peerpb.Lease) *peerpb.CatalogReply
	// questions have come to n3; relays of them it was to pass on.
	questions, relays int
	answered          time.Time // n3 has, last
}

const askingTerm = 5

func mustAsk(t *testing.T, leader string) *asking {
	t.Helper()
	a := &asking{}
	listeners := map[string]net.Listener{"n2": mustListen(t), "n3": mustListen(t)}
	mesh, far := mustMesh(t, "n2", "n3", listeners), mustMesh(t, "n3", "n2", listeners)
	peer.HandleAsk(far, kindLease, a.reply)
	mesh.Start()
	far.Start()
	store, err := raftlog.OpenCatalog(filepath.Join(t.TempDir(), "catalog"), raftlog.CatalogOptions{Exit: func(int) { panic("exit") }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	a.Catalog = New(Config{Node: "n2", Store: store, Mesh: mesh, Kind: kindLease, Logger: slog.New(slog.DiscardHandler)})
	mustFollow(t, a.Catalog, leader)
	t.Cleanup(a.tasks.Wait)
	await(t, "n2 reaches n3", func() bool { return mesh.Alive("n3") })
	return a
}

// reply is what n3 does with a question.
func (a *asking) reply(q *peerpb.CatalogRequest) *peerpb.CatalogReply {
	a.answering.Lock()
	defer a.answering.Unlock()
	a.questions++
	if q.Lease.Relay {
		a.relays++
	}
	r := a.answer(q.Lease)
	a.answered = time.Now()
	return r
}

func mustMesh(t *testing.T, node, other string, listeners map[string]net.Listener) *peer.Mesh {
	t.Helper()
	mesh, err := peer.New(peer.Config{
		Node: node, Cluster: "test", Listener: listeners[node], Incarnation: [16]byte{node[1]},
		Peers: map[string]string{other: listeners[other].Addr().String()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mesh.Close() })
	return mesh
}

// mustFollow runs a voter's raft that has just heard of its leader.
func mustFollow(t *testing.T, k *Catalog, of string) {
	t.Helper()
	config := raft.DefaultConfig()
	config.LocalID, config.Logger = "n2", replica.NewLogger(&replica.LogGate{Now: time.Now}, k.config.Logger)
	config.HeartbeatTimeout, config.ElectionTimeout = time.Hour, time.Hour // nobody stands for election
	_, transport := raft.NewInmemTransport("n2")
	_, leader := raft.NewInmemTransport(raft.ServerAddress(of))
	err := k.Replica.Start(replica.Opening{
		Config: config, Machine: &k.applier, Founders: []string{"n1", "n2", "n3"}, Newest: 1, Admits: admitCatalogEntry,
		Transport: func(replica.Transport) raft.Transport { return transport },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Raft().Shutdown().Error(); err != nil {
			t.Error(err)
		}
	})
	leader.Connect("n2", transport)
	heartbeat := &raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(of), Addr: []byte(of)},
		Term:      askingTerm,
	}
	if err := leader.AppendEntries("n2", "n2", heartbeat, &raft.AppendEntriesResponse{}); err != nil {
		t.Fatal(err)
	}
}

// A node that does not reach the leader gets its lease through another voter,
// which says its own term, too. It counts from the question. What a voter has
// passed on says nothing about a term of its own.
func TestLeaseIsRelayed(t *testing.T) {
	granted := &peerpb.CatalogReply{Ok: true, GrantedIn: askingTerm, Term: askingTerm}
	for name, c := range map[string]struct {
		direct, relayed *peerpb.CatalogReply
		relay           bool
		fresh           bool
	}{
		"relayed":                 {&peerpb.CatalogReply{Term: askingTerm}, granted, true, true},
		"the voter has gone on":   {&peerpb.CatalogReply{Term: askingTerm + 1}, granted, true, false},
		"nobody is to pass it on": {&peerpb.CatalogReply{Term: askingTerm}, granted, false, false},
		"the leader says no":      {&peerpb.CatalogReply{Term: askingTerm}, &peerpb.CatalogReply{Term: askingTerm}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := mustAsk(t, "n1")
			a.answer = func(l *peerpb.Lease) *peerpb.CatalogReply {
				if l.Relay {
					return c.relayed
				}
				return c.direct
			}
			a.lease.renew(a.tasks.Life(), c.relay)
			if a.Fresh() != c.fresh {
				t.Errorf("the node has a lease: %v", !c.fresh)
			}
			if (a.relays == 1) != c.relay {
				t.Errorf("%d questions are to be passed on", a.relays)
			}
			if end := a.lease.begin.Add(time.Duration(a.lease.until.Load())); c.fresh && end.After(a.answered.Add(LeaseTime)) {
				t.Errorf("the lease ends %v later than one that began with the answer", end.Sub(a.answered.Add(LeaseTime)))
			}
		})
	}
}

// The leader gives way to a voter that passes on the question of a node which
// lags and is out of the leader's reach, and to nobody else.
func TestLeadGoesToWhoReachesMore(t *testing.T) {
	a := mustAsk(t, "n1")
	for name, c := range map[string]struct {
		from, of  string
		applied   uint64
		transfers bool
	}{
		"relayed for one out of reach":           {"n3", "n1", 6, true},
		"relayed for one out of reach and ahead": {"n3", "n1", 7, false},
		"relayed for one in reach":               {"n1", "n3", 6, false},
		"asked by itself":                        {"n1", "n1", 6, false},
	} {
		a.convergence.mu.Lock()
		a.convergence.holders, a.convergence.index = newHolders(askingTerm, time.Now()), 7
		a.convergence.mu.Unlock()
		a.ceding.Store(false)
		reply := &peerpb.CatalogReply{}
		a.grant(c.from, &peerpb.Lease{Node: c.of, Applied: c.applied}, askingTerm, reply)
		if transfers := a.ceding.Load(); transfers != c.transfers { // for a while
			t.Errorf("%s: transfers: %v", name, transfers)
		}
		if !reply.Ok || reply.GrantedIn != askingTerm || reply.Index != 7 {
			t.Errorf("%s: answered %v", name, reply)
		}
	}
}

// A voter passes a question on to the leader, once, and says its own term.
func TestRelay(t *testing.T) {
	a := mustAsk(t, "n3")
	a.answer = func(*peerpb.Lease) *peerpb.CatalogReply {
		return &peerpb.CatalogReply{Ok: true, GrantedIn: askingTerm, Term: askingTerm + 1}
	}
	for name, c := range map[string]struct {
		lease  *peerpb.Lease
		passed int
	}{
		"passed on":    {&peerpb.Lease{Node: "n1", Relay: true}, 1},
		"not asked to": {&peerpb.Lease{Node: "n1"}, 0},
		"the leader's": {&peerpb.Lease{Node: "n3", Relay: true}, 0},
	} {
		a.questions, a.relays = 0, 0
		reply := a.onLease(t.Context(), "n1", c.lease)
		if a.questions != c.passed || a.relays != 0 || reply.Ok != (c.passed > 0) || reply.Term != askingTerm {
			t.Errorf("%s: the leader is asked %d times, %d times to pass it on; answered %v", name, a.questions, a.relays, reply)
		}
	}
}

// A node that there is not gets no lease, and nothing is kept of it: what is
// committed would wait for it.
func TestLeaseOfNobody(t *testing.T) {
	a := mustAsk(t, "n1")
	for _, l := range []*peerpb.Lease{
		{Node: "nobody"}, {Node: "nobody", Relay: true}, {}, {Node: "n3", Incarnation: make([]byte, 17)},
	} {
		if reply := a.onLease(t.Context(), "n3", l); reply.Ok || reply.Term != 0 {
			t.Errorf("%v: answered %v", l, reply)
		}
	}
	a.convergence.mu.Lock()
	defer a.convergence.mu.Unlock()
	if len(a.convergence.holders.all) != 0 {
		t.Errorf("kept: %v", a.convergence.holders.all)
	}
}

// A lease counts from the question: what the voters knew when they were asked. And it
// begins only when the view holds what was granted.
func TestLeaseCountsFromTheQuestion(t *testing.T) {
	for _, tc := range []struct {
		name   string
		behind error // the view does not get there
		want   time.Duration
	}{{"in time", nil, LeaseTime - 300*time.Millisecond}, {"the view is behind", errors.New("behind"), 0}} {
		synctest.Test(t, func(t *testing.T) {
			l := newRouteLease("n1", slog.New(slog.DiscardHandler))
			l.voters = func() []string { return []string{"n1"} }
			l.ask = func(context.Context, string, *peerpb.Lease) (*peerpb.CatalogReply, error) {
				time.Sleep(200 * time.Millisecond) // in the bubble's time
				return &peerpb.CatalogReply{Ok: true, Term: 1, GrantedIn: 1}, nil
			}
			l.apply = func(context.Context, *peerpb.CatalogReply) error {
				time.Sleep(100 * time.Millisecond)
				return tc.behind
			}
			l.renewed = func(*peerpb.CatalogReply) {}
			l.spawn = func(f func()) { go f() }
			l.extend(l.begin) // nothing is left
			time.Sleep(time.Second)
			l.renew(t.Context(), false)
			if got := max(l.left(), 0); got != tc.want {
				t.Errorf("%s: %v of the lease are left, want %v", tc.name, got, tc.want)
			}
		})
	}
}

// A voter that answers for a long lease says so from then on, and a leader hears it of those that have gone
// on to its term.
func TestVotersTellOfLongLeases(t *testing.T) {
	a := mustAsk(t, "n1")
	if reply := a.onLease(t.Context(), "n3", &peerpb.Lease{Node: "n3", Millis: 1500}); reply.LongestMillis != 1500 {
		t.Errorf("answered %v", reply)
	}
	for name, c := range map[string]struct {
		term uint64
		want time.Duration
	}{
		"in the leader's term": {askingTerm, 1700 * time.Millisecond},
		"in an earlier one":    {askingTerm - 1, longestLease},
	} {
		a.answer = func(*peerpb.Lease) *peerpb.CatalogReply {
			return &peerpb.CatalogReply{Term: c.term, LongestMillis: 1700}
		}
		a.convergence.mu.Lock()
		a.convergence.holders = newHolders(askingTerm, time.Now())
		a.convergence.mu.Unlock()
		for _, voter := range []string{"n2", "n3"} {
			if _, err := a.askLease(t.Context(), voter, &peerpb.Lease{}); err != nil {
				t.Fatal(err)
			}
		}
		a.convergence.mu.Lock()
		if got := a.convergence.holders.longest; got != c.want {
			t.Errorf("%s: leases of earlier leaders may be %v long", name, got)
		}
		a.convergence.mu.Unlock()
	}
}

// A node whose answers take a second has a lease all the time, and asks less often while it has none.
func TestFarLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		l := newRouteLease("n1", slog.New(slog.DiscardHandler))
		l.voters = func() []string { return []string{"n2"} }
		l.spawn = func(f func()) { running.Go(f) }
		l.renewed = func(*peerpb.CatalogReply) {}
		l.apply = func(context.Context, *peerpb.CatalogReply) error { return nil }
		var asked atomic.Int64
		l.ask = func(_ context.Context, _ string, q *peerpb.Lease) (*peerpb.CatalogReply, error) {
			asked.Add(1)
			time.Sleep(time.Second)
			return &peerpb.CatalogReply{Ok: true, GrantedIn: 1, Term: 1, GrantedMillis: q.Millis, LongestMillis: q.Millis}, nil
		}
		running.Go(func() { l.keep(ctx) })
		time.Sleep(900 * time.Millisecond)
		if n := asked.Load(); n > 2*12 {
			t.Errorf("%d questions before the first answer", n)
		}
		time.Sleep(2 * time.Second)
		for range 1000 {
			if time.Sleep(10 * time.Millisecond); l.left() < LeaseTime/2 {
				t.Fatalf("%v are left of the lease", l.left())
			}
		}
		if d := l.length(); d != 2*time.Second {
			t.Errorf("it asks for a lease of %v", d)
		}
		cancel()
		running.Wait()
	})
}

// Close waits for what the catalog does, also if its raft was never started.
func TestCloseBeforeStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := New(Config{Node: "n1", Logger: slog.New(slog.DiscardHandler)})
		ended := false
		k.tasks.Go(func() {
			<-k.tasks.Life().Done()
			time.Sleep(time.Second)
			ended = true
		})
		if err := k.Close(); err != nil || !ended {
			t.Errorf("closed with %v, ended: %v", err, ended)
		}
	})
}

// A process does not know what an earlier one of its node has answered for: it may have been the longest
// lease there is. The first process of a node knows.
func TestRestartedVoterTellsOfLongestLease(t *testing.T) {
	c := mustCatalogs(t)
	c.mustLead()
	if got := c.all[2].convergence.longest(); got >= longestLease {
		t.Errorf("a new node has answered for a lease of %v", got)
	}
	c.ends[2]()
	again, _ := mustStart(t, c.hosts[2], trioNames, &c.gates[2])
	if got := again.convergence.longest(); got != longestLease {
		t.Errorf("a node that is back has answered for a lease of %v", got)
	}
}
