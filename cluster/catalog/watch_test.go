package catalog

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/host"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/proto/logpb"
)

// catalogs are the members of a catalog's group on the hosts of a trio.
type catalogs struct {
	*trio
	all   []*Catalog
	gates []sync.Mutex // held: the machine hangs when it has applied an entry
	ends  []func()     // close a member
}

func mustCatalogs(t *testing.T, tune ...func(*host.Config)) *catalogs {
	t.Helper()
	c := &catalogs{trio: mustTrio(t, tune...), gates: make([]sync.Mutex, len(trioNames))}
	for i, h := range c.hosts {
		k, end := mustStart(t, h, trioNames, &c.gates[i])
		c.all, c.ends = append(c.all, k), append(c.ends, end)
	}
	return c
}

// mustStart starts a member of the catalog's group on a host; end closes it.
func mustStart(t *testing.T, h *node, founders []string, gate *sync.Mutex, tune ...func(*Config)) (k *Catalog, end func()) {
	t.Helper()
	store, err := raftlog.OpenCatalog(filepath.Join(h.dir, "catalog"), raftlog.CatalogOptions{Exit: h.config.Exit})
	if err != nil {
		t.Fatal(err)
	}
	config := Config{
		Node: h.config.Node, Store: store, Mesh: h.mesh, Kind: 20, KindApplied: 21, Incarnation: [16]byte{h.config.Node[1]},
		Clock: h.config.Clock.Now, Newest: 2, Exit: h.config.Exit, Logger: h.config.Logger, Host: h.Host,
		Changed: func(Change) {
			gate.Lock()
			defer gate.Unlock()
		},
	}
	for _, f := range tune {
		f(&config)
	}
	k = New(config)
	if err := k.Start(founders); err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		if err := errors.Join(k.Close(), store.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return k, end
}

// mustDefine has one member propose a vhost and waits until it has that.
func mustDefine(t *testing.T, k *Catalog, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: name}}}
	if _, err := k.Propose(ctx, c); err != nil {
		t.Fatal(err)
	}
	if !defines(k, name) {
		t.Errorf("%s does not have vhost %s", k.config.Node, name)
	}
}

func defines(k *Catalog, name string) bool {
	_, yes := k.View().VHost(name)
	return yes
}

// mustLead waits until exactly one member leads, and returns its place.
func (c *catalogs) mustLead() (at int) {
	c.t.Helper()
	await(c.t, "the catalog has a leader", func() bool {
		at = slices.IndexFunc(c.all, func(k *Catalog) bool { return k.Raft().State() == raft.Leader })
		return at >= 0
	})
	return at
}

// A leader of the catalog whose machine hangs gives way, although its raft answers
// every heartbeat, and says why. What it was to commit is committed, and it
// follows when its machine goes on. It does not stand for a while.
func TestCatalogLeaderHangs(t *testing.T) {
	t.Parallel()
	clock := &handClock{}
	c := mustCatalogs(t, quickWatch, clock.set)
	mustDefine(t, c.all[0], "first")
	at := c.mustLead()
	k, h, other := c.all[at], c.hosts[at], c.all[(at+1)%len(c.all)]
	term, _ := k.LeadsIn()
	c.gates[at].Lock()
	goOn := sync.OnceFunc(c.gates[at].Unlock)
	defer goOn() // a machine that hangs for ever cannot be closed
	defined := make(chan struct{})
	go func() {
		defer close(defined)
		mustDefine(t, other, "second")
	}()
	clock.await(t, "it gives way", func() bool {
		count, _ := h.Resignations()
		return count[replica.StuckCatalog] != 0
	})
	<-defined
	count, last := h.Resignations()
	if count[replica.StuckCatalog] != 1 || len(last) != 1 {
		t.Fatalf("resignations %v, %+v", count, last)
	}
	if s := last[0]; s.Group != nil || s.Reason != replica.StuckCatalog || s.For < h.Bound() || s.Term != term {
		t.Errorf("it has resigned as %+v", s)
	}
	if log := c.log.String(); !strings.Contains(log, "the catalog's leader is making no progress and resigns") {
		t.Errorf("the log does not say why: %s", log)
	}
	if err := k.refuses(); !errors.Is(err, errResignedLately) {
		t.Errorf("it would stand again: %v", err)
	}
	if now := c.mustLead(); now == at {
		t.Error("it leads again")
	}
	goOn()
	await(t, "the former leader follows", func() bool {
		return defines(k, "second") && k.Raft().State() == raft.Follower && k.Stall() == nil
	})
	mustDefine(t, k, "third")
}

// A node whose machine hangs already when it is elected gives way as well: it
// waits for the entries of earlier terms.
func TestCatalogHangsBeforeItLeads(t *testing.T) {
	t.Parallel()
	clock := &handClock{}
	c := mustCatalogs(t, quickWatch, clock.set)
	mustDefine(t, c.all[0], "first")
	lead := c.mustLead()
	at, other := (lead+1)%3, (lead+2)%3
	c.gates[at].Lock()
	goOn := sync.OnceFunc(c.gates[at].Unlock)
	defer goOn()
	mustDefine(t, c.all[lead], "second")
	await(t, "it leads", func() bool {
		_ = c.all[lead].Transfer(trioNames[at])
		return c.all[at].Raft().State() == raft.Leader
	})
	clock.await(t, "it gives way", func() bool {
		count, _ := c.hosts[at].Resignations()
		return count[replica.StuckCatalog] != 0
	})
	mustDefine(t, c.all[other], "third")
}

// Who is told to stand is the one that has acknowledged most. If it does not answer, the leader steps down, and
// another one is elected.
func TestCatalogTransferee(t *testing.T) {
	t.Parallel()
	c := mustCatalogs(t)
	mustDefine(t, c.all[0], "first")
	lead := c.mustLead()
	k := c.all[lead]
	gone, other := (lead+1)%3, (lead+2)%3
	c.ends[gone]()
	c.hosts[gone].mesh.Transport(replica.CatalogGroup) // of which nothing is taken
	mustDefine(t, k, "second")
	term, _ := k.LeadsIn()
	if got := k.transferee(term); got != trioNames[other] {
		t.Fatalf("the transferee is %s, want %s", got, trioNames[other])
	}
	k.watchdog.noVote.Store(math.MaxInt64)
	k.Yield(trioNames[gone], term, true)
	if log := c.log.String(); !strings.Contains(log, "it steps down") || !strings.Contains(log, "to="+trioNames[gone]) {
		t.Errorf("%s was not told: %s", trioNames[gone], log)
	}
	await(t, "the other one leads", func() bool {
		now, leads := c.all[other].LeadsIn()
		return leads && now > term
	})
}

// A leader to whom nobody stands steps down all the same.
func TestCatalogHasNoTransferee(t *testing.T) {
	t.Parallel()
	c := mustCatalogs(t)
	mustDefine(t, c.all[0], "first")
	lead := c.mustLead()
	k := c.all[lead]
	term, _ := k.LeadsIn()
	for i, other := range c.all {
		if i != lead {
			other.Trusted().Open(unproven{}, 0)
		}
	}
	k.Yield(k.transferee(term), term, true)
	await(t, "raft goes on to another term", func() bool { return k.Raft().CurrentTerm() > term })
	if said := strings.Count(c.log.String(), "it steps down"); said != 1 {
		t.Errorf("it has stepped down %d times", said)
	}
	for _, other := range c.all {
		if err := other.Trusted().Prove(); err != nil {
			t.Error(err)
		}
	}
	mustDefine(t, k, "second")
}

// A leader keeps the catalog as long as giving it up would not help.
func TestCatalogKeeps(t *testing.T) {
	t.Parallel()
	clock := &handClock{}
	clock.pass(time.Hour)
	c := mustCatalogs(t, clock.set)
	lead := c.mustLead()
	k := c.all[lead]
	await(t, "all are up", func() bool { return k.transferee(0) != "" && k.WhyKeep(&k.watchdog.resigned, clock.now()) == "" })
	k.watchdog.resigned.Until.Store(int64(clock.now()) + 1)
	if why := k.WhyKeep(&k.watchdog.resigned, clock.now()); why != replica.KeepsPause {
		t.Errorf("right after it has resigned: %q", why)
	}
	clock.pass(1)
	if why := k.WhyKeep(&k.watchdog.resigned, clock.now()); why != "" {
		t.Errorf("after the pause: %q", why)
	}
	k.watchdog.noVote.Store(int64(clock.now()) + 1)
	if k.refuses() == nil {
		t.Error("it stands for election")
	}
	if clock.pass(1); k.refuses() != nil {
		t.Errorf("it stands no more: %v", k.refuses())
	}
	for i, h := range c.hosts {
		if i != lead {
			c.ends[i]()
			h.shut()
		}
	}
	await(t, "it is seen that nobody is up", func() bool { return k.WhyKeep(&k.watchdog.resigned, clock.now()) == replica.KeepsMajority })
	if to := k.transferee(0); to != "" {
		t.Errorf("its transferee is %s", to)
	}
}

// The work of a leader makes progress when raft hands something to the machine,
// and when the machine has applied that.
func TestCatalogStall(t *testing.T) {
	t.Parallel()
	h, gate := mustAlone(t), &sync.Mutex{}
	k, _ := mustStart(t, h, []string{"n1"}, gate, func(c *Config) { c.Host = nil }) // nobody else looks
	mustDefine(t, k, "first")
	stands := func(at time.Duration, want time.Duration) {
		t.Helper()
		if s := k.stall(at); s.For != want {
			t.Errorf("at %v it stands still for %v, want %v: %+v", at, s.For, want, s)
		}
	}
	await(t, "nothing waits", func() bool { return k.watchdog.waiting.Load() == 0 && k.stall(1).For == 0 && !k.watchdog.entries.Waits })
	stands(9, 0)
	k.watchdog.waiting.Add(1)
	stands(10, 0)
	stands(12, 2)
	k.convergence.applied(k.View(), k.convergence.appliedIndex()+1, 1)
	stands(13, 0)
	stands(15, 2)
	k.watchdog.waiting.Add(-1)
	stands(16, 0)
	stands(18, 0)

	// Raft hands over what fits into a channel, and waits.
	gate.Lock()
	goOn := sync.OnceFunc(gate.Unlock)
	defer goOn()
	entry, err := logpb.Marshal(&logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: "v"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Duration(20)
	await(t, "entries wait for the machine", func() bool {
		k.Raft().Apply(entry, time.Millisecond)
		at += 10
		s := k.stall(at)
		return s.Last > s.Applied && s.For >= 30
	})
	goOn()
	await(t, "all is applied", func() bool { return k.stall(at).For == 0 && !k.watchdog.entries.Waits })
}

// A leader that cannot help the catalog by giving it up keeps it, and says that
// it stands still.
func TestCatalogHasNobodyToTakeOver(t *testing.T) {
	t.Parallel()
	clock := &handClock{}
	h, gate := mustAlone(t, quickWatch, clock.set), &sync.Mutex{}
	k, _ := mustStart(t, h, []string{"n1"}, gate)
	mustDefine(t, k, "first")
	if k.Stall() != nil {
		t.Errorf("it stands still as %+v", k.Stall())
	}
	term, _ := k.LeadsIn()
	gate.Lock()
	goOn := sync.OnceFunc(gate.Unlock)
	defer goOn()
	k.tasks.Go(func() { mustDefine(t, k, "second") })
	clock.await(t, "it is seen to stand still", func() bool { return k.Stall() != nil })
	if s := k.Stall(); s.Keeps != replica.KeepsAlone || s.Reason != replica.StuckCatalog || s.For < h.Bound() {
		t.Errorf("it stands still as %+v", s)
	}
	if now, leads := k.LeadsIn(); !leads || now != term {
		t.Errorf("it leads: %v, in term %d", leads, now)
	}
	if count, _ := h.Resignations(); count[replica.StuckCatalog] != 0 {
		t.Errorf("resignations %v", count)
	}
	goOn()
	await(t, "it goes on", func() bool { return k.Stall() == nil && defines(k, "second") })
}

// TestClosedCatalogSendsNothing: a notice that is sent while a member closes does
// not wait for a node that is gone.
func TestClosedCatalogSendsNothing(t *testing.T) {
	c := mustCatalogs(t)
	for i := len(c.hosts) - 1; i >= 0; i-- {
		c.ends[i]()
		if i > 0 {
			c.hosts[i].mesh.Close()
		}
	}
	await(t, "the end of the link", func() bool { return !c.hosts[0].mesh.Alive(trioNames[1]) })
	sent := make(chan bool, 1)
	go func() {
		err := c.all[0].Transport().AppendEntries(raft.ServerID(trioNames[1]), raft.ServerAddress(trioNames[1]), &raft.AppendEntriesRequest{}, &raft.AppendEntriesResponse{})
		sent <- err == nil
	}()
	select {
	case ok := <-sent:
		if ok {
			t.Error("a member that is gone has the notice")
		}
	case <-time.After(20 * time.Second): // two thirds of the wait for a link
		t.Error("the notice still waits")
	}
}

// Who founds a cluster, or is its only voter, does not wait for raft's timers, which never fire here.
func TestFoundersElectAtOnce(t *testing.T) {
	without := func(c *Config) { c.heartbeat = replica.Never }
	var gate sync.Mutex
	all := mustTrio(t)
	for _, h := range all.hosts {
		k, _ := mustStart(t, h, trioNames, &gate, without)
		defer mustDefine(t, k, "from "+k.Node()) // by the leader that they elect
	}
	alone := mustTrio(t).hosts[1]
	k, end := mustStart(t, alone, []string{alone.config.Node}, &gate, without)
	mustDefine(t, k, "first")
	end()
	k, _ = mustStart(t, alone, nil, &gate, without)
	await(t, "it has what it had", func() bool { return defines(k, "first") })
	mustDefine(t, k, "second")
}

// Whether a node leads the catalog may be asked at any time: the answer costs no entry, but for the first in a term.
func TestCatalogLeadsForNothing(t *testing.T) {
	c := mustCatalogs(t)
	k := c.all[c.mustLead()]
	if !k.Leads(t.Context()) {
		t.Fatal("it does not know that it leads")
	}
	before := k.Progress().Last
	for range 10 {
		if !k.Leads(t.Context()) {
			t.Error("it leads no more")
		}
	}
	if !k.LeadsStill() || k.Progress().Last != before+1 {
		t.Errorf("entries of ten questions and one for which one is needed: %d", k.Progress().Last-before)
	}
}

// The catalog is watched where this node leads it, and nowhere else, from when it
// takes over.
func TestCatalogIsWatchedWhereItIsLed(t *testing.T) {
	c := mustCatalogs(t)
	lead := c.mustLead()
	for i, k := range c.all {
		rests, waits := k.watchAgain(false), k.watchAgain(true)
		if i == lead && (rests <= 0 || rests > 2*watchRest || waits != replica.WatchEvery) || i != lead && rests+waits != 0 {
			t.Errorf("node %d is watched again after %v, and after %v while something waits", i, rests, waits)
		}
	}
}
