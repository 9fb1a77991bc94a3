package v091

import (
	"context"
	"errors"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/amqp"
	messages "github.com/quorate/quorate/amqp/message"
	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

// publisher is the publishing side of a channel: it numbers messages, passes
// them to the session, and reports their outcomes to the client. publish and
// check are called with the channel's gate held, the rest by any goroutine.
//
// Invariant: flow counts what is waiting in confirms, and nothing else of this
// channel.
type publisher struct {
	session  amqp.Session
	out      outbox
	flow     *amqp.Flow // of the connection
	confirms confirms
	commits  commits
	// confirming: the channel is in confirm mode. The gate guards it.
	confirming bool

	// current is the message whose headers and properties the session may
	// request; nil: none.
	current  *message
	headers  func() *fsm.Table
	property func(name string) []byte
	holdings fsm.Holdings // of the channel
}

// init must be called first; p must not be moved afterwards.
func (p *publisher) init(channel uint16, out outbox, flow *amqp.Flow, holdings fsm.Holdings) {
	p.confirms.channel, p.confirms.release = channel, flow.Release
	p.out, p.flow, p.holdings = out, flow, holdings
	p.headers, p.property = p.currentHeaders, p.currentProperty
}

// publish passes a message to the session. fsm.ErrNotFresh: it must be
// published again, and keeps its number. Any other error is the channel's;
// closing the channel releases what the message counts.
func (p *publisher) publish(m *message) error {
	to := &m.publish
	if to.Number == 0 {
		size := len(to.Payload)
		p.flow.Add(1, int64(size))
		to.Number = p.confirms.add(uint32(size))
	}
	to.Mandatory, to.Confirm = m.mandatory, p.confirming
	p.setCurrent(m)
	routed, err := p.session.Publish(to)
	p.setCurrent(nil)
	if routed || err != nil {
		return err
	}
	if m.mandatory {
		p.returned(to.Payload, nil)
	}
	p.confirmed(to.Number, to.Number, true)
	return nil
}

// check returns the error with which the broker would refuse a message.
func (p *publisher) check(m *message) error {
	p.setCurrent(m)
	defer p.setCurrent(nil)
	return p.session.Check(&m.publish)
}

// admit returns the error with which the broker refuses a message whatever its body.
func (p *publisher) admit(m *message) error { return p.session.Admit(&m.publish) }

func (p *publisher) setCurrent(m *message) {
	p.current = m
	if m != nil {
		m.publish.Headers, m.publish.Property = p.headers, p.property
		if m.publish.Exchange == fsm.CommandExchange {
			m.publish.Holdings = p.holdings
		}
	}
}

// currentHeaders decodes the headers of the message being published.
func (p *publisher) currentHeaders() *fsm.Table {
	m := p.current
	if m == nil {
		return nil
	}
	fields := m.fields
	if fields == nil {
		properties, err := wire.ParseProperties(m.publish.Payload.Properties())
		if err != nil {
			return nil // they were checked when they arrived
		}
		fields = properties.Headers
	}
	t, err := wire.DecodeFields(fields)
	if err != nil {
		return nil
	}
	return messages.Table(t)
}

// currentProperty returns a property of the message being published.
func (p *publisher) currentProperty(name string) []byte {
	if p.current == nil {
		return nil
	}
	return messages.Properties{}.Property(p.current.publish.Payload, name)
}

// returned returns a mandatory message to the client. why nil: it had no route.
func (p *publisher) returned(payload fsm.Payload, why *fsm.Refusal) {
	p.out.Lock()
	p.out.PushItem(&amqp.Item{Kind: outReturn, Requested: true, Channel: p.confirms.channel, Message: fsm.Message{Payload: payload}, Refusal: why})
	p.out.Unlock()
}

// confirmed receives the outcome of publishes.
func (p *publisher) confirmed(first, last uint64, ok bool) {
	queue := p.confirms.resolve(first, last, ok)
	p.commits.resolve(first, last, ok)
	if queue {
		p.out.queueConfirms(&p.confirms)
	}
}

// closeWith sends the available confirms and then the last method of the
// channel. Later outcomes are lost.
func (p *publisher) closeWith(m wire.Method) { p.flow.Release(p.out.pushLast(&p.confirms, m)) }

// close ends the publisher with its connection.
func (p *publisher) close() { p.flow.Release(p.confirms.close()) }

// publish checks a message and publishes it, or keeps it for the commit. The
// gate is held.
func (ch *channel) publish(m *message) error {
	if m.immediate {
		return errNotImplemented(wire.IDBasicPublish, "immediate=true")
	}
	if limit := ch.conn.Config().MaxMessageSize; m.size > uint64(limit) {
		return errMessageSize(m.size, limit)
	}
	if limit := ch.content.maxList; m.list > limit {
		return errPropertiesSize(m.list, limit)
	}
	if !ch.tx.on {
		return ch.publisher.publish(m)
	}
	if err := ch.publisher.check(m); err != nil {
		return err
	}
	return ch.tx.add(m)
}

// publishLater publishes a message for which the broker must be waited for.
// Busy is set, the gate is not held.
func (ch *channel) publishLater(m *message) error {
	if !ch.awaitRoutes() {
		return nil
	}
	if m.isReply() {
		ctx, cancel := context.WithTimeout(ch.conn.Context(), ch.conn.Config().OperationTimeout)
		defer cancel()
		if err := findRequester(ctx, ch.session, m); err != nil {
			return err
		}
	}
	ch.gate.Lock()
	defer ch.gate.Unlock()
	if ch.end.sessionClosing {
		return nil
	}
	m.publish.Fresh = true
	return ch.publish(m)
}

// routesInterval is how often a wait for routes checks whether the channel is
// ending.
const routesInterval = time.Second

// awaitRoutes waits until the broker is certain of its routes. Until then
// publishes wait, unconfirmed. It returns false if the channel has ended
// meanwhile, or if its client has requested that and has waited long enough;
// the waiting messages are then dropped. Busy is set, the gate is not held.
func (ch *channel) awaitRoutes() bool {
	var closing time.Time
	for !ch.isStranded(&closing) {
		ctx, cancel := context.WithTimeout(ch.conn.Context(), routesInterval)
		err := ch.session.Refresh(ctx)
		cancel()
		if err == nil {
			return true
		}
	}
	return false
}

// isStranded reports whether publishes must stop waiting for routes. closing is
// when the client was first seen to have requested the end of the channel.
func (ch *channel) isStranded(closing *time.Time) bool {
	ch.gate.Lock()
	defer ch.gate.Unlock()
	if closing.IsZero() && (ch.conn.ReaderIsDone() || ch.queue.has(requestClose)) {
		*closing = time.Now()
	}
	late := !closing.IsZero() && time.Since(*closing) >= ch.conn.Config().OperationTimeout
	ch.stranded = ch.stranded || late || ch.end.sessionClosing || !ch.end.isOpen() || ch.conn.Context().Err() != nil
	return ch.stranded
}

// isReply reports whether a message must be returned if the channel that it
// replies to is gone.
func (m *message) isReply() bool {
	return m.mandatory && m.publish.Exchange == "" && strings.HasPrefix(m.publish.RoutingKey, fsm.ReplyQueue)
}

// findRequester determines whether the channel that a mandatory message replies
// to exists.
func findRequester(ctx context.Context, s amqp.Session, m *message) error {
	m.publish.RequesterGone = false
	if !m.isReply() {
		return nil
	}
	_, err := s.DeclareQueue(ctx, fsm.QueueSpec{Name: m.publish.RoutingKey, Passive: true})
	r := new(fsm.Refusal)
	if errors.As(err, &r) && r.Kind == fsm.NotFoundKind {
		m.publish.RequesterGone, err = true, nil
	}
	return err
}

// confirms knows the unfinished publishes of a channel, which are numbered from
// 1: what they count in the connection's flow control while the broker has
// them, and in confirm mode what the client has not been told yet.
//
// Invariants: numbers in list[head:] ascend; a number that is not there is
// finished or not used yet; list[head] is not finished. Memory is at most about
// twice that of the unfinished publishes, however long the oldest one waits.
type confirms struct {
	channel uint16 // its number; fixed
	mu      sync.Mutex
	list    []publishing
	head    int
	live    int    // entries of list that are not finished
	last    uint64 // last number used
	fresh   []span // resolved in confirm mode since AppendFrames was called
	on      bool
	from    uint64 // delivery tag = number - from; numbers ≤ from have no tag
	queued  bool   // in the outbox's list of channels with confirms to write
	// release counts publishes that have got an outcome; nil: nobody does. What close does not count is released by then.
	release func(count, bytes int64)
}

// publishing is one publish that is not finished, or not dropped yet.
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

// add adds a publish and returns its number.
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

// compact drops finished publishes.
func (c *confirms) compact() {
	kept := c.list[:0]
	for _, p := range c.list[c.head:] {
		if p.state != publishDone {
			kept = append(kept, p)
		}
	}
	c.list, c.head = kept, 0
}

// at returns the position of the first publish with a number ≥ number.
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

// begin enters confirm mode: the next publish has tag 1.
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

// resolve records the outcome of a range of publishes; those that already have
// one keep it. It releases those that were waiting, and returns whether the
// channel must be queued to write confirms.
func (c *confirms) resolve(first, last uint64, ok bool) (queue bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	confirm, count, bytes := false, int64(0), int64(0)
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
	if c.release != nil {
		c.release(count, bytes)
	}
	c.trim()
	if !confirm {
		return false
	}
	if n := len(c.fresh); n > 0 && c.fresh[n-1].last+1 == first {
		c.fresh[n-1].last = last
	} else {
		c.fresh = append(c.fresh, span{first, last})
	}
	queue, c.queued = !c.queued, true
	return queue
}

func (c *confirms) done(p *publishing) {
	p.state = publishDone
	c.live--
}

// trim moves head to the first publish that is not finished.
func (c *confirms) trim() {
	if c.live == 0 {
		c.list, c.head = c.list[:0], 0
		return
	}
	for c.list[c.head].state == publishDone {
		c.head++
	}
}

// AppendFrames appends the frames for all confirms that can be written now. One frame
// with multiple set covers a run of equal outcomes at the front, and never a
// publish that waits or has, or had, another outcome; publishes after a waiting
// one are confirmed one by one.
func (c *confirms) AppendFrames(dst []byte) []byte {
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
		dst = c.frame(dst, state, next-1, next-first > 1)
	}
	c.trim()
	for _, s := range c.fresh {
		for i := c.at(s.first); i < len(c.list) && c.list[i].number <= s.last; i++ {
			if p := &c.list[i]; p.state == publishOK || p.state == publishNo {
				dst = c.frame(dst, p.state, p.number, false)
				c.done(p)
			}
		}
	}
	c.fresh = c.fresh[:0]
	c.trim()
	return dst
}

func (c *confirms) frame(dst []byte, state publishState, number uint64, multiple bool) []byte {
	if state == publishOK {
		return wire.AppendAck(dst, c.channel, number-c.from, multiple)
	}
	return wire.AppendNack(dst, c.channel, number-c.from, multiple)
}

// close ends everything and returns what was still waiting. resolve and AppendFrames
// have no effect afterwards.
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
