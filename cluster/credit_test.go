package cluster

import (
	"context"
	"testing"

	"github.com/quorate/quorate/fsm"
)

// taker is a client that takes by credit.
type taker struct {
	*client
	limit    uint32 // it never has more than this
	credited []fsm.LinkState
	holds    bool // it settles nothing
}

// mustTaker opens a channel at a node that consumes a queue.
func (c *nodes) mustTaker(node, queue string) *taker {
	c.t.Helper()
	x := &taker{client: c.mustClient(node)}
	x.client.close()
	var err error
	if x.session, err = x.conn.OpenSession(x); err == nil {
		err = retried(c.t, func(ctx context.Context) error {
			return x.session.Consume(ctx, fsm.ConsumeSpec{Queue: queue, Number: 1, Tag: "c", Credit: true})
		})
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return x
}

// Deliver acks what comes, and gives more credit after each few.
func (x *taker) Deliver(messages []fsm.Message) {
	x.event(func() {
		for _, m := range messages {
			if x.inbox = append(x.inbox, m); uint32(len(x.inbox)) > x.limit && !x.holds {
				x.t.Errorf("message %d comes with credit for %d", len(x.inbox), x.limit)
			}
		}
	})
	if x.holds {
		return
	}
	for _, m := range messages {
		x.session.Settle(m.Consumer, []uint64{m.ID}, fsm.Ack)
	}
	x.mu.Lock()
	more := x.limit-uint32(len(x.inbox)) < 10
	x.mu.Unlock()
	if more {
		x.give(20, false)
	}
}

// give says how many messages it takes.
func (x *taker) give(credit uint32, drain bool) {
	x.mu.Lock()
	has := uint32(len(x.inbox))
	x.limit = max(x.limit, has+credit)
	x.mu.Unlock()
	x.session.Credit(1, fsm.Flow{DeliveryCount: has, Credit: credit, Drain: drain})
}

func (x *taker) Credited(_ uint64, now fsm.LinkState) {
	x.event(func() { x.credited = append(x.credited, now) })
}

// A client that takes by credit is given no more than that, and all of it, although the queue's leader
// dies; the next one drains.
func TestCreditAcrossLeaders(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	c.mustClient("n1").mustDeclare("q")
	leader := c.mustLeader("q")
	node := c.other(leader)
	out, in := c.mustClient(node), c.mustTaker(c.other(leader, node), "q")
	in.give(20, false)
	want := numbered(0, 2000)
	c.mustDeliverAcross(leader, out, in.client, want)
	in.give(30, true)
	in.await("the end of a drain", func() bool { return len(in.credited) > 0 })
	if got, want := in.credited[0], (fsm.LinkState{DeliveryCount: uint32(len(want)) + 30, Drained: true}); got != want {
		t.Errorf("drained: %+v, want %+v", got, want)
	}
	c.mustOpen(leader)
	c.mustAgree()
}
