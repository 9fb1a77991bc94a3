package main

import (
	"fmt"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/report"
)

// topic is a queue that forwards copies to an exchange, which has a filter for each subscription.
type topic struct {
	*bench
	name          string
	subscriptions int
}

// confirms publishes one message at a time to the topic. Each matches the filter of one subscription, by its correlation-id,
// and that of another one, which takes all: so it is seen that none is lost.
func (t topic) confirms(more func(uint64) bool, size int) report.Result {
	r := report.Result{Name: fmt.Sprintf("confirm latency of a topic with %d subscriptions, window 1", t.subscriptions)}
	store := queue{t.name, amqp.Table{"x-forward-to-exchange": t.name, "x-forward-copies": true}}
	all := queue{name: t.name + "-all"}
	queues := append(numbered(t.name+"-", t.subscriptions), all, store)
	ch, end := t.channel(t.uris[0])
	defer end()
	must(ch.ExchangeDelete(t.name, false, false))
	must(ch.ExchangeDeclare(t.name, "x-filter", true, false, true, false, nil))
	t.declare(queues...)
	for i := range t.subscriptions {
		t.subscribe(ch, queues[i], fmt.Sprintf(`{"Name":"rule","Correlation":{"CorrelationID":"%d"}}`, i))
	}
	t.subscribe(ch, all, `{"Name":"rule","True":true}`)
	var taken samples
	next := 0
	of := func(m *client.Message) {
		m.Correlation = strconv.Itoa(next)
		next = (next + 1) % t.subscriptions
	}
	l := &load{ledger: newLedger(1), publishers: []*publisher{{
		uri: t.uri(0), queues: []string{store.name}, size: size, window: 1, more: more, set: of, taken: &taken,
	}}}
	t.fill(l, &r)
	t.drain(l.ledger, all)
	r.Times = taken.quantiles()
	t.remove(queues...)
	must(ch.ExchangeDelete(t.name, false, false))
	return r
}

func (t topic) subscribe(ch *amqp.Channel, q queue, filter string) {
	must(ch.QueueBind(q.name, "rule", t.name, false, amqp.Table{"x-filter-program": filter}))
}
