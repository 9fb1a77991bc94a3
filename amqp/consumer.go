package amqp

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"net/netip"
	"slices"

	"github.com/quorate/quorate/amqp/wire"
	"github.com/quorate/quorate/fsm"
)

// consumer is a consumer of a channel. Everything but early and the flags is
// fixed.
type consumer struct {
	number  uint64
	tag     string
	noAck   bool
	suspend bool // a timeout suspends it, and does not cancel it

	// Under channel.mu.
	started bool          // consume-ok is in the outbox
	early   []fsm.Message // that came before
	gone    bool          // its queue went before
	late    uint64        // suspend: the newest delivery it was suspended for
}

// consume does basic.consume.
func (ch *channel) consume(ctx context.Context, m *wire.BasicConsume) error {
	queue, err := ch.queueName(m.Queue, wire.IDBasicConsume)
	if err != nil {
		return err
	}
	cons := &consumer{tag: m.ConsumerTag, noAck: m.NoAck, suspend: suspends(m.Arguments)}
	if cons.tag == "" {
		cons.tag = "amq.ctag-" + rand128()
	}
	if err := ch.addConsumer(cons); err != nil {
		return err
	}
	spec := fsm.ConsumeSpec{
		Queue: queue, Number: cons.number, Tag: cons.tag, Prefetch: uint32(ch.prefetch),
		NoAck: m.NoAck, Exclusive: m.Exclusive, Arguments: catalogTable(m.Arguments),
	}
	if m.NoAck {
		spec.Prefetch = 0
	}
	if err := ch.session.Consume(ctx, spec); err != nil {
		ch.removeConsumer(cons)
		ch.unneeded(cons.early)
		return err
	}
	ch.startConsumer(cons, m.NoWait)
	return nil
}

// suspends reads the consumer argument that says what a timeout does.
func suspends(arguments wire.Table) bool {
	v, _ := arguments.Get("x-consumer-timeout-action")
	return v.Str == "suspend"
}

// rand128 returns 128 random bits in 22 characters.
func rand128() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// addConsumer gives the consumer its number.
func (ch *channel) addConsumer(cons *consumer) error {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.tags[cons.tag] != nil {
		return errTagReuse(cons.tag)
	}
	if most := ch.conn.server.cfg.MaxConsumers; most > 0 && len(ch.tags) >= most {
		return errTooManyConsumers(most)
	}
	ch.lastConsumer++
	cons.number = ch.lastConsumer
	ch.consumers[cons.number], ch.tags[cons.tag] = cons, cons
	return nil
}

func (ch *channel) removeConsumer(cons *consumer) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.dropConsumer(cons)
}

// dropConsumer frees the tag. channel.mu is held.
func (ch *channel) dropConsumer(cons *consumer) {
	if ch.consumers[cons.number] == cons {
		delete(ch.consumers, cons.number)
		delete(ch.tags, cons.tag)
	}
}

// startConsumer sends consume-ok, and then what came before it.
func (ch *channel) startConsumer(cons *consumer, noWait bool) {
	out := ch.conn.out
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		return
	}
	out.lock()
	defer out.unlock()
	if !noWait {
		out.pushLocked(ch.number, &wire.BasicConsumeOK{ConsumerTag: cons.tag})
	}
	cons.started = true
	for i := range cons.early {
		ch.deliver(cons, &cons.early[i])
	}
	cons.early = nil
	if cons.gone {
		ch.cancelByServer(cons)
	}
}

// cancel does basic.cancel. What the consumer holds stays with the channel.
func (ch *channel) cancel(ctx context.Context, m *wire.BasicCancel) error {
	ch.mu.Lock()
	cons := ch.tags[m.ConsumerTag]
	ch.mu.Unlock()
	if cons != nil {
		if err := ignoreNotFound(ch.session.Cancel(ctx, cons.number)); err != nil {
			return err
		}
		ch.removeConsumer(cons)
	}
	if !m.NoWait {
		ch.conn.out.push(ch.number, &wire.BasicCancelOK{ConsumerTag: m.ConsumerTag})
	}
	return nil
}

// ignoreNotFound drops the error that says that the thing to be ended is gone
// already.
func ignoreNotFound(err error) error {
	if r := new(fsm.Refusal); errors.As(err, &r) && r.Kind == fsm.NotFoundKind {
		return nil
	}
	return err
}

// get does basic.get.
func (ch *channel) get(ctx context.Context, m *wire.BasicGet) error {
	queue, err := ch.queueName(m.Queue, wire.IDBasicGet)
	if err != nil {
		return err
	}
	message, ok, err := ch.session.Get(ctx, queue, m.NoAck)
	if err != nil {
		return err
	}
	out := ch.conn.out
	if !ok {
		out.push(ch.number, &wire.BasicGetEmpty{})
		return nil
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.lastTag++
	if !m.NoAck {
		if ch.unacked.live == 0 {
			clear(ch.gets)
		}
		ch.unacked.add(ch.lastTag, message.Consumer, message.ID)
		ch.gets[message.Consumer] = struct{}{}
	}
	out.lock()
	out.pushMessage(outItem{kind: outGet, channel: ch, tag: ch.lastTag, message: message})
	out.unlock()
	return nil
}

// deliver pushes a message for a consumer. channel.mu and the outbox are
// locked.
func (ch *channel) deliver(cons *consumer, m *fsm.Message) {
	ch.lastTag++
	if !cons.noAck {
		ch.unacked.add(ch.lastTag, cons.number, m.ID)
	}
	ch.conn.out.pushMessage(outItem{kind: outDeliver, channel: ch, consumer: cons, tag: ch.lastTag, message: *m})
}

// Deliver takes messages for consumers.
func (ch *channel) Deliver(messages []fsm.Message) {
	defer ch.conn.contain("take what the broker tells")
	out := ch.conn.out
	var orphans []fsm.Message
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		return
	}
	out.lock()
	for i := range messages {
		m := &messages[i]
		switch cons := ch.consumers[m.Consumer]; {
		case cons == nil:
			orphans = append(orphans, *m)
		case !cons.started:
			cons.early = append(cons.early, *m)
		default:
			ch.deliver(cons, m)
		}
	}
	out.unlock()
	if len(orphans) > 0 {
		ch.postLocked(func(context.Context) error { return ch.putBack(orphans) })
	}
}

// unneeded tells the session that messages will not be written.
func (ch *channel) unneeded(messages []fsm.Message) {
	bytes := 0
	for i := range messages {
		bytes += len(messages[i].Payload)
	}
	ch.session.Written(len(messages), bytes)
}

// putBack returns messages of consumers that are no more. They would be held
// until the channel ends otherwise.
func (ch *channel) putBack(messages []fsm.Message) error {
	ch.unneeded(messages)
	ch.gate.Lock()
	defer ch.gate.Unlock()
	for _, m := range messages {
		ch.settles = append(ch.settles, lateSettle{m.Consumer, fsm.Requeue, []uint64{m.ID}})
	}
	return nil
}

// postLocked posts a task with channel.mu held and the channel not closed.
func (ch *channel) postLocked(task func(context.Context) error) {
	ch.conn.tasks.start()
	ch.post(task)
}

// Cancelled takes the news that the queue of a consumer is gone.
func (ch *channel) Cancelled(number uint64) {
	defer ch.conn.contain("take what the broker tells")
	ch.mu.Lock()
	defer ch.mu.Unlock()
	cons := ch.consumers[number]
	switch {
	case ch.closed || cons == nil:
	case !cons.started:
		cons.gone = true
	case ch.deleting:
		ch.ended = append(ch.ended, number)
	default:
		ch.conn.out.lock()
		ch.cancelByServer(cons)
		ch.conn.out.unlock()
	}
}

// Revoked takes the news that the user may not read the queue of a consumer any
// more. The consumer gets nothing from now on. Where the client cannot be told
// that, the channel ends.
func (ch *channel) Revoked(number uint64, why error) {
	defer ch.conn.contain("take what the broker tells")
	ch.mu.Lock()
	defer ch.mu.Unlock()
	cons := ch.consumers[number]
	if ch.closed || cons == nil {
		return
	}
	ch.conn.refused(protocolError(why, wire.IDBasicConsume))
	if cons.started {
		ch.conn.out.lock()
		ch.cancelByServer(cons)
		ch.conn.out.unlock()
	} else {
		cons.gone = true
	}
	if !ch.conn.capable.consumerCancelNotify {
		ch.postLocked(func(context.Context) error { return why })
	}
}

// holdCancels puts off what Cancelled tells the client until tellCancels: a
// client that deletes a queue it consumes from expects the answer first.
func (ch *channel) holdCancels() {
	ch.mu.Lock()
	ch.deleting = true
	ch.mu.Unlock()
}

func (ch *channel) tellCancels() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ended := ch.ended
	ch.deleting, ch.ended = false, nil
	if ch.closed {
		return
	}
	ch.conn.out.lock()
	defer ch.conn.out.unlock()
	for _, number := range ended {
		if cons := ch.consumers[number]; cons != nil {
			ch.cancelByServer(cons)
		}
	}
}

// cancelByServer drops a consumer and tells the client, if it can be told.
// channel.mu and the outbox are locked.
func (ch *channel) cancelByServer(cons *consumer) {
	ch.dropConsumer(cons)
	if ch.conn.capable.consumerCancelNotify {
		ch.conn.out.pushLocked(ch.number, &wire.BasicCancel{ConsumerTag: cons.tag, NoWait: true})
	}
}

// TimedOut takes the news that deliveries have gone back because they were
// held too long. A consumer is cancelled for good: its tag is free at once,
// and what it still holds can be settled as before. Where the client cannot be
// told that, and for gets, the channel ends.
func (ch *channel) TimedOut(number uint64, deliveries []uint64, limit fsm.Millis) {
	defer ch.conn.contain("take what the broker tells")
	ch.mu.Lock()
	defer ch.mu.Unlock()
	cons := ch.consumers[number]
	_, get := ch.gets[number]
	switch {
	case ch.closed || !ch.holds(number, deliveries):
		// Settled by the client at the last moment.
	case cons == nil && !get:
		// The client has cancelled it.
	case cons != nil && cons.suspend:
		if newest := slices.Max(deliveries); newest > cons.late { // else it is said again
			cons.late = newest
			ch.conn.server.timeouts[timeoutSuspends].Add(1)
		}
	case cons != nil && ch.conn.capable.consumerCancelNotify:
		ch.conn.server.timeouts[timeoutCancels].Add(1)
		ch.conn.out.lock()
		ch.cancelByServer(cons)
		ch.conn.out.unlock()
		ch.session.Drop(number) // many may time out at once: none waits for another
	default:
		if !ch.timedOut {
			ch.timedOut = true
			action := timeoutCloses
			if get {
				action = timeoutOfGet
			}
			ch.conn.server.timeouts[action].Add(1)
		}
		ch.postLocked(func(context.Context) error { return errConsumerTimeout(ch.number, limit) })
	}
}

// holds reports whether one of the deliveries is not settled by the client, or in
// a transaction only.
// channel.mu is held.
func (ch *channel) holds(consumer uint64, ids []uint64) bool {
	due := func(h held) bool { return h.consumer == consumer && h.id != 0 && slices.Contains(ids, h.id) }
	return slices.ContainsFunc(ch.unacked.list[ch.unacked.head:], due) ||
		slices.ContainsFunc(ch.txSettles, func(s txSettle) bool { return due(s.held) })
}

// Lost takes the news that the broker has given the session up.
func (ch *channel) Lost(err error) {
	defer ch.conn.contain("take what the broker tells")
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		return
	}
	ch.lost = err
	ch.postLocked(func(context.Context) error { return err })
	if c := ch.committing.Load(); c != nil {
		c.fail(err)
	}
}

// Where says where the channel's client is: the name of its connection, the
// channel's number there, and the client's address.
func (ch *channel) Where() (connection string, number uint16, client netip.AddrPort) {
	remote, local := ch.conn.socket.RemoteAddr().String(), ch.conn.socket.LocalAddr().String()
	client, _ = netip.ParseAddrPort(remote) // not TCP: no address
	return remote + " -> " + local, ch.number, client
}
