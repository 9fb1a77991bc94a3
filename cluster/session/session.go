package session

import (
	"cmp"
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// Session is one channel of one client of this node. Its parts share one lock, that of calls,
// because an answer may concern several of them.
type Session struct {
	conn *Connection
	id   fsm.SessionID // set before the session is used

	traffic *traffic.Channel

	calls
	streams
	publisher
	consumers
	browsers
	replies
	exchange commandExchange
}

func newSession(c *Connection, client fsm.SessionEvents) *Session {
	x, s := c.in, &Session{conn: c}
	n := x.node
	s.calls = calls{session: s, client: client, node: n}
	s.streams = streams{session: s, queues: map[fsm.QueueID]*sessionQueue{}}
	s.publisher = publisher{
		session: s, node: n, properties: x.config.Properties,
		publishMemo: publishMemo{message: catalog.Message{Local: x.queues.Leaders.Here, Passed: x.config.Uses.Used}},
	}
	s.consumers = consumers{session: s, node: n, defaults: x.config.Defaults, known: map[uint64]*consumer{}}
	s.browsers = browsers{session: s}
	s.replies = replies{session: s}
	s.exchange = commandExchange{session: s, node: n, properties: x.config.Properties}
	return s
}

// Refresh brings this node's view up to date: afterwards it holds every change that has been
// reported as done to a client of any node.
func (s *Session) Refresh(ctx context.Context) error { return s.conn.in.node.Catalog.Refresh(ctx) }

// event is one pending call of SessionEvents. Calls are made without the session's lock, one at a
// time, in the order of the events.
type event struct {
	kind        eventKind
	first, last uint64
	suspend     bool
	messages    []fsm.Message
	consumer    uint64 // or the number of a queue
	ids         []uint64
	limit       fsm.Millis
	err         error
	call        *stream.Call
	result      fsm.Result
	payload     fsm.Payload
	held        []fsm.Held
	link        fsm.LinkState
	news        *fsm.News
	passed      chan<- struct{}
}

// calls is the lock of a session and the queue of calls to its client. What happens under the lock
// becomes events; the goroutine that releases the lock makes the calls without it, unless another
// one is already making calls, which then makes these, too.
//
// Invariant: one goroutine at a time makes calls, in the order of the events.
type calls struct {
	session *Session
	client  fsm.SessionEvents
	node    *self.Node

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
	eventGone
	eventSettled
	eventNews
	eventPassed // no call: who waits for those before goes on
	eventReply  // the broker's own, to the channel that its routing key names
)

// confirm joins a publish to the last event if it continues its run. why is as in fsm.SessionEvents.
func (c *calls) confirm(number uint64, why error) {
	if why == nil || fsm.IsConfirmed(why) && !c.session.releases() {
		c.tally.Confirmed()
	}
	c.tell(number, why)
}

// tell is confirm for what is counted otherwise.
func (c *calls) tell(number uint64, why error) {
	if n := len(c.events); n > 0 {
		if e := &c.events[n-1]; e.kind == eventConfirmed && e.err == why && e.last+1 == number {
			e.last = number
			return
		}
	}
	c.add(event{kind: eventConfirmed, first: number, last: number, err: why})
}

// lock takes the session's lock, for work that may produce events for the client.
func (c *calls) lock() { c.mu.Lock() }

// unlock releases the lock. First, publishes that have lost their queue are routed again; then the
// pending calls are made. A call that panics ends the session; those behind it are made all the
// same, because others wait for them.
func (c *calls) unlock() {
	if len(c.session.strays) > 0 && !c.node.Try("route publishes again", c.session.routeStrays) {
		c.session.strays = nil
		c.lose(errFault)
	}
	if len(c.session.goneWatched) > 0 {
		c.session.tellGone()
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
	c.session.refreshing, c.session.strays = false, nil
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
		c.client.Confirmed(e.first, e.last, e.err)
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
	case eventGone:
		c.client.Gone(fsm.QueueID(e.consumer))
	case eventSettled:
		c.client.Settled(e.first, e.ids)
	case eventNews:
		c.client.News(e.consumer, e.news)
	case eventPassed:
		close(e.passed)
	case eventReply:
		suffix, _ := fsm.ReplySuffix(string(e.payload.RoutingKey()))
		c.session.conn.in.replies.send(suffix, e.payload)
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
	r := x.session.conn.in.queues.Routes.Route(q)
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
	return k, x.session.conn.in.answers.await(ctx, q, r, k)
}

// end tells the queues that do not know it yet that the session ends. waiting: some publishes wait
// for the end of their queue. The lock is held.
func (x *streams) end() (calls []*stream.Call, waiting bool) {
	for _, q := range x.order {
		waiting = waiting || len(q.strays) > 0
		if to := q.stream; to.Over() || to.Ending() || to.Next() == 1 || to.Forget() {
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
	session   *Session
	stream    *stream.Stream
	index     uint64  // among the queues of its session, from 1
	strays    []stray // see Answered
	needs     needs
	counts    traffic.Counts // since they were added to the tally
	routes    traffic.Routes // likewise
	of        traffic.QueueCounts
	isWatched bool // the client is told once it is gone
	// notTaken is the newest outcome of a publish that it has refused; nil: it has refused none.
	notTaken *fsm.NotTaken

	enqueue logpb.Enqueue // reused
	command logpb.Command
	turn    chan struct{} // who has it asks, see Session.ask; nil: nobody ever has
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
	q.session.returnNotDeferred()
	q.session.renewOn()
	q.session.unlock()
}

// publish queues an enqueue, with a note for the answer. ceiling is the longest TTL allowed by the exchanges
// on the path + 1; 0: unlimited. store: the queue is that of a delayed exchange. group is that of the
// message in the queue; empty: none. The lock is held.
func (q *sessionQueue) publish(p *fsm.Publish, ceiling uint64, store bool, group string, note any) {
	e := &q.enqueue
	q.describe(e, p, ceiling, store, group)
	q.command = logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: e}
	q.stream.Add(&q.command, stream.Pending{Payload: p.Payload, Number: p.Number, Mandatory: p.Mandatory, Confirm: p.Confirm, Note: note})
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
	} else if a, is := p.Note.(*settling); is {
		q.settled(a, p.Number, r)
	} else if a, is := p.Note.(*renewing); is {
		s.renewed(a, r)
	} else if _, is := p.Note.(ownMessage); is {
		// Nobody waits for it.
	} else if _, is := p.Note.(strictSettle); is {
		if isNotDone(r.Code) {
			s.lose(errLateSettle)
		}
	} else if a, is := p.Note.(*posted); is {
		a.answered(s, p.Number, r.Code)
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
	case peerpb.Notice_NEWS:
		s.add(event{kind: eventNews, consumer: n.Consumer, news: &n.News})
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
	if q.isWatched {
		s.goneWatched = append(s.goneWatched, q.stream.Queue())
	}
}

// Accept counts a message for a consumer, if the channel has space for it.
func (q *sessionQueue) Accept(bytes int) bool { return q.session.consumers.window.accept(bytes) }

// CanTake reports whether the channel has space for a number of answers. If not, Written will find
// that a consumer is waiting.
func (q *sessionQueue) CanTake(answers int) bool { return q.session.consumers.window.fits(answers) }

// Passed gives the queue of a consumer in credit mode what it was to have had for them.
func (q *sessionQueue) Passed(consumer uint64) {
	if c := q.session.known[consumer]; c != nil && c.link.on {
		q.session.flows(consumer, c)
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

// addTokens adds lock tokens to the messages of consumers that have asked for them, and to those of consumers in credit
// mode that have locks: to these everything is told of a delivery that is locked.
func (q *sessionQueue) addTokens(messages []fsm.Message) {
	var secret []byte
	for i := range messages {
		m := &messages[i]
		c := q.session.known[m.Consumer]
		if c == nil || c.numbered || !c.info && !c.link.on {
			continue
		}
		if c.link.on && m.LockedUntil == 0 && !c.lockHead {
			if !c.info {
				m.Sequence = 0
			}
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

// publisher routes the messages that a session publishes, sends them to the matching queues, and
// reports the outcomes to the client.
type publisher struct {
	session    *Session
	node       *self.Node
	properties Properties

	// Guarded by the session's lock.
	strays     []stray // to be routed again before the lock is released
	refreshing bool    // strays wait for an up-to-date view
	// goneWatched are queues of whose end the client is told once all strays are routed.
	goneWatched []fsm.QueueID

	publishMemo // used by the publishing goroutine only
}

// publishMemo is what a publisher caches between publishes.
type publishMemo struct {
	message   catalog.Message // the last one
	route     []*catalog.Queue
	fanned    []fsm.QueueID // the last route that led to several queues; never changed
	allowed   string        // exchange that the user may write to …
	allowedIn *catalog.View
	topics    *catalog.TopicPermission // … and with which routing keys; nil: all
	keys      map[string]struct{}      // that topics has allowed; at most maxAllowedKeys
}

// maxAllowedKeys bounds the routing keys for which no pattern is matched again.
const maxAllowedKeys = 256

// Publish routes a message and sends it to every matching queue.
func (x *publisher) Publish(p *fsm.Publish) (bool, error) {
	if err := x.mayRoute(p); err != nil {
		return false, err
	}
	if p.Exchange == catalog.CommandExchange {
		v := x.node.View()
		if err := x.mayClaim(v, p); err != nil {
			return false, err
		}
		x.session.mu.Lock()
		x.session.tally.Published(p.Exchange, len(p.Payload), 0, p.Confirm)
		x.session.mu.Unlock()
		x.session.exchange.command(v, p)
		return true, nil
	}
	limits, err := x.routePublish(p)
	if err != nil {
		return false, err
	}
	if p.Exchange == "" {
		if suffix, ok := fsm.ReplySuffix(p.RoutingKey); ok && x.publishReply(p, suffix) {
			return true, nil
		}
	}
	if len(x.route) == 0 {
		x.unroutable(p)
		return false, nil
	}
	x.enqueue(p, limits)
	return true, nil
}

// unroutable counts a publish that has no queue. The channel itself confirms and returns it.
func (x *publisher) unroutable(p *fsm.Publish) {
	x.session.mu.Lock()
	defer x.session.mu.Unlock()
	x.session.tally.Published(p.Exchange, len(p.Payload), 0, p.Confirm)
	x.countUnroutable(p.Mandatory, p.Confirm)
	if !x.session.releases() {
		x.session.tally.Confirmed()
	}
}

// countUnroutable counts a message without a queue, as returned if its publisher is told so. The lock is held.
func (x *publisher) countUnroutable(mandatory, confirm bool) {
	what := traffic.DropUnroutable
	if mandatory || confirm && x.session.releases() {
		what = traffic.ReturnUnroutable
	}
	x.session.tally.Count(what)
}

// Check returns the error that Publish would return.
func (x *publisher) Check(p *fsm.Publish) error {
	if err := x.mayRoute(p); err != nil {
		return err
	}
	_, err := x.routePublish(p)
	return err
}

// Admit returns the error that Publish would return before it looks for queues.
func (x *publisher) Admit(p *fsm.Publish) error {
	if err := x.mayRoute(p); err != nil {
		return err
	}
	v := x.node.View()
	if p.Exchange == catalog.CommandExchange {
		return x.mayClaim(v, p)
	}
	return x.mayWrite(v, p)
}

// Watch looks for a queue that the client is going to publish to, and tells the client once it is gone.
func (x *publisher) Watch(ctx context.Context, name string) (fsm.QueueID, error) {
	v := x.node.FreshView(ctx)
	if err := v.CheckPublish(x.session.conn.user, x.session.conn.vhost, ""); err != nil {
		return 0, err
	}
	q, ok := v.Queue(x.session.conn.vhost, name)
	if !ok {
		return 0, fsm.Refuse(fsm.NotFoundKind, fmt.Sprintf("no queue '%s' in vhost '%s'", name, x.session.conn.vhost))
	}
	x.session.mu.Lock()
	defer x.session.mu.Unlock()
	u := x.session.streams.queue(q)
	if u.stream.Gone() {
		return 0, queues.NoQueue(q)
	}
	u.isWatched = true
	return q.ID, nil
}

// tellGone tells the client that queues are gone that it watches, after the outcomes of what they were sent. The lock is held.
func (x *publisher) tellGone() {
	if x.refreshing || len(x.strays) > 0 {
		return
	}
	for _, id := range x.goneWatched {
		x.session.add(event{kind: eventGone, consumer: uint64(id)})
	}
	x.goneWatched = nil
}

// mayRoute refuses to route if the view may be out of date. The view must be read after this check.
func (x *publisher) mayRoute(p *fsm.Publish) error {
	if !p.Fresh && !x.node.Catalog.Fresh() {
		return fsm.ErrNotFresh
	}
	return nil
}

// routePublish checks a message and stores its destination queues in route.
func (x *publisher) routePublish(p *fsm.Publish) (limits catalog.Ceilings, err error) {
	v := x.node.View()
	if p.Exchange == catalog.CommandExchange {
		return limits, fsm.Refuse(fsm.NotImplemented, "commands cannot be part of a transaction")
	}
	if err := x.mayWrite(v, p); err != nil {
		return limits, err
	}
	m := &x.message
	m.Headers, m.Property, m.Chance, m.Delayed = p.Headers, p.Property, mathrand.Uint64(), p.Delay != nil
	x.route, limits, err = v.Route(x.session.conn.vhost, p.Exchange, m, x.route[:0])
	if err == nil && m.Delayed {
		x.route, err = x.mayDelay(v, p, m, x.route)
	}
	return limits, err
}

// mayWrite checks what is known of a message without its body, and stores its routing keys.
func (x *publisher) mayWrite(v *catalog.View, p *fsm.Publish) error {
	if x.allowedIn != v || x.allowed != p.Exchange {
		if err := v.CheckPublish(x.session.conn.user, x.session.conn.vhost, p.Exchange); err != nil {
			return err
		}
		x.allowed, x.allowedIn = p.Exchange, v
		if rule := v.TopicRule(x.session.conn.user, x.session.conn.vhost, p.Exchange); rule != x.topics {
			x.topics = rule
			clear(x.keys)
		}
	}
	switch {
	case p.WantsReply && !x.session.replies.takes():
		return errNoReplies
	case p.TTLError != nil:
		return p.TTLError
	case p.HeadersError != nil:
		return p.HeadersError
	}
	x.message.Keys = append(append(x.message.Keys[:0], p.RoutingKey), p.Copies...)
	return x.mayPublishWith(v, p)
}

// enqueue sends a message to the queues in route.
func (x *publisher) enqueue(p *fsm.Publish, limits catalog.Ceilings) {
	var fan *fanout
	if len(x.route) > 1 {
		fan = x.newFanout(x.route)
	}
	x.session.lock()
	defer x.session.unlock()
	x.session.tally.Published(p.Exchange, len(p.Payload), len(x.route), p.Confirm)
	for _, q := range x.route {
		x.sendCopy(q, p, fan, limits)
	}
}

// mayPublishWith returns an error if the user may not publish with the routing key, or for a
// user-id that mayClaim refuses.
func (x *publisher) mayPublishWith(v *catalog.View, p *fsm.Publish) error {
	if x.topics != nil {
		for _, key := range x.message.Keys {
			if err := x.mayUseKey(key); err != nil {
				return err
			}
		}
	}
	return x.mayClaim(v, p)
}

// mayUseKey returns an error if topics does not allow a routing key.
func (x *publisher) mayUseKey(key string) error {
	if _, known := x.keys[key]; known {
		return nil
	}
	if err := x.topics.Check(catalog.Write, key); err != nil {
		return err // which ends the channel
	}
	if len(x.keys) >= maxAllowedKeys {
		clear(x.keys)
	}
	if x.keys == nil {
		x.keys = map[string]struct{}{}
	}
	x.keys[strings.Clone(key)] = struct{}{}
	return nil
}

// mayClaim returns an error for a user-id other than the user's own, unless the user may
// impersonate.
func (x *publisher) mayClaim(v *catalog.View, p *fsm.Publish) error {
	if p.UserError == nil {
		return nil
	}
	if u, ok := v.User(x.session.conn.user); ok && slices.Contains(u.GetTags(), impersonator) {
		return nil
	}
	return p.UserError
}

// impersonator is the tag of users who may publish under other names.
const impersonator = "impersonator"

// publishReply sends a reply and reports whether nothing is left to do for it: its other routing
// keys may match queues.
func (x *publisher) publishReply(p *fsm.Publish, suffix string) (done bool) {
	if p.RequesterGone || !x.session.conn.in.replies.send(suffix, p.Payload) || len(x.route) > 0 {
		return false
	}
	x.session.lock()
	defer x.session.unlock()
	x.session.tally.Published(p.Exchange, len(p.Payload), 1, p.Confirm)
	x.session.confirm(p.Number, nil)
	return true
}

// sendCopy sends a publish to one queue. The lock is held.
func (x *publisher) sendCopy(q *catalog.Queue, p *fsm.Publish, fan *fanout, limits catalog.Ceilings) {
	u := x.session.streams.queue(q)
	switch to := u.stream; {
	case to.Gone():
		again := *p
		again.Headers, again.Property = nil, nil
		again.Copies = slices.Clone(p.Copies)
		x.strays = append(x.strays, stray{again, fan})
	case !to.Over() && !to.Ending(): // otherwise the channel is about to end, without a confirm
		u.counts[traffic.Publish]++
		u.routes.Count(p.Exchange)
		u.needs.ask(x.node.View(), q)
		u.publish(p, limits.Of(q).Stored(), q.StoreOf != "", x.groupIn(q, p.Payload), noteOf(p, fan))
	}
}

// groupIn returns the group that a message has in a queue; empty: none.
func (x *publisher) groupIn(q *catalog.Queue, p fsm.Payload) string {
	if q.Groups == logpb.QueueConfig_NO_GROUPS {
		return ""
	}
	properties := x.properties
	return q.GroupOf(func(name string) []byte { return properties.Property(p, name) })
}

// graver returns the outcome of a publish some copies of which have one outcome and some another, as
// in fsm.SessionEvents: it is refused if one queue has refused it, and is unroutable only if no queue
// has it.
func graver(a, b error) error {
	if a == fsm.ErrUnroutable || !fsm.IsConfirmed(b) {
		return b
	}
	return a
}

// fanout is shared by the copies of a publish that went to several queues.
type fanout struct {
	left   int           // copies not answered yet
	worst  error         // gravest outcome of those answered; fsm.ErrUnroutable before the first
	queues []fsm.QueueID // that were sent a copy; other publishes may share the slice
	chance uint64        // that routed it
}

// timing is the note of a publish that makes a request about its time.
type timing struct {
	schedule *fsm.Schedule
	delay    *fsm.Delay
	fan      *fanout
}

// mayConflict reports whether a queue refuses the message if it has one with the same schedule id.
func (t *timing) mayConflict() bool {
	return t.schedule != nil && t.schedule.ID != "" && t.schedule.Conflict == logpb.Enqueue_REJECT ||
		t.delay != nil && t.delay.ID != "" && t.delay.Conflict == logpb.Enqueue_REJECT
}

// noteOf returns what must be remembered about a publish until it is answered; nil: nothing except
// its command.
func noteOf(p *fsm.Publish, fan *fanout) any {
	switch {
	case p.Schedule != nil || p.Delay != nil:
		return &timing{p.Schedule, p.Delay, fan}
	case fan != nil:
		return fan
	}
	return nil
}

// fanOf returns the fanout that a copy belongs to; nil: it is the only copy.
func fanOf(p *stream.Pending) *fanout {
	switch n := p.Note.(type) {
	case *fanout:
		return n
	case *timing:
		return n.fan
	}
	return nil
}

// copyOver records the outcome of one copy of a publish, and settles the publish with the last one.
// A mandatory publish that is unroutable is returned first. The lock is held.
func (x *publisher) copyOver(p *stream.Pending, fan *fanout, why error) {
	if fan != nil {
		fan.worst = graver(fan.worst, why)
		if fan.left--; fan.left > 0 {
			return
		}
		why = fan.worst
	}
	if why == fsm.ErrUnroutable {
		x.countUnroutable(p.Mandatory, p.Confirm)
		if p.Mandatory {
			x.session.add(event{kind: eventReturned, payload: p.Payload})
		}
	}
	x.session.confirm(p.Number, why)
}

// answered handles a queue's answer to one copy of a publish. The lock is held.
func (x *publisher) answered(q *sessionQueue, p *stream.Pending, r fsm.Result) {
	var why error
	switch r.Code {
	case fsm.OK:
	case fsm.Gone:
		x.strayed(q, p)
		return
	case fsm.Rejected:
		why = x.rejection(q, p)
	default:
		x.session.conn.in.queues.OddAnswer(q.stream.Queue(), "publish", r.Code)
		why = x.notTaken(q, fsm.OutOfOrder)
	}
	x.copyOver(p, fanOf(p), why)
}

// rejection finds out why a queue has refused a publish, which it does not say.
func (x *publisher) rejection(q *sessionQueue, p *stream.Pending) error {
	if t, is := p.Note.(*timing); is && t.mayConflict() {
		return x.notTaken(q, fsm.Scheduled)
	}
	if of, ok := x.node.View().QueueByID(q.stream.Queue()); ok && of.RequiresGroup() && x.groupIn(of, p.Payload) == "" {
		return x.notTaken(q, fsm.NoGroup)
	}
	return x.notTaken(q, fsm.TooLong)
}

// notTaken returns the outcome of a publish that a queue has refused: the same one each time, so that many of
// them are told at once.
func (x *publisher) notTaken(q *sessionQueue, reason fsm.NotTakenReason) error {
	if q.notTaken == nil || q.notTaken.Reason != reason {
		q.notTaken = &fsm.NotTaken{Reason: reason}
		if of, ok := x.node.View().QueueByID(q.stream.Queue()); ok {
			q.notTaken.Queue = of.Name
		}
	}
	return q.notTaken
}

// newFanout returns the record shared by the copies of a publish to several queues.
func (x *publisher) newFanout(route []*catalog.Queue) *fanout {
	same := slices.EqualFunc(x.fanned, route, func(id fsm.QueueID, q *catalog.Queue) bool { return id == q.ID })
	if !same {
		x.fanned = idsOf(route)
	}
	return &fanout{left: len(route), worst: fsm.ErrUnroutable, queues: x.fanned, chance: x.message.Chance}
}

func idsOf(queues []*catalog.Queue) []fsm.QueueID {
	ids := make([]fsm.QueueID, len(queues))
	for i, q := range queues {
		ids[i] = q.ID
	}
	return ids
}
