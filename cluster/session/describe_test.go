package session

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// A client that has written down what it has bound finds those bindings again, whatever their arguments.
func TestBindingsOfTwoEnds(t *testing.T) {
	w := newWorld(t)
	defer w.close()
	s := w.mustSession(&recorder{})
	w.mustExchange(exchangeX)
	w.MustQueue("q")
	w.MustQueue("other")
	with := boundX
	with.Arguments = &fsm.Table{Fields: []*logpb.Field{{Name: "a", Value: &logpb.Value{Tag: 'I', Int: 1}}}}
	elsewhere, another := boundX, boundX
	elsewhere.Destination, another.RoutingKey = "other", "k2"
	for _, b := range []fsm.BindSpec{boundX, with, elsewhere, another} {
		w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Bind{Bind: s.bind(b)}})
	}
	of := func(spec fsm.BindSpec) int {
		t.Helper()
		all, err := s.Bindings(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range all {
			if b.Source != spec.Source || b.Destination != spec.Destination || b.RoutingKey != spec.RoutingKey || b.ToExchange != spec.ToExchange {
				t.Errorf("%+v is none of %+v", b, spec)
			}
		}
		return len(all)
	}
	exchange, none := boundX, boundX
	exchange.ToExchange, none.Source = true, "amq.direct"
	for _, c := range []struct {
		spec fsm.BindSpec
		n    int
	}{
		{boundX, 2}, {with, 2}, {elsewhere, 1}, {another, 1}, {exchange, 0}, {none, 0},
		{fsm.BindSpec{Destination: "q", RoutingKey: "q"}, 1}, {fsm.BindSpec{Destination: "q", RoutingKey: "k"}, 0}, {fsm.BindSpec{Destination: "nope", RoutingKey: "nope"}, 0},
	} {
		if n := of(c.spec); n != c.n {
			t.Errorf("%+v: %d bindings, want %d", c.spec, n, c.n)
		}
	}
}

// Each consumer of replies in credit mode has a name that leads to it and, once it is gone, to nobody.
func TestReplyNamesOfConsumers(t *testing.T) {
	w := newWorld(t)
	defer w.close()
	r := &recorder{}
	s := w.mustSession(r)
	consume := func(number uint64) string {
		t.Helper()
		if err := s.Consume(t.Context(), fsm.ConsumeSpec{Queue: fsm.ReplyQueue, Number: number, NoAck: true, Credit: true}); err != nil {
			t.Fatal(err)
		}
		return s.ReplyNameOf(number)
	}
	sent := uint64(0)
	reply := func(name string) bool {
		t.Helper()
		sent++
		p, err := fsm.AppendHead(nil, "", name, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		routed, err := s.Publish(&fsm.Publish{Number: sent, RoutingKey: name, Payload: p, TTL: -1, Priority: -1})
		if err != nil {
			t.Fatal(err)
		}
		return routed
	}
	first, second := consume(1), consume(2)
	if first == second || first == s.ReplyName() || s.ReplyNameOf(3) != "" {
		t.Fatalf("names %q, %q", first, second)
	}
	if reply(s.ReplyName()) {
		t.Error("the channel itself takes replies")
	}
	if !reply(second) || !reply(first) || len(r.messages) != 2 || r.messages[0].Consumer != 2 || r.messages[1].Consumer != 1 {
		t.Fatalf("%+v", r.messages)
	}
	if err := s.Cancel(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	s.Drop(2)
	third := consume(3)
	if reply(first) || reply(second) || !reply(third) || s.ReplyNameOf(1) != "" {
		t.Error("a name outlives its consumer")
	}
	for _, name := range []string{first, third} {
		if _, err := s.DeclareQueue(t.Context(), fsm.QueueSpec{Name: name, Passive: true}); (err == nil) != (name == third) {
			t.Errorf("declare of %s: %v", name, err)
		}
	}
}

// A limit of queues can be told from other preconditions by its text, at the node and by the catalog.
func TestLimitIsNamed(t *testing.T) {
	w := newWorld(t)
	defer w.close()
	w.MustQueue("q")
	w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutLimit{PutLimit: &logpb.PutLimit{Of: "/", Name: catalog.MaxQueues, Value: 1}}})
	_, err := w.mustSession(&recorder{}).DeclareQueue(t.Context(), fsm.QueueSpec{Name: "more", Durable: true})
	if !isKind(err, fsm.Precondition) || !strings.HasSuffix(err.Error(), fsm.LimitText) {
		t.Errorf("%v", err)
	}
	w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutLimit{PutLimit: &logpb.PutLimit{Of: "/", Name: catalog.MaxQueues, Unset: true}}})
	w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: catalog.ClusterQueueLimit, Value: 1}}})
	if err := w.View().Fits(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: &logpb.DeclareQueue{Vhost: "/", Name: "more"}}}); err == nil || !strings.HasSuffix(err.Error(), fsm.LimitText) {
		t.Errorf("%v", err)
	}
}
