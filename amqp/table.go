package amqp

import (
	"github.com/quorate/quorate/amqp/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// catalogTable returns t as the catalog keeps tables; nil if it is
// empty. They share nothing.
func catalogTable(t wire.Table) *fsm.Table {
	if len(t) == 0 {
		return nil
	}
	fields := make([]*logpb.Field, len(t))
	for i := range t {
		fields[i] = &logpb.Field{Name: t[i].Name, Value: catalogValue(&t[i].Value)}
	}
	return &fsm.Table{Fields: fields}
}

func catalogValue(v *wire.Value) *logpb.Value {
	out := &logpb.Value{Tag: uint32(v.Tag), Int: v.Int}
	switch v.Tag {
	case wire.TagString, wire.TagBytes, wire.TagDecimal:
		out.Str = []byte(v.Str)
	case wire.TagTable:
		if out.Table = catalogTable(v.Table); out.Table == nil {
			out.Table = &fsm.Table{}
		}
	case wire.TagArray:
		out.Array = make([]*logpb.Value, len(v.Array))
		for i := range v.Array {
			out.Array[i] = catalogValue(&v.Array[i])
		}
	}
	return out
}
