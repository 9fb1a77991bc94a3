package jepsen

import (
	"context"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/nemesis"
	"github.com/quorate/quorate/jepsen/workload"
	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// passedMessages of passedSize bytes each go through a queue behind one
	// message that stays, and then as many again.
	passedMessages = 25_000
	passedSize     = 16 << 10
)

// One message that nobody settles does not keep what was published and acked
// behind it on disk; and it is still there after its leader was killed. What a
// store keeps whatever its traffic is measured by a first pass: the second may
// add no more than half of its bytes.
func TestPinnedMessage(t *testing.T) {
	t.Parallel()
	r := mustStart(t, 2*time.Minute)
	r.must(workload.Declare(r.ctx, r.Nodes[0].URI(), workload.Queue{Name: "orders"}))
	conn := r.mustHoldOne("orders")
	messages := passedMessages * *scale
	r.mustPass("orders", messages)
	before, err := r.DiskBytes()
	r.must(err)
	r.mustPass("orders", messages)
	r.checkDisk(before + int64(len(r.Nodes))*passedSize*int64(messages)/2)

	r.must(conn.Close()) // the message is ready again
	r.must(nemesis.KillLeader("orders").Run(r.ctx, r.Cluster, r.History))
	r.must(workload.Drain(r.ctx, r.Nodes[1].URI(), "orders", "last", r.History))
	h := r.History
	if last := h.Deliveries[len(h.Deliveries)-1]; last.Key != 1 || !last.Redelivered {
		t.Errorf("the message that stayed came back as %+v", last)
	}
	r.check(checker.Lost(h), checker.Unanswered(h), checker.Ghosts(h), checker.Doubled(h))
	r.mustConverge()
}

// mustPass publishes, consumes and acks n messages.
func (r *run) mustPass(queue string, n int) {
	r.Helper()
	f := workload.Flow{
		URIs: r.URIs(), PublishAt: 1, ConsumeAt: 2, Queue: queue,
		Next: workload.Count(n, plain(queue, passedSize)), Patience: time.Minute,
	}
	began := time.Now()
	r.must(f.Run(r.ctx, r.History, nil))
	r.Logf("%d messages of %d bytes in %v", n, passedSize, time.Since(began).Round(time.Millisecond))
}

// mustHoldOne publishes a message, the first of the history, and takes it
// without settling it; it is held as long as the connection is open.
func (r *run) mustHoldOne(queue string) *amqp.Connection {
	r.Helper()
	conn, err := client.Connect(r.ctx, r.Nodes[0].URI())
	r.must(err)
	ch, err := conn.Channel()
	r.must(err)
	r.must(ch.Confirm(false))
	key := r.Begin(history.Attempt{Message: r.NextMessage(), Publisher: "first", Queue: queue})
	confirm, err := ch.PublishWithDeferredConfirmWithContext(r.ctx, "", queue, false, false,
		amqp.Publishing{DeliveryMode: amqp.Persistent, Body: client.Body(key, passedSize)})
	r.must(err)
	if ok, err := confirm.WaitContext(r.ctx); err != nil || !ok {
		r.Fatalf("confirmed=%t, %v", ok, err)
	}
	r.End(key, history.OK)
	d, ok, err := ch.Get(queue, false)
	if err != nil || !ok {
		r.Fatalf("get: %t, %v", ok, err)
	}
	r.Deliver(client.Record(d, queue, "holder", 1))
	return conn
}

// checkDisk gives the nodes a little time to free what is dead, and fails the
// test if their data then takes more than bound.
func (r *run) checkDisk(bound int64) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
	defer cancel()
	var disk int64
	err := await.Until(ctx, 200*time.Millisecond, "disk space to be freed", func() (bool, error) {
		var err error
		disk, err = r.DiskBytes()
		return disk <= bound, err
	})
	r.Logf("disk: %d MiB over all nodes, bound %d MiB", disk>>20, bound>>20)
	for _, n := range r.Nodes {
		rss, err := n.RSSBytes()
		r.Logf("node %d: %d MiB resident (%v)", n.Number, rss>>20, err)
	}
	if err != nil {
		r.Errorf("%d bytes on disk: %v", disk, err)
	}
}

// A queue full of waiting messages comes back with its nodes: each is killed
// in turn, the whole cluster at the end, and every message is still there once.
func TestBacklogSurvivesRestarts(t *testing.T) {
	t.Parallel()
	r := mustStart(t, 2*time.Minute)
	r.must(workload.Declare(r.ctx, r.Nodes[0].URI(), workload.Queue{Name: "orders"}))
	p := client.Publisher{Name: "publisher", URIs: r.URIs()}
	r.must(p.Run(r.ctx, r.History, workload.Count(20_000**scale, plain("orders", 1024))))
	for k := range r.Nodes {
		r.mustBreak(nemesis.KillOne(func(int) int { return k }))
	}
	r.mustBreak(nemesis.KillAll())
	stop := make(chan struct{})
	close(stop)
	f := workload.Flow{
		URIs: r.URIs(), ConsumeAt: 2, Queue: "orders",
		Next: workload.Until(stop, nil), Patience: time.Minute,
	}
	r.must(f.Run(r.ctx, r.History, nil))
	h := r.History
	r.check(checker.Lost(h), checker.Unanswered(h), checker.Ghosts(h), checker.Redelivered(h), checker.Disorder(h))
	r.mustConverge()
}

func (r *run) mustBreak(f nemesis.Fault) {
	r.Helper()
	began := time.Now()
	r.must(f.Run(r.ctx, r.Cluster, r.History))
	r.Logf("%s: serving again after %v", f.Name, time.Since(began).Round(time.Millisecond))
}
