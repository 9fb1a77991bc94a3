package stats

import (
	"fmt"
	"testing"

	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// TestTimeoutsFrom: the node that led a queue knows of a timeout, and the one that serves the client
// whose it was. Newer ones come first.
func TestTimeoutsFrom(t *testing.T) {
	c := grouptest.NewCatalog(t)
	for _, n := range []string{"n1", "n2"} {
		c.Apply(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{Name: n, Incarnation: []byte(n)}}})
	}
	n2, ok := c.View().NodeByName("n2")
	if !ok {
		t.Fatal("no n2")
	}
	at := uint32(n2.Number)
	served := func(boot uint64, action string) *peerpb.LateConsumer {
		return &peerpb.LateConsumer{Session: &peerpb.ConsumingSession{Boot: boot, Session: 7, Connection: "c", Channel: 2, User: "u"}, Number: 5, Action: action}
	}
	all := timeoutsFrom(c.View(), map[string]*peerpb.TimeoutsReply{
		"n1":   {Led: []*peerpb.ConsumerTimeout{{At: 10, Vhost: "/", Name: "old", Node: at, Boot: 3, Session: 7, Number: 5, Tag: "t", Messages: 2, Held: 30, Timeout: 20}}},
		"n2":   {Led: []*peerpb.ConsumerTimeout{{At: 20, Vhost: "/", Name: "new", Node: at, Boot: 2, Session: 7, Number: 5}}, Served: []*peerpb.LateConsumer{served(3, "cancel"), {}}},
		"gone": {Served: []*peerpb.LateConsumer{served(2, "suspend")}},
	})
	got := ""
	for _, x := range all {
		got += fmt.Sprintln(x.At, x.Queue.Name, x.Tag, x.Channel, x.Node, x.Leader, x.Messages, x.HeldMS, x.Timeout, x.Action)
	}
	if want := "20 new  [] n2 n2 0 0 0 \n10 old t {c (2) 2 c n2  0 u} n2 n1 2 30 20 cancel\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
