package catalog

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

var (
	someQueue    = rapid.SampledFrom([]string{"q0", "q1", "q2", "q3", "q4"})
	someExchange = rapid.SampledFrom([]string{"x0", "x1", "x2", "x3", "amq.direct", "amq.topic", "amq.fanout", "amq.headers"})
	ownExchange  = rapid.SampledFrom([]string{"x0", "x1", "x2", "x3"})
	someKey      = rapid.SampledFrom([]string{"", "a", "b", "a.b", "a.*", "#", "#.b", "*.#", "#.a.#", "#.a.#.b.#", "#.#.#", "q1", "1", "5", "0"})
	publishedKey = rapid.SampledFrom([]string{"", "a", "b", "a.b", "a.a.b", "c", "q1", "q2"})
	someValue    = rapid.SampledFrom([]string{"1", "2", "?"})
)

func drawTable(t *rapid.T, names ...string) *fsm.Table {
	table := &fsm.Table{}
	for _, name := range names {
		if !rapid.Bool().Draw(t, name) {
			continue
		}
		v := &logpb.Value{Tag: 'S', Str: []byte(someValue.Draw(t, "value"))}
		if string(v.Str) == "?" {
			v = &logpb.Value{Tag: 'V'}
		}
		table.Fields = append(table.Fields, &logpb.Field{Name: name, Value: v})
	}
	return table
}

func drawExchange(t *rapid.T) *logpb.DeclareExchange {
	x := &logpb.DeclareExchange{
		Vhost: "/", Name: ownExchange.Draw(t, "exchange"), Type: rapid.SampledFrom(exchangeTypes[:len(exchangeTypes)-1]).Draw(t, "type"),
		AutoDelete: rapid.Bool().Draw(t, "auto-delete"), Durable: rapid.Bool().Draw(t, "durable"),
	}
	if x.Type == ConsistentHash && rapid.Bool().Draw(t, "hash-header") {
		x.Arguments = &fsm.Table{Fields: []*logpb.Field{{Name: "hash-header", Value: &logpb.Value{Tag: 'S', Str: []byte("h1")}}}}
	} else if rapid.IntRange(0, 3).Draw(t, "alternate") == 0 {
		name := rapid.SampledFrom([]string{"", "x0", "x1", "x2", "amq.fanout", "nosuch"}).Draw(t, "alternate-exchange")
		x.Arguments = &fsm.Table{Fields: []*logpb.Field{{Name: "alternate-exchange", Value: &logpb.Value{Tag: 'S', Str: []byte(name)}}}}
	} else if rapid.Bool().Draw(t, "idle") {
		x.Arguments = &fsm.Table{Fields: []*logpb.Field{{Name: idleArgument, Value: &logpb.Value{Tag: 'I', Int: rapid.Int64Range(0, 40).Draw(t, idleArgument)}}}}
	}
	return x
}

func drawQueue(t *rapid.T) *logpb.DeclareQueue {
	q := &logpb.DeclareQueue{Vhost: "/", Name: someQueue.Draw(t, "queue"), Members: []uint32{1}}
	if rapid.Bool().Draw(t, "exclusive") {
		q.Exclusive, q.Local = true, true
		q.Owner = drawOwner(t)
	}
	return q
}

func drawOwner(t *rapid.T) *logpb.Owner {
	return &logpb.Owner{Node: 1, Boot: 1, Connection: rapid.Uint64Range(1, 3).Draw(t, "connection")}
}

func drawBind(t *rapid.T) *logpb.Bind {
	b := &logpb.Bind{Vhost: "/", Source: someExchange.Draw(t, "source"), RoutingKey: someKey.Draw(t, "key"), Arguments: drawTable(t, "h1", "h2")}
	if b.ToExchange = rapid.IntRange(0, 2).Draw(t, "to exchange") == 0; b.ToExchange {
		b.Destination = someExchange.Draw(t, "destination")
	} else {
		b.Destination = someQueue.Draw(t, "destination")
	}
	if mode := rapid.SampledFrom([]string{"", "all", "any"}).Draw(t, "x-match"); mode != "" {
		b.Arguments.Fields = append(b.Arguments.Fields, &logpb.Field{Name: "x-match", Value: &logpb.Value{Tag: 'S', Str: []byte(mode)}})
	}
	return b
}

func drawCommand(t *rapid.T) *logpb.CatalogCommand {
	c := &logpb.CatalogCommand{}
	switch n := rapid.IntRange(0, 28).Draw(t, "command"); {
	case n < 3:
		c.Body = &logpb.CatalogCommand_DeclareExchange{DeclareExchange: drawExchange(t)}
	case n < 6:
		c.Body = &logpb.CatalogCommand_DeclareQueue{DeclareQueue: drawQueue(t)}
	case n < 14:
		c.Body = &logpb.CatalogCommand_Bind{Bind: drawBind(t)}
	case n < 16:
		c.Body = &logpb.CatalogCommand_Unbind{Unbind: drawBind(t)}
	case n < 17:
		c.Body = &logpb.CatalogCommand_DeleteQueue{DeleteQueue: &logpb.DeleteQueue{Vhost: "/", Name: someQueue.Draw(t, "queue")}}
	case n < 18:
		c.Body = &logpb.CatalogCommand_DeleteOwned{DeleteOwned: &logpb.DeleteOwned{Owner: drawOwner(t)}}
	case n < 19:
		c.Body = &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{
			Name:  rapid.SampledFrom([]string{LockCredit, MaxClockSkew, "other"}).Draw(t, "setting"),
			Value: rapid.Int64Range(0, 20).Draw(t, "value"), Unset: rapid.Bool().Draw(t, "unset")}}
	case n < 20:
		c.Body = &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{
			Name: FSMVersion, Value: rapid.Int64Range(0, 4).Draw(t, "version"), Unset: rapid.IntRange(0, 9).Draw(t, "unset") == 0}}
	case n < 21:
		c.Body = &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{
			Name: "m", Incarnation: []byte(rapid.StringN(1, 2, -1).Draw(t, "incarnation")),
			OldestVersion: rapid.Uint32Range(0, 2).Draw(t, "oldest"), NewestVersion: rapid.Uint32Range(0, 3).Draw(t, "newest")}}
	case n < 22 && rapid.Bool().Draw(t, "dies"):
		c.Body = &logpb.CatalogCommand_DeclareDead{DeclareDead: &logpb.DeclareDead{
			Name: "m", Boot: rapid.Uint64Range(1, 30).Draw(t, "boot")}}
	case n < 22:
		c.Body = &logpb.CatalogCommand_SetDraining{SetDraining: &logpb.SetDraining{
			Name: rapid.SampledFrom([]string{"n", "n", "other"}).Draw(t, "node"), Draining: rapid.Bool().Draw(t, "draining")}}
	case n < 24:
		c.Body = &logpb.CatalogCommand_TouchExchange{TouchExchange: &logpb.TouchExchange{
			Vhost: "/", Name: someExchange.Draw(t, "touched"), At: rapid.Int64Range(0, 120).Draw(t, "at")}}
	case n < 25:
		c.Body = &logpb.CatalogCommand_PutLimit{PutLimit: &logpb.PutLimit{
			Of: "/", Name: MaxQueues, Value: rapid.Int64Range(-1, 5).Draw(t, "most"), Unset: rapid.Bool().Draw(t, "unset")}}
	case n < 27:
		c.Body = &logpb.CatalogCommand_ExpireExchange{ExpireExchange: &logpb.ExpireExchange{
			Vhost: "/", Name: someExchange.Draw(t, "idle"), At: rapid.Int64Range(0, 120).Draw(t, "at")}}
	default:
		c.Body = &logpb.CatalogCommand_DeleteExchange{DeleteExchange: &logpb.DeleteExchange{
			Vhost: "/", Name: someExchange.Draw(t, "exchange"), IfUnused: rapid.Bool().Draw(t, "if-unused")}}
	}
	return c
}

// TestReplicas gives random logs to three replicas (one straight, one that is
// restored from its snapshot now and then, one that reads entries from their
// bytes) and to the model. After each entry the replicas have equal hashes
// and answers, their invariants hold, and they route as the model does; what
// earlier views say does not change.
func TestReplicas(t *testing.T) {
	first := &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{
		{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{Name: "n", Incarnation: []byte("i"), NewestVersion: 3}}},
		{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: "/"}}},
	}}
	rapid.Check(t, func(t *rapid.T) {
		var replicas [3]*Catalog
		for i := range replicas {
			replicas[i] = &Catalog{}
			replicas[i].Apply(1, first)
		}
		m := newModel()
		var views []*View
		var texts []string
		index := uint64(1)
		for range rapid.IntRange(1, 15).Draw(t, "entries") {
			index += rapid.Uint64Range(1, 3).Draw(t, "gap")
			e := &logpb.CatalogEntry{Version: 1, Now: rapid.Int64Range(0, 100).Draw(t, "now"), Commands: rapid.SliceOfN(rapid.Custom(drawCommand), 1, 8).Draw(t, "commands")}
			if rapid.Bool().Draw(t, "marked") {
				e.Proposal = &logpb.Proposal{Node: "n", Incarnation: []byte("i"), From: rapid.Uint64Range(1, 3).Draw(t, "from")}
				e.Proposal.Number = e.Proposal.From + rapid.Uint64Range(0, 3).Draw(t, "number")
			}
			if rapid.IntRange(0, 3).Draw(t, "restore") == 0 {
				replicas[1] = mustReload(t, replicas[1])
			}
			applyToAll(t, replicas, index, e, m)
			checkRoutes(t, replicas, m)
			views, texts = append(views, replicas[0].View()), append(texts, replicas[0].String())
		}
		for i, v := range views {
			if v.String() != texts[i] {
				t.Fatalf("view %d has changed:\n%s\nit was\n%s", i, v, texts[i])
			}
		}
	})
}

func applyToAll(t *rapid.T, replicas [3]*Catalog, index uint64, e *logpb.CatalogEntry, m *model) {
	var copied logpb.CatalogEntry
	if err := logpb.Unmarshal(encoded(e), &copied); err != nil {
		t.Fatal(err)
	}
	results := replicas[0].Apply(index, e)
	for i, other := range [][]*logpb.CatalogResult{replicas[1].Apply(index, e), replicas[2].Apply(index, &copied)} {
		same := func(a, b *logpb.CatalogResult) bool { return sameRow(a, b) }
		if !slices.EqualFunc(results, other, same) {
			t.Fatalf("answers %v, replica %d %v", results, i+1, other)
		}
	}
	m.clock = max(m.clock, e.Now)
	m.index = index
	repeated := m.repeats(e.Proposal)
	if got := replicas[0].Repeated(); got != repeated {
		t.Fatalf("%v is repeated: %v, not %v", e.Proposal, got, repeated)
	}
	for i, c := range e.Commands {
		if repeated {
			break
		}
		if changed := m.perform(c); changed != results[i].Changed {
			t.Fatalf("%v: %v, want changed %v", c, results[i], changed)
		}
	}
	for _, c := range replicas {
		if c.Hash() != replicas[0].Hash() || c.String() != replicas[0].String() {
			t.Fatalf("after %d\n%s\nand\n%s", index, replicas[0], c)
		}
		if err := c.Check(); err != nil {
			t.Fatalf("after %d: %v\n%s", index, err, c)
		}
	}
}

// isLocal is for local random exchanges.
func isLocal(q *Queue) bool { return q.Name > "q1" }

func checkRoutes(t *rapid.T, replicas [3]*Catalog, m *model) {
	v := replicas[0].View()
	if got := len(v.Exchanges("/")); got != len(m.exchanges) || len(v.Bindings("/")) != len(m.bindings) || v.QueueCount() != len(m.queues) {
		t.Fatalf("%d exchanges, want %d\n%s", got, len(m.exchanges), v)
	}
	exchange := rapid.SampledFrom([]string{"", "x0", "x1", "x2", "x3", "amq.direct", "amq.topic", "amq.fanout", "amq.headers"}).Draw(t, "published to")
	key := publishedKey.Draw(t, "published with")
	chance := rapid.Uint64Range(0, 20).Draw(t, "chance")
	table := drawTable(t, "h1", "h2", "h3")
	headers := map[string]string{}
	for _, f := range table.Fields {
		headers[f.Name] = string(f.Value.Str)
	}
	for _, c := range replicas {
		queues, _, err := c.View().Route("/", exchange, &Message{
			Keys: []string{key}, Headers: func() *fsm.Table { return table }, Chance: chance, Local: isLocal,
		}, nil)
		if exchange != "" && m.exchanges[exchange] == nil {
			if err == nil {
				t.Fatalf("%s does not exist and was routed", exchange)
			}
			continue
		}
		got := []string{}
		for _, q := range queues {
			got = append(got, q.Name)
		}
		slices.Sort(got)
		if want := m.route(exchange, key, headers, chance); err != nil || !slices.Equal(got, want) {
			t.Fatalf("%s with key %q and %v goes to %v (%v), want %v\n%s", exchange, key, headers, got, err, want, c)
		}
	}
}

// The key of a message is as long as any, and depends on what the queue asks for as much as on what the message says.
func TestUniqueKey(t *testing.T) {
	said := map[string]string{"message_id": "a", "header:k": "a", "header:long": strings.Repeat("x", 100_000), "header:empty": ""}
	property := func(name string) []byte { return []byte(said[name]) }
	key := func(by string) string { return string(UniqueKey(by, property)) }
	if key("header:empty") != "" || key("header:none") != "" {
		t.Error("a message that says nothing has a key")
	}
	all := map[string]bool{}
	for _, by := range []string{"message-id", "header:k", "header:long"} {
		if all[key(by)] = true; len(key(by)) != 16 || key(by) != key(by) {
			t.Errorf("%s: %q", by, key(by))
		}
	}
	if said["message_id"] = "b"; all[key("message-id")] || len(all) != 3 {
		t.Error("two keys are the same")
	}
	old := effective{arguments: &fsm.Table{Fields: []*logpb.Field{{Name: "x-message-deduplication", Value: &logpb.Value{Tag: 't', Int: 1}}}}}
	if by := old.unique(); by != "header:x-deduplication-header" {
		t.Errorf("x-message-deduplication goes by %q", by)
	}
	old.arguments.Fields = append(old.arguments.Fields, &logpb.Field{Name: "x-unique", Value: &logpb.Value{Tag: 'S', Str: []byte("message-id")}})
	if by := old.unique(); by != "message-id" {
		t.Errorf("with x-unique it goes by %q", by)
	}
}
