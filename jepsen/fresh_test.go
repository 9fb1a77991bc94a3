package jepsen

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
)

// freshLag is how late one node hears of everything. It is below the time for
// which a node may route without asking again.
const freshLag = 100 * time.Millisecond

// What a client was told by one node is true at every other one, at once: also
// at one that hears of everything late. Queues and bindings come and go at one
// node, and another one routes by them right after the answer.
func TestFreshness(t *testing.T) {
	t.Parallel()
	r := mustStartWith(t, 2*time.Minute, cluster.Options{Links: true})
	late := r.Nodes[2].Number
	for _, n := range r.Nodes[:2] {
		r.Links.Delay(n.Number, late, freshLag)
	}
	var tellers, routers []*amqp.Channel
	var returns []chan amqp.Return
	for _, n := range r.Nodes {
		conn, err := client.Connect(r.ctx, n.URI())
		r.must(err)
		t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) })
		tellers = append(tellers, r.mustChannel(conn))
		ch := r.mustChannel(conn)
		r.must(ch.Confirm(false))
		routers, returns = append(routers, ch), append(returns, ch.NotifyReturn(make(chan amqp.Return, 1)))
	}
	_, err := tellers[0].QueueDeclare("stays", true, false, false, false, nil)
	r.must(err)
	for i := range 9 {
		at, from := i%len(tellers), (i+1+i/3)%len(routers)
		q := fmt.Sprintf("fresh-%d", i)
		tell := tellers[at]
		// routed publishes to the topic exchange or the queue itself.
		check := func(after, exchange string, want bool) {
			t.Helper()
			got, err := routed(r.ctx, routers[from], returns[from], exchange, q)
			r.must(err)
			if got != want {
				t.Errorf("round %d: after %s at node %d a publish to %q at node %d is routed: %t", i, after, at+1, exchange, from+1, got)
			}
		}
		_, err = tell.QueueDeclare(q, true, false, false, false, nil)
		r.must(err)
		check("declare-ok", "", true)
		check("declare-ok", "amq.topic", false)
		r.must(tell.QueueBind(q, q, "amq.topic", false, nil))
		check("bind-ok", "amq.topic", true)
		r.must(tell.QueueUnbind(q, q, "amq.topic", nil))
		check("unbind-ok", "amq.topic", false)
		_, err = tell.QueueDelete(q, false, false, false)
		r.must(err)
		check("delete-ok", "", false)
	}
	r.must(r.Links.Heal())
	r.mustConverge()
}

// routed publishes a mandatory message and reports whether it has gone into a
// queue. It was returned otherwise; either way it is confirmed.
func routed(ctx context.Context, ch *amqp.Channel, returns <-chan amqp.Return, exchange, key string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, err := ch.PublishWithDeferredConfirmWithContext(ctx, exchange, key, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent})
	if err != nil {
		return false, err
	}
	if ok, err := c.WaitContext(ctx); err != nil || !ok {
		return false, errors.Join(err, fmt.Errorf("a publish to %q is not confirmed", exchange))
	}
	select {
	case <-returns: // a return comes before the confirm
		return false, nil
	default:
		return true, nil
	}
}
