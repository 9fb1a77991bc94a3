package amqp

import "github.com/quorate/quorate/fsm"

// The consumers of a channel are the fsm.Holdings of the commands that are
// published there.
//
// A command that settles a delivery takes its tag when it is published, as
// basic.ack does: the tag is unknown from then on, and a basic.ack with multiple
// does not cover it. If the command does not settle the delivery the tag is back
// before the client learns that.

// Consumer finds a consumer by its tag; 0: there is none.
func (c *consumers) Consumer(tag string) uint64 {
	if cons := c.find(tag); cons != nil {
		return cons.number
	}
	return 0
}

// Find finds an unacknowledged delivery.
func (c *consumers) Find(tag uint64) (fsm.Held, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i, ok := c.deliveries.unacked.find(tag)
	if !ok {
		return fsm.Held{}, false
	}
	return c.deliveries.describe(c.deliveries.unacked.list[i]), true
}

// UpTo returns the unacknowledged deliveries up to a tag; 0: all.
func (c *consumers) UpTo(last uint64) []fsm.Held {
	return c.holdings(func(h held) bool { return last == 0 || h.tag <= last })
}

// Of returns the unacknowledged deliveries of a consumer.
func (c *consumers) Of(consumer uint64) []fsm.Held {
	return c.holdings(func(h held) bool { return h.consumer == consumer })
}

func (c *consumers) holdings(which func(held) bool) (list []fsm.Held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.deliveries.unacked.list[c.deliveries.unacked.head:] {
		if h.id != 0 && which(h) {
			list = append(list, c.deliveries.describe(h))
		}
	}
	return list
}

// Take is Find, and the delivery is settled as far as the client is concerned.
func (c *consumers) Take(tag uint64) (fsm.Held, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h, ok := c.deliveries.unacked.take(tag)
	if !ok {
		return fsm.Held{}, false
	}
	return c.deliveries.describe(h), true
}

// kept gives back what Take has taken.
func (c *consumers) kept(list []fsm.Held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.deliveries.keep(list)
	}
}
