package message

import (
	"testing"

	"github.com/quorate/quorate/amqp/v091/wire"
	wire10 "github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// forms returns a message of each protocol with these headers, or annotations.
func forms(t testing.TB, fields ...wire.Field) map[string]fsm.Payload {
	t.Helper()
	return map[string]fsm.Payload{"0-9-1": mustHave(t, fields...), "1.0": annotatedMessage(fields...)}
}

// mustHave returns a message of AMQP 0-9-1 that has these headers only.
func mustHave(t testing.TB, fields ...wire.Field) fsm.Payload {
	t.Helper()
	raw, err := wire.EditProperties(nil, []byte{0, 0}, &wire.Edit{SetHeaders: fields})
	if err != nil {
		t.Fatal(err)
	}
	return append(fsm.Payload(fsm.AppendPayloadHead(nil, "x", "k", raw)), "body"...)
}

// annotatedMessage returns a message of AMQP 1.0 with these annotations only.
func annotatedMessage(fields ...wire.Field) fsm.Payload {
	return bare(noHeader, annotated(fields...), wire10.AppendData(nil, []byte("body")))
}

// annotated encodes annotations; CC is x-cc, x-death is x-opt-deaths.
func annotated(fields ...wire.Field) wire10.MapBytes {
	b := wire10.StartMap(nil)
	for _, f := range fields {
		switch f.Name {
		case HeaderCC:
			f.Name = annotationCopies
		case headerDeath:
			f.Name = annotationDeaths
		}
		b = appendValue(wire10.AppendSymbol(b, f.Name), f.Value)
	}
	return wire10.EndMap(b, 0, len(fields))
}

func appendValue(b []byte, v wire.Value) []byte {
	at := len(b)
	switch v.Tag {
	case wire.TagString:
		return wire10.AppendString(b, v.Str)
	case wire.TagBool:
		return wire10.AppendBool(b, v.Int != 0)
	case wire.TagTimestamp:
		return wire10.AppendTimestamp(b, 1000*v.Int)
	case wire.TagArray:
		b = wire10.StartList(b)
		for _, e := range v.Array {
			b = appendValue(b, e)
		}
		return wire10.EndList(b, at, len(v.Array))
	case wire.TagTable:
		b = wire10.StartMap(b)
		for _, f := range v.Table {
			b = appendValue(wire10.AppendSymbol(b, f.Name), f.Value)
		}
		return wire10.EndMap(b, at, len(v.Table))
	case wire.TagVoid:
		return wire10.AppendNull(b)
	}
	return wire10.AppendLong(b, v.Int)
}
