package v10

import (
	"math"
	"unicode/utf8"

	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// headersOf returns what exchanges route by: application properties and annotations, as 0-9-1 has them. It never
// fails: what has no counterpart there is left out.
func headersOf(m *wire.Message) *fsm.Table {
	t := &fsm.Table{}
	for _, all := range [...]wire.MapBytes{m.ApplicationProperties, m.Annotations} {
		for w := all.Walk(); w.NextPair(); {
			if v := catalogValue(w.Value); v != nil && len(w.Key.Bytes()) <= maxName {
				t.Fields = append(t.Fields, &logpb.Field{Name: string(w.Key.Bytes()), Value: v})
			}
		}
	}
	return t
}

// catalogValue returns a value as 0-9-1 has it; nil: it has none.
func catalogValue(v wire.Value) *logpb.Value {
	number := func(tag byte) *logpb.Value { return &logpb.Value{Tag: uint32(tag), Int: int64(v.Unsigned())} }
	text := func(b []byte) *logpb.Value { return &logpb.Value{Tag: 'S', Str: append([]byte(nil), b...)} }
	switch v.Type {
	case wire.String, wire.Symbol, wire.Binary:
		return text(v.Bytes())
	case wire.UUID:
		return text(appendUUID(nil, v.Bytes()))
	case wire.Char:
		return text(utf8.AppendRune(nil, rune(min(v.Unsigned(), math.MaxInt32))))
	case wire.Timestamp:
		return &logpb.Value{Tag: 'T', Int: max(v.Signed(), 0) / 1000}
	case wire.List, wire.Array:
		a := &logpb.Value{Tag: 'A'}
		for w := v.Walk(); w.Next(); {
			if e := catalogValue(w.Value); e != nil {
				a.Array = append(a.Array, e)
			}
		}
		return a
	case wire.Map:
		return &logpb.Value{Tag: 'F', Table: catalogTable(v)}
	}
	if tag := tags[v.Type]; tag != 0 {
		return number(tag)
	}
	return nil
}

// tags are the types of 0-9-1 for types of fixed width.
var tags = [...]byte{
	wire.Null: 'V', wire.Boolean: 't', wire.Ubyte: 'B', wire.Byte: 'b', wire.Ushort: 'u', wire.Short: 's', wire.Uint: 'i', wire.Int: 'I',
	wire.Ulong: 'l', wire.Long: 'l', wire.Float: 'f', wire.Double: 'd', wire.Described: 0,
}

// catalogTable returns a map as 0-9-1 has it.
func catalogTable(v wire.Value) *fsm.Table {
	t := &fsm.Table{}
	for w := v.Walk(); w.NextPair(); {
		k := w.Key.Type
		if (k != wire.String && k != wire.Symbol) || len(w.Key.Bytes()) > maxName {
			continue
		}
		if e := catalogValue(w.Value); e != nil {
			t.Fields = append(t.Fields, &logpb.Field{Name: string(w.Key.Bytes()), Value: e})
		}
	}
	return t
}
