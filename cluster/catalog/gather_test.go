package catalog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// gathering is a gather whose entries are committed one by one, by hand.
type gathering struct {
	gather
	t       *testing.T
	entries chan []string // names of what an entry declares, when it is proposed
	answer  chan error    // to the entry under way
	callers sync.WaitGroup

	over sync.Mutex
	got  map[string]error // what callers were answered; a result has the name that was declared
}

func newGathering(t *testing.T) *gathering {
	x := &gathering{t: t, entries: make(chan []string, 100), answer: make(chan error), got: map[string]error{}}
	x.tasks = worker.NewTasks(nil)
	x.commit = func(ctx context.Context, commands []*logpb.CatalogCommand, failed func(error)) (results []*logpb.CatalogResult, err error) {
		var names []string
		for _, c := range commands {
			names = append(names, c.GetDeclareQueue().Name)
			results = append(results, &logpb.CatalogResult{Text: c.GetDeclareQueue().Name})
		}
		x.entries <- names
		for {
			select {
			case err := <-x.answer:
				if errors.Is(err, errNoCatalogLeader) {
					failed(err)
					continue
				}
				return results, err
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	return x
}

// declare has somebody declare a queue, and waits until nothing goes on any more.
func (x *gathering) declare(ctx context.Context, name string, bytes int) {
	x.callers.Go(func() {
		c := &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: &logpb.DeclareQueue{Name: name}}}
		results, err := x.propose(ctx, c, bytes)
		if err == nil && (len(results) != 1 || results[0].Text != name) {
			err = fmt.Errorf("the answer is %v", results)
		}
		x.over.Lock()
		defer x.over.Unlock()
		x.got[name] = err
	})
	synctest.Wait()
}

// entry is what the next entry declares; empty: none is under way.
func (x *gathering) entry() (names string) {
	synctest.Wait()
	select {
	case all := <-x.entries:
		return strings.Join(all, " ")
	default:
		return ""
	}
}

func (x *gathering) expect(names string) {
	x.t.Helper()
	if got := x.entry(); got != names {
		x.t.Errorf("the entry declares %q, want %q", got, names)
	}
}

// expectAnswer is what a caller has got; "": a result; "waits": nothing.
func (x *gathering) expectAnswer(name, want string) {
	x.t.Helper()
	synctest.Wait()
	x.over.Lock()
	defer x.over.Unlock()
	err, over := x.got[name]
	if got := fmt.Sprint(err); over != (want != "waits") || over && got != want && (err != nil || want != "") {
		x.t.Errorf("%s has got %v, %v; want %q", name, over, err, want)
	}
}

// end commits what is under way until nothing is.
func (x *gathering) end() {
	close(x.answer)
	x.callers.Wait()
	x.tasks.Stop()
	if len(x.waiting) > 0 {
		x.t.Errorf("%d commands are left", len(x.waiting))
	}
}

func TestGather(t *testing.T) {
	for name, run := range map[string]func(x *gathering){
		"who is alone waits for nobody; what comes meanwhile is one entry, in its order": func(x *gathering) {
			x.declare(x.t.Context(), "a", 10)
			x.expect("a")
			for _, name := range []string{"b", "c", "d"} {
				x.declare(x.t.Context(), name, 10)
			}
			x.expect("")
			x.answer <- nil
			x.expectAnswer("a", "")
			x.expect("b c d")
			x.expectAnswer("b", "waits")
			x.answer <- nil
			for _, name := range []string{"b", "c", "d"} {
				x.expectAnswer(name, "")
			}
			x.expect("")
			x.declare(x.t.Context(), "e", 10)
			x.expect("e")
		},
		"an entry is bounded by its commands": func(x *gathering) {
			x.declare(x.t.Context(), "first", 10)
			x.expect("first")
			for i := range maxGathered + 1 {
				x.declare(x.t.Context(), fmt.Sprint(i), 10)
			}
			x.answer <- nil
			if got := strings.Fields(x.entry()); len(got) != maxGathered || got[maxGathered-1] != fmt.Sprint(maxGathered-1) {
				x.t.Errorf("an entry of %d commands", len(got))
			}
			x.answer <- nil
			x.expect(fmt.Sprint(maxGathered))
		},
		"an entry is bounded by its bytes, but for one command": func(x *gathering) {
			x.declare(x.t.Context(), "first", 10)
			x.expect("first")
			x.declare(x.t.Context(), "a", gatheredBytes-10)
			x.declare(x.t.Context(), "b", 10)
			x.declare(x.t.Context(), "c", gatheredBytes+1)
			x.declare(x.t.Context(), "d", 1)
			for _, want := range []string{"a b", "c", "d"} {
				x.answer <- nil
				x.expect(want)
			}
		},
		"who gives up before its entry is not proposed": func(x *gathering) {
			x.declare(x.t.Context(), "a", 10)
			x.expect("a")
			x.declare(x.t.Context(), "b", 10)
			ctx, cancel := context.WithCancel(x.t.Context())
			x.declare(ctx, "c", 10)
			x.declare(x.t.Context(), "d", 10)
			cancel()
			x.expectAnswer("c", "catalog: context canceled (before the first attempt)")
			x.answer <- nil
			x.expect("b d")
		},
		"who gives up leaves the others their entry": func(x *gathering) {
			ctx, cancel := context.WithCancel(x.t.Context())
			x.declare(x.t.Context(), "a", 10)
			x.expect("a")
			x.declare(ctx, "b", 10)
			x.declare(x.t.Context(), "c", 10)
			x.answer <- nil
			x.expect("b c")
			cancel()
			x.expectAnswer("b", "catalog: context canceled (in the first attempt)")
			x.expectAnswer("c", "waits")
			x.answer <- nil
			x.expectAnswer("c", "")
		},
		"an entry that nobody waits for is not tried again": func(x *gathering) {
			ctx, cancel := context.WithCancel(x.t.Context())
			x.declare(ctx, "a", 10)
			x.expect("a")
			x.declare(x.t.Context(), "b", 10)
			x.answer <- errNoCatalogLeader
			synctest.Wait()
			cancel()
			x.expectAnswer("a", "catalog: context canceled (last attempt: the catalog has no leader)")
			x.expect("b")
		},
		"an error is that of all who share the entry, and of nobody else": func(x *gathering) {
			x.declare(x.t.Context(), "a", 10)
			x.expect("a")
			x.declare(x.t.Context(), "b", 10)
			x.declare(x.t.Context(), "c", 10)
			x.answer <- nil
			x.expect("b c")
			x.declare(x.t.Context(), "d", 10)
			x.answer <- errors.New("broken")
			x.expectAnswer("b", "broken")
			x.expectAnswer("c", "broken")
			x.answer <- nil
			x.expectAnswer("d", "")
		},
		"nobody waits for a catalog that closes": func(x *gathering) {
			x.declare(x.t.Context(), "a", 10)
			x.declare(x.t.Context(), "b", 10)
			x.tasks.Refuse()
			x.declare(x.t.Context(), "c", 10)
			for _, name := range []string{"a", "b", "c"} {
				synctest.Wait()
				if err := x.got[name]; err == nil {
					x.t.Errorf("%s was declared", name)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newGathering(t)
				run(x)
				x.end()
			})
		})
	}
}

// What clients of one node define at the same time is one entry, whoever leads, and each gets its own answer: one that the
// leader does not admit is refused alone.
func TestGatheredDefinitions(t *testing.T) {
	trio := mustTrio(t)
	gates := make([]sync.Mutex, len(trioNames))
	c := &catalogs{trio: trio}
	for i, h := range trio.hosts {
		k, end := mustStart(t, h, trioNames, &gates[i], func(c *Config) { c.Newest = 3 })
		c.all, c.ends = append(c.all, k), append(c.ends, end)
	}
	done := func(k *Catalog, commands ...*logpb.CatalogCommand) {
		t.Helper()
		results, err := k.Propose(t.Context(), commands...)
		for _, r := range results {
			err = errors.Join(err, catalog.Refused(r))
		}
		if err != nil {
			t.Error(err)
		}
	}
	setting := func(name string, value int64) *logpb.CatalogCommand {
		return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: name, Value: value}}}
	}
	queue := func(name string) *logpb.CatalogCommand {
		return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: &logpb.DeclareQueue{Vhost: "v", Name: name, Durable: true, Members: []uint32{1}}}}
	}
	for _, k := range c.all {
		done(k, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{
			Name: k.Node(), Incarnation: k.config.Incarnation[:], OldestVersion: 1, NewestVersion: 3,
		}}})
	}
	done(c.all[0], setting(catalog.FSMVersion, 3), setting(catalog.ClusterQueueLimit, 1))
	mustDefine(t, c.all[0], "v")
	for i, k := range c.all {
		before := k.View().Index()
		gates[c.mustLead()].Lock()
		var callers sync.WaitGroup
		callers.Go(func() { done(k, queue("first")) })
		await(t, "the first entry is under way", func() bool {
			k.gather.mu.Lock()
			defer k.gather.mu.Unlock()
			return k.gather.running && len(k.gather.waiting) == 0
		})
		const many = 15
		for n := range many {
			callers.Go(func() {
				done(k, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareExchange{DeclareExchange: &logpb.DeclareExchange{
					Vhost: "v", Name: fmt.Sprintf("x%d-%d", i, n), Type: "direct",
				}}})
			})
			callers.Go(func() {
				name := fmt.Sprintf("q%d-%d", i, n)
				results, err := k.Propose(t.Context(), queue(name))
				if err != nil || !strings.HasPrefix(results[0].Text, "cannot declare queue '"+name+"': queue limit in cluster (1)") {
					t.Errorf("%s: %v, %v", name, results, err)
				}
			})
		}
		await(t, "the others wait", func() bool {
			k.gather.mu.Lock()
			defer k.gather.mu.Unlock()
			return len(k.gather.waiting) == 2*many
		})
		gates[c.mustLead()].Unlock()
		callers.Wait()
		if entries := k.View().Index() - before; entries != 2 {
			t.Errorf("%s: %d entries", k.Node(), entries)
		}
		if x := k.View().Exchanges("v"); len(x) < (i+1)*many {
			t.Errorf("%s: %d exchanges", k.Node(), len(x))
		}
	}
}
