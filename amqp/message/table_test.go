package message

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Thousands of values take a few pieces of memory: a client that sends them again and again must not delay others
// by what it costs to allocate and to collect them.
func TestCatalogTableTakesFewPieces(t *testing.T) {
	many := make([]wire.Value, 4000)
	for i := range many {
		many[i] = wire.Value{Tag: wire.TagVoid}
	}
	table := wire.Table{{Name: "a", Value: wire.Array(many...)}}
	if n := testing.AllocsPerRun(10, func() { Table(table) }); n > 10 {
		t.Errorf("%.0f allocations", n)
	}
}

func TestCatalogTable(t *testing.T) {
	got := Table(wire.Table{
		{Name: "list", Value: wire.Array(wire.Int32(1), wire.Nested(wire.Table{{Name: "in", Value: wire.String("x")}}), wire.Array())},
		{Name: "none", Value: wire.Nested(nil)},
		{Name: "last", Value: wire.Bool(true)},
	})
	want := &fsm.Table{Fields: []*logpb.Field{
		{Name: "list", Value: &logpb.Value{Tag: 'A', Array: []*logpb.Value{
			{Tag: 'I', Int: 1},
			{Tag: 'F', Table: &fsm.Table{Fields: []*logpb.Field{{Name: "in", Value: &logpb.Value{Tag: 'S', Str: []byte("x")}}}}},
			{Tag: 'A'},
		}}},
		{Name: "none", Value: &logpb.Value{Tag: 'F', Table: &fsm.Table{}}},
		{Name: "last", Value: &logpb.Value{Tag: 't', Int: 1}},
	}}
	if !proto.Equal(got, want) {
		t.Errorf("%v\nshould be\n%v", got, want)
	}
	if got := Table(nil); got != nil {
		t.Errorf("nothing becomes %v", got)
	}
}
