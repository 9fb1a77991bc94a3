package v10

import (
	"slices"
	"time"

	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// lapse is a delivery whose lock has ended, which the server settles at a time unless the client does so before.
type lapse struct {
	id uint64
	at time.Time
}

// lapseAfter is how long the client may take to settle a delivery whose lock has ended.
const lapseAfter = 60 * time.Second

// timedOut tells the client that deliveries were held too long and have gone back, if it understands that. It reports
// whether it does. The link is served again once they are settled.
func (c *counts) timedOut(consumer uint64, numbers []uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[consumer]
	if c.closed || l == nil {
		return true
	}
	if !l.releases || l.detaches {
		return false
	}
	c.release(l, numbers, false)
	return true
}

// unlocked tells the client that deliveries have gone back because their locks have ended, if it understands that. It
// reports whether it does. The link is served on.
func (c *counts) unlocked(consumer uint64, numbers []uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[consumer]
	switch {
	case c.closed:
		return true
	case l == nil: // it has left what its client had locked
		s := c.session
		s.post(func() { s.broker.Settle(consumer, numbers, fsm.Requeue) })
		return true
	case !l.releases:
		return false
	}
	at := time.Now().Add(lapseAfter)
	for _, id := range c.release(l, numbers, true) {
		c.lapses = append(c.lapses, lapse{id, at})
	}
	c.awaitLapse()
	return true
}

// release tells the client that the broker has taken deliveries back of which it does not know that, and returns their
// ids. Those whose outcome is on its way are none of these: its answer says it. lapses is as in unsettled.lose. mu is held.
func (c *counts) release(l *outgoingLink, numbers []uint64, lapses bool) (ids []uint64) {
	c.deliveries.lose(l, numbers, lapses, func(d delivery) { ids = append(ids, d.id) })
	c.taken.lose(l, numbers, lapses)
	if l.quiet {
		return ids
	}
	tell := ids
	for i := range c.held {
		h := &c.held[i]
		if h.frames == 0 {
			continue
		}
		// It is told once it is sent, and so are those behind it: they are held back, too.
		at, is := slices.BinarySearch(ids, uint64(c.deliveries.whole(h.id)))
		h.lost = h.lost || is
		tell = tell[:min(at, len(tell))]
	}
	c.out.Lock()
	defer c.out.Unlock()
	for len(tell) > 0 {
		n := 1
		for n < len(tell) && tell[n] == tell[n-1]+1 {
			n++
		}
		c.pushReleased(uint32(tell[0]), uint32(tell[n-1]))
		tell = tell[n:]
	}
	return ids
}

// pushReleased pushes that deliveries were taken back. mu and the outbox are locked.
func (c *counts) pushReleased(first, last uint32) {
	c.out.pushLocked(c.session.channel, &wire.Disposition{First: first, Last: wire.Some(last), State: *releasedState})
}

// awaitLapse has lapses looked at when the first one is due. mu is held.
func (c *counts) awaitLapse() {
	if len(c.lapses) == 0 || c.lapse != nil {
		return
	}
	c.lapse = time.AfterFunc(time.Until(c.lapses[0].at), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.lapse = nil
		if !c.closed {
			c.session.post(c.session.settleLapsed)
		}
	})
}

// settleLapsed settles deliveries whose locks have ended long ago.
func (s *session) settleLapsed() {
	s.gate.Lock()
	defer s.gate.Unlock()
	if s.state != sessionOpen {
		return
	}
	s.giving = s.counts.takeLapsed(s.giving[:0])
	s.eachLink(s.giving, func(l *outgoingLink, _ []delivery, ids []uint64) { s.broker.Settle(l.consumer, ids, fsm.Requeue) })
}

// takeLapsed takes what is due, settles it for the client, and appends it to dst.
func (c *counts) takeLapsed(dst []delivery) []delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, n := time.Now(), 0
	queue := false
	for ; n < len(c.lapses) && !c.lapses[n].at.After(now); n++ {
		if d, ok := c.deliveries.takeLost(c.lapses[n].id); ok {
			dst = append(dst, d)
			queue = !d.link.quiet && c.answers.add(uint32(d.id), releasedState) || queue
		}
	}
	c.lapses = slices.Delete(c.lapses, 0, n)
	c.awaitLapse()
	if queue {
		c.out.Lock()
		defer c.out.Unlock()
		c.out.PushLast(&c.answers)
	}
	return dst
}
