package amqp

import (
	"context"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/quorate/quorate/amqp/wire"
	"github.com/quorate/quorate/fsm"
)

// publish hands a message to the broker. The gate is held.
func (ch *channel) publish(m *message) error {
	c := ch.conn
	if m.immediate {
		return errNotImplemented(wire.IDBasicPublish, "immediate=true")
	}
	if most := c.server.cfg.MaxMessageSize; m.size > uint64(most) {
		return errMessageSize(m.size, most)
	}
	if ch.tx != nil {
		return ch.holdPublish(m)
	}
	return ch.enqueue(m)
}

// publishLater publishes a message for which the broker must be asked first.
// Busy is set, the gate is not held.
func (ch *channel) publishLater(m *message) error {
	if !ch.awaitRoutes() {
		return nil
	}
	if m.isReply() {
		ctx, cancel := context.WithTimeout(ch.conn.ctx, ch.conn.server.cfg.OperationTimeout)
		defer cancel()
		if err := ch.askRequester(ctx, m); err != nil {
			return err
		}
	}
	ch.gate.Lock()
	defer ch.gate.Unlock()
	if ch.closing {
		return nil
	}
	m.publish.Fresh = true
	return ch.publish(m)
}

// routesPace is how often who waits for routes looks whether the channel ends.
const routesPace = time.Second

// awaitRoutes returns when the broker knows for certain where messages go: for
// as long as it does not, publishes wait, and stay unconfirmed. It returns false
// if the channel has ended meanwhile, or its client has asked for that and has
// waited long enough; what is waiting goes nowhere then. Busy is set, the gate
// is not held.
func (ch *channel) awaitRoutes() bool {
	var asked time.Time
	for !ch.goesAdrift(&asked) {
		ctx, cancel := context.WithTimeout(ch.conn.ctx, routesPace)
		err := ch.session.Refresh(ctx)
		cancel()
		if err == nil {
			return true
		}
	}
	return false
}

// goesAdrift reports whether publishes are not to wait for routes any more.
// asked is when the client was first seen to have asked for the channel's end.
func (ch *channel) goesAdrift(asked *time.Time) bool {
	ch.gate.Lock()
	defer ch.gate.Unlock()
	if asked.IsZero() && (ch.conn.leaves.Load() || slices.ContainsFunc(ch.queue, isClose)) {
		*asked = time.Now()
	}
	late := !asked.IsZero() && time.Since(*asked) >= ch.conn.server.cfg.OperationTimeout
	ch.adrift = ch.adrift || late || ch.closing || ch.state != channelOpen || ch.conn.ctx.Err() != nil
	return ch.adrift
}

func isClose(r request) bool { return r.kind == requestClose }

// prepare makes m the message that is being published; nil: none is.
func (ch *channel) prepare(m *message) {
	ch.publishing = m
	if m != nil {
		m.publish.Headers, m.publish.Property = ch.headers, ch.property
	}
}

// enqueue publishes a message. The gate is held.
func (ch *channel) enqueue(m *message) error {
	c, p := ch.conn, &m.publish
	if p.Number == 0 {
		size := len(p.Payload)
		c.flow.add(1, int64(size))
		p.Number = ch.confirms.add(uint32(size))
	}
	p.Mandatory = m.mandatory
	ch.prepare(m)
	routed, err := ch.session.Publish(p)
	ch.prepare(nil)
	switch {
	case routed:
		return nil
	case err != nil:
		return err // fsm.ErrNotFresh, or the channel's end releases what was added
	}
	if m.mandatory {
		ch.Returned(p.Payload)
	}
	ch.Confirmed(p.Number, p.Number, true)
	return nil
}

// publishHeaders decodes the headers of the message that is being published.
func (ch *channel) publishHeaders() *fsm.Table {
	m := ch.publishing
	if m == nil {
		return nil
	}
	fields := m.fields
	if fields == nil {
		p, err := wire.ParseProperties(m.publish.Payload.Properties())
		if err != nil {
			return nil // they were checked when they came in
		}
		fields = p.Headers
	}
	t, err := wire.DecodeFields(fields)
	if err != nil {
		return nil
	}
	return catalogTable(t)
}

// publishProperty returns a property of the message that is being published.
func (ch *channel) publishProperty(name string) []byte {
	if ch.publishing == nil {
		return nil
	}
	return Properties{}.Property(ch.publishing.publish.Payload.Properties(), name)
}

// Refused takes the answer to a publish that asked the broker for something.
func (ch *channel) Refused(payload fsm.Payload, why *fsm.Refusal) {
	defer ch.conn.contain("take what the broker tells")
	ch.noteRefused(why)
	out := ch.conn.out
	out.lock()
	out.pushMessage(outItem{kind: outReturn, channel: ch, message: fsm.Message{Payload: payload}, refusal: why})
	out.unlock()
}

// Returned takes a mandatory message that leads nowhere after all.
func (ch *channel) Returned(payload fsm.Payload) {
	defer ch.conn.contain("take what the broker tells")
	out := ch.conn.out
	out.lock()
	out.pushMessage(outItem{kind: outReturn, channel: ch, message: fsm.Message{Payload: payload}})
	out.unlock()
}

// Confirmed takes the outcome of publishes.
func (ch *channel) Confirmed(first, last uint64, ok bool) {
	defer ch.conn.contain("take what the broker tells")
	count, bytes, queue := ch.confirms.settle(first, last, ok)
	ch.conn.flow.release(count, bytes)
	if c := ch.committing.Load(); c != nil {
		c.note(first, last, ok)
	}
	if queue {
		ch.conn.out.queueConfirms(ch)
	}
}

// Every publish of a channel has a number, from 1. confirms knows those that
// are not done with: what they weigh in the connection's flow control while
// the broker has them, and what is still to be told to the client in confirm
// mode.
//
// Invariants: numbers in list[head:] ascend; a number that is not there is
// done or not given yet; list[head] is not done. Memory is at most about twice
// what is not done, however long the oldest publish waits.
type confirms struct {
	mu     sync.Mutex
	list   []publishing
	head   int
	live   int    // entries of list that are not done
	last   uint64 // number given last
	fresh  []span // settled in confirm mode since append was called
	on     bool
	from   uint64 // delivery tag = number - from; numbers ≤ from have no tag
	queued bool   // in the outbox's list of channels with confirms to write
}

// publishing is one publish that is not done with, or not dropped yet.
type publishing struct {
	number uint64
	size   uint32
	state  publishState
}

// span is a range of publish numbers, both ends included.
type span struct{ first, last uint64 }

type publishState uint8

const (
	publishWaiting publishState = iota // for the broker
	publishOK                          // ack to be written
	publishNo                          // nack to be written
	publishDone
)

// add begins a publish and returns its number.
func (c *confirms) add(size uint32) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.list) == cap(c.list) && c.live <= len(c.list)/2 {
		c.compact()
	}
	c.last++
	c.live++
	c.list = append(c.list, publishing{number: c.last, size: size})
	return c.last
}

// compact drops what is done.
func (c *confirms) compact() {
	kept := c.list[:0]
	for _, p := range c.list[c.head:] {
		if p.state != publishDone {
			kept = append(kept, p)
		}
	}
	c.list, c.head = kept, 0
}

// at returns the place of the first publish with a number ≥ number.
func (c *confirms) at(number uint64) int {
	tail := c.list[c.head:]
	if len(tail) == 0 || number <= tail[0].number {
		return c.head
	}
	if d := number - tail[0].number; d < uint64(len(tail)) && tail[d].number == number {
		return c.head + int(d)
	}
	return c.head + sort.Search(len(tail), func(i int) bool { return tail[i].number >= number })
}

// begin switches confirm mode on: the next publish has tag 1.
func (c *confirms) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.on {
		c.on, c.from = true, c.last
	}
}

// isOn reports whether the channel is in confirm mode.
func (c *confirms) isOn() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.on
}

// upcoming is the number of the next publish.
func (c *confirms) upcoming() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last + 1
}

// settle takes the outcome of a range of publishes; those that have one
// already keep it. It returns how many were waiting and their size, and
// whether the channel has to be queued for writing confirms.
func (c *confirms) settle(first, last uint64, ok bool) (count, bytes int64, queue bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	confirm := false
	for i := c.at(first); i < len(c.list) && c.list[i].number <= last; i++ {
		p := &c.list[i]
		if p.state != publishWaiting {
			continue
		}
		count++
		bytes += int64(p.size)
		switch {
		case !c.on || p.number <= c.from:
			c.done(p)
		case ok:
			p.state, confirm = publishOK, true
		default:
			p.state, confirm = publishNo, true
		}
	}
	c.trim()
	if !confirm {
		return count, bytes, false
	}
	if n := len(c.fresh); n > 0 && c.fresh[n-1].last+1 == first {
		c.fresh[n-1].last = last
	} else {
		c.fresh = append(c.fresh, span{first, last})
	}
	queue, c.queued = !c.queued, true
	return count, bytes, queue
}

func (c *confirms) done(p *publishing) {
	p.state = publishDone
	c.live--
}

// trim moves head to the first publish that is not done.
func (c *confirms) trim() {
	if c.live == 0 {
		c.list, c.head = c.list[:0], 0
		return
	}
	for c.list[c.head].state == publishDone {
		c.head++
	}
}

// append appends the frames for all confirms that can be written now. One
// frame with multiple set covers a run of equal outcomes at the front, and
// never a publish that waits or has, or had, another outcome; what lies above
// a waiting publish is confirmed one by one.
func (c *confirms) append(dst []byte, channel uint16) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queued = false
	for i := c.head; i < len(c.list) && c.list[i].state != publishWaiting; {
		state, first := c.list[i].state, c.list[i].number
		if state == publishDone {
			i++
			continue
		}
		next := first
		for i < len(c.list) && c.list[i].state == state && c.list[i].number == next {
			c.done(&c.list[i])
			i++
			next++
		}
		dst = c.frame(dst, channel, state, next-1, next-first > 1)
	}
	c.trim()
	for _, s := range c.fresh {
		for i := c.at(s.first); i < len(c.list) && c.list[i].number <= s.last; i++ {
			if p := &c.list[i]; p.state == publishOK || p.state == publishNo {
				dst = c.frame(dst, channel, p.state, p.number, false)
				c.done(p)
			}
		}
	}
	c.fresh = c.fresh[:0]
	c.trim()
	return dst
}

func (c *confirms) frame(dst []byte, channel uint16, state publishState, number uint64, multiple bool) []byte {
	if state == publishOK {
		return wire.AppendAck(dst, channel, number-c.from, multiple)
	}
	return wire.AppendNack(dst, channel, number-c.from, multiple)
}

// close ends all of it and returns what was still waiting. settle and append
// find nothing from now on.
func (c *confirms) close() (count, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.list[c.head:] {
		if p.state == publishWaiting {
			count++
			bytes += int64(p.size)
		}
	}
	c.list, c.head, c.live, c.fresh = nil, 0, 0, nil
	return count, bytes
}
