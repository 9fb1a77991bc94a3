package catalog

import (
	"fmt"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// arrayOf is a table of one array of so many numbers.
func arrayOf(count int) *fsm.Table {
	array := &logpb.Value{Tag: 'A'}
	for range count {
		array.Array = append(array.Array, &logpb.Value{Tag: 'b', Int: 1})
	}
	return &fsm.Table{Fields: []*logpb.Field{{Name: "a", Value: array}}}
}

// nested is a table within so many others.
func nested(depth int) *fsm.Table {
	t := longstrTable("k", "v")
	for range depth {
		t = &fsm.Table{Fields: []*logpb.Field{{Name: "t", Value: &logpb.Value{Tag: 'F', Table: t}}}}
	}
	return t
}

func declareQueueCommand(name string, args *fsm.Table) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: &logpb.DeclareQueue{
		Vhost: "/", Name: name, Durable: true, Members: []uint32{1}, Arguments: args,
	}}}
}

func declareExchangeCommand(name string, args *fsm.Table) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareExchange{DeclareExchange: &logpb.DeclareExchange{
		Vhost: "/", Name: name, Type: Fanout, Durable: true, Arguments: args,
	}}}
}

func bindCommand(key string, args *fsm.Table) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_Bind{Bind: &logpb.Bind{
		Vhost: "/", Source: "amq.direct", Destination: "q0", RoutingKey: key, Arguments: args,
	}}}
}

// small returns a catalog with a queue q0 and these settings.
func small(t *testing.T, settings map[string]int64) *Catalog {
	t.Helper()
	c := mustFill(t, 0)
	commands := []*logpb.CatalogCommand{declareQueueCommand("q0", nil)}
	for name, value := range settings {
		commands = append(commands, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: name, Value: value}}})
	}
	for i, r := range c.Apply(c.View().Index()+1, &logpb.CatalogEntry{Version: 1, Commands: commands}) {
		if err := Refused(r); err != nil {
			t.Fatalf("%v: %v", commands[i], err)
		}
	}
	return c
}

func putPolicyCommand(definition *fsm.Table) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutPolicy{PutPolicy: &logpb.PutPolicy{Vhost: "/", Name: "p", Definition: definition}}}
}

// What is too large is refused with the limit, by the leader; a replica that
// finds it in the log applies it.
func TestFitsSize(t *testing.T) {
	for _, test := range []struct {
		name    string
		command *logpb.CatalogCommand
		want    string // empty: it fits
	}{
		{"nothing", declareQueueCommand("q", nil), ""},
		{"just fits", declareQueueCommand("q", longstrTable("k", strings.Repeat("x", 4096-7))), ""},
		{"one octet too much", declareQueueCommand("q", longstrTable("k", strings.Repeat("x", 4096-6))), "arguments of queue 'q' have 4097 bytes, at most 4096 are allowed"},
		{"just few enough", declareQueueCommand("q", arrayOf(255)), ""},
		{"one value too much", declareQueueCommand("q", arrayOf(256)), "arguments of queue 'q' have 257 values, at most 256 are allowed"},
		{"nested", declareQueueCommand("q", nested(300)), "arguments of queue 'q' have 301 values, at most 256 are allowed"},
		{"what is there already", declareQueueCommand("q0", longstrTable("k", strings.Repeat("x", 5000))), ""},
		{"exchange", declareExchangeCommand("x", longstrTable("k", strings.Repeat("x", 125_000))), "arguments of exchange 'x' have 125007 bytes, at most 4096 are allowed"},
		{"exchange, values", declareExchangeCommand("x", arrayOf(1000)), "arguments of exchange 'x' have 1001 values, at most 256 are allowed"},
		{"exchange that is there", declareExchangeCommand("amq.fanout", arrayOf(1000)), ""},
		{"binding", bindCommand("k", longstrTable("k", strings.Repeat("x", 5000))), "arguments of binding to 'q0' have 5007 bytes, at most 4096 are allowed"},
		{"binding that fits", bindCommand("k", longstrTable("k", "v")), ""},
		{"policy", putPolicyCommand(longstrTable("alternate-exchange", strings.Repeat("x", 5000))), "definition of policy 'p' have 5024 bytes, at most 4096 are allowed"},
		{"tags of a user", &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutUser{PutUser: &logpb.PutUser{Name: "u", Tags: []string{strings.Repeat("x", 5000)}}}},
			"tags of user 'u' have 5000 bytes, at most 4096 are allowed"},
		{"description of a vhost", &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: "v", Description: strings.Repeat("x", 5000)}}},
			"description and tags of vhost 'v' have 5000 bytes, at most 4096 are allowed"},
	} {
		c := small(t, nil)
		got := ""
		if err := c.View().Fits(test.command); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
	raised := small(t, map[string]int64{MaxArgumentBytes: 200_000, MaxArgumentValues: 1001})
	for _, args := range []*fsm.Table{longstrTable("k", strings.Repeat("x", 125_000)), arrayOf(1000)} {
		if err := raised.View().Fits(declareExchangeCommand("x", args)); err != nil {
			t.Errorf("after the limits were raised: %v", err)
		}
	}
}

// So is one more than the cluster allows; what exists may be declared again.
func TestFitsCount(t *testing.T) {
	c := small(t, map[string]int64{ClusterQueueLimit: 3, ClusterExchangeLimit: int64(len(predeclared)) + 2, MaxBindings: 2, VHostMax: 1})
	put := func(command *logpb.CatalogCommand) error {
		if err := c.View().Fits(command); err != nil {
			return err
		}
		return Refused(c.Apply(c.View().Index()+1, &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{command}})[0])
	}
	expect := func(want string, commands ...*logpb.CatalogCommand) {
		t.Helper()
		for i, command := range commands {
			err := put(command)
			if last := i == len(commands)-1; (err != nil) != last || last && err.Error() != want {
				t.Errorf("number %d: %v, want %q", i, err, want)
			}
		}
	}
	queue := func(i int) *logpb.CatalogCommand { return declareQueueCommand(fmt.Sprint("q", i), nil) }
	expect("cannot declare queue 'q3': queue limit in cluster (3) is reached", queue(1), queue(2), queue(0), queue(3))
	expect(fmt.Sprintf("cannot declare exchange 'x2' in vhost '/': exchange limit of %d is reached", len(predeclared)+2),
		declareExchangeCommand("x0", nil), declareExchangeCommand("x1", nil), declareExchangeCommand("x2", nil))
	expect("cannot bind to exchange 'amq.direct' in vhost '/': binding limit of 2 is reached", bindCommand("a", nil), bindCommand("b", nil), bindCommand("c", nil))
	other := bindCommand("a", nil)
	other.GetBind().Source = "amq.topic"
	expect("cannot bind 'q0' in vhost '/': binding limit of 2 is reached", other)
	vhost := func(name string) *logpb.CatalogCommand {
		return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: name}}}
	}
	expect("cannot create vhost 'v': vhost limit of 1 is reached", vhost("/"), vhost("v"))
}

// A vhost without a limit of its own has as many queues as the cluster's setting
// says; with one that counts, be it more, or none.
func TestQuotaOfVHost(t *testing.T) {
	c := small(t, map[string]int64{VHostMaxQueues: 1})
	if err := Refused(c.Apply(c.View().Index()+1, &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{declareQueueCommand("q0", nil)}})[0]); err != nil {
		t.Fatal(err)
	}
	limit := func(m *logpb.PutLimit) {
		t.Helper()
		m.Of, m.Name = "/", MaxQueues
		command := &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutLimit{PutLimit: m}}
		if err := Refused(c.Apply(c.View().Index()+1, &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{command}})[0]); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(when, want string) {
		t.Helper()
		got := ""
		if err := c.View().Fits(declareQueueCommand("q1", nil)); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	const full = "cannot declare queue 'q1': queue limit in vhost '/' (1) is reached"
	expect("by the setting", full)
	if err := c.View().Fits(declareQueueCommand("q0", nil)); err != nil {
		t.Errorf("the one that is there: %v", err)
	}
	limit(&logpb.PutLimit{Value: 2})
	expect("with a limit of its own", "")
	limit(&logpb.PutLimit{Value: -1})
	expect("without any", "")
	limit(&logpb.PutLimit{Unset: true})
	expect("by the setting again", full)
}

func TestQuotas(t *testing.T) {
	c := small(t, map[string]int64{UserMaxChannels: 7})
	v := c.View()
	for _, test := range []struct {
		what string
		got  Quota
		want Quota
	}{
		{"channels of a user", v.UserQuota("nobody", MaxChannels), Quota{Limit: 7}},
		{"connections of a user", v.UserQuota("nobody", MaxConnections), Quota{Limit: 20_000}},
		{"connections to a vhost", v.VHostQuota("/", MaxConnections), Quota{Limit: 50_000}},
		{"queues of a vhost", v.VHostQuota("/", MaxQueues), Quota{Limit: 100_000}},
	} {
		if test.got != test.want {
			t.Errorf("%s: %+v, want %+v", test.what, test.got, test.want)
		}
	}
	if q := (Quota{Limit: 2}); q.Exceeded(2) || !q.Exceeded(3) || (Quota{Limit: -1}).Exceeded(1<<40) {
		t.Error("what is exceeded is wrong")
	}
}
