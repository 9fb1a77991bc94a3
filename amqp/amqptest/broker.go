package amqptest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Broker is an amqp.Broker in memory, with the user guest (password guest) and
// the vhost /. All methods may be called at any time.
type Broker struct {
	mu        sync.Mutex
	changed   *sync.Cond // broadcast at every change of what is waited for
	exchanges map[string]*exchange
	queues    map[string]*queue
	sessions  map[*session]bool
	replies   map[string]requester
	lastID    uint64 // of queues, connections and reply names

	holdConfirms bool
	holdSettled  bool
	heldSettled  []func()
	deferred     map[string]bool // tokens
	refuse       map[string]error
	forbidden    map[string]bool
	command      func(*fsm.Publish) ([]fsm.Held, error)
	failures     map[string]error
	blocked      map[string]chan struct{}
	waiting      map[string]int
	journal      []string
	drop         bool
	published    int
}

type exchange struct {
	kind     string
	internal bool
	bindings []binding
}

type binding struct {
	to         string
	toExchange bool
	key        string
	args       *fsm.Table
}

// is reports whether a binding is that of a spec.
func (b binding) is(spec fsm.BindSpec) bool {
	return b.to == spec.Destination && b.toExchange == spec.ToExchange && b.key == spec.RoutingKey && sameTable(b.args, spec.Arguments)
}

func sameTable(a, b *fsm.Table) bool {
	return len(a.GetFields()) == 0 && len(b.GetFields()) == 0 || proto.Equal(a, b)
}

// NewBroker returns an empty broker.
func NewBroker() *Broker {
	b := &Broker{
		exchanges: map[string]*exchange{
			"":           {kind: "direct"},
			"amq.direct": {kind: "direct"},
			"amq.fanout": {kind: "fanout"},
		},
		queues:    map[string]*queue{},
		sessions:  map[*session]bool{},
		replies:   map[string]requester{},
		refuse:    map[string]error{},
		forbidden: map[string]bool{},
		failures:  map[string]error{},
		blocked:   map[string]chan struct{}{},
		waiting:   map[string]int{},
		deferred:  map[string]bool{},
	}
	b.changed = sync.NewCond(&b.mu)
	return b
}

// HoldConfirms keeps the outcome of publishes back until ReleaseConfirms.
func (b *Broker) HoldConfirms() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holdConfirms = true
}

// ReleaseConfirms tells what HoldConfirms kept back, the youngest first if
// backwards is set.
func (b *Broker) ReleaseConfirms(backwards bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holdConfirms = false
	for s := range b.sessions {
		held := s.heldConfirms
		s.heldConfirms = nil
		for i := range held {
			if backwards {
				i = len(held) - 1 - i
			}
			s.confirm(held[i].number, held[i].why)
		}
	}
}

// HoldSettled keeps back what becomes of settlements and commands until ReleaseSettled.
func (b *Broker) HoldSettled() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holdSettled = true
}

// ReleaseSettled tells what HoldSettled kept back.
func (b *Broker) ReleaseSettled() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.holdSettled = false
	for _, tell := range b.heldSettled {
		tell()
	}
	b.heldSettled = nil
}

// RefusePublishes has a queue refuse what is published to it.
func (b *Broker) RefusePublishes(queue string, refuse bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.refuse, queue)
	if refuse {
		b.refuse[queue] = &fsm.NotTaken{Queue: queue}
	}
}

// Forbid takes away the right to write to an exchange. Clients are told by Server.Renew.
func (b *Broker) Forbid(exchange string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forbidden[exchange] = true
}

// OnCommand has f execute what is published to the command exchange. It returns what the command has taken and not
// settled, and its outcome.
func (b *Broker) OnCommand(f func(*fsm.Publish) (kept []fsm.Held, why error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.command = f
}

// DropPublishes has the broker accept publishes and forget them at once. It
// does as little for one as it can.
func (b *Broker) DropPublishes() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop = true
}

// Fail has the next call of a method of a session or of the broker fail. The
// method is named as in Go.
func (b *Broker) Fail(method string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures[method] = err
}

// Block has calls of a method wait until Unblock.
func (b *Broker) Block(method string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.blocked[method] = make(chan struct{})
}

// Unblock ends Block.
func (b *Broker) Unblock(method string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.blocked[method]; c != nil {
		close(c)
		delete(b.blocked, method)
	}
}

// AwaitBlocked waits until a call of a blocked method waits.
func (b *Broker) AwaitBlocked(method string) {
	b.await(func() bool { return b.waiting[method] > 0 })
}

// AwaitSessions waits until that many sessions are open.
func (b *Broker) AwaitSessions(n int) {
	b.await(func() bool { return len(b.sessions) == n })
}

// AwaitQueues waits until there are that many queues.
func (b *Broker) AwaitQueues(n int) {
	b.await(func() bool { return len(b.queues) == n })
}

// AwaitPublished waits until that many publishes have come.
func (b *Broker) AwaitPublished(n int) {
	b.await(func() bool { return b.published >= n })
}

// Published is how many publishes have come.
func (b *Broker) Published() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.published
}

// Quiesce waits until every event has been handed to its channel.
func (b *Broker) Quiesce() {
	b.await(func() bool {
		for s := range b.sessions {
			if len(s.events) > 0 || s.calling {
				return false
			}
		}
		return true
	})
}

func (b *Broker) await(ready func() bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !ready() {
		b.changed.Wait()
	}
}

// TimeOut returns everything that is held of a queue, as a consumer timeout of
// this length does.
func (b *Broker) TimeOut(name string, limit fsm.Millis) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[name]
	for s := range b.sessions {
		for _, token := range sortedTokens(s.held) {
			h := s.held[token]
			if h.queue != q || len(h.messages) == 0 {
				continue
			}
			ids := h.ids()
			suspend := false
			if c := s.consumers[token]; c != nil {
				c.suspended, suspend = true, c.suspends()
			}
			for _, id := range ids {
				m := h.messages[id]
				delete(h.messages, id)
				m.acquired++
				q.ready = append(q.ready, m)
			}
			s.event(func(e fsm.SessionEvents) { e.TimedOut(token, ids, limit, suspend) })
		}
	}
	q.dispatch()
}

// TakeBack takes deliveries back that are held of a queue, and tells nobody.
func (b *Broker) TakeBack(name string, taken ...uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.sessions {
		for _, h := range s.held {
			for _, id := range taken {
				if m := h.messages[id]; h.queue == b.queues[name] && m != nil {
					delete(h.messages, id)
					h.queue.ready = append(h.queue.ready, m)
				}
			}
		}
	}
}

// Unlock ends the locks of deliveries that are held of a queue: they go back, and who held them is told.
func (b *Broker) Unlock(name string, ids ...uint64) {
	b.TakeBack(name, ids...)
	b.Tell(name, &fsm.News{Kind: fsm.LocksLost, Deliveries: ids})
}

// Tell tells the consumers of a queue news.
func (b *Broker) Tell(name string, news *fsm.News) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.queues[name].consumers {
		number := c.spec.Number
		c.session.event(func(e fsm.SessionEvents) { e.News(number, news) })
	}
}

// Lose gives up every session.
func (b *Broker) Lose(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.sessions {
		s.event(func(e fsm.SessionEvents) { e.Lost(err) })
	}
}

// Inject puts a message with a past into a queue, which is made if need be.
func (b *Broker) Inject(name string, m fsm.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queue(name)
	q.ready = append(q.ready, &message{payload: m.Payload, acquired: m.Acquired, failed: m.Failed, classic: m.Classic, deaths: m.Deaths, delivery: m})
	q.dispatch()
}

// Journal returns and forgets what has happened that no client sees: settled
// deliveries and closed sessions and connections.
func (b *Broker) Journal() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	j := b.journal
	b.journal = nil
	return j
}

func (b *Broker) journalf(format string, args ...any) {
	b.journal = append(b.journal, fmt.Sprintf(format, args...))
	b.changed.Broadcast()
}

// String renders queues and exchanges, sorted.
func (b *Broker) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []string
	for name, q := range b.queues {
		held := 0
		for s := range b.sessions {
			for _, h := range s.held {
				if h.queue == q {
					held += len(h.messages)
				}
			}
		}
		out = append(out, fmt.Sprintf("queue %s ready=%d held=%d consumers=%d", name, len(q.ready), held, len(q.consumers)))
	}
	sort.Strings(out)
	return strings.Join(out, "\n")
}

// Login accepts guest with the password guest.
func (b *Broker) Login(_ context.Context, user, password string, _ netip.Addr) error {
	if err := b.failure("Login"); err != nil {
		return err
	}
	if user != "guest" || password != "guest" {
		return errors.New("no such user, or another password")
	}
	return nil
}

// LoginKnown accepts guest.
func (b *Broker) LoginKnown(ctx context.Context, user string, remote netip.Addr) error {
	return b.Login(ctx, user, "guest", remote)
}

// LoginByKey accepts whoever has the key.
func (b *Broker) LoginByKey(_ context.Context, _ string, _ netip.Addr, same func() bool) error {
	if err := b.failure("Login"); err != nil {
		return err
	}
	if !same() {
		return errors.New("login was refused")
	}
	return nil
}

// Connect accepts the vhost /.
func (b *Broker) Connect(_ context.Context, _, vhost string) (amqp.Connection, error) {
	if err := b.failure("Connect"); err != nil {
		return nil, err
	}
	if vhost != "/" {
		return nil, fsm.Refuse(fsm.NoVHost, "vhost "+vhost+" not found")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lastID++
	return &connection{broker: b, id: b.lastID}, nil
}

// ClusterName is test.
func (b *Broker) ClusterName() string { return "test" }

// failure returns what Fail has ordered for a method.
func (b *Broker) failure(method string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.failures[method]
	delete(b.failures, method)
	return err
}

// enter begins a blocking call: it waits and fails as ordered.
func (b *Broker) enter(ctx context.Context, method string) error {
	b.mu.Lock()
	gate := b.blocked[method]
	if gate != nil {
		b.waiting[method]++
		b.changed.Broadcast()
	}
	b.mu.Unlock()
	if gate != nil {
		var err error
		select {
		case <-gate:
		case <-ctx.Done():
			err = ctx.Err()
		}
		b.mu.Lock()
		b.waiting[method]--
		b.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return b.failure(method)
}

type connection struct {
	broker *Broker
	id     uint64
}

// OpenSession starts the goroutine that calls events.
func (c *connection) OpenSession(events fsm.SessionEvents) (amqp.Session, error) {
	b := c.broker
	if err := b.failure("OpenSession"); err != nil {
		return nil, err
	}
	s := &session{
		broker: b, connection: c, out: events, ended: make(chan struct{}),
		consumers: map[uint64]*consumer{}, held: map[uint64]*holding{},
	}
	b.mu.Lock()
	b.sessions[s] = true
	b.changed.Broadcast()
	b.mu.Unlock()
	go s.run()
	return s, nil
}

// Renew refuses if that was ordered.
func (c *connection) Renew() error { return c.broker.failure("Renew") }

// Close deletes the exclusive queues.
func (c *connection) Close(context.Context) {
	b := c.broker
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range sortedNames(b.queues) {
		if b.queues[name].owner == c {
			b.deleteQueue(name)
		}
	}
	b.journalf("connection closed")
}

func sortedNames(m map[string]*queue) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// Death returns one entry of a death history.
func Death(reason logpb.Death_Reason, queue string, count uint64, time fsm.Time, exchange string, keys ...string) *logpb.Death {
	return &logpb.Death{
		Reason: reason, Queue: queue, Count: count, Time: int64(time), Exchange: exchange, RoutingKeys: keys,
	}
}

// requester is a consumer of replies.
type requester struct {
	session  *session
	consumer uint64
}

type queue struct {
	name      string
	token     uint64 // of gets
	owner     *connection
	spec      fsm.QueueSpec // of its declare
	ready     []*message
	consumers []*consumer
	browsers  []*consumer
	last      uint64 // number given to a message
}

type message struct {
	payload  fsm.Payload
	number   uint64 // 0: the queue has just got it
	acquired uint32
	classic  bool // as of a classic queue
	failed   uint32
	deaths   []*logpb.Death
	delivery fsm.Message // what else its deliveries say
}

type consumer struct {
	session   *session
	queue     *queue
	spec      fsm.ConsumeSpec
	suspended bool
	count     uint32 // with credit: of its messages and of what drains have used up
	left      uint32
	shown     uint64 // to a browser: messages up to this number
}

// suspends reports whether a timeout only suspends the consumer.
func (c *consumer) suspends() bool {
	for _, f := range c.spec.Arguments.GetFields() {
		if f.GetName() == "x-consumer-timeout-action" {
			return string(f.GetValue().GetStr()) == "suspend"
		}
	}
	return false
}

// holding is what one consumer, or the gets of one queue, have in hand.
type holding struct {
	queue    *queue
	last     uint64
	messages map[uint64]*message
}

func (h *holding) ids() []uint64 {
	ids := make([]uint64, 0, len(h.messages))
	for id := range h.messages {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func sortedTokens(held map[uint64]*holding) []uint64 {
	tokens := make([]uint64, 0, len(held))
	for t := range held {
		tokens = append(tokens, t)
	}
	slices.Sort(tokens)
	return tokens
}

// queue finds or makes a queue. The broker is locked, here and below.
func (b *Broker) queue(name string) *queue {
	q := b.queues[name]
	if q == nil {
		b.lastID++
		q = &queue{name: name, token: 1<<63 | b.lastID}
		b.queues[name] = q
		b.changed.Broadcast()
	}
	return q
}

// dispatch hands ready messages to consumers, in turn, and shows the others.
func (q *queue) dispatch() {
	defer q.show()
	for len(q.ready) > 0 {
		at := slices.IndexFunc(q.consumers, (*consumer).hasCredit)
		if at < 0 {
			return
		}
		c := q.consumers[at]
		q.consumers = append(slices.Delete(q.consumers, at, at+1), c)
		m := q.ready[0]
		q.ready = q.ready[1:]
		s := c.session
		if c.spec.Credit {
			c.count++
			c.left--
		}
		out := s.hold(c.spec.Number, q, m)
		s.deliver(out)
	}
}

// Selectors lists those of the consumers of a queue.
func (b *Broker) Selectors(queue string) (all []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.queues[queue].consumers {
		all = append(all, c.spec.Selector)
	}
	return all
}

// show shows ready messages to browsers.
func (q *queue) show() {
	for _, m := range q.ready {
		if m.number == 0 {
			q.last++
			m.number = q.last
		}
	}
	for _, c := range q.browsers {
		for _, m := range q.ready {
			if m.number > c.shown && c.left > 0 {
				c.shown = m.number
				c.count++
				c.left--
				c.session.deliver(fsm.Message{Consumer: c.spec.Number, ID: m.number, Payload: m.payload, Acquired: m.acquired, Failed: m.failed, Deaths: m.deaths})
			}
		}
	}
}

// hasCredit reports whether the consumer may have one more message.
func (c *consumer) hasCredit() bool {
	limit := int(c.spec.Prefetch)
	if limit == 0 {
		limit = 2000
	}
	if c.spec.Credit {
		return !c.suspended && c.left > 0
	}
	h := c.session.held[c.spec.Number]
	return !c.suspended && (h == nil || len(h.messages) < limit) && (c.spec.NoAck || !c.session.full())
}

func (b *Broker) deleteQueue(name string) {
	q := b.queues[name]
	delete(b.queues, name)
	b.changed.Broadcast()
	for _, c := range slices.Concat(q.consumers, q.browsers) {
		delete(c.session.consumers, c.spec.Number)
		number := c.spec.Number
		c.session.event(func(e fsm.SessionEvents) { e.Cancelled(number) })
	}
	for s := range b.sessions {
		if s.watched[q] {
			s.event(func(e fsm.SessionEvents) { e.Gone(fsm.QueueID(q.token &^ (1 << 63))) })
		}
		for token, h := range s.held {
			if h.queue == q {
				delete(s.held, token)
			}
		}
	}
	for _, x := range b.exchanges {
		x.bindings = slices.DeleteFunc(x.bindings, func(b binding) bool { return !b.toExchange && b.to == name })
	}
}

// route returns the queues a message goes to.
func (b *Broker) route(x *exchange, exchangeName, key string) []*queue {
	var out []*queue
	if exchangeName == "" {
		if q := b.queues[key]; q != nil {
			out = append(out, q)
		}
		return out
	}
	for _, bound := range x.bindings {
		if q := b.queues[bound.to]; !bound.toExchange && (x.kind == "fanout" || bound.key == key) && !slices.Contains(out, q) {
			out = append(out, q)
		}
	}
	return out
}
