package v10

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/quorate/quorate/fsm"
)

// The counts of a session are the fsm.Holdings of the commands that are published there: the tag of a consumer is the name
// of its link, that of a delivery its id.
//
// A command that settles a delivery takes it when it is published, as a disposition does. If the command does not settle
// it the delivery is back before the client has the outcome, and what the broker has said of it meanwhile is told then.

// takings are deliveries that commands have taken and that may come back. counts.mu guards them.
type takings struct {
	all     map[uint64]*taken // by id
	command uint64            // that is being published
}

// taken is a delivery that a command has taken.
type taken struct {
	delivery
	by       uint64 // the command's number
	released bool   // the broker has taken it back meanwhile
}

func (x *takings) add(d delivery) {
	if x.all == nil {
		x.all = map[uint64]*taken{}
	}
	x.all[d.id] = &taken{delivery: d, by: x.command}
}

// lose is unsettled.lose for these. The client is told if they come back.
func (x *takings) lose(l *outgoingLink, numbers []uint64, lapses bool) {
	for _, t := range x.all {
		if _, is := slices.BinarySearch(numbers, t.number); is && t.link == l && !t.lost {
			t.lost, t.lapses, t.released = true, lapses, true
		}
	}
}

// back returns a delivery of a link that comes back.
func (x *takings) back(l *outgoingLink, h fsm.Held) *taken {
	t := x.all[h.Tag]
	if t == nil {
		return &taken{delivery: delivery{id: h.Tag, link: l, number: h.ID}}
	}
	delete(x.all, h.Tag)
	return t
}

// answered forgets those of commands that have their outcomes.
func (x *takings) answered(first, last uint64) {
	maps.DeleteFunc(x.all, func(_ uint64, t *taken) bool { return first <= t.by && t.by <= last })
}

// First is the first delivery-id.
func (c *counts) First() uint64 { return 0 }

// Consumer finds the consumer of a link by its name; 0: there is none. Of several links the newest counts.
func (c *counts) Consumer(name string) (consumer uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for number, l := range c.links {
		if l.name == name {
			consumer = max(consumer, number)
		}
	}
	return consumer
}

// Find finds an unsettled delivery.
func (c *counts) Find(id uint64) (fsm.Held, bool) { return c.find(id, false) }

// Take is Find, and the delivery is settled as far as the client is concerned.
func (c *counts) Take(id uint64) (fsm.Held, bool) { return c.find(id, true) }

func (c *counts) find(id uint64, take bool) (h fsm.Held, ok bool) {
	if id > math.MaxUint32 {
		return h, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deliveries.each(uint32(id), uint32(id), take, func(d delivery) {
		if h, ok = d.held(), true; take {
			c.taken.add(d)
		}
	})
	return h, ok
}

// UpTo returns the unsettled deliveries up to one, in order, without those that are only shown.
func (c *counts) UpTo(last uint64) []fsm.Held {
	return c.holdings(func(u *unsettled, d delivery) bool { return !d.link.copies && int64(d.id) <= u.whole(uint32(last)) })
}

// Of returns the unsettled deliveries of a consumer, in order.
func (c *counts) Of(consumer uint64) []fsm.Held {
	return c.holdings(func(_ *unsettled, d delivery) bool { return d.link.consumer == consumer })
}

func (c *counts) holdings(which func(*unsettled, delivery) bool) (list []fsm.Held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := &c.deliveries
	for _, d := range u.list[u.head:] {
		if d.link != nil && which(u, d) {
			list = append(list, d.held())
		}
	}
	return list
}

func (d delivery) held() fsm.Held {
	return fsm.Held{Tag: d.id, Consumer: d.link.consumer, ID: d.number}
}

// keep gives back what Take has taken. Those of a link that has ended meanwhile go back to their queue, as its others
// did.
func (c *counts) keep(list []fsm.Held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	for _, h := range list {
		if l := c.links[h.Consumer]; l != nil {
			c.keepOne(l, h)
			continue
		}
		c.session.post(func() { c.session.broker.Settle(h.Consumer, []uint64{h.ID}, fsm.Requeue) })
	}
}

// keepOne gives back a delivery of a link. mu is held.
func (c *counts) keepOne(l *outgoingLink, h fsm.Held) {
	t := c.taken.back(l, h)
	c.deliveries.keep(t.delivery)
	if t.lapses { // a lapse may have come in vain
		c.lapses = append(c.lapses, lapse{t.id, time.Now().Add(lapseAfter)})
		c.awaitLapse()
	}
	if t.released {
		c.out.Lock()
		defer c.out.Unlock()
		c.pushReleased(uint32(t.id), uint32(t.id))
	}
}

// keep makes a delivery that was settled unsettled again.
func (u *unsettled) keep(d delivery) {
	if i := u.at(int64(d.id)); i < len(u.list) && u.list[i].id == d.id {
		u.list[i] = d
	} else {
		u.list = slices.Insert(u.list, i, d)
	}
	u.live++
}
