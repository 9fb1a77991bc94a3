package cluster

import (
	"errors"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Who publishes at any node is told which queue has refused a message, that a message lost all its queues, and that the
// queue is gone: in this order.
func TestPublishersAreToldOfTheirQueue(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	at := c.mustClient("n1")
	full := &fsm.Table{Fields: []*logpb.Field{
		{Name: "x-max-length", Value: &logpb.Value{Tag: 'l', Int: 1}}, {Name: "x-overflow", Value: &logpb.Value{Tag: 'S', Str: []byte("reject-publish")}},
	}}
	if _, err := at.session.DeclareQueue(deadline(t), fsm.QueueSpec{Name: "q", Durable: true, Arguments: full}); err != nil {
		t.Fatal(err)
	}
	at.publish("q", "first")
	at.await("the queue is full", func() bool { return at.settled[1] })
	clients := map[*client]fsm.QueueID{}
	for node := range c.all {
		cl := c.mustClient(node)
		id, err := cl.session.Target(deadline(t), "q")
		if err != nil {
			t.Fatal(err)
		}
		clients[cl] = id
		cl.publish("q", "second")
		cl.await("a refusal", func() bool { return cl.pending == 0 })
		if why := new(fsm.NotTaken); !errors.As(cl.why[1], &why) || why.Queue != "q" || why.Reason != fsm.TooLong {
			t.Errorf("at %s: %v", node, cl.why[1])
		}
	}
	if _, err := at.session.DeleteQueue(deadline(t), "q", false, false); err != nil {
		t.Fatal(err)
	}
	for cl, id := range clients {
		cl.await("the end of the queue", func() bool { return len(cl.gone) == 1 && cl.gone[0] == id })
	}
	if len(at.gone) != 0 {
		t.Error("a client is told that has not asked")
	}
}
