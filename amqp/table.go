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
	return nestedTable(t)
}

// nestedTable is catalogTable for the value of a field, which is not nil if it is empty.
func nestedTable(t wire.Table) *fsm.Table {
	fields, values := t.Count()
	b := tableBuilder{fields: make([]logpb.Field, fields), values: make([]logpb.Value, values)}
	return b.table(t)
}

// tableBuilder has the memory for a table in two pieces: a client may send thousands of values again and again, and
// one allocation for each would keep the garbage collector busy.
type tableBuilder struct {
	fields []logpb.Field
	values []logpb.Value
}

func (b *tableBuilder) table(t wire.Table) *fsm.Table {
	fields := make([]*logpb.Field, len(t))
	for i := range t {
		f := &b.fields[0]
		b.fields = b.fields[1:]
		f.Name, f.Value = t[i].Name, b.value(&t[i].Value)
		fields[i] = f
	}
	return &fsm.Table{Fields: fields}
}

func (b *tableBuilder) value(v *wire.Value) *logpb.Value {
	out := &b.values[0]
	b.values = b.values[1:]
	out.Tag, out.Int = uint32(v.Tag), v.Int
	switch v.Tag {
	case wire.TagString, wire.TagBytes, wire.TagDecimal:
		out.Str = []byte(v.Str)
	case wire.TagTable:
		out.Table = b.table(v.Table)
	case wire.TagArray:
		out.Array = make([]*logpb.Value, len(v.Array))
		for i := range v.Array {
			out.Array[i] = b.value(&v.Array[i])
		}
	}
	return out
}
