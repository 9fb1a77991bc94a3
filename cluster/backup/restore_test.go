package backup

import (
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// A queue is restored with the arguments that it had, whatever it was first declared with.
func TestAdoptedArgumentsAreRestored(t *testing.T) {
	table := func(n int64) *fsm.Table {
		return &fsm.Table{Fields: []*logpb.Field{{Name: "x-max-length", Value: &logpb.Value{Tag: 'l', Int: n}}}}
	}
	var got []int64
	for c := range commands(&logpb.CatalogSnapshot{Queues: []*logpb.QueueState{
		{Declared: &logpb.DeclareQueue{Name: "a", Arguments: table(1)}},
		{Declared: &logpb.DeclareQueue{Name: "b", Arguments: table(2)}, Adopted: &logpb.Adopted{Arguments: table(3), Times: 1}},
	}}) {
		got = append(got, c.GetDeclareQueue().GetArguments().GetFields()[0].GetValue().GetInt())
	}
	if len(got) != 2 || got[0] != 1 || got[1] != 3 {
		t.Errorf("restored with %v", got)
	}
}
