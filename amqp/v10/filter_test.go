package v10_test

import (
	"bytes"
	"cmp"
	"testing"

	client "github.com/Azure/go-amqp"

	"github.com/quorate/quorate/amqp/v10/wire"
)

// described appends a described value.
func described(dst []byte, descriptor, value []byte) []byte {
	return append(append(append(dst, 0), descriptor...), value...)
}

func selectorFilter(key string, descriptor []byte, text string) []byte {
	return described(wire.AppendSymbol(nil, key), descriptor, wire.AppendString(nil, text))
}

// The answer to an attach names the filter that is in force, as it came, and no other one. A selector that is none is
// refused, and a queue may let nobody have one.
func TestFilters(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q", "unselective")
	jms, sql := wire.AppendSymbol(nil, "apache.org:selector-filter:string"), wire.AppendSymbol(nil, "amqp:sql-filter")
	codeJMS, codeSQL := wire.AppendUlong(nil, 0x468C00000004), wire.AppendUlong(nil, 0x120)
	red := func(descriptor []byte) []byte { return selectorFilter("selector", descriptor, "colour = 'red'") }
	other := described(wire.AppendSymbol(nil, "f"), wire.AppendSymbol(nil, "rabbitmq:stream-offset-spec"), wire.AppendString(nil, "first"))
	for name, c := range map[string]struct {
		queue, mode string
		filters     [][]byte
		want        []byte // in force
		condition   string
	}{
		"jms":           {filters: [][]byte{red(jms)}, want: red(jms)},
		"jms by code":   {filters: [][]byte{red(codeJMS)}, want: red(codeJMS)},
		"sql":           {filters: [][]byte{red(sql)}, want: red(sql)},
		"sql by code":   {filters: [][]byte{red(codeSQL)}, want: red(codeSQL)},
		"of streams":    {filters: [][]byte{other}},
		"two":           {filters: [][]byte{other, red(jms)}, want: red(jms)},
		"plain":         {filters: [][]byte{append(wire.AppendSymbol(nil, "selector"), wire.AppendString(nil, "colour = 'red'")...)}},
		"not by queue":  {queue: "unselective", filters: [][]byte{red(jms)}},
		"of a browser":  {mode: "copy", filters: [][]byte{red(jms)}},
		"no selector":   {filters: [][]byte{selectorFilter("selector", jms, "colour = ")}, condition: wire.ConditionInvalidField},
		"no string":     {filters: [][]byte{described(wire.AppendSymbol(nil, "selector"), jms, wire.AppendUlong(nil, 5))}, condition: wire.ConditionInvalidField},
		"empty":         {filters: [][]byte{selectorFilter("selector", jms, "")}, condition: wire.ConditionInvalidField},
		"not by queue?": {queue: "unselective", filters: [][]byte{selectorFilter("selector", jms, "(")}, condition: wire.ConditionInvalidField},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.mustOpen()
			r.t = t
			in := aReceiver("/queues/" + cmp.Or(c.queue, "q"))
			in.Source.DistributionMode = c.mode
			in.Source.Filter = wire.EndMap(append(wire.StartMap(nil), bytes.Join(c.filters, nil)...), 0, len(c.filters))
			r.send(channel, in)
			a := expect[*wire.Attach](r)
			if c.condition != "" {
				r.mustDetach(c.condition, "")
				return
			}
			var got []byte
			for w := a.Source.Filter.Walk(); w.NextPair(); {
				got = append(got, w.Pair...)
			}
			if !bytes.Equal(got, c.want) {
				t.Errorf("in force: %q, want %q", got, c.want)
			}
		})
	}
}

// What a link's filter says arrives at the broker, with a client library.
func TestClientSelects(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	x := mustSession(t, s.mustDial(t, nil))
	mustReceiver(t, x, "/queues/q", &client.ReceiverOptions{Filters: []client.LinkFilter{client.NewSelectorFilter("colour = 'red'")}})
	if got := s.broker.Selectors("q"); len(got) != 1 || got[0] != "colour = 'red'" {
		t.Errorf("selectors %q", got)
	}
	_, err := x.NewReceiver(t.Context(), "/queues/q", &client.ReceiverOptions{Filters: []client.LinkFilter{client.NewSelectorFilter("= 5")}})
	if condition(err) != wire.ConditionInvalidField {
		t.Errorf("no selector: %v", err)
	}
}
