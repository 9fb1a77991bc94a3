package cluster

import (
	"context"
	"errors"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

var errTooLarge = errors.New("too large")

func refuseAbove(bytes int) func(int) error {
	return func(n int) error {
		if n > bytes {
			return errTooLarge
		}
		return nil
	}
}

// TestPublishOne: a publish outside of a channel says what has become of the message, at any node. Those who take messages
// get no more than they have room for, and the rest stays.
func TestPublishOne(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	at := c.all["n2"].Sessions()
	s, err := at.Open(deadline(t), "guest", "/")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	none := &fsm.Table{Fields: []*logpb.Field{
		{Name: "x-max-length", Value: &logpb.Value{Tag: 'l'}}, {Name: "x-overflow", Value: &logpb.Value{Tag: 'S', Str: []byte("reject-publish")}},
	}}
	for name, args := range map[string]*fsm.Table{"q": nil, "full": none} {
		if _, err := s.DeclareQueue(deadline(t), fsm.QueueSpec{Name: name, Durable: true, Arguments: args}); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct {
		user, exchange, key string
		routed              bool
		refused             fsm.Kind // 0: it is not
	}{
		{"guest", "", "q", true, 0}, {"guest", "", "none", false, 0}, {"guest", "", "full", false, fsm.Precondition},
		{"guest", "none", "q", false, fsm.NotFoundKind}, {"eve", "", "q", false, fsm.NoAccess}, {"guest", fsm.CommandExchange, "nonsense", false, fsm.NotFoundKind},
	} {
		for node, n := range c.all {
			routed, err := n.Sessions().PublishOne(deadline(t), x.user, "/", &fsm.Publish{
				Exchange: x.exchange, RoutingKey: x.key, TTL: -1, Priority: -1, Payload: append(fsm.AppendPayloadHead(nil, x.exchange, x.key, nil), "m"...),
				Headers: func() *fsm.Table { return nil }, Property: func(string) []byte { return nil },
			})
			var refusal *fsm.Refusal
			if errors.As(err, &refusal) != (x.refused != 0) || refusal != nil && refusal.Kind != x.refused || routed != x.routed {
				t.Errorf("%v at %s: %v, %v", x, node, routed, err)
			}
		}
	}
	one := len(fsm.AppendPayloadHead(nil, "", "q", nil)) + 1
	if taken, err := at.Take(deadline(t), "guest", "/", "q", 10, fsm.Ack, refuseAbove(0)); len(taken) != 0 || !errors.Is(err, errTooLarge) {
		t.Errorf("refused: %d messages, %v", len(taken), err)
	}
	if taken, err := at.Take(deadline(t), "guest", "/", "q", 10, fsm.Ack, refuseAbove(one)); len(taken) != 1 || err != nil {
		t.Errorf("room for one: %d messages, %v", len(taken), err)
	}
	if taken, err := at.Take(deadline(t), "guest", "/", "q", 10, fsm.Ack, refuseAbove(1000)); len(taken) != len(c.all)-1 || err != nil {
		t.Errorf("the queue has %d messages, %v", len(taken), err)
	}
}
