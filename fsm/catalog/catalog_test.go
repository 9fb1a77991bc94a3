package catalog

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// entryOf makes an entry of commands as scripts write them.
func entryOf(t testing.TB, lines ...string) *logpb.CatalogEntry {
	e := &logpb.CatalogEntry{Version: 1}
	for _, line := range lines {
		e.Commands = append(e.Commands, parseCommand(t, splitWords(line)))
	}
	return e
}

// mustApply applies commands, none of which may be refused.
func mustApply(t testing.TB, c *Catalog, lines ...string) []*logpb.CatalogResult {
	t.Helper()
	results := c.Apply(c.View().Index()+1, entryOf(t, lines...))
	for i, r := range results {
		if err := Refused(r); err != nil {
			t.Fatalf("%s: %v", lines[i], err)
		}
	}
	return results
}

// mustFill returns a catalog with many queues, all bound to amq.direct and
// amq.topic by their names and to no other exchange.
func mustFill(t testing.TB, queues int) *Catalog {
	c := &Catalog{}
	mustApply(t, c, "node n1 a", "initialize / guest")
	for i := range queues {
		name := fmt.Sprintf("queue-%d", i)
		mustApply(t, c, "queue / "+name+" durable members=1", "bind / amq.direct "+name+" "+name,
			fmt.Sprintf("bind / amq.topic %s sensor.%d.*.heat", name, i))
	}
	return c
}

func TestPanics(t *testing.T) {
	for name, f := range map[string]func(c *Catalog){
		"version": func(c *Catalog) { c.Apply(9, &logpb.CatalogEntry{Version: 2}) },
		"index":   func(c *Catalog) { c.Apply(1, &logpb.CatalogEntry{Version: 1}) },
	} {
		t.Run(name, func(t *testing.T) {
			c := mustFill(t, 1)
			before := c.Hash()
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
				if c.Hash() != before {
					t.Error("the state has changed")
				}
			}()
			f(c)
		})
	}
}

func TestClock(t *testing.T) {
	var c Catalog
	for i, now := range []int64{5, 3, 8} {
		c.Apply(uint64(i+1), &logpb.CatalogEntry{Version: 1, Now: now})
	}
	if c.View().Clock() != 8 || c.View().Index() != 3 {
		t.Fatalf("clock %d at %d", c.View().Clock(), c.View().Index())
	}
	c.Apply(4, &logpb.CatalogEntry{Version: 1, Now: 1})
	if c.View().Clock() != 8 {
		t.Fatal("the clock went back")
	}
}

func TestUnknownCommand(t *testing.T) {
	var c Catalog
	r := c.Apply(1, &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{{}}})
	if err := Refused(r[0]); err == nil || err.(*fsm.Refusal).Kind != fsm.Internal {
		t.Fatalf("answer %v", r)
	}
}

// TestGroupNumbers wraps around, and leaves out 0 and what is in use.
func TestGroupNumbers(t *testing.T) {
	var c Catalog
	mustApply(t, &c, "node n1 a", "initialize / guest", "queue / first durable members=1")
	s := c.Snapshot()
	s.NextGroup = math.MaxUint32
	restored, err := Restore(s)
	if err != nil {
		t.Fatal(err)
	}
	var got []uint32
	for _, r := range mustApply(t, restored, "queue / a members=1", "queue / b members=1", "queue / c members=1") {
		got = append(got, r.Group)
	}
	if want := fmt.Sprint([]uint32{math.MaxUint32, 2, 3}); fmt.Sprint(got) != want {
		t.Errorf("groups %v, want %s", got, want)
	}
	if err := restored.Check(); err != nil {
		t.Error(err)
	}
}

func TestRestoreRefuses(t *testing.T) {
	for name, damage := range map[string]func(s *logpb.CatalogSnapshot){
		"version":            func(s *logpb.CatalogSnapshot) { s.Version = 2 },
		"vhost missing":      func(s *logpb.CatalogSnapshot) { s.Vhosts = nil },
		"user missing":       func(s *logpb.CatalogSnapshot) { s.Users = nil },
		"exchange missing":   func(s *logpb.CatalogSnapshot) { s.Exchanges = nil },
		"queue missing":      func(s *logpb.CatalogSnapshot) { s.Queues = s.Queues[1:] },
		"node missing":       func(s *logpb.CatalogSnapshot) { s.Nodes = nil },
		"binding twice":      func(s *logpb.CatalogSnapshot) { s.Bindings = append(s.Bindings, s.Bindings[0]) },
		"queue twice":        func(s *logpb.CatalogSnapshot) { s.Queues = append(s.Queues, s.Queues[0]) },
		"group twice":        func(s *logpb.CatalogSnapshot) { s.Queues[1].Group = s.Queues[0].Group },
		"id from the future": func(s *logpb.CatalogSnapshot) { s.Queues[1].Id = 1 << 60 },
		"node number":        func(s *logpb.CatalogSnapshot) { s.NextNode = 1 },
		"exchange type":      func(s *logpb.CatalogSnapshot) { s.Exchanges[0].Type = "round" },
		"no members":         func(s *logpb.CatalogSnapshot) { s.Queues[0].Declared.Members = nil },
		"local on no node":   func(s *logpb.CatalogSnapshot) { s.Queues[0].Declared.Local, s.Queues[0].Declared.Members = true, nil },
	} {
		t.Run(name, func(t *testing.T) {
			var s logpb.CatalogSnapshot
			if err := logpb.Unmarshal(encoded(mustFill(t, 2).Snapshot()), &s); err != nil {
				t.Fatal(err)
			}
			damage(&s)
			if _, err := Restore(&s); err == nil {
				t.Error("accepted")
			} else if !strings.Contains(err.Error(), "snapshot") {
				t.Errorf("says %q", err)
			}
		})
	}
}

func TestLookups(t *testing.T) {
	c := mustFill(t, 3)
	mustApply(t, c, "queue / mine exclusive local members=1 owner=1/1/7", "bind-exchange / amq.fanout amq.direct k")
	v := c.View()
	q, ok := v.Queue("/", "queue-1")
	byID, _ := v.QueueByID(q.ID)
	byGroup, _ := v.QueueByGroup(q.Group)
	if !ok || byID != q || byGroup != q {
		t.Fatalf("found %v, %v, %v", q, byID, byGroup)
	}
	if n, ok := v.NodeByName("n1"); !ok || n.Number != 1 || len(v.Nodes()) != 1 {
		t.Errorf("node %v", n)
	}
	if own := v.Owned(Owner{1, 1, 7}); len(own) != 1 || own[0].Name != "mine" {
		t.Errorf("owned %v", own)
	}
	if n := len(v.BindingsTo("/", "queue-1", false)); n != 2 {
		t.Errorf("%d bindings to a queue", n)
	}
	if to := v.BindingsTo("/", "amq.direct", true); len(to) != 1 || to[0].Source != "amq.fanout" {
		t.Errorf("bindings to an exchange: %v", to)
	}
	if n := len(v.BindingsFrom("/", "amq.direct")); n != 3 {
		t.Errorf("%d bindings from an exchange", n)
	}
	walked := 0
	for range v.EachQueue() {
		walked++
	}
	if walked != 4 || v.QueueCount() != 4 || len(v.Queues()) != 4 || len(v.QueuesOf("/")) != 4 {
		t.Errorf("walked over %d queues", walked)
	}
	of := map[*Queue]bool{}
	for q := range v.EachQueueOf("/") {
		of[q] = true
	}
	if none := slices.Collect(v.EachQueueOf("none")); len(of) != 4 || !of[v.QueuesOf("/")[0]] || none != nil {
		t.Errorf("walked over %d queues of the vhost, and %v of none", len(of), none)
	}
	if (&Catalog{}).View().QueueCount() != 0 {
		t.Error("the empty catalog has queues")
	}
}

// TestClientErrors goes through the refusals that only views give.
func TestClientErrors(t *testing.T) {
	c := mustFill(t, 1)
	mustApply(t, c, "queue / mine exclusive local members=1 owner=1/1/7", "exchange / inner fanout internal",
		"user u", "permission u / '' q q", "user none")
	v, v3 := c.View(), mustBeOfVersion(t, 3).View()
	guest, owner, u := Client{User: "guest"}, Client{"guest", Owner{1, 1, 7}}, Client{User: "u"}
	only := func(_ any, err error) error { return err }
	for name, got := range map[string]struct {
		err  error
		want string
	}{
		"use":               {only(v.UseQueue(guest, Read, "/", "queue-0")), ""},
		"use missing":       {only(v.UseQueue(guest, Read, "/", "none")), "not-found: no queue 'none' in vhost '/'"},
		"use own":           {only(v.UseQueue(owner, Read, "/", "mine")), ""},
		"use another's":     {only(v.UseQueue(guest, Read, "/", "mine")), "locked: cannot obtain exclusive access to locked queue 'mine'"},
		"use without read":  {only(v.UseQueue(u, Read, "/", "mine")), "access-refused: read access to queue 'mine' in vhost '/' refused for user 'u'"},
		"passive":           {only(v.PassiveQueue(u, "/", "queue-0")), ""},
		"passive another's": {only(v.PassiveQueue(guest, "/", "mine")), "locked: "},
		"passive refused":   {only(v.PassiveQueue(u, "/", "mine")), "access-refused: configure access to queue 'mine' in vhost '/' refused for user 'u'"},
		"passive exchange":  {v.PassiveExchange(guest, "/", "inner"), ""},
		"passive missing":   {v.PassiveExchange(guest, "/", "none"), "not-found: no exchange 'none' in vhost '/'"},
		"passive default":   {v.PassiveExchange(guest, "/", ""), "access-refused: operation not permitted on the default exchange"},
		"passive unread":    {v.PassiveExchange(Client{User: "none"}, "/", "inner"), "access-refused: configure access to exchange 'inner' in vhost '/' refused for user 'none'"},
		"publish":           {v.CheckPublish("guest", "/", "amq.direct"), ""},
		"publish default":   {v.CheckPublish("guest", "/", ""), ""},
		"publish missing":   {v.CheckPublish("guest", "/", "none"), "not-found: no exchange 'none' in vhost '/'"},
		"publish internal":  {v.CheckPublish("guest", "/", "inner"), "access-refused: cannot publish to internal exchange 'inner' in vhost '/'"},
		"publish refused":   {v.CheckPublish("u", "/", "inner"), "access-refused: write access to exchange 'inner' in vhost '/' refused for user 'u'"},
		"publish no vhost":  {v.CheckPublish("guest", "/none", ""), "access-refused: write access to exchange 'amq.default' in vhost '/none' refused for user 'guest'"},
		"default refused":   {v.CheckPublish("none", "/", ""), "access-refused: write access to exchange 'amq.default' in vhost '/' refused for user 'none'"},
		"pattern":           {v3.ValidatePattern("^(?!b)a.*$"), ""},
		"bad pattern":       {v3.ValidatePattern("^(a"), `precondition: "^(a" is not a valid regular expression: missing ) at offset 1`},
		"long pattern":      {v3.ValidatePattern(strings.Repeat("a", 1025)), "precondition: the pattern is longer than 1024 bytes"},
	} {
		text := ""
		if got.err != nil {
			text = refusalText(got.err)
		}
		if !strings.HasPrefix(text, got.want) || got.want == "" && text != "" {
			t.Errorf("%s: %q, want %q", name, text, got.want)
		}
	}
}

// TestInvalidText quotes bytes that are no text.
func TestInvalidText(t *testing.T) {
	args := &fsm.Table{Fields: []*logpb.Field{{Name: "x-queue-type", Value: &logpb.Value{Tag: 'S', Str: []byte("a\xffb")}}}}
	err := (&View{}).ValidateQueueArguments("/", "q", args)
	if err == nil || !strings.HasSuffix(err.Error(), `"unsupported queue type 'a?b'"`) {
		t.Errorf("refusal %v", err)
	}
}

// TestRouteMany reaches the sizes at which lists become sets.
func TestRouteMany(t *testing.T) {
	c := mustFill(t, 200)
	mustApply(t, c, "exchange / all fanout", "exchange / more fanout")
	for i := range 200 {
		mustApply(t, c, fmt.Sprintf("bind / all queue-%d k", i), fmt.Sprintf("bind / more queue-%d k", i),
			fmt.Sprintf("exchange / x%d fanout", i), fmt.Sprintf("bind-exchange / all x%d k", i), fmt.Sprintf("bind-exchange / x%d more k", i))
	}
	m := Message{Keys: []string{"k"}}
	queues, _, err := c.View().Route("/", "all", &m, nil)
	seen := map[*Queue]bool{}
	for _, q := range queues {
		seen[q] = true
	}
	if err != nil || len(queues) != 200 || len(seen) != 200 {
		t.Fatalf("%d queues, %d different (%v)", len(queues), len(seen), err)
	}
	again, _, err := c.View().Route("/", "more", &m, queues[:150])
	if err != nil || len(again) != 200 {
		t.Fatalf("%d queues in a list that had 150 (%v)", len(again), err)
	}
}

func TestRouteAllocates(t *testing.T) {
	c := mustFill(t, 100)
	mustApply(t, c, "bind / amq.fanout queue-1 k", "bind / amq.fanout queue-2 k", "bind / amq.headers queue-1 k h=S:v")
	for _, kind := range []string{ConsistentHash, ModulusHash, Random, LocalRandom} {
		mustApply(t, c, "exchange / "+kind+" "+kind, "bind / "+kind+" queue-1 1", "bind / "+kind+" queue-2 2")
	}
	v := c.View()
	table := parseTable(t, []string{"h=S:v"})
	headers := func() *fsm.Table { return table }
	local := func(*Queue) bool { return true }
	dst := make([]*Queue, 0, 8)
	for exchange, key := range map[string]string{
		"": "queue-7", "amq.direct": "queue-7", "amq.topic": "sensor.7.room.heat", "amq.fanout": "", "amq.headers": "",
		ConsistentHash: "a key", ModulusHash: "a key", Random: "", LocalRandom: "",
	} {
		n := testing.AllocsPerRun(100, func() {
			keys := [1]string{key}
			queues, _, err := v.Route("/", exchange, &Message{Keys: keys[:], Headers: headers, Local: local}, dst[:0])
			if err != nil || len(queues) == 0 {
				t.Fatalf("%q: %v", exchange, err)
			}
		})
		if n != 0 {
			t.Errorf("%q: %v allocations", exchange, n)
		}
	}
	if n := testing.AllocsPerRun(100, func() { _ = v.CheckPublish("guest", "/", "amq.direct") }); n != 0 {
		t.Errorf("CheckPublish: %v allocations", n)
	}
}

func BenchmarkRoute(b *testing.B) {
	c := mustFill(b, 10000)
	mustApply(b, c, "bind / amq.headers queue-1 k h=S:v")
	mustApply(b, c, "exchange / hash x-consistent-hash")
	for i := range 10 {
		mustApply(b, c, fmt.Sprintf("bind / amq.fanout queue-%d k", i), fmt.Sprintf("bind / hash queue-%d 1", i))
	}
	v := c.View()
	table := parseTable(b, []string{"h=S:v"})
	headers := func() *fsm.Table { return table }
	dst := make([]*Queue, 0, 16)
	for _, c := range []struct{ name, exchange, key string }{
		{"default", "", "queue-7000"}, {"direct", "amq.direct", "queue-7000"}, {"topic", "amq.topic", "sensor.7000.room.heat"},
		{"fanout10", "amq.fanout", ""}, {"headers", "amq.headers", ""}, {"hash10", "hash", "7000"},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				keys := [1]string{c.key}
				if queues, _, err := v.Route("/", c.exchange, &Message{Keys: keys[:], Headers: headers}, dst[:0]); err != nil || len(queues) == 0 {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkDeclare declares and deletes one queue among 10,000.
func BenchmarkDeclare(b *testing.B) {
	c := mustFill(b, 10000)
	declare, remove := entryOf(b, "queue / another durable members=1"), entryOf(b, "delete-queue / another")
	index := c.View().Index()
	b.ReportAllocs()
	for b.Loop() {
		c.Apply(index+1, declare)
		c.Apply(index+2, remove)
		index += 2
	}
}

// BenchmarkBind binds and unbinds among 10,000 bindings of one exchange.
func BenchmarkBind(b *testing.B) {
	c := mustFill(b, 10000)
	bind, unbind := entryOf(b, "bind / amq.topic queue-1 another.*.key"), entryOf(b, "unbind / amq.topic queue-1 another.*.key")
	index := c.View().Index()
	b.ReportAllocs()
	for b.Loop() {
		c.Apply(index+1, bind)
		c.Apply(index+2, unbind)
		index += 2
	}
}

// BenchmarkSnapshot writes 10,000 queues with two bindings each.
func BenchmarkSnapshot(b *testing.B) {
	c := mustFill(b, 10000)
	b.ReportAllocs()
	for b.Loop() {
		b.SetBytes(int64(len(encoded(c.Snapshot()))))
	}
}

// TestInitializeRefuses: a refusal leaves nothing half done.
func TestInitializeRefuses(t *testing.T) {
	for name, spoil := range map[string]func(m *logpb.Initialize){
		"vhost":   func(m *logpb.Initialize) { m.Vhost.Name, m.Permission.Vhost = "", "" },
		"user":    func(m *logpb.Initialize) { m.User.Name, m.Permission.User = "", "" },
		"other":   func(m *logpb.Initialize) { m.Permission.User = "somebody" },
		"pattern": func(m *logpb.Initialize) { m.Permission.Read = strings.Repeat("a", 1025) },
	} {
		t.Run(name, func(t *testing.T) {
			var c Catalog
			e := entryOf(t, "initialize / guest")
			spoil(e.Commands[0].GetInitialize())
			if err := Refused(c.Apply(1, e)[0]); err == nil {
				t.Error("accepted")
			}
			if v := c.View(); v.Initialized() || len(v.VHosts())+len(v.Users())+len(v.Permissions()) != 0 {
				t.Errorf("left behind:\n%s", v)
			}
			mustApply(t, &c, "initialize / guest", "delete-permission guest /", "delete-permission guest /")
			if v := c.View(); !v.Initialized() || len(v.Permissions()) != 0 {
				t.Errorf("have\n%s", v)
			}
		})
	}
}

func TestRender(t *testing.T) {
	for field, want := range map[string]string{
		"a=t:1": "true", "a=b:-1": "-1", "a=T:7": "7", "a=d:0x3ff8000000000000": "1.5", "a=f:0x3fc00000": "1.5", "a=S:x": "x", "a=x:y": "y",
		"a=D:abcde": "6162636465", "a=A:x": "[x]", "a=F:x": "{x=bool:true}", "a=V:": "void", "a=Z:1": "unknown",
	} {
		v := lookup(parseTable(t, []string{field}), "a")
		if got := render(v); got != want {
			t.Errorf("%s is %q, want %q", field, got, want)
		}
		if !equalValues(v, v) {
			t.Errorf("%s does not equal itself", field)
		}
	}
}

// TestEqualValues compares across types.
func TestEqualValues(t *testing.T) {
	for pair, want := range map[[2]string]bool{
		{"b:5", "l:5"}:                           true,
		{"L:5", "u:5"}:                           true,
		{"I:5", "T:5"}:                           false,
		{"I:5", "S:5"}:                           false,
		{"S:5", "x:5"}:                           false,
		{"t:1", "t:2"}:                           true,
		{"t:1", "b:1"}:                           false,
		{"f:0x3fc00000", "d:0x3ff8000000000000"}: true,
		{"A:x", "A:x"}:                           true,
		{"A:x", "A:y"}:                           false,
		{"F:x", "F:x"}:                           true,
		{"D:abcde", "D:abcdf"}:                   false,
		{"V:", "V:"}:                             true,
		{"V:", "Z:0"}:                            false,
	} {
		a, b := parseTable(t, []string{"a=" + pair[0]}), parseTable(t, []string{"a=" + pair[1]})
		if got := equalValues(lookup(a, "a"), lookup(b, "a")); got != want {
			t.Errorf("%v: %v", pair, got)
		}
	}
}
