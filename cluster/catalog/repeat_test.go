package catalog

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// mustRegister has each member register, as a node does that starts.
func (c *catalogs) mustRegister() {
	c.t.Helper()
	for _, k := range c.all {
		mustPropose(c.t, k, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{
			Name: k.Node(), PeerAddress: k.Node(), Incarnation: k.config.Incarnation[:],
		}}})
	}
}

func mustPropose(t *testing.T, k *Catalog, c *logpb.CatalogCommand) *logpb.CatalogResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := k.Propose(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	if err := catalog.Refused(r[0]); err != nil {
		t.Fatal(err)
	}
	return r[0]
}

// loseAnswer lets the next entry from elsewhere be committed at its leader, calls
// between, and then loses the answer, so that the entry is proposed once more.
func (k *Catalog) loseAnswer(between func()) (lost *atomic.Bool) {
	lost = &atomic.Bool{}
	k.config.Mesh.HandleCall(k.config.Kind, func(ctx context.Context, from string, req []byte) ([]byte, error) {
		var m peerpb.CatalogRequest
		reply, err := k.onCall(ctx, from, req)
		if proto.Unmarshal(req, &m) == nil && len(m.Entry) > 0 && lost.CompareAndSwap(false, true) {
			between()
			return nil, errors.New("lost")
		}
		return reply, err
	})
	return lost
}

// What is proposed again, because its answer was lost, is not done again: what others
// have defined meanwhile stays. Its answer is that of the first time.
func TestLostAnswers(t *testing.T) {
	c := mustCatalogs(t)
	mustDefine(t, c.all[0], "/")
	c.mustRegister()
	leader := c.all[c.mustLead()]
	other := c.all[slices.IndexFunc(c.all, func(k *Catalog) bool { return k != leader })]
	declare := func(kind string) *logpb.CatalogCommand {
		return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareExchange{DeclareExchange: &logpb.DeclareExchange{Vhost: "/", Name: "x", Type: kind}}}
	}
	remove := &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteExchange{DeleteExchange: &logpb.DeleteExchange{Vhost: "/", Name: "x"}}}
	for _, x := range []struct {
		name   string
		before *logpb.CatalogCommand
		what   *logpb.CatalogCommand
		after  *logpb.CatalogCommand
		is     string
	}{
		{"a delete", declare("direct"), remove, declare("fanout"), "fanout"},
		{"a declare", nil, declare("topic"), remove, ""},
	} {
		mustPropose(t, leader, remove)
		if x.before != nil {
			mustPropose(t, leader, x.before)
		}
		lost := leader.loseAnswer(func() { mustPropose(t, leader, x.after) })
		if r := mustPropose(t, other, x.what); !r.Changed || !lost.Load() {
			t.Errorf("%s: answered %v, answer lost: %v", x.name, r, lost.Load())
		}
		for _, k := range []*Catalog{leader, other} {
			is := ""
			if found, ok := k.View().Exchange("/", "x"); ok {
				is = found.Type
			}
			if is != x.is {
				t.Errorf("%s that was proposed twice: the exchange is %q at %s, not %q", x.name, is, k.Node(), x.is)
			}
		}
	}
}

// A process numbers its proposals, and says which it waits for. It has no more under way than the
// machine remembers.
func TestNumbers(t *testing.T) {
	var n numbers
	n.init()
	mustBegin := func(number, from uint64) {
		t.Helper()
		p := &logpb.Proposal{}
		if err := n.begin(t.Context(), p); err != nil || p.Number != number || p.From != from {
			t.Fatalf("proposal %d from %d (%v), not %d from %d", p.Number, p.From, err, number, from)
		}
	}
	mustBegin(1, 1)
	mustBegin(2, 1)
	mustBegin(3, 1)
	n.end(2)
	mustBegin(4, 1)
	n.end(1)
	for number := uint64(5); number < 3+catalog.MaxProposals; number++ {
		mustBegin(number, 3)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.begin(ended, &logpb.Proposal{}); !errors.Is(err, context.Canceled) {
		t.Errorf("one more is under way than the machine remembers: %v", err)
	}
	waits := make(chan error)
	next := &logpb.Proposal{}
	go func() { waits <- n.begin(t.Context(), next) }()
	n.end(3)
	if err := <-waits; err != nil || next.Number != 3+catalog.MaxProposals || next.From != 4 {
		t.Errorf("proposal %v (%v)", next, err)
	}
}

// A declare that gives a queue other arguments has not added it.
func TestAdoptedIsNotAdded(t *testing.T) {
	declare := &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: &logpb.DeclareQueue{Name: "q"}}}
	change := changeOf(&logpb.CatalogEntry{Commands: []*logpb.CatalogCommand{declare, declare}}, []*logpb.CatalogResult{
		{Changed: true, Queue: 1}, {Changed: true, Adopted: true, Queue: 2, Configured: []uint64{2}},
	})
	if !slices.Equal(change.Added, []fsm.QueueID{1}) || !slices.Equal(change.Configured, []fsm.QueueID{2}) {
		t.Errorf("added %v, configured %v", change.Added, change.Configured)
	}
}
