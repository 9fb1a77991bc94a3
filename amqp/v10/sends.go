package v10

import (
	"maps"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// outTransfer is the kind of items that are transfers of a message, or some of them; the owner is the *outgoingLink.
const outTransfer = amqp.Frames + 1

// transferHead is room for a frame's head and the performative of a transfer.
const transferHead = 64

// heldSend is what waits for the client's window: transfers of a message, or a flow of a link, which comes after them.
type heldSend struct {
	message fsm.Message
	link    *outgoingLink
	id      uint32
	frames  uint32 // of the message; 0: it is a flow
	sent    uint32 // of these
	lost    bool   // the broker has taken it back; the client is told when it has it
	flow    wire.Flow
}

// add gives a link's consumer its number.
func (c *counts) add(l *outgoingLink) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	l.consumer = c.last
	if c.links == nil {
		c.links = map[uint64]*outgoingLink{}
	}
	c.links[c.last] = l
}

// remove ends a link. It returns what its client has not settled; what has not been sent is a part of that. A message of
// which the client has a part ends there, as it does for the client.
func (c *counts) remove(l *outgoingLink) (all []delivery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.links, l.consumer)
	maps.DeleteFunc(c.awaited, func(_ uint64, a *awaited) bool { return a.link == l })
	c.flushAnswers()
	c.deliveries.of(l, func(d delivery) { all = append(all, d) })
	for _, m := range l.early {
		all = append(all, delivery{link: l, number: m.ID})
		c.unwritten(&m)
	}
	l.early = nil
	l.forgetWaiting()
	kept := c.held[:0]
	for _, h := range c.held {
		if h.link != l {
			kept = append(kept, h)
			continue
		}
		switch {
		case h.frames == 0:
		case l.isAnswering():
			c.forgetAnswer(&h)
		default:
			c.unwritten(&h.message)
			if l.settled {
				all = append(all, delivery{link: l, number: h.message.ID})
			}
		}
	}
	clear(c.held[len(kept):])
	c.held = kept
	if !c.closed {
		c.pump() // what was behind it may be sent now
	}
	return all
}

// unwritten counts a message that will not be written. mu is held.
func (c *counts) unwritten(m *fsm.Message) {
	size := len(m.Payload)
	s := c.session
	s.post(func() { s.broker.Written(1, size) })
}

// start answers a link's attach, and sends what has arrived before.
func (c *counts) start(l *outgoingLink, answer *wire.Attach) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.out.push(c.session.channel, answer)
	l.started = true
	if !l.requested {
		l.sendEarly()
	}
	c.pump()
}

// sendEarly sends what has arrived before it could be sent. counts.mu is held.
func (l *outgoingLink) sendEarly() {
	l.requested = false
	for i := range l.early {
		l.session.counts.send(l, &l.early[i])
	}
	l.early = nil
}

// deliver takes in messages for links.
func (c *counts) deliver(messages []fsm.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	var orphans []fsm.Message
	for i := range messages {
		m := &messages[i]
		switch l := c.links[m.Consumer]; {
		case l == nil:
			orphans = append(orphans, *m)
		case l.own != nil && !l.own.take():
			c.unwritten(m) // a reply without credit
		case !l.started || l.requested:
			l.early = append(l.early, *m)
		default:
			c.send(l, m)
		}
	}
	c.pump()
	if s := c.session; len(orphans) > 0 {
		s.post(func() {
			for _, m := range orphans {
				s.broker.Written(1, len(m.Payload))
				s.broker.Settle(m.Consumer, []uint64{m.ID}, fsm.Requeue)
			}
		})
	}
}

// send queues a message of a link. mu is held.
func (c *counts) send(l *outgoingLink, m *fsm.Message) {
	size := c.renderedSize(l.form, m)
	if l.limit > 0 && uint64(size) > l.limit {
		// It goes back as it was, and its link ends.
		l.early = append(l.early, *m)
		l.started = false
		c.session.post(c.session.detachConsumer(l.consumer, wire.Errorf(wire.ConditionMessageSize, "message of %d bytes exceeds max-message-size %d", size, l.limit)))
		return
	}
	c.hold(l, m, size)
}

// hold queues a message of so many bytes as it is sent. mu is held.
func (c *counts) hold(l *outgoingLink, m *fsm.Message, size int) {
	l.count++
	piece := int(c.session.conn.maxFrame - transferHead)
	c.held = append(c.held, heldSend{
		message: *m, link: l, id: c.deliveries.number(l, m), frames: uint32(max((size+piece-1)/piece, 1)),
	})
}

// pump sends what the client's window lets through. mu is held.
func (c *counts) pump() {
	n := 0
	c.out.Lock()
	for ; n < len(c.held); n++ {
		h := &c.held[n]
		if h.frames == 0 {
			c.pushFlowLocked(&h.flow)
			continue
		}
		from := h.sent
		for h.sent < h.frames && c.client.take() {
			h.sent++
		}
		if h.sent > from {
			if from == 0 && h.link.own != nil {
				// A client may look for the reply to a request only once it knows that the request was accepted.
				c.out.pushKnown(&c.session.publisher.outcomes)
			}
			c.pushPieces(h, from)
		}
		if h.sent < h.frames {
			break
		}
		c.forgetAnswer(h)
		if h.lost && !h.link.quiet {
			c.pushReleased(h.id, h.id)
		}
	}
	c.out.Unlock()
	if n == len(c.held) {
		clear(c.held)
		c.held = c.held[:0]
		return
	}
	if n > 0 {
		m := copy(c.held, c.held[n:])
		clear(c.held[m:])
		c.held = c.held[:m]
	}
}

// pushPieces pushes the frames of a message from one on. mu and the outbox are locked.
func (c *counts) pushPieces(h *heldSend, from uint32) {
	it := amqp.Item{Kind: outTransfer, Channel: c.session.channel, Owner: h.link, Tag: uint64(h.id)<<32 | uint64(from), Message: h.message}
	it.Message.Ready = uint64(h.sent) // which is a get's: up to which frame
	c.out.PushItem(&it)
}

// credited tells the client what a link has, after what it has been sent.
func (c *counts) credited(consumer uint64, now fsm.LinkState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[consumer]
	if c.closed || l == nil {
		return
	}
	c.holdFlow(l, now)
	c.pump()
}

// holdFlow queues what a link has. It replaces a flow that says that and nothing of the link has come behind: a client
// may ask as often as it likes while its window is shut. mu is held.
func (c *counts) holdFlow(l *outgoingLink, now fsm.LinkState) {
	l.count = now.DeliveryCount
	f := wire.Flow{
		Handle: wire.Some(l.handle), DeliveryCount: wire.Some(now.DeliveryCount), LinkCredit: wire.Some(now.Credit),
		Available: wire.Some(uint32(min(now.Available, 1<<32-1))), Drain: now.Drained,
	}
	if h := lastOf(c.held, l); h != nil && h.frames == 0 && h.flow.Properties == nil {
		f.Drain = f.Drain || h.flow.Drain
		h.flow = f
		return
	}
	c.held = append(c.held, heldSend{link: l, flow: f})
}

// lastOf returns the last of what a link has; nil: nothing.
func lastOf(held []heldSend, l *outgoingLink) *heldSend {
	for i := len(held) - 1; i >= 0; i-- {
		if held[i].link == l {
			return &held[i]
		}
	}
	return nil
}

// take takes the unsettled deliveries of a range and appends them to dst. known: there are some, or what some of it are
// settled with is not decided.
func (c *counts) take(first, last uint32, dst []delivery) (all []delivery, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deliveries.each(first, last, true, func(d delivery) { dst = append(dst, d) })
	return dst, len(dst) > 0 || awaits(c.awaited, c.deliveries.whole(first), c.deliveries.whole(last))
}
