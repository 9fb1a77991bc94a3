package amqptest

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

type queue struct {
	name      string
	token     uint64 // of gets
	owner     *connection
	ready     []*message
	consumers []*consumer
}

type message struct {
	payload  fsm.Payload
	acquired uint32
	classic  bool // as of a classic queue
	failed   uint32
	deaths   []*logpb.Death
}

type consumer struct {
	session   *session
	queue     *queue
	spec      fsm.ConsumeSpec
	suspended bool
}

// suspends reports whether a timeout only suspends the consumer.
func (c *consumer) suspends() bool {
	for _, f := range c.spec.Arguments.GetFields() {
		if f.GetName() == "x-consumer-timeout-action" {
			return string(f.GetValue().GetStr()) == "suspend"
		}
	}
	return false
}

// holding is what one consumer, or the gets of one queue, have in hand.
type holding struct {
	queue    *queue
	last     uint64
	messages map[uint64]*message
}

func (h *holding) ids() []uint64 {
	ids := make([]uint64, 0, len(h.messages))
	for id := range h.messages {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func sortedTokens(held map[uint64]*holding) []uint64 {
	tokens := make([]uint64, 0, len(held))
	for t := range held {
		tokens = append(tokens, t)
	}
	slices.Sort(tokens)
	return tokens
}

// queue finds or makes a queue. The broker is locked, here and below.
func (b *Broker) queue(name string) *queue {
	q := b.queues[name]
	if q == nil {
		b.lastID++
		q = &queue{name: name, token: 1<<63 | b.lastID}
		b.queues[name] = q
	}
	return q
}

// dispatch hands ready messages to consumers, in turn.
func (q *queue) dispatch() {
	for len(q.ready) > 0 {
		at := slices.IndexFunc(q.consumers, (*consumer).hasCredit)
		if at < 0 {
			return
		}
		c := q.consumers[at]
		q.consumers = append(slices.Delete(q.consumers, at, at+1), c)
		m := q.ready[0]
		q.ready = q.ready[1:]
		s := c.session
		out := s.hold(c.spec.Number, q, m)
		s.deliver(out)
	}
}

// hasCredit reports whether the consumer may have one more message.
func (c *consumer) hasCredit() bool {
	limit := int(c.spec.Prefetch)
	if limit == 0 {
		limit = 2000
	}
	h := c.session.held[c.spec.Number]
	return !c.suspended && (h == nil || len(h.messages) < limit) && (c.spec.NoAck || !c.session.full())
}

func (b *Broker) deleteQueue(name string) {
	q := b.queues[name]
	delete(b.queues, name)
	for _, c := range q.consumers {
		delete(c.session.consumers, c.spec.Number)
		number := c.spec.Number
		c.session.event(func(e fsm.SessionEvents) { e.Cancelled(number) })
	}
	for s := range b.sessions {
		for token, h := range s.held {
			if h.queue == q {
				delete(s.held, token)
			}
		}
	}
	for _, x := range b.exchanges {
		x.bindings = slices.DeleteFunc(x.bindings, func(b binding) bool { return b.queue == name })
	}
}

// route returns the queues a message goes to.
func (b *Broker) route(x *exchange, exchangeName, key string) []*queue {
	var out []*queue
	if exchangeName == "" {
		if q := b.queues[key]; q != nil {
			out = append(out, q)
		}
		return out
	}
	for _, bound := range x.bindings {
		if q := b.queues[bound.queue]; (x.kind == "fanout" || bound.key == key) && !slices.Contains(out, q) {
			out = append(out, q)
		}
	}
	return out
}
