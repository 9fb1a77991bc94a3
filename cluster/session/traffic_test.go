package session

import (
	"testing"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// counts are those of a queue in the table.
func (w *world) counts(id fsm.QueueID) traffic.Counts {
	w.sessions.CollectTraffic()
	q := &traffic.Query{Of: peerpb.TrafficRequest_QUEUES, One: true, Queue: id}
	r := traffic.NewReport(q)
	r.Add("n1", w.sessions.Traffic.Answer(q))
	if r.Queues[id] == nil {
		return traffic.Counts{}
	}
	return r.Queues[id].Total
}

// TestTraffic: a session counts what its client does with a queue, and what it has counted outlives
// it and the queue.
func TestTraffic(t *testing.T) {
	w, _, s, to := mustStream(t)
	id := to.Queue()
	addConsumer(s, to, 5, false)
	addConsumer(s, to, 6, true)
	p := &fsm.Publish{Number: 1, RoutingKey: "q", Payload: grouptest.Payload("m"), TTL: -1, Priority: -1, Confirm: true}
	if routed, err := s.Publish(p); err != nil || !routed {
		t.Fatal(routed, err)
	}
	for number, mandatory := range map[uint64]bool{2: true, 3: false} {
		none := *p
		none.Number, none.RoutingKey, none.Mandatory = number, "nowhere", mandatory
		if routed, err := s.Publish(&none); err != nil || routed {
			t.Fatal(routed, err)
		}
	}
	load := stream.NewLoad()
	to.Take(&load)
	_ = load.Submit(func(group.Batch) error { return nil })
	w.queues.Routes.Stream(id, s.id).Answer("", []group.Outcome{{First: 1, Run: 1}})
	again := messages(5, 1, 2, 3)
	again.Messages[0].Acquired = 1
	w.queues.Routes.Stream(id, s.id).Receive(again)
	w.queues.Routes.Stream(id, s.id).Receive(messages(6, 1, 2))
	s.Settle(5, []uint64{1, 2}, fsm.Ack)
	s.Settle(5, []uint64{3}, fsm.Requeue)
	s.Settle(6, []uint64{1, 2}, fsm.Ack) // on behalf of the client
	want := traffic.Counts{traffic.Publish: 1, traffic.Deliver: 3, traffic.DeliverNoAck: 2, traffic.Redeliver: 1, traffic.Ack: 2}
	if got := w.counts(id); got != want {
		t.Errorf("the queue has %v, want %v", got, want)
	}
	pairs := w.sessions.Traffic.Answer(&traffic.Query{Of: peerpb.TrafficRequest_QUEUES, One: true, Pairs: true, Queue: id}).Pairs
	if len(pairs) != 1 || !pairs[0].IsExchange || pairs[0].Exchange != "" || pairs[0].Vhost != "/" || pairs[0].Totals[traffic.Publish] != 1 {
		t.Errorf("the queue has the pairs %v", pairs)
	}
	q, _ := w.View().QueueByID(id)
	w.deleteQueue(q)
	s.Close(t.Context())
	sum := w.sessions.Traffic.Totals().All
	want[traffic.Publish], want[traffic.PublishOut], want[traffic.Confirmable], want[traffic.Confirm] = 3, 1, 3, 3
	want[traffic.ReturnUnroutable], want[traffic.DropUnroutable] = 1, 1
	if sum != want {
		t.Errorf("all have %v, want %v", sum, want)
	}
}

// TestReleasedTraffic: where what has no queue is released to its publisher it counts as returned if the publisher is
// told so, and never as confirmed.
func TestReleasedTraffic(t *testing.T) {
	x := newStrays(t)
	x.s.conn.protocol = traffic.AMQP10.String()
	for number, confirm := range map[uint64]bool{1: true, 2: false, 3: true} {
		p := &fsm.Publish{Number: number, RoutingKey: "nowhere", Payload: grouptest.Payload("m"), TTL: -1, Priority: -1, Confirm: confirm}
		if routed, err := x.s.Publish(p); err != nil || routed {
			t.Fatal(routed, err)
		}
	}
	q := x.MustQueue("q")
	for number, confirm := range map[uint64]bool{4: true, 5: false} {
		p := &fsm.Publish{Number: number, RoutingKey: "q", Payload: grouptest.Payload("m"), TTL: -1, Priority: -1, Confirm: confirm}
		if routed, err := x.s.Publish(p); err != nil || !routed {
			t.Fatal(routed, err)
		}
	}
	x.answer(q, fsm.Gone)
	x.deleteQueue(q)
	x.s.Close(t.Context())
	sum := x.sessions.Traffic.Totals().All
	if sum[traffic.ReturnUnroutable] != 3 || sum[traffic.DropUnroutable] != 2 || sum[traffic.Confirm] != 0 {
		t.Errorf("%d are returned, %d dropped, %d confirmed", sum[traffic.ReturnUnroutable], sum[traffic.DropUnroutable], sum[traffic.Confirm])
	}
}
