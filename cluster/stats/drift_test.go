package stats

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// TestDriftsFrom: what nodes have counted of the same is added up, the last of them says who it was, and what is
// gone is left out. What it has is of the present.
func TestDriftsFrom(t *testing.T) {
	c := grouptest.NewCatalog(t)
	q := c.MustDeclare(&logpb.DeclareQueue{Vhost: "/", Name: "q", Durable: true, Members: []uint32{1}, Arguments: &fsm.Table{Fields: []*logpb.Field{
		{Name: "x-max-length", Value: &logpb.Value{Tag: 'l', Int: 10}},
	}}})
	c.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareExchange{DeclareExchange: &logpb.DeclareExchange{Vhost: "/", Name: "x", Type: "direct"}}})
	drift := func(queue fsm.QueueID, exchange, received, client string, times uint64, first, last int64) *peerpb.Drift {
		var value []byte
		if n, err := strconv.Atoi(received); err == nil {
			value, _ = logpb.Marshal(&logpb.Value{Tag: 'I', Int: int64(n)})
		}
		return &peerpb.Drift{Vhost: "/", Queue: uint64(queue), Exchange: exchange, Argument: "x-max-length", Received: value, User: "u", Client: client, Connection: client + "'s", Times: times, First: first, Last: last}
	}
	other := drift(q.ID, "", "20", "c", 1, 1, 2)
	other.User = "v"
	all := driftsFrom(c.View(), map[string]*peerpb.DriftsReply{
		"n1": {Drifts: []*peerpb.Drift{drift(q.ID, "", "20", "a", 2, 5, 9), drift(q.ID, "", "", "a", 1, 8, 8), drift(0, "x", "20", "a", 1, 4, 4), drift(1<<40, "", "20", "a", 1, 1, 1)}},
		"n2": {Drifts: []*peerpb.Drift{drift(q.ID, "", "20", "b", 3, 6, 7), drift(q.ID, "", "10", "b", 1, 3, 3), drift(0, "gone", "20", "a", 1, 1, 1), other}},
		"n3": {Drifts: []*peerpb.Drift{drift(q.ID, "", "20", "d", 1, 2, 9)}},
	})
	got := ""
	for _, d := range all {
		got += fmt.Sprintf("%s %s %s %s %s %v %d %s %s %s %s %d %d %d\n", d.Kind, d.Name, d.Argument, d.Declared, d.Received, d.Adopted, d.Adoptions, d.User, d.Client, d.Connection, d.Node, d.Times, d.FirstAt, d.LastAt)
	}
	if want := "queue q x-max-length 10 20 false 0 u d d's n3 6 2 9\n" +
		"queue q x-max-length 10 null false 0 u a a's n1 1 8 8\n" +
		"exchange x x-max-length null 20 false 0 u a a's n1 1 4 4\n" +
		"queue q x-max-length 10 10 true 0 u b b's n2 1 3 3\n" +
		"queue q x-max-length 10 20 false 0 v c c's n2 1 1 2\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
