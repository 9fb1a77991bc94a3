package session

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// consumers holds a session's consumers and gets: which messages the client may be given, and which
// it settles.
type consumers struct {
	session  *Session
	node     *self.Node
	defaults catalog.Defaults

	// Guarded by the session's lock.
	known map[uint64]*consumer
	turn  int // the queue asked first for messages the session is behind with
	// flowing are consumers in credit mode of which something has come, see goOn.
	flowing     []uint64
	notDeferred []notDeferred
	renewals    []uint64 // consumers that have deliveries to renew and no command on its way
	saying      int      // commands without an answer that have words of the client; ≤ fsm.MaxUnanswered, and one settlement more

	window
	sharedLimit
}

// consumer is what a session knows about one of its consumers.
type consumer struct {
	stream.Consumer
	at   *sessionQueue
	tag  string
	info bool // deliveries carry their deadlines and a lock token
	// numbered: they carry their deadlines and their number, and no lock token.
	numbered bool
	// lockHead: only the lock of its oldest delivery runs, but all have one.
	lockHead bool
	strict   bool // to settle what the consumer does not hold any more is an error; with credit its client sees to that
	over     bool // it gets no more messages; its stream no longer knows it
	revoked  bool // its queue was asked to end it because its user may not read any more
	action   catalog.TimeoutAction
	part
	link    link
	renewal renewal
}

// addConsumer registers a consumer with the session and its stream. The lock is held.
func (x *consumers) addConsumer(q *sessionQueue, number uint64, noAck bool) *consumer {
	c := &consumer{at: q, Consumer: stream.Consumer{NoAck: noAck}}
	x.known[number] = c
	q.stream.AddConsumer(number, &c.Consumer)
	return c
}

// suspends reports whether a timeout only suspends a consumer of a queue: as its own arguments say,
// or else as is in effect for the queue when the timeout is reported. The lock is held.
func (x *consumers) suspends(q *sessionQueue, number uint64) bool {
	action := catalog.TimeoutAction("")
	if c := x.known[number]; c != nil {
		action = c.action
	}
	v := x.node.View()
	if of, ok := v.QueueByID(q.stream.Queue()); ok && action == "" {
		action = v.TimeoutAction(of, x.defaults)
	}
	return action == catalog.TimeoutSuspend
}

// consumerOver ends a consumer. The session keeps it until everything that the channel has of it is
// settled. The lock is held.
func (x *consumers) consumerOver(number uint64) {
	c := x.known[number]
	if c == nil {
		return
	}
	c.at.stream.RemoveConsumer(number)
	c.over = true
	x.forgetSettled(number, c)
	x.unbalanced = true
}

// forgetSettled forgets a consumer that is over and has nothing unsettled. The lock is held.
func (x *consumers) forgetSettled(number uint64, c *consumer) {
	if c.over && c.Unsettled <= 0 {
		delete(x.known, number)
	}
}

// Written reports that the channel has written consumers' messages, or given them back, and the
// total size of their payloads in bytes.
func (x *consumers) Written(count, bytes int) {
	if !x.written(count, bytes) {
		return
	}
	x.session.mu.Lock()
	order := slices.Clone(x.session.streams.order)
	x.turn++
	first := x.turn
	x.session.mu.Unlock()
	for i := range order {
		order[(first+i)%len(order)].stream.CatchUp()
	}
	x.session.wakeBrowsers()
}

// Consume registers a consumer.
func (x *consumers) Consume(ctx context.Context, spec fsm.ConsumeSpec) error {
	x.session.conn.consumes.Store(true)
	if spec.Queue == fsm.ReplyQueue {
		return x.session.replies.consume(&spec)
	}
	if spec.Browse {
		return x.session.browse(ctx, &spec)
	}
	v := x.node.FreshView(ctx)
	q, err := v.TakeFrom(x.session.conn.by(), x.session.conn.vhost, spec.Queue)
	if err != nil {
		return err
	}
	if (spec.Credit || spec.Numbered || spec.Hold) && v.FSMVersion() < creditSince {
		return fsm.Refuse(fsm.NotImplemented, "consumers with credit need a program on all nodes that knows them")
	}
	args, err := catalog.ParseConsumeArguments(q, spec.Arguments)
	if err == nil && spec.Selector != "" && !x.selects(v, q, &args) {
		err = fsm.Refuse(fsm.Precondition, q.String()+" does not let consumers have selectors, or not with these arguments")
	}
	if err == nil {
		err = v.FitsArguments("arguments of a consumer of", q.Name, spec.Arguments)
	}
	if err != nil {
		return err
	}
	x.session.mu.Lock()
	u := x.session.streams.queue(q)
	c := x.addConsumer(u, spec.Number, spec.NoAck)
	c.link.on = spec.Credit
	c.tag, c.info, c.strict, c.action = spec.Tag, args.DeliveryInfo, args.LateError && !spec.Credit, args.TimeoutAction
	c.lockHead, c.numbered = args.LockHead, spec.Numbered
	k := u.stream.Request(&logpb.Command{Kind: logpb.Command_CONSUME, Consume: x.begin(c, &logpb.Consume{
		Consumer: spec.Number, Tag: spec.Tag, Prefetch: spec.Prefetch, NoAck: spec.NoAck,
		Exclusive: spec.Exclusive, Priority: args.Priority, TimeoutPlusOne: args.Timeout.Stored(),
		Lock: uint64(args.Lock), MaxLock: uint64(args.MaxLock), LockAutoRenew: uint64(args.LockAutoRenew),
		LockHead: args.LockHead, LockDetachGrace: uint64(args.LockDetachGrace),
		MinTtl: uint64(args.MinTTL), MaxGroups: args.MaxGroups, GroupId: args.GroupID, Credit: spec.Credit, Selector: spec.Selector,
		Numbered: spec.Numbered, GroupHold: spec.Hold,
	})})
	x.session.mu.Unlock()
	if err = x.session.conn.in.answers.await(ctx, q, u.stream.Route(), k); err == nil {
		err = k.Refused
		if k.Result.Code == fsm.Reserved {
			err = fsm.ErrGroupHeld
		}
	}
	if err == nil {
		if err = x.stillReads(q); err != nil { // Renew may have missed it
			x.Drop(spec.Number)
		}
	}
	if err != nil {
		x.endConsumer(spec.Number)
	}
	return err
}

// Selects reports whether a consumer may have a selector, as far as is known.
func (x *consumers) Selects(ctx context.Context, spec fsm.ConsumeSpec) bool {
	v := x.node.FreshView(ctx)
	q, err := v.TakeFrom(x.session.conn.by(), x.session.conn.vhost, spec.Queue)
	if err != nil {
		return false // which Consume says
	}
	args, err := catalog.ParseConsumeArguments(q, spec.Arguments)
	return err == nil && x.selects(v, q, &args)
}

// selects reports whether a consumer of a queue may have a selector: where the order in which messages are handed out, or
// to whom, follows other rules it may not.
func (x *consumers) selects(v *catalog.View, q *catalog.Queue, args *catalog.ConsumeArguments) bool {
	c := v.Settings(q, x.defaults)
	return v.FSMVersion() >= creditSince && c.Groups == logpb.QueueConfig_NO_GROUPS && !c.SingleActive && args.Priority == 0
}

func (x *consumers) endConsumer(number uint64) {
	x.session.mu.Lock()
	x.consumerOver(number)
	x.rebalance()
	x.session.mu.Unlock()
}

// Cancel ends a consumer. What it holds can still be settled.
func (x *consumers) Cancel(ctx context.Context, number uint64) error {
	if x.session.replies.cancel(number) || x.session.browsers.cancel(ctx, number) {
		return nil
	}
	x.session.mu.Lock()
	c := x.known[number]
	if c == nil || c.over {
		x.session.mu.Unlock()
		return nil // its queue is gone
	}
	to := c.at.stream
	k := to.Request(&logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: number}})
	x.session.mu.Unlock()
	q, known := x.node.View().QueueByID(to.Queue())
	if !known {
		q = &catalog.Queue{ID: to.Queue()}
	}
	err := x.session.conn.in.answers.await(ctx, q, to.Route(), k)
	x.endConsumer(number)
	switch {
	case err != nil:
		return err
	case known && q.AutoDelete:
		x.awaitEnd(ctx, q)
	}
	return k.Refused
}

// cancelFor cancels the consumer of a queue that has a tag, and tells the client. It returns false if there
// is none.
func (x *consumers) cancelFor(ctx context.Context, of fsm.QueueID, tag string) (bool, error) {
	x.session.mu.Lock()
	var found uint64
	for number, c := range x.known {
		if c.tag == tag && !c.over && c.at.stream.Queue() == of {
			found = number
		}
	}
	x.session.mu.Unlock()
	if found == 0 {
		return false, nil
	}
	if err := x.Cancel(ctx, found); err != nil {
		return true, err
	}
	x.session.lock()
	defer x.session.unlock()
	x.session.add(event{kind: eventCancelled, consumer: found})
	return true, nil
}

// endWait bounds how long the cancellation of a consumer waits for the end of its queue.
const endWait = time.Second

// awaitEnd waits until an auto-delete queue that has just lost its last consumer is gone from the
// catalog: a client that has cancelled that consumer may redeclare the name at once.
func (x *consumers) awaitEnd(ctx context.Context, q *catalog.Queue) {
	ctx, cancel := context.WithTimeout(ctx, endWait)
	defer cancel()
	if _, gone, err := x.session.conn.in.queues.Count(ctx, q); gone && err == nil {
		_ = x.session.conn.in.queues.Leaders.AwaitGone(ctx, q) // too late: the name is free a moment later
	}
}

// Drop is Cancel without waiting for the answer.
func (x *consumers) Drop(number uint64) {
	if x.session.replies.cancel(number) || x.session.browsers.close(x.session.browser(number)) {
		return
	}
	x.session.mu.Lock()
	defer x.session.mu.Unlock()
	if c := x.known[number]; c != nil && !c.over {
		c.at.stream.Request(&logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: number}})
	}
}

// Get takes one message.
func (x *consumers) Get(ctx context.Context, name string, noAck bool) (fsm.Message, bool, error) {
	x.session.conn.consumes.Store(true)
	q, err := x.node.FreshView(ctx).TakeFrom(x.session.conn.by(), x.session.conn.vhost, name)
	if err != nil {
		return fsm.Message{}, false, err
	}
	k, err := x.tryGet(ctx, q, noAck)
	if err != nil {
		return fsm.Message{}, false, err
	}
	if k.Got == nil {
		if k.Result.Code == fsm.OK {
			return fsm.Message{}, false, queues.Leaderless(q) // held, but out of reach
		}
		x.countGet(q.ID, nil, noAck)
		return fsm.Message{}, false, nil
	}
	x.countGet(q.ID, k.Got, noAck)
	return *k.Got, true, nil
}

// getWait is how long a get is repeated, in milliseconds.
const getWait = 10_000

// Pauses before a get is repeated: each get is an entry in the queue's log. The first pause is
// shorter than a tick takes, and each is twice as long as the one before.
const (
	getPause     = 5 * time.Millisecond
	longGetPause = 100 * time.Millisecond
)

// tryGet asks a queue for a message until it gets one or there is known to be none: a queue with
// much to expire or to return does that first, step by step.
func (x *consumers) tryGet(ctx context.Context, q *catalog.Queue, noAck bool) (*stream.Call, error) {
	pause := getPause
	for end := x.node.Now() + getWait; ; pause = min(2*pause, longGetPause) {
		k, err := x.session.streams.do(ctx, q, &logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{NoAck: noAck}})
		switch {
		case err != nil:
			return nil, err
		case k.Refused != nil:
			return nil, k.Refused
		case k.Result.Code == fsm.OK && k.Got == nil && noAck && x.node.Now() <= end:
			// Taken, and lost on its way with nobody to take it back: the next one is asked for.
		case k.Result.Code != fsm.NotYet:
			return k, nil
		case x.node.Now() > end || !rest(ctx, pause):
			return nil, fsm.Refuse(fsm.Precondition, q.String()+" is still removing messages that are due; try again")
		}
		if err := x.stillReads(q); err != nil {
			return nil, err
		}
	}
}

// rest waits for d; false: ctx has ended.
func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Settle settles deliveries.
func (x *consumers) Settle(number uint64, ids []uint64, outcome fsm.Outcome) {
	x.session.mu.Lock()
	defer x.session.mu.Unlock()
	if number&getToken != 0 {
		if i, ok := x.session.streams.find(number &^ getToken); ok {
			x.session.streams.order[i].stream.AddSettle(0, ids, outcome)
			x.session.streams.order[i].countSettled(len(ids), outcome)
		}
		return
	}
	if c := x.known[number]; c != nil {
		if c.strict {
			c.at.settleEach(number, ids, outcome)
		} else {
			c.at.stream.AddSettle(number, ids, outcome)
		}
		if !c.NoAck {
			c.at.countSettled(len(ids), outcome)
		}
		x.settled(number, len(ids))
	} else {
		x.orphanSettled(number, len(ids))
	}
	x.rebalance()
}

// settled counts deliveries of a consumer that the channel does not have any more. The lock is
// held.
func (x *consumers) settled(number uint64, count int) {
	if c := x.known[number]; c != nil {
		c.Unsettled -= count
		x.forgetSettled(number, c)
		x.unbalanced = true
	}
}

// revoke ends the consumers of queues that the user may not read any more. What they hold can still
// be settled.
func (x *consumers) revoke(v *catalog.View) {
	x.session.lock()
	defer x.session.unlock()
	x.session.revokeBrowsers(v)
	for number, c := range x.known {
		q, ok := v.QueueByID(c.at.stream.Queue())
		if !ok || c.over || c.revoked {
			continue
		}
		if err := v.CheckRead(x.session.conn.user, q); err != nil {
			c.revoked = true
			c.at.stream.Request(&logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: number}})
			x.session.add(event{kind: eventRevoked, consumer: number, err: err})
		}
	}
}

// stillReads returns an error if the newest view no longer allows what was begun under an older
// one.
func (x *consumers) stillReads(q *catalog.Queue) error {
	return x.node.View().CheckRead(x.session.conn.user, q)
}

// queueGone ends and forgets the consumers of a queue that is gone. The lock is held.
func (x *consumers) queueGone(q *sessionQueue) {
	for number, c := range x.known {
		if c.at == q {
			x.cancelled(q, number)
			delete(x.known, number) // nothing can be settled any more
			if c.request != nil && c.Unsettled > 0 {
				if x.orphans == nil {
					x.orphans = map[uint64]int{}
				}
				x.orphans[number] = c.Unsettled
			}
		}
	}
}

// cancelled ends a consumer that its queue has ended, and notifies the client once. The lock is
// held.
func (x *consumers) cancelled(q *sessionQueue, number uint64) {
	if c := x.known[number]; c == nil || c.at != q || c.over {
		return
	}
	x.consumerOver(number)
	x.session.add(event{kind: eventCancelled, consumer: number})
}

// maxUnwritten bounds the weight of what a channel has been given and has not written. What exceeds
// it stays with the queue's leader, and is asked for as soon as there is space for an answer.
const maxUnwritten = 4 << 20

// window tracks the consumers' messages that a channel has been given and has not written.
//
// Invariant: unwritten ≥ 0, and a message is accepted only while unwritten < maxUnwritten.
type window struct {
	unwritten atomic.Int64 // weight of the messages
	hungry    atomic.Bool  // a consumer is behind and waits for unwritten to fall
}

// accept counts a message if there is space for it.
func (w *window) accept(bytes int) bool {
	if w.unwritten.Load() >= maxUnwritten {
		return false
	}
	w.unwritten.Add(int64(bytes + group.DeliveryWeight))
	return true
}

// fits reports whether there is space for a number of answers of one frame each. If not, written
// will report that a consumer is waiting.
func (w *window) fits(answers int) bool {
	limit := int64(maxUnwritten - answers*queues.MaxFrameBytes)
	if w.unwritten.Load() <= limit {
		return true
	}
	w.hungry.Store(true)
	return w.unwritten.Load() <= limit // it may have fallen before hungry was set
}

// written subtracts messages, and reports whether a waiting consumer has space again.
func (w *window) written(count, bytes int) bool {
	left := w.unwritten.Add(-int64(bytes + count*group.DeliveryWeight))
	return left <= maxUnwritten-queues.MaxFrameBytes && w.hungry.Swap(false)
}
