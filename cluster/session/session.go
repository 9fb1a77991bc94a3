package session

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// closeWait bounds how long closing a session waits for its queues.
const closeWait = 3 * time.Second

// Session is one channel of one client of this node. Its parts share one lock, that of calls,
// because an answer may concern several of them.
type Session struct {
	conn *Connection
	id   fsm.SessionID // set before the session is used

	traffic *traffic.Channel

	calls
	streams
	definer
	publisher
	consumers
	replies
	exchange commandExchange
}

func newSession(c *Connection, client fsm.SessionEvents) *Session {
	x, s := c.in, &Session{conn: c}
	n := x.node
	s.calls = calls{client: client, node: n, reroute: &s.publisher, router: &x.replies}
	s.streams = streams{session: s, routes: x.queues.Routes, answers: &x.answers, queues: map[fsm.QueueID]*sessionQueue{}}
	s.definer = definer{
		conn: c, calls: &s.calls, streams: &s.streams, replies: &s.replies,
		node: n, uses: x.config.Uses, log: x.config.Audit, defaults: x.config.Defaults,
	}
	s.publisher = publisher{
		conn: c, calls: &s.calls, streams: &s.streams, replies: &s.replies, exchange: &s.exchange,
		node: n, properties: x.config.Properties,
		publishMemo: publishMemo{message: catalog.Message{Local: x.queues.Leaders.Here, Passed: x.config.Uses.Used}},
	}
	s.consumers = consumers{
		conn: c, calls: &s.calls, streams: &s.streams, replies: &s.replies,
		node: n, defaults: x.config.Defaults, known: map[uint64]*consumer{},
	}
	s.replies = replies{conn: c, id: &s.id, calls: &s.calls, window: &s.consumers.window}
	s.exchange = commandExchange{
		conn: c, calls: &s.calls, streams: &s.streams, consumers: &s.consumers, replies: &s.replies,
		node: n, properties: x.config.Properties,
	}
	return s
}

// Refresh brings this node's view up to date: afterwards it holds every change that has been
// reported as done to a client of any node.
func (s *Session) Refresh(ctx context.Context) error { return s.conn.in.node.Catalog.Refresh(ctx) }

// abandon ends the session in all queues because its boot is over.
func (s *Session) abandon() {
	s.lock()
	defer s.unlock()
	s.strays = nil
	s.streams.abandon()
	s.lose(errLost)
}

// Close returns what the session holds and ends its consumers. Publishes whose queue is gone are
// routed again first. It does not wait for queues without a leader: they are told once they have
// one.
func (s *Session) Close(ctx context.Context) {
	s.mu.Lock()
	if !s.closing {
		s.conn.in.limits.tallies.channel(s.conn, -1)
	}
	s.closing = true
	ends, strays := s.end()
	s.mu.Unlock()
	if len(ends) == 0 && !strays {
		s.forget()
		return
	}
	done := make(chan struct{})
	s.conn.in.node.Spawn("end a session", func() {
		defer close(done)
		s.finish(ends)
	})
	limit := time.NewTimer(closeWait)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	case <-ctx.Done():
	}
}

// strayRetry is the pause before a closing session checks again whether publishes wait for the end
// of their queue.
const strayRetry = 50 * time.Millisecond

// finish waits until the queues know that the session has ended.
func (s *Session) finish(ends []*stream.Call) {
	stop := s.conn.in.node.Stopping()
	for {
		for _, k := range ends {
			select {
			case <-k.Done():
			case <-stop:
				return
			}
		}
		s.mu.Lock()
		var strays bool
		ends, strays = s.end()
		s.mu.Unlock()
		switch {
		case len(ends) > 0:
		case !strays:
			s.forget()
			return
		default:
			select {
			case <-time.After(strayRetry):
			case <-stop:
				return
			}
		}
	}
}

// forget removes the session from this node.
func (s *Session) forget() {
	s.conn.in.remove(s)
	s.closeTraffic()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.detach()
}

// describe returns the origin of a session's client; nil: the session has no consumers.
func (s *Session) describe() *peerpb.ConsumingSession {
	s.mu.Lock()
	consuming := len(s.known) > 0 // including those that only wait for settlements
	s.mu.Unlock()
	if !consuming {
		return nil
	}
	return s.origin()
}

// origin describes where a session's client is; nil: that is not known.
func (s *Session) origin() *peerpb.ConsumingSession {
	at, ok := s.client.(located)
	if !ok {
		return nil
	}
	name, channel, client := at.Where()
	return &peerpb.ConsumingSession{
		Boot: s.id.Boot, Session: s.id.Num, User: s.conn.user, Connection: name, Channel: uint32(channel),
		PeerHost: client.Addr().Unmap().String(), PeerPort: uint32(client.Port()),
	}
}

// What becomes of a consumer at a timeout, in the words of the metric of actions.
const (
	actionCancel  = "cancel"
	actionSuspend = "suspend"
	actionClose   = "channel_close"
	actionGet     = "get"
)

// tellTimeout records which consumer is told of a timeout; 0 stands for the session's gets.
func (s *Session) tellTimeout(number uint64, suspend bool) {
	x := &peerpb.LateConsumer{Session: s.origin(), Number: number, Action: actionClose}
	if x.Session == nil {
		return
	}
	switch takes, ok := s.client.(cancellable); {
	case number == 0:
		x.Action = actionGet
	case suspend:
		x.Action = actionSuspend
	case ok && takes.Cancellable():
		x.Action = actionCancel
	}
	s.conn.in.queues.Timeouts.Noticed(x)
}

// event is one pending call of SessionEvents. Calls are made without the session's lock, one at a
// time, in the order of the events.
type event struct {
	kind        eventKind
	first, last uint64
	ok, suspend bool
	messages    []fsm.Message
	consumer    uint64
	ids         []uint64
	limit       fsm.Millis
	err         error
	call        *stream.Call
	result      fsm.Result
	payload     fsm.Payload
	held        []fsm.Held
	link        fsm.LinkState
}

// calls is the lock of a session and the queue of calls to its client. What happens under the lock
// becomes events; the goroutine that releases the lock makes the calls without it, unless another
// one is already making calls, which then makes these, too.
//
// Invariant: one goroutine at a time makes calls, in the order of the events.
type calls struct {
	client fsm.SessionEvents
	node   *self.Node
	// reroute routes publishes again that have lost their queue.
	reroute *publisher
	router  *replyRouter

	mu      sync.Mutex // guards the fields below, and all of the session that says so
	tally   traffic.Tally
	events  []event
	spare   []event // for reuse
	calling bool    // a goroutine makes the calls of events
	closing bool    // the client has closed the session
	isLost  bool    // the client has been told, or is about to be, that the session is over
}

type eventKind uint8

const (
	eventConfirmed eventKind = iota
	eventDeliver
	eventCancelled
	eventRevoked
	eventTimedOut
	eventLost
	eventAnswered
	eventRefused
	eventReturned
	eventKept
	eventCredited
	eventReply // the broker's own, to the channel that its routing key names
)

// confirm joins a publish to the last event if it continues its run.
func (c *calls) confirm(number uint64, ok bool) {
	if ok {
		c.tally.Confirmed()
	}
	if n := len(c.events); n > 0 {
		if e := &c.events[n-1]; e.kind == eventConfirmed && e.ok == ok && e.last+1 == number {
			e.last = number
			return
		}
	}
	c.add(event{kind: eventConfirmed, first: number, last: number, ok: ok})
}

// lock takes the session's lock, for work that may produce events for the client.
func (c *calls) lock() { c.mu.Lock() }

// unlock releases the lock. First, publishes that have lost their queue are routed again; then the
// pending calls are made. A call that panics ends the session; those behind it are made all the
// same, because others wait for them.
func (c *calls) unlock() {
	if len(c.reroute.strays) > 0 && !c.node.Try("route publishes again", c.reroute.routeStrays) {
		c.reroute.strays = nil
		c.lose(errFault)
	}
	if c.calling {
		c.mu.Unlock()
		return
	}
	c.calling = true
	for len(c.events) > 0 {
		batch := c.events
		c.events = c.spare[:0]
		c.mu.Unlock()
		whole := c.callAll(batch)
		clear(batch)
		c.mu.Lock()
		c.spare = batch
		if !whole {
			c.lose(errFault)
		}
	}
	c.calling = false
	c.mu.Unlock()
}

// add appends an event. The lock is held.
func (c *calls) add(e event) { c.events = append(c.events, e) }

// lose notifies the client, once, that the session is over. The lock is held.
func (c *calls) lose(why error) {
	if c.isLost || c.closing {
		return
	}
	c.isLost = true
	c.add(event{kind: eventLost, err: why})
}

// fail ends the session because work for it has panicked and its state may be half changed. Its
// queues are told as for a closed channel.
func (c *calls) fail() {
	c.lock()
	defer c.unlock()
	c.reroute.refreshing, c.reroute.strays = false, nil
	c.lose(errFault)
}

// LostText is the reason given when sessions end with the boot of their node.
const LostText = "this node was declared dead and its sessions were closed; please reconnect"

var (
	// errLost is returned to users of a session that a queue has given up.
	errLost = fsm.Refuse(fsm.Forced, LostText)
	// errFault is returned to users of a session whose work has panicked.
	errFault = fsm.Refuse(fsm.Internal, "the node closed the channel after an internal error")
)

// callAll delivers a batch of events to the client, and reports whether no call has panicked.
func (c *calls) callAll(batch []event) (whole bool) {
	whole = true
	for called := 0; called < len(batch); {
		if !c.node.Try("notify a client", func() {
			for called < len(batch) {
				called++
				c.call(&batch[called-1])
			}
		}) {
			whole = false
		}
	}
	return whole
}

func (c *calls) call(e *event) {
	switch e.kind {
	case eventConfirmed:
		c.client.Confirmed(e.first, e.last, e.ok)
	case eventDeliver:
		c.client.Deliver(e.messages)
	case eventCancelled:
		c.client.Cancelled(e.consumer)
	case eventRevoked:
		c.client.Revoked(e.consumer, e.err)
	case eventTimedOut:
		c.client.TimedOut(e.consumer, e.ids, e.limit, e.suspend)
	case eventLost:
		c.client.Lost(e.err)
	case eventAnswered:
		e.call.Finish(e.result)
	case eventRefused:
		refusal, _ := e.err.(*fsm.Refusal)
		c.client.Refused(e.payload, refusal)
	case eventReturned:
		c.client.Returned(e.payload)
	case eventKept:
		c.client.Kept(e.held)
	case eventCredited:
		c.client.Credited(e.consumer, e.link)
	case eventReply:
		suffix, _ := fsm.ReplySuffix(string(e.payload.RoutingKey()))
		c.router.send(suffix, e.payload)
	}
}

// getToken marks the consumer numbers that stand for a session's gets at one of its queues: the
// remaining bits are that queue's index.
const getToken = 1 << 63

// streams are the streams of a session, by queue. The session's lock guards them.
//
// Invariant: order is ascending by index and holds what byQueue holds; the index
// of a queue is used once.
type streams struct {
	session *Session
	routes  *stream.Table
	answers *answers

	queues    map[fsm.QueueID]*sessionQueue
	order     []*sessionQueue // those not known to be gone, by index
	lastIndex uint64          // of the newest one
	ended     bool            // the session's boot is over: no queue accepts anything from it
}

// queue finds or creates the session's record of a queue with its stream. The lock is held.
func (x *streams) queue(q *catalog.Queue) *sessionQueue {
	if u := x.queues[q.ID]; u != nil {
		return u
	}
	r := x.routes.Route(q)
	u := &sessionQueue{session: x.session, of: traffic.QueueCounts{VHost: q.VHost, Queue: q.ID, Local: q.Local}}
	u.stream = stream.New(u, u, x.session.id, r)
	u.stream.Patient(x.session.conn.consumes.Load)
	if x.ended {
		u.stream.Abandon()
		return u
	}
	if r.Attach(u.stream); u.stream.Gone() {
		return u
	}
	x.lastIndex++
	u.index = x.lastIndex
	x.order = append(x.order, u)
	x.queues[q.ID] = u
	return u
}

// find returns the position of a queue in order. The lock is held.
func (x *streams) find(index uint64) (int, bool) {
	return slices.BinarySearchFunc(x.order, index, func(q *sessionQueue, index uint64) int { return cmp.Compare(q.index, index) })
}

// remove forgets a queue that is gone. The lock is held.
func (x *streams) remove(q *sessionQueue) {
	x.session.tally.TakeQueue(q.of, &q.counts, &q.routes)
	if i, ok := x.find(q.index); ok && x.queues[q.stream.Queue()] == q {
		delete(x.queues, q.stream.Queue())
		x.order = slices.Delete(x.order, i, i+1)
	}
}

// request sends a command. It takes the lock.
func (x *streams) request(q *catalog.Queue, c *logpb.Command) (*stream.Route, *stream.Call) {
	x.session.mu.Lock()
	defer x.session.mu.Unlock()
	to := x.queue(q).stream
	return to.Route(), to.Request(c)
}

// do sends a command and waits for its answer. It takes the lock.
func (x *streams) do(ctx context.Context, q *catalog.Queue, c *logpb.Command) (*stream.Call, error) {
	r, k := x.request(q, c)
	return k, x.answers.await(ctx, q, r, k)
}

// end tells the queues that do not know it yet that the session ends. waiting: some publishes wait
// for the end of their queue. The lock is held.
func (x *streams) end() (calls []*stream.Call, waiting bool) {
	for _, q := range x.order {
		waiting = waiting || len(q.strays) > 0
		if to := q.stream; to.Over() || to.Ending() || to.Next() == 1 {
			continue
		}
		calls = append(calls, q.stream.Request(&logpb.Command{Kind: logpb.Command_SESSION_DOWN}))
	}
	return calls, waiting
}

// abandon ends all streams at once because the session's boot is over. The lock is held.
func (x *streams) abandon() {
	x.ended = true
	for _, q := range x.order {
		q.strays = nil // nobody waits for them any more
		if !q.stream.Over() {
			q.stream.Abandon()
		}
		q.stream.Route().Detach(q.stream)
	}
}

// detach removes the streams from their routes. The lock is held.
func (x *streams) detach() {
	for _, q := range x.order {
		q.stream.Route().Detach(q.stream)
	}
}

// sessionQueue is one queue as used by a session: its stream, owned under the session's lock, and
// the publishes that came too late for the queue.
type sessionQueue struct {
	session *Session
	stream  *stream.Stream
	index   uint64  // among the queues of its session, from 1
	strays  []stray // see Answered
	needs   needs
	counts  traffic.Counts // since they were added to the tally
	routes  traffic.Routes // likewise
	of      traffic.QueueCounts

	enqueue logpb.Enqueue // reused
	command logpb.Command
}

var (
	_ stream.Owner    = (*sessionQueue)(nil)
	_ stream.Receiver = (*sessionQueue)(nil)
)

// Lock takes the session's lock.
func (q *sessionQueue) Lock() { q.session.lock() }

// Unlock releases it, and passes on to the client what has happened meanwhile.
func (q *sessionQueue) Unlock() {
	q.session.rebalance()
	q.session.goOn()
	q.session.unlock()
}

// publish queues an enqueue. ceiling is the longest TTL allowed by the exchanges on the path + 1;
// 0: unlimited. store: the queue is that of a delayed exchange. group is that of the message in the queue; empty:
// none. The lock is held.
func (q *sessionQueue) publish(p *fsm.Publish, fan *fanout, ceiling uint64, store bool, group string) {
	q.add(p, ceiling, store, group, noteOf(p, fan))
}

// add is publish with a note for the answer.
func (q *sessionQueue) add(p *fsm.Publish, ceiling uint64, store bool, group string, note any) {
	q.enqueue = logpb.Enqueue{
		Size: uint32(len(p.Payload)), Head: uint32(fsm.Payload(p.Payload).HeadSize()), TtlPlusOne: uint64(p.TTL + 1),
		PriorityPlusOne: uint32(p.Priority + 1), HasExpiration: p.HasExpiration,
		Routed: p.Exchange != "", TtlCeilingPlusOne: ceiling, GroupId: group,
	}
	if q.needs.as.Label {
		q.enqueue.MessageId, q.enqueue.CorrelationId = p.MessageID, p.CorrelationID
	}
	if store {
		q.enqueue.DelayPlusOne = uint64(p.Delay.For) + 1
		q.enqueue.ScheduleId, q.enqueue.Conflict = p.Delay.ID, p.Delay.Conflict
	} else if s := p.Schedule; s != nil {
		q.enqueue.DueAt, q.enqueue.DelayPlusOne = int64(s.At), uint64(s.Delay+1)
		q.enqueue.ScheduleId, q.enqueue.Conflict = s.ID, s.Conflict
	}
	q.session.tell(&q.enqueue, p.Payload, q.needs.as)
	q.command = logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &q.enqueue}
	q.stream.Add(&q.command, stream.Pending{Payload: p.Payload, Number: p.Number, Mandatory: p.Mandatory, Note: note})
}

// Answered handles the answer to one command.
func (q *sessionQueue) Answered(p *stream.Pending, r fsm.Result) {
	s := q.session
	if k := p.Call; k != nil {
		if k.Cancels != 0 {
			q.stream.ReturnUnseen(k.Cancels)
			s.consumerOver(k.Cancels)
		}
		if k.Got != nil {
			if k.Got.LockedUntil != 0 {
				q.addToken(k.Got, s.consumers.node.View().LockSecret())
			}
			k.Got.Consumer = getToken | q.index
		}
		// The waiting caller goes on after the events that came before the answer.
		s.add(event{kind: eventAnswered, call: k, result: r})
	} else if a, is := p.Note.(*commandPart); is {
		s.exchange.answered(a, r)
	} else if a, is := p.Note.(limitAnswer); is {
		s.limitHeard(a)
	} else if a, is := p.Note.(linkAnswer); is {
		s.credited(a.consumer, r)
	} else if _, is := p.Note.(ownMessage); is {
		// Nobody waits for it.
	} else if _, is := p.Note.(strictSettle); is {
		if isNotDone(r.Code) {
			s.lose(errLateSettle)
		}
	} else if p.Payload != nil {
		s.answered(q, p, r)
	}
}

// Lost ends the session: a queue has given it up, with everything it held. After SESSION_DOWN a
// repeated command gets this answer.
func (q *sessionQueue) Lost() {
	q.stream.Abandon()
	q.session.lose(errLost)
}

// Failed ends the session: the state of its stream may be half changed.
func (q *sessionQueue) Failed() {
	q.stream.Abandon()
	q.session.lose(errFault)
}

// Noticed handles a notice about a consumer.
func (q *sessionQueue) Noticed(n stream.Notice) {
	s := q.session
	s.lock()
	defer s.unlock()
	switch n.Kind {
	case peerpb.Notice_TIMED_OUT:
		number := n.Consumer
		if number == 0 {
			number = getToken | q.index
		}
		suspend := s.suspends(q, n.Consumer)
		s.tellTimeout(n.Consumer, suspend)
		s.add(event{kind: eventTimedOut, consumer: number, ids: n.IDs, limit: n.Limit, suspend: suspend})
	case peerpb.Notice_CANCELLED:
		s.cancelled(q, n.Consumer)
	case peerpb.Notice_READY:
		s.wanted(n.Consumer)
	}
}

// Gone ends everything the session has at a queue that is gone.
func (q *sessionQueue) Gone() {
	s := q.session
	s.lock()
	defer s.unlock()
	s.queueGone(q)
	s.remove(q)
	s.takeStrays(q)
}

// Accept counts a message for a consumer, if the channel has space for it.
func (q *sessionQueue) Accept(bytes int) bool { return q.session.consumers.window.accept(bytes) }

// CanTake reports whether the channel has space for a number of answers. If not, Written will find
// that a consumer is waiting.
func (q *sessionQueue) CanTake(answers int) bool { return q.session.consumers.window.fits(answers) }

// Passed gives the queue of a consumer in credit mode what it was to have had for them.
func (q *sessionQueue) Passed(consumer uint64) {
	if c := q.session.known[consumer]; c != nil && c.link.on {
		q.session.flowing = append(q.session.flowing, consumer)
	}
}

// strictSettle is the note of a settlement that fails if it comes too late.
type strictSettle struct{}

// errLateSettle is the channel's error for one that has failed.
var errLateSettle = fsm.Refuse(fsm.Precondition, "a delivery was settled after its lock had been lost")

// settleEach settles deliveries of a consumer whose late settlements are errors: each by a command
// of its own, so that every one of them is found. The lock is held.
func (q *sessionQueue) settleEach(number uint64, ids []uint64, outcome fsm.Outcome) {
	if q.stream.Over() {
		return
	}
	for _, id := range ids {
		q.stream.Add(&logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{
			Outcome: outcome, Consumer: number, Ranges: []uint64{id, 1}, Strict: true,
		}}, stream.Pending{Note: strictSettle{}})
	}
}

// addToken adds a lock token to a message. Its consumer is the one that the queue knows.
func (q *sessionQueue) addToken(m *fsm.Message, secret []byte) {
	of := fsm.ConsumerID{Session: q.session.id, Number: m.Consumer}
	m.LockToken = lockToken{queue: q.stream.Queue(), of: of, delivery: m.ID}.text(secret)
}

// addTokens adds lock tokens to the messages of consumers that have asked for them.
func (q *sessionQueue) addTokens(messages []fsm.Message) {
	var secret []byte
	for i := range messages {
		m := &messages[i]
		if c := q.session.known[m.Consumer]; c == nil || !c.info {
			continue
		}
		if secret == nil {
			secret = q.session.consumers.node.View().LockSecret()
		}
		q.addToken(m, secret)
	}
}

// Deliver passes messages on to the channel.
func (q *sessionQueue) Deliver(messages []fsm.Message) {
	q.addTokens(messages)
	q.countDelivered(messages)
	q.session.noteActive(messages)
	q.session.noteGiven(messages)
	q.session.add(event{kind: eventDeliver, messages: messages})
}
