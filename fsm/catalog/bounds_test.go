package catalog

import (
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

func longstrTable(name, value string) *fsm.Table {
	return &fsm.Table{Fields: []*logpb.Field{{Name: name, Value: &logpb.Value{Tag: 'S', Str: []byte(value)}}}}
}

// declareWith declares a queue with a text under a name, and what it needs beside
// it; exchangeWith does so for an exchange.
func declareWith(name, value string) *logpb.DeclareQueue {
	args := longstrTable(name, value)
	if name == "x-forward-to-routing-key" {
		args.Fields = append(args.Fields, longstrTable(forwardArgument, "amq.fanout").Fields...)
	}
	if name != deadLetterExchange {
		args.Fields = append(args.Fields, longstrTable(deadLetterExchange, "amq.fanout").Fields...)
	}
	return &logpb.DeclareQueue{Vhost: "/", Name: "q", Durable: true, Members: []uint32{1}, Arguments: args}
}

func exchangeWith(name, value string) *logpb.DeclareExchange {
	d := &logpb.DeclareExchange{Vhost: "/", Name: "x", Type: Fanout, Durable: true, Arguments: longstrTable(name, value)}
	switch name {
	case hashHeader:
		d.Type = ConsistentHash
	case deadLetterExchange, deadLetterRoutingKey:
		d.Arguments.Fields = append(d.Arguments.Fields, &logpb.Field{Name: delayedExchange, Value: &logpb.Value{Tag: 't', Int: 1}})
	}
	return d
}

// What is to be a short string and is none is refused to clients and operators,
// and by the leader of the log. An entry that has it is applied all the same, and
// what it has made is in the next snapshot.
func TestShortStrings(t *testing.T) {
	for _, length := range []int{255, 256, 300, 70_000} {
		value := strings.Repeat("é", length/2) + strings.Repeat("k", length%2)
		fits := length <= fsm.MaxShort
		judge := func(what string, command *logpb.CatalogCommand, asked error, v func(*View) bool) {
			t.Helper()
			if got := Admit(command); (got == nil) != fits || (asked == nil) != fits {
				t.Errorf("%s of %d bytes: %v, and %v to the client", what, length, got, asked)
			}
			old := mustFill(t, 0)
			if err := Refused(old.Apply(old.View().Index()+1, &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{command}})[0]); err != nil {
				t.Errorf("%s of %d bytes: an old log does not replay: %v", what, length, err)
			}
			restored, err := Restore(old.Snapshot())
			if err != nil || !v(restored.View()) || restored.Hash() != old.Hash() {
				t.Errorf("%s of %d bytes: restored %v", what, length, err)
			}
		}
		view, guest := mustFill(t, 0).View(), Client{User: "guest"}
		for _, name := range shortInQueues {
			d := declareWith(name, value)
			_, err := view.CheckDeclareQueue(guest, d, false)
			judge(name, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: d}}, err, func(v *View) bool {
				q, ok := v.Queue("/", "q")
				return ok && v.Settings(q, Defaults{}).GetDeadLetter()
			})
		}
		for _, name := range shortInExchanges {
			d := exchangeWith(name, value)
			_, err := view.CheckDeclareExchange(guest, d)
			judge(name, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareExchange{DeclareExchange: d}}, err, func(v *View) bool {
				_, ok := v.Exchange("/", "x")
				return ok
			})
		}
		for _, name := range shortInPolicies {
			p := &logpb.PutPolicy{Vhost: "/", Name: "p", Pattern: ".*", ApplyTo: applyAll, Definition: longstrTable(name, value)}
			judge(name, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutPolicy{PutPolicy: p}}, view.ValidatePolicy(p), func(v *View) bool {
				_, ok := v.Policy("/", "p", false)
				return ok
			})
		}
	}
}

// Every text that a policy may set and that has an effect is one of a few words
// or a short string: a new key has to be one of them.
func TestPolicyTexts(t *testing.T) {
	long := &logpb.Value{Tag: 'S', Str: []byte(strings.Repeat("k", 256))}
	for _, k := range policyKeys {
		if k.accepts != anything.accepts && k.valid(long) != slices.Contains(shortInPolicies, k.name) {
			t.Errorf("%s: a text of 256 bytes is valid: %v", k.name, k.valid(long))
		}
	}
	for _, a := range queueArguments {
		if (a.check(long) == "") != slices.Contains(shortInQueues, a.name) {
			t.Errorf("%s: a text of 256 bytes: %q", a.name, a.check(long))
		}
	}
}

// No command makes a store: exchanges bring theirs.
func TestDeclareStore(t *testing.T) {
	c := mustFill(t, 0)
	mustApply(t, c, "exchange / x fanout durable")
	d := &logpb.DeclareQueue{Vhost: "/", Name: "q", Durable: true, Members: []uint32{1}, StoreOf: "x"}
	r := c.Apply(c.View().Index()+1, &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{
		{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: d}},
	}})
	if Refused(r[0]) == nil {
		t.Error("it was made")
	}
	if err := c.Check(); err != nil {
		t.Error(err)
	}
}

// What has no effect is said to have none.
func TestSaidWithoutEffect(t *testing.T) {
	one := func(name, word string) *fsm.Table {
		return &fsm.Table{Fields: []*logpb.Field{{Name: name, Value: &logpb.Value{Tag: 'S', Str: []byte(word)}}}}
	}
	said := EffectivePolicy{policy: one("queue-mode", "lazy"), operator: one("overflow", "drop-head")}.Said(one("x-overflow", "reject-publish"))
	if len(said) != 2 || said[0].Key != "overflow" || said[0].By != ByOperatorPolicy || said[0].Rule != "the operator policy's" || said[1].Rule != "no effect" {
		t.Errorf("%+v", said)
	}
}
