package v10

import (
	"testing"

	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

func namedValue(name string, v *logpb.Value) *logpb.Field { return &logpb.Field{Name: name, Value: v} }

// The location of a binding does not depend on the order of its arguments, and on nothing but them; it is the same with every
// program.
func TestArgumentsHash(t *testing.T) {
	a, b := namedValue("a", &logpb.Value{Tag: 'S', Str: []byte("x")}), namedValue("b", &logpb.Value{Tag: 'I', Int: 1})
	one := argumentsHash(&fsm.Table{Fields: []*logpb.Field{a, b}})
	if one != "-3jo_Cdp3PCpp-wcpZz7qw" {
		t.Errorf("hash %q", one)
	}
	if two := argumentsHash(&fsm.Table{Fields: []*logpb.Field{b, a}}); two != one {
		t.Errorf("%q in another order, %q in one", two, one)
	}
	for _, t2 := range []*fsm.Table{
		{Fields: []*logpb.Field{a}}, {Fields: []*logpb.Field{a, namedValue("b", &logpb.Value{Tag: 'l', Int: 1})}}, {Fields: []*logpb.Field{a, namedValue("c", b.Value)}},
	} {
		if argumentsHash(t2) == one {
			t.Errorf("%v has the same hash", t2)
		}
	}
	if argumentsHash(nil) != "" || argumentsHash(&fsm.Table{}) != "" {
		t.Error("no arguments have a hash")
	}
}

// What 0-9-1 alone has is left out of arguments, and nothing of them breaks the encoding.
func TestArgumentsOfAnotherProtocol(t *testing.T) {
	encoded := appendArguments(nil, &fsm.Table{Fields: []*logpb.Field{
		namedValue("decimal", &logpb.Value{Tag: 'D', Str: []byte("\x02\x00\x00\x00\x05")}),
		namedValue("\xff", &logpb.Value{Tag: 'T', Int: 2}),
		namedValue("table", &logpb.Value{Tag: 'F', Table: &fsm.Table{Fields: []*logpb.Field{namedValue("ü", &logpb.Value{Tag: 't', Int: 1}), namedValue("k", &logpb.Value{Tag: 'V'})}}}),
		namedValue("list", &logpb.Value{Tag: 'A', Array: []*logpb.Value{{Tag: 'D'}, {Tag: 'x', Str: []byte("b")}}}),
		namedValue("nul", &logpb.Value{Tag: 'S', Str: []byte("a\x00b")}),
	}})
	v, rest, err := wire.ReadValue(encoded)
	if err != nil || len(rest) > 0 || v.Type != wire.Map || v.Len() != 8 {
		t.Fatalf("%+v, %v", v, err)
	}
	var types []wire.Type
	for w := v.Walk(); w.NextPair(); {
		types = append(types, w.Key.Type, w.Value.Type)
		switch string(w.Key.Bytes()) {
		case "table":
			n := w.Value.Walk()
			if !n.NextPair() || n.Key.Type != wire.String || !n.NextPair() || n.Key.Type != wire.Symbol || n.Value.Type != wire.Null {
				t.Errorf("table %+v", n)
			}
		case "list":
			if w.Value.Len() != 1 {
				t.Errorf("list of %d values", w.Value.Len())
			}
		case "\uFFFD":
			if w.Value.Signed() != 2000 {
				t.Errorf("timestamp %d", w.Value.Signed())
			}
		}
	}
	if types[len(types)-1] != wire.Binary {
		t.Errorf("types %v", types)
	}
}

// Properties of a link that stand for many values in few bytes are no argument of a consumer, and cost nothing.
func TestManyValuesInLinkProperties(t *testing.T) {
	many := []byte("\xf0\x00\x00\x00\x05\x00\x01\x00\x00\x40") // 65536 times null
	const each = 20
	b := wire.StartMap(nil)
	for range each {
		b = append(wire.AppendSymbol(b, "x-a"), many...)
	}
	b = wire.AppendLong(wire.AppendSymbol(b, "x-lock-duration"), 5)
	var values int
	var count func(v *logpb.Value)
	count = func(v *logpb.Value) {
		values++
		for _, e := range v.GetArray() {
			count(e)
		}
		for _, f := range v.GetTable().GetFields() {
			count(f.GetValue())
		}
	}
	all := consumerArguments(wire.EndMap(b, 0, each+1), false).GetFields()
	for _, f := range all {
		count(f.GetValue())
	}
	if last := all[len(all)-1]; values > 2*each || last.Name != "x-lock-duration" || last.GetValue().GetInt() != 5 {
		t.Errorf("%d values, and %v", values, last)
	}
}

// Whatever a client sends as a request is taken in without a panic, and what its arguments become is bounded.
func FuzzRequest(f *testing.F) {
	for _, r := range []struct{ method, path string }{
		{"PUT", "/queues/a%2Fb"}, {"DELETE", "/bindings/src=a;dstq=b;key=c%20d;args=e"}, {"GET", "/bindings?src=a&dste=b&key=+"}, {"PUT", "/auth/tokens"},
	} {
		b := wire.StartValue(wire.Append(nil, &wire.Properties{MessageID: wire.AppendUlong(nil, 1), To: []byte(r.path), Subject: []byte(r.method), ReplyTo: []byte("$me")}))
		at := len(b)
		b = wire.AppendString(wire.StartMap(b), "arguments")
		inner := len(b)
		b = wire.EndMap(wire.AppendLong(wire.AppendSymbol(wire.StartMap(b), "x-max-length"), 5), inner, 1)
		f.Add(wire.EndMap(b, at, 1))
	}
	f.Fuzz(func(_ *testing.T, encoded []byte) {
		var m wire.Message
		var p wire.Properties
		if len(encoded) > maxRequest || m.ParseRequest(encoded) != nil || m.ReadProperties(&p) != nil {
			return
		}
		isID(p.MessageID)
		var r request
		if r.read(&p, &m) != nil {
			return
		}
		for _, segment := range r.path {
			_, _ = decodeName(segment)
			_ = bindingSegment.FindStringSubmatch(segment)
		}
		var flag bool
		var text string
		var given optional
		var table *fsm.Table
		err := r.readBody("property", fields{"durable": &flag, "type": &text, "source": &given, "arguments": &table})
		if err == nil {
			argumentsHash(table)
			appendArguments(nil, table)
		}
		var spec fsm.BindSpec
		_ = aim(&spec, given, given, optional{})
		location(&spec)
	})
}
