package v091

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

// channel is one channel of a connection. It turns frames into methods and
// performs them one after the other; its parts implement them.
//
// The holder of gate calls the session: Publish and Settle do not block. A
// blocking call runs without gate while busy is set, and requests that arrive
// meanwhile are queued.
//
// Invariant: queue is empty unless busy.
//
// Lock order: gate, consumers.mu, the outbox's, confirms.mu.
type channel struct {
	conn    *conn
	number  uint16
	session amqp.Session

	memory    *amqp.Account // contents, requests, the transaction
	relieving atomic.Bool

	content   content   // reader only
	publisher publisher // called with gate held, except for the broker's reports
	uncredited
	consumers consumers
	written   amqp.WriteReport // writer only

	gate    sync.Mutex
	busy    bool
	queue   requestQueue
	end     channelEnd
	settler settler
	tx      transaction
	// stranded: publishes that wait for routes have been given up.
	stranded bool
	prefetch uint16
	shared   uint16 // prefetch of all consumers together; 0: no limit

	definitions definitions // for the blocking call
}

func newChannel(c *conn, number uint16) *channel {
	ch := &channel{conn: c, number: number}
	ch.memory = c.NewPart(func(over *amqp.Account) bool {
		why := errAlarm()
		if over != nil {
			why = errHeld(0, over)
		}
		if ch.relieving.CompareAndSwap(false, true) {
			c.Start(func() { c.reader.relieve(ch, why) })
		}
		return true
	})
	ch.queue, ch.tx.memory, ch.content.memory = newRequestQueue(ch.memory), ch.memory, ch.memory
	ch.end = newChannelEnd(func() {
		c.channels.remove(ch)
		ch.queue.clear()
		ch.tx.end()
		ch.memory.Close(false)
	})
	ch.publisher.init(number, c.out, c.Flow, &ch.consumers)
	ch.consumers = consumers{
		channel: number, out: c.out, notify: c.capable.consumerCancelNotify,
		limit: c.protocol.MaxConsumers, counts: c.Timeouts(),
		post: ch.post, giveBack: ch.giveBack,
		byNumber: map[uint64]*consumer{}, byTag: map[string]*consumer{},
		deliveries: deliveries{gets: map[uint64]struct{}{}},
	}
	return ch
}

// attach gives the channel its session. It is called before the first frame is
// read, but events may come before that.
func (ch *channel) attach(s amqp.Session) {
	ch.session = s
	ch.publisher.session, ch.consumers.session = s, s
	ch.settler.session, ch.definitions.session, ch.written.Session = s, s, s
	ch.content.user, ch.content.maxSize = ch.conn.User, uint64(ch.conn.Config().MaxMessageSize)
	ch.content.maxList = maxProperties(ch.conn.Config().FrameMax)
	ch.content.replyName = s.ReplyName
}

// frame processes a frame of the channel. The reader calls it; the frame's
// payload is still to be read.
func (ch *channel) frame(head wire.FrameHead) error {
	switch {
	case ch.end.ignoring.Load():
		return ch.ignore(head)
	case head.Type == wire.FrameBody && ch.content.stage >= contentBody:
		ready, err := ch.content.body(ch.conn.reader.in, int(head.Size))
		return ch.submitContent(ready, err)
	}
	payload, err := ch.conn.reader.in.ReadPayload()
	if err != nil {
		return err
	}
	switch {
	case ch.end.ignoring.Load(): // now
		return ch.ignored(head, payload)
	case head.Type == wire.FrameMethod && ch.content.stage == contentNone:
		return ch.method(payload)
	case head.Type == wire.FrameHeader && ch.content.stage == contentHeader:
		ready, err := ch.content.header(payload)
		ch.conn.reader.published = true
		return ch.submitContent(ready, err)
	case ch.content.stage == contentNone:
		return wire.ExpectedMethod()
	case ch.content.stage == contentHeader:
		return wire.ExpectedHeader(wire.ClassBasic, basicPublish)
	}
	return wire.ExpectedBody(wire.ClassBasic, basicPublish)
}

// ignore drops a frame of a channel whose close the client has not answered,
// unless it belongs to a close.
func (ch *channel) ignore(head wire.FrameHead) error {
	if head.Type != wire.FrameMethod {
		ch.content.reset()
		return ch.conn.reader.in.SkipPayload()
	}
	payload, err := ch.conn.reader.in.ReadPayload()
	if err != nil {
		return err
	}
	return ch.ignored(head, payload)
}

func (ch *channel) ignored(head wire.FrameHead, payload []byte) error {
	ch.content.reset()
	if head.Type != wire.FrameMethod {
		return nil
	}
	switch wire.PeekID(payload) {
	case wire.IDChannelClose:
		return ch.readClose()
	case wire.IDChannelCloseOK:
		ch.readCloseOK()
	case wire.IDChannelOpen:
		if !ch.end.crossed.Load() {
			return nil
		}
		// The client takes the answer to its own close as the end.
		ch.readCloseOK()
		if free, err := ch.end.wait(ch.conn.reader); !free {
			return err
		}
		ch.conn.reader.forget(ch)
		return ch.conn.reader.firstFrame(head, payload)
	}
	return nil
}

// method processes a method frame.
func (ch *channel) method(payload []byte) error {
	r := &ch.conn.reader.request
	s := &r.settle
	switch id := wire.PeekID(payload); id {
	case wire.IDBasicPublish:
		return ch.content.begin(payload)
	case wire.IDBasicAck:
		var m wire.BasicAck
		if err := wire.DecodeAck(payload, &m); err != nil {
			return unnamed(err)
		}
		*s = settlement{id, m.DeliveryTag, m.Multiple, fsm.Ack}
	case wire.IDBasicNack:
		var m wire.BasicNack
		if err := wire.DecodeNack(payload, &m); err != nil {
			return unnamed(err)
		}
		*s = settlement{id, m.DeliveryTag, m.Multiple, outcome(m.Requeue, fsm.Requeue)}
	case wire.IDBasicReject:
		var m wire.BasicReject
		if err := wire.DecodeReject(payload, &m); err != nil {
			return unnamed(err)
		}
		*s = settlement{id, m.DeliveryTag, false, outcome(m.Requeue, fsm.RequeueFailed)}
	default:
		return ch.otherMethod(payload)
	}
	r.kind = requestSettle
	_, err := ch.submit(r)
	return err
}

// submitContent submits an assembled publish if it is ready. If more of it is to come, it must be one that may be
// published, and there must be room.
func (ch *channel) submitContent(ready bool, err error) error {
	if err != nil {
		return err
	}
	if !ready {
		ch.conn.reader.mayGoOn(ch)
		return nil
	}
	_, err = ch.submit(&ch.content.request)
	ch.content.release()
	return err
}

// proceed does what is left to do after an error, unless a request in progress will. The gate is held.
func (ch *channel) proceed() {
	if ch.busy {
		return
	}
	if next := ch.next(); next != nil {
		ch.busy = true
		ch.conn.Tasks.Start()
		go ch.run(next)
	}
}

func outcome(requeue bool, requeued fsm.Outcome) fsm.Outcome {
	if requeue {
		return requeued
	}
	return fsm.Discard
}

// otherMethod processes a method that is neither a publish nor a settlement.
func (ch *channel) otherMethod(payload []byte) error {
	m, err := decodeOnChannel(payload)
	if err != nil {
		return err
	}
	switch m.(type) {
	case *wire.ChannelOpen:
		return errSecondOpen()
	case *wire.ChannelClose:
		return ch.readClose()
	case *wire.ChannelCloseOK, *wire.BasicCancelOK:
		return nil
	}
	if m.ClassID() == wire.ClassConnection {
		return errUnimplementedMethod(wire.ID(m))
	}
	_, err = ch.submit(&request{kind: requestMethod, method: m, size: len(payload) + wire.ArgumentsSize(m)})
	return err
}

// submit performs a request, at once if it need not wait for the broker or for
// earlier requests. accepted false: the channel is not open. The reader calls
// it, and waits there while too much is queued.
func (ch *channel) submit(r *request) (accepted bool, err error) {
	switch next, how := ch.begin(r); how {
	case requestRefused:
		return false, nil
	case requestQueued:
		return true, ch.waitSpace()
	case requestBlocks:
		ch.conn.Tasks.Start()
		go ch.run(next)
	}
	return true, nil
}

// beginning is the immediate result of a request.
type beginning uint8

const (
	requestRefused beginning = iota // the channel is not open
	requestDone
	requestQueued
	requestBlocks // something must wait for the broker; busy is set
)

// begin performs a request that need not wait, or queues it. It returns what
// must wait for the broker, if anything.
func (ch *channel) begin(r *request) (*request, beginning) {
	ch.gate.Lock()
	defer ch.gate.Unlock()
	switch {
	case !ch.end.isOpen():
		return nil, requestRefused
	case ch.busy:
		if over := ch.queue.push(r); over != nil {
			ch.raise(errHeld(r.id(), over), 0)
			return nil, requestRefused
		}
		return nil, requestQueued
	}
	next := ch.try(r)
	if next == nil {
		return nil, requestDone
	}
	ch.busy = true
	return next, requestBlocks
}

// try performs a request, unless it must wait for the broker. It returns what
// must wait: that request, or what an error requires. The gate is held.
func (ch *channel) try(r *request) (next *request) {
	if !r.blocks() {
		err := ch.perform(r)
		if err == nil {
			return nil
		}
		if !errors.Is(err, fsm.ErrNotFresh) {
			ch.raise(err, r.id())
			return ch.next()
		}
	}
	next = new(request)
	*next = *r
	return next
}

// post runs a task on a goroutine of its own. Events use it, since they may not
// block or call the session. The channel's consumers are not closed yet, so
// that the teardown still waits for the task.
func (ch *channel) post(task func(context.Context) error) {
	ch.conn.Tasks.Start()
	go func() {
		r := &request{kind: requestTask, task: task}
		if ch.admit(r) {
			ch.run(r)
		} else {
			ch.conn.Tasks.Done()
		}
	}()
}

// admit sets busy for a request that blocks. It returns false if the request is
// queued, or the channel is not open.
func (ch *channel) admit(r *request) bool {
	ch.gate.Lock()
	defer ch.gate.Unlock()
	if !ch.end.isOpen() {
		return false
	}
	if ch.busy {
		if over := ch.queue.push(r); over != nil {
			ch.raise(errHeld(0, over), 0)
		}
		return false
	}
	ch.busy = true
	return true
}

// run performs a blocking request and everything that is queued meanwhile.
func (ch *channel) run(r *request) {
	defer ch.conn.Tasks.Done()
	defer ch.conn.Contain("handle a method")
	for r != nil {
		weight := int64(0)
		if r.kind <= requestPublish { // others hold nothing, and may end the account
			weight = r.weight()
		}
		ch.memory.Add(weight)
		err := ch.block(r)
		ch.memory.Add(-weight)
		r = ch.follow(r, err)
	}
}

// follow handles the outcome of a blocking request, and returns the next one.
func (ch *channel) follow(r *request, err error) *request {
	ch.gate.Lock()
	defer ch.gate.Unlock()
	if err != nil {
		ch.settler.flushUnless(ch.end.sessionClosing) // before the client reads why the channel ends
		ch.raise(err, r.id())
	}
	return ch.next()
}

// next performs what is queued up to the next request that blocks, and returns
// that. If nothing is left it returns nil and clears busy. The gate is held.
func (ch *channel) next() *request {
	for {
		ch.settler.flushUnless(ch.end.sessionClosing)
		if ch.end.ignoring.Load() && ch.end.claimSession() {
			return &request{kind: requestEnd}
		}
		r, ok := request{}, false
		if ch.end.isOpen() {
			r, ok = ch.queue.pop()
		}
		if !ok {
			ch.queue.clear()
			ch.settler.clear()
			ch.busy = false
			return nil
		}
		if r.blocks() {
			return &r
		}
		if err := ch.perform(&r); errors.Is(err, fsm.ErrNotFresh) {
			return &r
		} else if err != nil {
			ch.raise(err, r.id())
		}
	}
}

// waitSpace blocks the reader while the queue is full.
func (ch *channel) waitSpace() error {
	for {
		ch.gate.Lock()
		full := ch.queue.wait(ch.conn.Alarm() != nil)
		ch.gate.Unlock()
		if !full {
			return nil
		}
		if !ch.conn.Await(ch.queue.space) {
			return amqp.ErrEnding
		}
	}
}

// perform performs a request that does not wait for the broker. The gate is
// held.
func (ch *channel) perform(r *request) error {
	switch r.kind {
	case requestPublish:
		return ch.publish(&r.message)
	case requestSettle:
		return ch.settle(&r.settle)
	}
	return ch.act(r.method)
}

// block performs a request that waits for the broker. Busy is set, the gate is
// not held.
func (ch *channel) block(r *request) error {
	switch r.kind {
	case requestClose:
		ch.closeByClient()
		return nil
	case requestEnd:
		ch.closeByServer()
		return nil
	}
	if r.kind == requestPublish {
		return ch.publishLater(&r.message)
	}
	ctx, cancel := context.WithTimeout(ch.conn.Context(), ch.conn.Config().OperationTimeout)
	defer cancel()
	if r.kind == requestTask {
		return r.task(ctx)
	}
	return ch.call(ctx, r.method)
}

// A channel is the fsm.SessionEvents of its session. Its parts store the data
// of events. They take their own lock and the outbox's, never the gate.

// reporting is the text for a panic of a channel while the broker calls it.
const reporting = "handle an event of the broker"

// Deliver receives messages for consumers.
func (ch *channel) Deliver(messages []fsm.Message) {
	defer ch.conn.Contain(reporting)
	ch.consumers.deliver(messages)
}

// Confirmed receives the outcome of publishes.
func (ch *channel) Confirmed(first, last uint64, why error) {
	defer ch.conn.Contain(reporting)
	ch.publisher.confirmed(first, last, fsm.IsConfirmed(why))
}

// Returned receives a mandatory message that turned out to have no destination.
func (ch *channel) Returned(payload fsm.Payload) {
	defer ch.conn.Contain(reporting)
	ch.publisher.returned(payload, nil)
}

// Refused receives the answer to a publish that was a command to the broker.
func (ch *channel) Refused(payload fsm.Payload, why *fsm.Refusal) {
	defer ch.conn.Contain(reporting)
	if why != nil && why.Kind == fsm.AccessRefused {
		ch.conn.refused(protocolError(why, wire.IDBasicPublish))
	}
	ch.publisher.returned(payload, why)
}

// Kept receives deliveries that a command has not settled.
func (ch *channel) Kept(deliveries []fsm.Held) {
	defer ch.conn.Contain(reporting)
	ch.consumers.kept(deliveries)
}

// uncredited is never told what only links are told: consumers of this protocol have a prefetch, and publishers no links.
type uncredited struct{}

// Credited and what follows are not called.
func (uncredited) Credited(uint64, fsm.LinkState) {}

// News is as Credited.
func (uncredited) News(uint64, *fsm.News) {}

// Settled is as Credited.
func (uncredited) Settled(uint64, []uint64) {}

// Gone is as Credited.
func (uncredited) Gone(fsm.QueueID) {}

// Cancelled ends a consumer whose queue is gone.
func (ch *channel) Cancelled(number uint64) {
	defer ch.conn.Contain(reporting)
	ch.consumers.cancelled(number)
}

// Revoked ends a consumer whose queue the user may no longer read.
func (ch *channel) Revoked(number uint64, why error) {
	defer ch.conn.Contain(reporting)
	ch.consumers.revoked(number, why, func() { ch.conn.refused(protocolError(why, wire.IDBasicConsume)) })
}

// TimedOut handles deliveries that have gone back because they were held too
// long.
func (ch *channel) TimedOut(number uint64, deliveries []uint64, limit fsm.Millis, suspend bool) {
	defer ch.conn.Contain(reporting)
	ch.consumers.timeOut(number, deliveries, suspend, errConsumerTimeout(ch.number, limit))
}

// Lost ends a channel whose session the broker has given up.
func (ch *channel) Lost(err error) {
	defer ch.conn.Contain(reporting)
	if ch.consumers.lose(err) {
		ch.publisher.commits.lose(err)
	}
}

// Cancellable reports whether the client understands that a consumer is cancelled.
func (ch *channel) Cancellable() bool { return ch.consumers.notify }

// Where returns the location of the channel's client: the name of its
// connection, what the client calls it, the channel's number there, and the
// client's address.
func (ch *channel) Where() (connection, given string, number uint16, client netip.AddrPort) {
	connection, client = ch.conn.Where()
	return connection, ch.conn.given(), ch.number, client
}

// request is one task of a channel; tasks run in the order of their arrival.
// The fields after kind belong to one kind each.
type request struct {
	kind    requestKind
	method  wire.Method
	message message
	settle  settlement
	task    func(context.Context) error
	size    int // of the method, decoded
}

// weight is the memory of a request while it waits, in bytes.
func (r *request) weight() int64 {
	return int64(unsafe.Sizeof(*r)) + int64(cap(r.message.publish.Payload)+r.size)
}

type requestKind uint8

const (
	requestMethod requestKind = iota
	requestPublish
	requestSettle
	requestTask  // of the server itself
	requestClose // by the client
	requestEnd   // by the server: channel.close has been pushed
)

// id is the id of the method behind a request; 0: none.
func (r *request) id() uint32 {
	switch r.kind {
	case requestMethod:
		return wire.ID(r.method)
	case requestPublish:
		return wire.IDBasicPublish
	case requestSettle:
		return r.settle.method
	}
	return 0
}

// blocks reports whether a request has to wait for the broker.
func (r *request) blocks() bool {
	switch r.kind {
	case requestMethod:
		return methodBlocks(r.method)
	case requestPublish:
		return r.message.isReply()
	case requestSettle:
		return false
	}
	return true
}

// requestQueue holds the requests of a channel that wait for the blocking call
// in progress. It refuses nothing: the reader checks whether it is full, and
// waits at space. The channel's gate guards it.
//
// Invariants: bytes is the sum of the weights in list, and counts in memory; waiting
// only if the queue was full at the last wait, and space has not been signalled
// since.
type requestQueue struct {
	memory  *amqp.Account // of the channel
	list    []request
	bytes   int64
	waiting bool          // the reader waits at space
	alarmed bool          // there was an alarm when it was checked last
	space   chan struct{} // capacity 1
}

func newRequestQueue(memory *amqp.Account) requestQueue {
	return requestQueue{memory: memory, space: make(chan struct{}, 1)}
}

// push appends a request, unless what it holds exceeds the bound of an account, which is returned.
func (q *requestQueue) push(r *request) (over *amqp.Account) {
	w := r.weight()
	if over = q.memory.Take(w); over == nil {
		q.list = append(q.list, *r)
		q.bytes += w
	}
	return over
}

// pop removes the oldest request.
func (q *requestQueue) pop() (r request, ok bool) {
	if len(q.list) == 0 {
		return request{}, false
	}
	r = q.list[0]
	q.list[0] = request{}
	q.list = q.list[1:]
	q.count(-r.weight())
	q.wake()
	return r, true
}

func (q *requestQueue) count(n int64) {
	q.bytes += n
	q.memory.Add(n)
}

// clear drops all requests and their memory.
func (q *requestQueue) clear() {
	q.list = nil
	q.count(-q.bytes)
	q.wake()
}

func (q *requestQueue) full() bool {
	return len(q.list) >= maxQueued || q.bytes >= maxQueuedBytes || q.alarmed && q.bytes >= alarmedBytes
}

// has reports whether there is a request of this kind.
func (q *requestQueue) has(kind requestKind) bool {
	for i := range q.list {
		if q.list[i].kind == kind {
			return true
		}
	}
	return false
}

// wait reports whether the reader must wait at space, and check again.
func (q *requestQueue) wait(alarmed bool) bool {
	q.alarmed = alarmed
	q.waiting = q.full()
	return q.waiting
}

// wake wakes the reader if the queue is no longer full.
func (q *requestQueue) wake() {
	if q.waiting && !q.full() {
		q.waiting = false
		select {
		case q.space <- struct{}{}:
		default: // it is awake already
		}
	}
}
