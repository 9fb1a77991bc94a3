package cluster

import (
	"context"
	"errors"
	"testing"

	"github.com/quorate/quorate/fsm"
)

// viewer is a client that browses.
type viewer struct {
	*client
	credited []fsm.LinkState
	gone     []error
}

func (x *viewer) Credited(_ uint64, now fsm.LinkState) {
	x.event(func() { x.credited = append(x.credited, now) })
}

func (x *viewer) Cancelled(uint64) { x.event(func() { x.gone = append(x.gone, nil) }) }

func (x *viewer) Revoked(_ uint64, why error) { x.event(func() { x.gone = append(x.gone, why) }) }

// Deliver keeps what comes, and reports it as written.
func (x *viewer) Deliver(messages []fsm.Message) {
	bytes := 0
	for _, m := range messages {
		bytes += len(m.Payload)
	}
	x.event(func() { x.inbox = append(x.inbox, messages...) })
	x.session.Written(len(messages), bytes)
}

// mustViewer opens a channel at a node that browses a queue.
func (c *nodes) mustViewer(node, queue string) *viewer {
	c.t.Helper()
	x := &viewer{client: c.mustClient(node)}
	x.client.close()
	var err error
	if x.session, err = x.conn.OpenSession(x); err == nil {
		err = retried(c.t, func(ctx context.Context) error {
			return x.session.Consume(ctx, fsm.ConsumeSpec{Queue: queue, Number: 1, Tag: "v", Credit: true, Browse: true})
		})
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return x
}

// A client that browses is shown each message once, in order, although the queue's leader dies. It takes nothing, and its
// drain ends when it has been shown all.
func TestBrowseAcrossLeaders(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	c.mustClient("n1").mustDeclare("q")
	leader := c.mustLeader("q")
	node := c.other(leader)
	out, in := c.mustClient(node), c.mustViewer(c.other(leader, node), "q")
	in.session.Credit(1, fsm.Flow{Credit: 10_000})
	want := numbered(0, 1000)
	c.mustDeliverAcross(leader, out, in.client, want)
	in.session.Credit(1, fsm.Flow{DeliveryCount: 1000, Credit: 50, Drain: true})
	in.await("the end of a drain", func() bool { return len(in.credited) > 0 })
	if got, want := in.credited[0], (fsm.LinkState{DeliveryCount: 1050, Available: 1000, Drained: true}); got != want {
		t.Errorf("drained: %+v, want %+v", got, want)
	}
	if info, err := out.count("q"); err != nil || info.Ready != 1000 || info.Consumers != 0 {
		t.Errorf("the queue has %+v; %v", info, err)
	}
	if list := in.bodies(); len(list) != len(want) {
		t.Errorf("%d messages were shown, want %d", len(list), len(want))
	}
	c.mustOpen(leader)
	c.mustAgree()
}

// What others take is shown once, what they hold is not, settling is for nothing, and a browser needs the right to read
// and a queue.
func TestBrowser(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	out := c.mustClient("n1")
	out.mustDeclare("q")
	holder := c.mustClient("n2")
	out.publish("q", "held")
	out.confirmed()
	if _, ok, err := holder.session.Get(context.Background(), "q", false); !ok || err != nil {
		t.Fatalf("nothing to hold: %v", err)
	}
	in := c.mustViewer("n3", "q")
	in.session.Credit(1, fsm.Flow{Credit: 2})
	for _, body := range []string{"a", "b", "c"} {
		out.publish("q", body)
	}
	out.confirmed()
	in.await("as much as its credit", func() bool { return len(in.inbox) >= 2 })
	in.session.Settle(1, []uint64{1, 2}, fsm.Ack)
	in.session.Credit(1, fsm.Flow{DeliveryCount: 2, Echo: true})
	in.await("an echo", func() bool { return len(in.credited) > 0 })
	if got, want := in.credited[0], (fsm.LinkState{DeliveryCount: 2, Available: 3}); got != want {
		t.Errorf("echoed: %+v, want %+v", got, want)
	}
	mustBodies(t, in.bodies(), []string{"a", "b"})
	in.session.Credit(1, fsm.Flow{DeliveryCount: 2, Credit: 5})
	in.await("the rest", func() bool { return len(in.inbox) >= 3 })
	err := in.session.Consume(context.Background(), fsm.ConsumeSpec{Queue: "none", Number: 2, Credit: true, Browse: true})
	if r := new(fsm.Refusal); !errors.As(err, &r) || r.Kind != fsm.NotFoundKind {
		t.Errorf("of no queue: %v", err)
	}
	if err := in.session.Cancel(context.Background(), 1); err != nil {
		t.Errorf("cancel: %v", err)
	}
	if err := in.session.Consume(context.Background(), fsm.ConsumeSpec{Queue: "q", Number: 3, Credit: true, Browse: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := out.session.DeleteQueue(context.Background(), "q", false, false); err != nil {
		t.Fatal(err)
	}
	in.await("the end of its queue", func() bool { return len(in.gone) > 0 })
}
