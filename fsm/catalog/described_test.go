package catalog

import (
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

func mustFillNewest(t *testing.T) *Catalog {
	t.Helper()
	c := &Catalog{}
	mustApply(t, c, "node n1 a versions=1-3", "initialize / guest")
	r := c.Apply(c.View().Index()+1, &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: FSMVersion, Value: 3}}}}})
	if r[0].GetRefusal() != 0 {
		t.Fatal(r)
	}
	return c
}

// do applies commands as one entry, and compares the catalog with what its snapshot restores.
func do(t *testing.T, c *Catalog, commands ...*logpb.CatalogCommand) *logpb.CatalogResult {
	t.Helper()
	v := c.View()
	r := c.Apply(v.Index()+1, &logpb.CatalogEntry{Version: v.FSMVersion(), Now: int64(v.Index()+1) * 1000, Commands: commands})
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	back, err := Restore(c.Snapshot())
	if err != nil || back.Hash() != c.Hash() || back.String() != c.String() {
		t.Fatalf("restored: %v\n%s\n%s", err, back, c)
	}
	return r[len(r)-1]
}

func together(commands ...*logpb.CatalogCommand) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_Together{Together: &logpb.Together{Commands: commands}}}
}

func declareOf(name, partOf string, ofExchange bool, arguments ...*logpb.Field) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: &logpb.DeclareQueue{
		Vhost: "/", Name: name, Durable: true, Members: []uint32{1}, PartOf: partOf, PartOfExchange: ofExchange, Arguments: &fsm.Table{Fields: arguments},
	}}}
}

func exchangeOf(name string) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareExchange{DeclareExchange: &logpb.DeclareExchange{Vhost: "/", Name: name, Type: Fanout, Durable: true}}}
}

func describe(name, key, text string, exchange, changes bool) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_Describe{Describe: &logpb.Describe{Vhost: "/", Name: name, Key: key, Text: []byte(text), Exchange: exchange, Changes: changes}}}
}

func accessKey(scope, name, secret string) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutAccessKey{PutAccessKey: &logpb.AccessKey{Vhost: "/", Scope: scope, Name: name, Primary: secret, Send: true}}}
}

func remove(name string) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteQueue{DeleteQueue: &logpb.DeleteQueue{Vhost: "/", Name: name}}}
}

// A queue, its part and its description come and go as one.
func TestDescribedObjects(t *testing.T) {
	c := mustFillNewest(t)
	create := together(declareOf("Q", "", false), declareOf("Q/dead", "Q", false), describe("Q", "q", "first", false, false))
	r := do(t, c, create)
	if r.GetRefusal() != 0 || !r.GetChanged() || len(r.GetAdded()) != 2 || r.GetAdded()[0] >= r.GetAdded()[1] {
		t.Fatal(r)
	}
	was, before := c.View(), c.View().String()
	if r := do(t, c, create); fsm.Kind(r.GetRefusal()) != fsm.Precondition {
		t.Error("created twice", r)
	}
	// The second of two is refused: the first leaves no trace.
	if r := do(t, c, together(declareOf("other", "", false), describe("other", "q", "", false, false))); r.GetRefusal() == 0 {
		t.Error(r)
	}
	if _, ok := c.View().Queue("/", "other"); ok || was.String() != before {
		t.Error("a refused command has left a queue, or changed a view")
	}
	if r := do(t, c, describe("Q", "q", "second", false, true), accessKey("q", "rule", "secret-1")); r.GetRefusal() != 0 {
		t.Error(r)
	}
	m, ok := c.View().Described("/", "q")
	if !ok || string(m.GetText()) != "second" || m.GetCreated() >= m.GetUpdated() || len(c.View().Descriptions("/")) != 1 {
		t.Error(m)
	}
	if k, ok := c.View().AccessKey("/", "q", "rule"); !ok || k.GetPrimary() != "secret-1" || len(c.View().AccessKeys("/", "q")) != 1 || len(c.View().AccessKeys("/", "")) != 0 {
		t.Error(k)
	}
	if text := c.String(); strings.Contains(text, "secret-1") || !strings.Contains(text, `access-key rule of "q" send`) || !strings.Contains(text, "part-of=Q") {
		t.Error(text)
	}
	if r := do(t, c, remove("Q")); len(r.GetDeleted()) != 2 || !slices.IsSorted(r.GetDeleted()) {
		t.Error(r)
	}
	if _, ok := c.View().Described("/", "q"); ok || len(c.View().AccessKeys("/", "q")) != 0 || c.View().QueueCount() != 0 {
		t.Error(c)
	}
}

// What is a part of an exchange goes with it, and what is a part of that.
func TestPartsOfExchanges(t *testing.T) {
	c := mustFillNewest(t)
	bind := &logpb.CatalogCommand{Body: &logpb.CatalogCommand_Bind{Bind: &logpb.Bind{Vhost: "/", Source: "T", Destination: "T/S"}}}
	do(t, c, together(exchangeOf("T"), declareOf("T/store", "T", true), describe("T", "t", "", true, false)),
		together(declareOf("T/S", "T", true), declareOf("T/S/dead", "T/S", false), describe("T/S", "t/s", "", false, false), bind))
	if got := c.View().QueueCount(); got != 3 {
		t.Fatal(got)
	}
	r := do(t, c, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteExchange{DeleteExchange: &logpb.DeleteExchange{Vhost: "/", Name: "T"}}})
	if len(r.GetDeleted()) != 3 || c.View().QueueCount() != 0 || len(c.View().Descriptions("/")) != 0 {
		t.Error(r, c)
	}
	for name, refused := range map[string]*logpb.CatalogCommand{
		"no whole":  declareOf("x", "gone", false),
		"itself":    declareOf("x", "x", false),
		"nested":    together(together(declareOf("x", "", false))),
		"no object": describe("x", "x", "", false, false),
		"no scope":  accessKey("gone", "n", "s"),
		"no secret": accessKey("", "n", ""),
		"large":     together(declareOf("x", "", false), describe("x", "x", strings.Repeat("x", maxDescription+1), false, false)),
		"other key": together(declareOf("x", "", false), describe("x", "x", "", false, false), describe("x", "y", "", false, true)),
	} {
		if r := do(t, c, refused); r.GetRefusal() == 0 || c.View().QueueCount() != 0 {
			t.Errorf("%s: %v", name, r)
		}
	}
	for i := range MaxAccessKeys + 1 {
		if r := do(t, c, accessKey("", strings.Repeat("n", i+1), "s")); (r.GetRefusal() != 0) != (i == MaxAccessKeys) {
			t.Error(i, r)
		}
	}
	again := accessKey("", "n", "other")
	again.GetPutAccessKey().OnlyNew = true
	if r := do(t, c, again); r.GetRefusal() == 0 {
		t.Error(r)
	}
	do(t, c, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteAccessKey{DeleteAccessKey: &logpb.AccessKey{Vhost: "/", Name: "n"}}})
	if len(c.View().AccessKeys("/", "")) != MaxAccessKeys-1 {
		t.Error(c)
	}
}

func TestChangeArguments(t *testing.T) {
	c := mustFillNewest(t)
	lock := func(ms int64) *logpb.Field {
		return &logpb.Field{Name: "x-lock-duration", Value: &logpb.Value{Tag: 'l', Int: ms}}
	}
	drop := &logpb.Field{Name: "x-dead-letter-expired", Value: &logpb.Value{Tag: 't'}}
	change := func(name string, exchange bool, fields ...*logpb.Field) *logpb.CatalogResult {
		return do(t, c, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_ChangeArguments{ChangeArguments: &logpb.ChangeArguments{Vhost: "/", Name: name, Exchange: exchange, Arguments: &fsm.Table{Fields: fields}}}})
	}
	do(t, c, declareOf("Q", "", false, lock(1000)), exchangeOf("T"))
	q, _ := c.View().Queue("/", "Q")
	if r := change("Q", false, lock(2000), drop); len(r.GetConfigured()) != 1 || c.View().Settings(q, Defaults{}).GetLock() != 2000 || !c.View().Settings(q, Defaults{}).GetDropExpired() {
		t.Error(r, c.View().Settings(q, Defaults{}))
	}
	if r := change("Q", false, lock(2000), drop); r.GetChanged() {
		t.Error(r)
	}
	if r := change("Q", false, lock(1)); r.GetRefusal() == 0 {
		t.Error(r)
	}
	ttl := &logpb.Field{Name: "x-message-ttl", Value: &logpb.Value{Tag: 'l', Int: 7}}
	if r := change("T", true, ttl); !r.GetChanged() {
		t.Error(r)
	}
	if x, _ := c.View().Exchange("/", "T"); x.ttl != fsm.Some[fsm.Millis](7) {
		t.Error(x.ttl)
	}
	if r := change("amq.direct", true, ttl); r.GetRefusal() == 0 {
		t.Error(r)
	}
}

// Before its version none of it is known.
func TestDescribedSince(t *testing.T) {
	c := mustFill(t, 1)
	for _, command := range []*logpb.CatalogCommand{together(), describe("queue-0", "k", "", false, false), accessKey("", "n", "s")} {
		if r := do(t, c, command); fsm.Kind(r.GetRefusal()) != fsm.Internal {
			t.Error(r)
		}
	}
	do(t, c, declareOf("part", "queue-0", false))
	if q, _ := c.View().Queue("/", "part"); q.PartOf.name != "" {
		t.Error(q)
	}
}
