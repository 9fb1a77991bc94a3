package v091

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"slices"
	"sync"

	"github.com/quorate/quorate/amqp"
	messages "github.com/quorate/quorate/amqp/message"
	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

// consumer is a consumer of a channel. The fields above started are fixed once
// it has its number.
type consumer struct {
	channel *channel
	number  uint64
	tag     string
	noAck   bool

	// Under consumers.mu.
	started   bool          // consume-ok is in the outbox
	early     []fsm.Message // arrived before started
	gone      bool          // its queue was gone before started
	suspended uint64        // the newest delivery it was suspended for
}

// consumers is the consuming side of a channel: its consumers, their
// deliveries, and what is sent to the client about them. The broker's
// goroutines call it.
//
// Invariants: byTag and byNumber hold the same consumers; their numbers are ≤
// last; early and gone are empty once a consumer has started; once closed,
// nothing is pushed and nothing posted.
//
// mu is taken before the outbox's lock, and never held during a call of the
// session, except for Drop.
type consumers struct {
	channel uint16 // its number
	session amqp.Session
	out     outbox
	notify  bool // the client understands basic.cancel
	limit   int  // of consumers; 0: none
	counts  *amqp.TimeoutCounts
	// post makes the channel run a task. It is called with mu held and not
	// closed.
	post func(task func(context.Context) error)
	// giveBack returns messages of consumers that no longer exist; it is a
	// task.
	giveBack func([]fsm.Message) error

	mu         sync.Mutex
	closed     bool // events are ignored
	flooded    bool // the channel ends because of too many deliveries
	timedOut   bool // the channel ends because deliveries were held too long
	byNumber   map[uint64]*consumer
	byTag      map[string]*consumer
	last       uint64 // last number used
	deliveries deliveries
	deferring  bool     // basic.cancel waits for the end of queue.delete
	deferred   []uint64 // consumers whose queue is gone meanwhile
}

// add assigns a consumer its number.
func (c *consumers) add(cons *consumer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byTag[cons.tag] != nil {
		return errTagReuse(cons.tag)
	}
	if c.limit > 0 && len(c.byTag) >= c.limit {
		return errTooManyConsumers(c.limit)
	}
	c.last++
	cons.number = c.last
	c.byNumber[cons.number], c.byTag[cons.tag] = cons, cons
	return nil
}

// find returns the consumer with a tag; nil: there is none.
func (c *consumers) find(tag string) *consumer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byTag[tag]
}

// remove frees the tag of a consumer, if it still has one. It returns the
// messages that arrived before it was started.
func (c *consumers) remove(cons *consumer) (early []fsm.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(cons)
	return cons.early
}

// drop is remove with mu held.
func (c *consumers) drop(cons *consumer) {
	if c.byNumber[cons.number] == cons {
		delete(c.byNumber, cons.number)
		delete(c.byTag, cons.tag)
	}
}

// start sends consume-ok, and then the messages that arrived before it.
func (c *consumers) start(cons *consumer, noWait bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.out.Lock()
	defer c.out.Unlock()
	if !noWait {
		c.out.pushLocked(c.channel, &wire.BasicConsumeOK{ConsumerTag: cons.tag})
	}
	cons.started = true
	for i := range cons.early {
		c.push(cons, &cons.early[i])
	}
	cons.early = nil
	if cons.gone {
		c.cancel(cons)
	}
}

// deliver receives messages for consumers.
func (c *consumers) deliver(messages []fsm.Message) {
	var orphans []fsm.Message
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.out.Lock()
	for i := range messages {
		m := &messages[i]
		switch cons := c.byNumber[m.Consumer]; {
		case cons == nil:
			orphans = append(orphans, *m)
		case !cons.started:
			cons.early = append(cons.early, *m)
		default:
			c.push(cons, m)
		}
	}
	c.out.Unlock()
	c.bound()
	if len(orphans) > 0 {
		c.post(func(context.Context) error { return c.giveBack(orphans) })
	}
}

// bound ends the channel if the client leaves deliveries unsettled for ever. Queues
// hand out no more than fsm.MaxHeld to a consumer, but what they have taken back, as
// locks end, is the client's to settle all the same. mu is locked.
func (c *consumers) bound() {
	live := c.deliveries.unacked.live - len(c.deliveries.gets)
	if c.flooded || live <= 2*fsm.MaxHeld || uint64(live) <= 2*fsm.MaxHeld*c.last {
		return
	}
	c.flooded = true
	why := errTooManyUnsettled(c.channel, live)
	c.post(func(context.Context) error { return why })
}

// push pushes a message for a consumer. mu and the outbox are locked.
func (c *consumers) push(cons *consumer, m *fsm.Message) {
	tag := c.deliveries.tag(cons.number, m.ID, cons.noAck)
	c.out.PushItem(&amqp.Item{Kind: outDeliver, Channel: c.channel, Owner: cons, Tag: tag, Message: *m})
}

// got pushes the message that a get has taken.
func (c *consumers) got(m *fsm.Message, noAck bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	tag := c.deliveries.tagGet(m.Consumer, m.ID, noAck)
	c.out.Lock()
	defer c.out.Unlock()
	c.out.PushItem(&amqp.Item{Kind: outGet, Requested: true, Channel: c.channel, Tag: tag, Message: *m})
}

// settle is deliveries.settle.
func (c *consumers) settle(s *settlement, commit bool, dst []held) ([]held, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deliveries.settle(s, commit, dst)
}

// takeAll takes all unsettled deliveries and appends them to dst.
func (c *consumers) takeAll(dst []held) []held {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deliveries.unacked.takeAll(dst)
}

func (c *consumers) commit() []uncommitted {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deliveries.commit()
}

func (c *consumers) rollBack() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deliveries.rollBack()
}

// cancelled ends a consumer whose queue is gone.
func (c *consumers) cancelled(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cons := c.byNumber[number]
	switch {
	case c.closed || cons == nil:
	case !cons.started:
		cons.gone = true
	case c.deferring:
		c.deferred = append(c.deferred, number)
	default:
		c.out.Lock()
		defer c.out.Unlock()
		c.cancel(cons)
	}
}

// revoked ends a consumer that may no longer read its queue, and also the
// channel if the client does not understand basic.cancel. The refusal is
// reported before either: the end of the channel reports it, too, without the
// method. If there is no such consumer nothing happens.
func (c *consumers) revoked(number uint64, why error, report func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cons := c.byNumber[number]
	if c.closed || cons == nil {
		return
	}
	report()
	if cons.started {
		c.out.Lock()
		c.cancel(cons)
		c.out.Unlock()
	} else {
		cons.gone = true
	}
	if !c.notify {
		c.post(func(context.Context) error { return why })
	}
}

// deferCancels postpones every basic.cancel until sendCancels: a client that
// deletes a queue it consumes from expects the answer first.
func (c *consumers) deferCancels() {
	c.mu.Lock()
	c.deferring = true
	c.mu.Unlock()
}

func (c *consumers) sendCancels() {
	c.mu.Lock()
	defer c.mu.Unlock()
	deferred := c.deferred
	c.deferring, c.deferred = false, nil
	if c.closed {
		return
	}
	c.out.Lock()
	defer c.out.Unlock()
	for _, number := range deferred {
		if cons := c.byNumber[number]; cons != nil {
			c.cancel(cons)
		}
	}
}

// cancel removes a consumer, with basic.cancel if the client understands that.
// mu and the outbox are locked.
func (c *consumers) cancel(cons *consumer) {
	c.drop(cons)
	if c.notify {
		c.out.pushLocked(c.channel, &wire.BasicCancel{ConsumerTag: cons.tag, NoWait: true})
	}
}

// timeOut handles deliveries that were held too long and that the queue has
// taken back. With suspend the client is told nothing. Otherwise the consumer is
// cancelled: its tag is free at once, and what it still holds can be settled as
// before. If the client does not understand basic.cancel, and for gets, the
// channel ends with why.
func (c *consumers) timeOut(number uint64, ids []uint64, suspend bool, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cons, get := c.byNumber[number], c.deliveries.isGet(number)
	switch {
	case c.closed || !c.deliveries.holds(number, ids):
		// The client has settled them at the last moment.
	case cons == nil && !get:
		// The client has cancelled it.
	case cons != nil && suspend:
		if newest := slices.Max(ids); newest > cons.suspended { // otherwise it is a repetition
			cons.suspended = newest
			c.counts.Add(amqp.TimeoutSuspends)
		}
	case cons != nil && c.notify:
		c.counts.Add(amqp.TimeoutCancels)
		c.out.Lock()
		c.cancel(cons)
		c.out.Unlock()
		c.session.Drop(number) // many may time out at once: none waits for another
	default:
		if !c.timedOut {
			c.timedOut = true
			action := amqp.TimeoutCloses
			if get {
				action = amqp.TimeoutOfGet
			}
			c.counts.Add(action)
		}
		c.post(func(context.Context) error { return why })
	}
}

// lose ends the channel with why. It returns false if it is too late.
func (c *consumers) lose(why error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.post(func(context.Context) error { return why })
	}
	return !c.closed
}

// close makes all later events ignored.
func (c *consumers) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
}

// consume performs basic.consume.
func (ch *channel) consume(ctx context.Context, m *wire.BasicConsume) error {
	queue, err := ch.definitions.queueName(m.Queue, wire.IDBasicConsume)
	if err != nil {
		return err
	}
	cons := &consumer{channel: ch, tag: m.ConsumerTag, noAck: m.NoAck}
	if cons.tag == "" {
		cons.tag = "amq.ctag-" + rand128()
	}
	if err := ch.consumers.add(cons); err != nil {
		return err
	}
	spec := fsm.ConsumeSpec{
		Queue: queue, Number: cons.number, Tag: cons.tag, Prefetch: uint32(ch.prefetch),
		NoAck: m.NoAck, Exclusive: m.Exclusive, Arguments: messages.Table(m.Arguments),
	}
	if m.NoAck {
		spec.Prefetch = 0
	}
	if err := ch.session.Consume(ctx, spec); err != nil {
		ch.unwritten(ch.consumers.remove(cons))
		return err
	}
	ch.consumers.start(cons, m.NoWait)
	return nil
}

// rand128 returns 128 random bits in 22 characters.
func rand128() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// cancel performs basic.cancel. What the consumer holds stays with the channel.
func (ch *channel) cancel(ctx context.Context, m *wire.BasicCancel) error {
	if cons := ch.consumers.find(m.ConsumerTag); cons != nil {
		if err := ignoreNotFound(ch.session.Cancel(ctx, cons.number)); err != nil {
			return err
		}
		ch.consumers.remove(cons)
	}
	ch.reply(m.NoWait, &wire.BasicCancelOK{ConsumerTag: m.ConsumerTag})
	return nil
}

// ignoreNotFound drops the error that says that the object to be removed is
// already gone.
func ignoreNotFound(err error) error {
	if r := new(fsm.Refusal); errors.As(err, &r) && r.Kind == fsm.NotFoundKind {
		return nil
	}
	return err
}

// get performs basic.get.
func (ch *channel) get(ctx context.Context, m *wire.BasicGet) error {
	queue, err := ch.definitions.queueName(m.Queue, wire.IDBasicGet)
	if err != nil {
		return err
	}
	message, ok, err := ch.session.Get(ctx, queue, m.NoAck)
	switch {
	case err != nil:
		return err
	case ok:
		if size := len(new(rendering).properties(&message, ch.conn.frameMax)); !fitsFrame(size, ch.conn.frameMax) {
			ch.gate.Lock()
			defer ch.gate.Unlock()
			ch.settler.later(message.Consumer, []uint64{message.ID}, fsm.RequeueFailed)
			return errUnfit(wire.IDBasicGet, size, ch.conn.frameMax)
		}
		ch.consumers.got(&message, m.NoAck)
	default:
		ch.reply(false, &wire.BasicGetEmpty{})
	}
	return nil
}

// unwritten reports to the session that messages will not be written.
func (ch *channel) unwritten(messages []fsm.Message) {
	bytes := 0
	for i := range messages {
		bytes += len(messages[i].Payload)
	}
	ch.session.Written(len(messages), bytes)
}

// giveBack returns messages of consumers that no longer exist. Otherwise they
// would be held until the channel ends.
func (ch *channel) giveBack(messages []fsm.Message) error {
	ch.unwritten(messages)
	ch.gate.Lock()
	defer ch.gate.Unlock()
	for _, m := range messages {
		ch.settler.later(m.Consumer, []uint64{m.ID}, fsm.Requeue)
	}
	return nil
}

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

// First is the lowest delivery tag.
func (c *consumers) First() uint64 { return 1 }

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

// UpTo returns the unacknowledged deliveries up to a tag.
func (c *consumers) UpTo(last uint64) []fsm.Held {
	return c.holdings(func(h held) bool { return h.tag <= last })
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
