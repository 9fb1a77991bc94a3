package amqp

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/quorate/quorate/amqp/wire"
	"github.com/quorate/quorate/fsm"
)

// channel is one channel of a connection. What belongs to whom:
//
//   - Reader: the content under assembly.
//   - gate: calls of the session. Whoever holds it may Publish and Settle;
//     while busy is set, a blocking call runs without it and everybody else
//     queues.
//   - mu: consumers and deliveries, which the broker's goroutines touch. It is
//     never held during a call of the broker.
//
// Lock order: gate, mu, outbox.mu, confirms.mu.
type channel struct {
	conn     *conn
	number   uint16
	session  Session
	confirms confirms
	// committing is the commit that waits for publishes; nil: none.
	committing atomic.Pointer[commit]

	// Writer only: deliveries written and not reported to the session.
	writtenCount, writtenBytes int

	// Reader only.
	content  content
	exchange string // of the last publish, so that the next need not allocate
	key      string
	ending   channelEnding

	deaf     atomic.Bool   // channel.close was sent: frames are ignored
	crossed  atomic.Bool   // and the client's own close was answered meanwhile
	deafened chan struct{} // closed with deaf
	finished chan struct{} // closed when the number is free

	gate        sync.Mutex
	busy        bool
	state       channelState
	closing     bool // the session is being closed, or has been
	sessionGone bool
	answered    bool // the client has sent channel.close-ok
	queue       []request
	queueBytes  int
	waiting     bool          // the reader waits for room in queue
	room        chan struct{} // capacity 1
	adrift      bool          // publishes that wait for routes have been given up
	settles     []lateSettle  // of deliveries written while busy
	taken       []held        // scratch
	ids         []uint64      // scratch
	tx          *transaction  // nil: the channel is not in transaction mode
	lastQueue   string
	prefetch    uint16
	publishing  *message // whose headers publishHeaders decodes
	headers     func() *fsm.Table
	property    func(name string) []byte

	mu           sync.Mutex
	closed       bool       // events mean nothing any more
	lost         error      // the broker has given the session up
	timedOut     bool       // the channel ends for what was held too long
	txSettles    []txSettle // given in a transaction and not committed, in order
	consumers    map[uint64]*consumer
	tags         map[string]*consumer
	lastConsumer uint64
	lastTag      uint64 // delivery tag
	unacked      unacked
	gets         map[uint64]struct{} // tokens of gets
	deleting     bool                // queue.delete is under way
	ended        []uint64            // deleting: consumers whose queue went meanwhile
}

type channelState uint8

const (
	channelOpen    channelState = iota
	channelClosing              // a close is under way: the server's, or the connection's
	channelClosed
)

// channelEnding is what the reader has seen of the end of a channel.
type channelEnding uint8

const (
	endingNot      channelEnding = iota
	endingAsked                  // channel.close
	endingAnswered               // channel.close-ok
)

// request is one thing a channel has to do, in the order of its arrival. The
// fields after kind belong to one kind each.
type request struct {
	kind    requestKind
	method  wire.Method
	message message
	settle  settlement
	task    func(context.Context) error
}

type requestKind uint8

const (
	requestMethod requestKind = iota
	requestPublish
	requestSettle
	requestTask  // of the front itself
	requestClose // by the client
	requestEnd   // by the server: channel.close has been pushed
)

// lateSettle is a settlement that waits for the session.
type lateSettle struct {
	consumer uint64
	outcome  fsm.Outcome
	ids      []uint64
}

func newChannel(c *conn, number uint16) *channel {
	ch := &channel{
		conn: c, number: number,
		finished:  make(chan struct{}),
		deafened:  make(chan struct{}),
		room:      make(chan struct{}, 1),
		consumers: map[uint64]*consumer{},
		tags:      map[string]*consumer{},
		gets:      map[uint64]struct{}{},
	}
	ch.headers, ch.property = ch.publishHeaders, ch.publishProperty
	return ch
}

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

// submit has a request done, at once if it needs not wait for the broker and
// nothing is before it. The reader calls it.
func (ch *channel) submit(r *request) error {
	ch.gate.Lock()
	return ch.submitLocked(r)
}

// submitLocked is submit with the gate held. It lets go of it.
func (ch *channel) submitLocked(r *request) error {
	next, queued := ch.begin(r)
	if queued {
		return ch.waitRoom()
	}
	if next != nil {
		ch.conn.tasks.start()
		go ch.run(next)
	}
	return nil
}

// begin does a request that need not wait, or queues it. If something has to
// wait for the broker it returns that; busy is set. It lets go of the gate.
func (ch *channel) begin(r *request) (next *request, queued bool) {
	defer ch.gate.Unlock()
	switch {
	case ch.state != channelOpen:
		return nil, false
	case ch.busy:
		ch.queue = append(ch.queue, *r)
		ch.queueBytes += len(r.message.publish.Payload)
		return nil, true
	}
	if r.blocks() {
		next = new(request)
		*next = *r
	} else if err := ch.perform(r); errors.Is(err, fsm.ErrNotFresh) {
		next = new(request)
		*next = *r
	} else if err != nil {
		ch.raise(err, r.id())
		next = ch.next()
	}
	ch.busy = next != nil
	return next, false
}

// post has a task done on a goroutine of its own. tasks has been started for
// it. Events use it: they may not block, nor call the session.
func (ch *channel) post(task func(context.Context) error) {
	go func() {
		r := &request{kind: requestTask, task: task}
		ch.gate.Lock()
		if ch.state != channelOpen || ch.busy {
			if ch.state == channelOpen {
				ch.queue = append(ch.queue, *r)
			}
			ch.gate.Unlock()
			ch.conn.tasks.done()
			return
		}
		ch.busy = true
		ch.gate.Unlock()
		ch.run(r)
	}()
}

// run does a blocking request and all that has queued meanwhile.
func (ch *channel) run(r *request) {
	defer ch.conn.tasks.done()
	defer ch.conn.contain("do a method")
	for r != nil {
		r = ch.follow(r, ch.block(r))
	}
}

// follow takes the outcome of a blocking request, and returns the next one.
func (ch *channel) follow(r *request, err error) *request {
	ch.gate.Lock()
	defer ch.gate.Unlock()
	if err != nil {
		ch.raise(err, r.id())
	}
	return ch.next()
}

// next does what is queued up to a request that blocks, and returns that. With
// nothing left it returns nil and busy is over. The gate is held.
func (ch *channel) next() *request {
	for {
		if !ch.closing {
			ch.settleLate()
		}
		if ch.deaf.Load() && !ch.closing {
			ch.closing = true
			return &request{kind: requestEnd}
		}
		if ch.state != channelOpen || len(ch.queue) == 0 {
			ch.queue, ch.queueBytes, ch.settles = nil, 0, nil
			ch.busy = false
			ch.makeRoom()
			return nil
		}
		r := ch.queue[0]
		ch.queue[0] = request{}
		ch.queue = ch.queue[1:]
		ch.queueBytes -= len(r.message.publish.Payload)
		ch.makeRoom()
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

// queueFull reports whether the reader has to wait. The gate is held.
func (ch *channel) queueFull() bool {
	return ch.busy && (len(ch.queue) >= maxQueued || ch.queueBytes >= maxQueuedBytes)
}

// waitRoom holds the reader while the queue is full.
func (ch *channel) waitRoom() error {
	for {
		ch.gate.Lock()
		ch.waiting = ch.queueFull()
		full := ch.waiting
		ch.gate.Unlock()
		if !full {
			return nil
		}
		select {
		case <-ch.room:
		case <-ch.conn.done:
			return errEnding
		}
	}
}

// makeRoom wakes the reader if the queue is no longer full.
func (ch *channel) makeRoom() {
	if ch.waiting && !ch.queueFull() {
		ch.waiting = false
		select {
		case ch.room <- struct{}{}:
		default: // it is awake already
		}
	}
}

// perform does a request that does not wait for the broker. The gate is held.
func (ch *channel) perform(r *request) error {
	switch r.kind {
	case requestPublish:
		return ch.publish(&r.message)
	case requestSettle:
		return ch.settle(&r.settle)
	}
	return ch.act(r.method)
}

// block does a request that waits for the broker. Busy is set, the gate is not
// held.
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
	ctx, cancel := context.WithTimeout(ch.conn.ctx, ch.conn.server.cfg.OperationTimeout)
	defer cancel()
	if r.kind == requestTask {
		return r.task(ctx)
	}
	return ch.call(ctx, r.method)
}

// raise answers an error of the method with this id: it closes the channel or
// the connection. The gate is held.
func (ch *channel) raise(err error, id uint32) {
	if ch.state != channelOpen {
		return
	}
	ch.state = channelClosing
	if isInternal(err) && ch.conn.ctx.Err() == nil {
		ch.conn.log.Error("method failed", slog.Int("channel", int(ch.number)), slog.Any("error", err))
	}
	e := protocolError(err, id)
	if e.Code == wire.CodeAccessRefused {
		ch.conn.refused(e)
	}
	if endsConnection(e.Code) {
		ch.conn.fail(e)
		return
	}
	ch.conn.log.Info("channel error", slog.Int("channel", int(ch.number)), slog.Any("error", e))
	ch.silence()
	ch.deaf.Store(true)
	close(ch.deafened)
	ch.conn.flow.release(ch.conn.out.pushLast(ch, &wire.ChannelClose{
		ReplyCode: e.Code, ReplyText: wire.ReplyText(e.Code, e.Text), FailedClass: e.ClassID, FailedMethod: e.MethodID,
	}))
	for i := range ch.queue {
		if ch.queue[i].kind == requestClose {
			ch.answerCrossing()
		}
	}
}

// answerCrossing answers the client's close after the server's own has been
// sent. The channel still ends with the client's close-ok.
func (ch *channel) answerCrossing() {
	ch.crossed.Store(true)
	ch.conn.out.push(ch.number, &wire.ChannelCloseOK{})
}

// silence makes events mean nothing.
func (ch *channel) silence() {
	ch.mu.Lock()
	ch.closed = true
	ch.mu.Unlock()
}

// closeSession gives back what the channel holds.
func (ch *channel) closeSession() {
	ctx, cancel := context.WithTimeout(ch.conn.server.ctx, ch.conn.server.cfg.OperationTimeout)
	defer cancel()
	ch.session.Close(ctx)
}

// closeByClient answers channel.close, once its deliveries are back in their
// queues.
func (ch *channel) closeByClient() {
	ch.silence()
	ch.gate.Lock()
	ch.settleLate()
	ch.state, ch.closing = channelClosing, true
	ch.gate.Unlock()
	ch.closeSession()
	ch.conn.flow.release(ch.conn.out.pushLast(ch, &wire.ChannelCloseOK{}))
	ch.gate.Lock()
	ch.finish()
	ch.gate.Unlock()
}

// closeByServer closes the session of a channel whose client has been told.
func (ch *channel) closeByServer() {
	ch.closeSession()
	ch.gate.Lock()
	ch.sessionGone = true
	if ch.answered {
		ch.finish()
	}
	ch.gate.Unlock()
}

// finish frees the number. The gate is held.
func (ch *channel) finish() {
	if ch.state != channelClosed {
		ch.state = channelClosed
		ch.conn.channelCount.Add(-1)
		close(ch.finished)
	}
}

func (ch *channel) isFinished() bool {
	select {
	case <-ch.finished:
		return true
	default:
		return false
	}
}

// waitFinished holds the reader while a close is under way. It returns false
// if the number is not free after that: the server's own close has come first.
func (ch *channel) waitFinished() (free bool, err error) {
	deafened := ch.deafened
	if ch.ending == endingAnswered {
		deafened = nil
	}
	select {
	case <-ch.finished:
	case <-deafened:
		ch.ending = endingNot
		return false, nil
	case <-ch.conn.done:
		return false, errEnding
	}
	return true, nil
}

// shut ends the channel with its connection.
func (ch *channel) shut() {
	ch.silence()
	ch.conn.flow.release(ch.confirms.close())
	ch.gate.Lock()
	if ch.state == channelOpen {
		ch.state = channelClosing
	}
	ch.gate.Unlock()
}

// askClose takes channel.close of the client. The reader calls it.
func (ch *channel) askClose() error {
	ch.gate.Lock()
	if ch.state == channelOpen {
		ch.ending = endingAsked
		return ch.submitLocked(&request{kind: requestClose})
	}
	if ch.deaf.Load() {
		ch.answerCrossing()
	}
	ch.gate.Unlock()
	return nil
}

// answerClose takes channel.close-ok of the client. The reader calls it.
func (ch *channel) answerClose() {
	ch.ending = endingAnswered
	ch.gate.Lock()
	defer ch.gate.Unlock()
	ch.answered = true
	if ch.sessionGone {
		ch.finish()
	}
}

// beginClose is called before the session is closed by the connection: what
// was settled late is passed on.
// It returns false if somebody else closes, or has closed, the session.
func (ch *channel) beginClose() bool {
	ch.gate.Lock()
	defer ch.gate.Unlock()
	if ch.closing {
		return false
	}
	ch.settleLate()
	ch.closing = true
	return true
}
