package broker

import (
	"cmp"
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// getToken marks the consumer numbers that stand for a session's gets at one
// of its queues: the rest of the number is the lane's position.
const getToken = 1 << 63

// closeWait bounds how long closing a session waits for its queues.
const closeWait = 3 * time.Second

// Session is one channel of one client of this node.
type Session struct {
	conn   *Connection
	id     fsm.SessionID
	client fsm.SessionEvents

	mu         sync.Mutex
	lanes      map[fsm.QueueID]*lane
	order      []*lane // those whose queue is not known to be gone, by index
	lastLane   uint64  // index of the newest one
	consumers  map[uint64]*consumer
	events     []event
	spare      []event
	calling    bool
	closing    bool
	isLost     bool
	ended      bool // its boot is over: no queue takes anything from it, see end
	turn       int  // the lane that asks first for what it is behind with
	replies    replies
	strays     []stray // to be routed again before the lock is released
	refreshing bool    // strays wait for a view that is up to date

	// What the channel has been given of consumers' messages and has not
	// written, in weight. hungry: somebody is behind and waits for it to fall.
	unwritten atomic.Int64
	hungry    atomic.Bool

	// Used by the publishing goroutine only.
	message   catalog.Message // the last one
	route     []*catalog.Queue
	fanned    []fsm.QueueID // the last route that led to several queues; never changed
	allowed   string        // exchange that may be written to …
	allowedIn *catalog.View
	topics    *catalog.TopicPermission // … and with which routing keys; nil: with all
}

func (s *Session) lock() *sync.Mutex { return &s.mu }

func (s *Session) broker() *Broker { return s.conn.broker }

// lane finds or makes the stream to a queue. The lock is held.
func (s *Session) lane(q *catalog.Queue) *lane {
	if l := s.lanes[q.ID]; l != nil {
		return l
	}
	t := s.broker().target(q)
	l := newLane(s, s.id, t)
	l.consumers[0] = &consumer{lane: l}
	if l.lost = s.ended; l.lost {
		return l
	}
	if t.attach(l); l.gone {
		return l
	}
	s.lastLane++
	l.index = s.lastLane
	s.order = append(s.order, l)
	s.lanes[q.ID] = l
	return l
}

// Publish routes a message and sends it to every queue that wants it.
func (s *Session) Publish(p *fsm.Publish) (bool, error) {
	if err := s.mayRoute(p); err != nil {
		return false, err
	}
	if p.Exchange == catalog.CommandExchange {
		v := s.broker().view()
		if err := s.mayCommand(v, p); err != nil {
			return false, err
		}
		s.command(v, p)
		return true, nil
	}
	limits, err := s.routePublish(p)
	if err != nil {
		return false, err
	}
	if p.Exchange == "" {
		if suffix, ok := fsm.ReplySuffix(p.RoutingKey); ok && s.publishReply(p, suffix) {
			return true, nil
		}
	}
	if len(s.route) == 0 {
		return false, nil
	}
	s.enqueue(p, limits)
	return true, nil
}

// Check returns the error that Publish would return.
func (s *Session) Check(p *fsm.Publish) error {
	if err := s.mayRoute(p); err != nil {
		return err
	}
	_, err := s.routePublish(p)
	return err
}

// mayRoute refuses to route by a view that may be out of date. The view is
// read after that.
func (s *Session) mayRoute(p *fsm.Publish) error {
	if !p.Fresh && !s.broker().config.Catalog.Fresh() {
		return fsm.ErrNotFresh
	}
	return nil
}

// routePublish checks a message and leaves in route where it goes.
func (s *Session) routePublish(p *fsm.Publish) (limits catalog.Ceilings, err error) {
	v := s.broker().view()
	if p.Exchange == catalog.CommandExchange {
		return limits, fsm.Refuse(fsm.NotImplemented, "commands cannot be part of a transaction")
	}
	if s.allowedIn != v || s.allowed != p.Exchange {
		if err := s.mayPublish(v, p.Exchange); err != nil {
			return limits, err
		}
		s.allowed, s.allowedIn = p.Exchange, v
		s.topics = v.TopicRule(s.conn.user, s.conn.vhost, p.Exchange)
	}
	if p.WantsReply && !s.takesReplies() {
		return limits, errNoReplies
	}
	if p.TTLError != nil {
		return limits, p.TTLError
	}
	if p.HeadersError != nil {
		return limits, p.HeadersError
	}
	m := &s.message
	m.Keys = append(append(m.Keys[:0], p.RoutingKey), p.Copies...)
	if err := s.mayPublishWith(v, p); err != nil {
		return limits, err
	}
	m.Headers, m.Property, m.Chance, m.Delayed = p.Headers, p.Property, mathrand.Uint64(), p.Delay != nil
	s.route, limits, err = v.Route(s.conn.vhost, p.Exchange, m, s.route[:0])
	if err == nil && m.Delayed {
		s.route, err = s.mayDelay(v, p, m, s.route)
	}
	return limits, err
}

// enqueue sends a message to the queues in route.
func (s *Session) enqueue(p *fsm.Publish, limits catalog.Ceilings) {
	var fan *fanout
	if len(s.route) > 1 {
		fan = s.fanOf(s.route)
	}
	s.mu.Lock()
	defer s.release()
	for _, q := range s.route {
		s.sendCopy(q, p, fan, limits)
	}
}

// Settle ends deliveries.
func (s *Session) Settle(number uint64, ids []uint64, outcome fsm.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if number&getToken != 0 {
		if i, ok := s.findLane(number &^ getToken); ok {
			s.order[i].addSettle(0, ids, outcome)
		}
		return
	}
	if c := s.consumers[number]; c != nil {
		c.lane.addSettle(number, ids, outcome)
		c.unsettled -= len(ids)
		s.forgetSettled(number, c)
	}
}

// findLane returns the place of a lane in order. The lock is held.
func (s *Session) findLane(index uint64) (int, bool) {
	return slices.BinarySearchFunc(s.order, index, func(l *lane, index uint64) int { return cmp.Compare(l.index, index) })
}

// finished takes the answer to one command. The lock is held.
func (s *Session) finished(l *lane, o *op, r fsm.Result) {
	switch {
	case o.call != nil:
		if number := o.call.cancel; number != 0 {
			l.returnUnseen(number)
			s.consumerOver(number)
		}
		// Whoever waits goes on after the events that came before the answer.
		s.events = append(s.events, event{kind: eventAnswered, call: o.call, result: r})
	case o.asked != nil:
		s.commandDone(o.asked, r)
	case o.payload != nil:
		s.publishAnswered(l, o, r)
	}
}

// lost ends the session: a queue has given it up, and with it what it held.
// After SESSION_DOWN that is how the repeated command is answered.
func (s *Session) lost(l *lane) {
	l.abandon()
	if s.isLost || s.closing {
		return
	}
	s.isLost = true
	s.events = append(s.events, event{kind: eventLost, err: errLost})
}

// failed ends the session: what a lane of it holds may be half changed. The lock
// is held.
func (s *Session) failed(l *lane) {
	l.abandon()
	s.fault()
}

// end ends the session in all queues: it belongs to a boot that is over.
func (s *Session) end() {
	s.mu.Lock()
	s.ended, s.strays = true, nil
	for _, l := range s.order {
		l.strays = nil // nobody waits for them any more
		if !l.over() {
			l.abandon()
		}
		l.target.detach(l)
	}
	if !s.isLost && !s.closing {
		s.isLost = true
		s.events = append(s.events, event{kind: eventLost, err: errLost})
	}
	s.release()
}

// LostText says why sessions end with the boot of their node.
const LostText = "the cluster took this node for dead and has ended its sessions; connect again"

// errLost is what the users of a session are told that a queue has given up.
var errLost = fsm.Refuse(fsm.Forced, LostText)

// told takes a notice about a consumer.
func (s *Session) told(l *lane, n told) {
	s.mu.Lock()
	defer s.release()
	switch n.kind {
	case peerpb.Notice_TIMED_OUT:
		number := n.consumer
		if number == 0 {
			number = getToken | l.index
		}
		s.events = append(s.events, event{kind: eventTimedOut, consumer: number, ids: n.ids, limit: n.limit})
	case peerpb.Notice_CANCELLED:
		s.cancelled(l, n.consumer)
	case peerpb.Notice_GONE:
		s.queueGone(l)
	}
}

// queueGone forgets a lane whose queue is gone, and what was known by it. The
// lock is held.
func (s *Session) queueGone(l *lane) {
	for number, c := range s.consumers {
		if c.lane == l {
			s.cancelled(l, number)
			delete(s.consumers, number) // nothing can be settled any more
		}
	}
	if i, ok := s.findLane(l.index); ok && s.lanes[l.target.id] == l {
		delete(s.lanes, l.target.id)
		s.order = slices.Delete(s.order, i, i+1)
	}
	s.takeStrays(l)
}

// cancelled ends a consumer that its queue has ended, and tells the client once.
// The lock is held.
func (s *Session) cancelled(l *lane, number uint64) {
	if number == 0 || l.consumers[number] == nil {
		return
	}
	s.consumerOver(number)
	s.events = append(s.events, event{kind: eventCancelled, consumer: number})
}

// do sends a command and waits for its answer.
func (s *Session) do(ctx context.Context, q *catalog.Queue, c *logpb.Command) (*call, error) {
	t, k := s.begin(q, c)
	return k, s.broker().await(ctx, q, t, k)
}

// begin sends a command.
func (s *Session) begin(q *catalog.Queue, c *logpb.Command) (*target, *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lane(q)
	return l.target, l.addCall(c)
}

// await waits for the answer to a call, which may be a refusal. It gives up early if for longer than the grace the
// queue has no leader, or one that may still believe in itself but has lost the
// majority: the command stays in its stream.
func (b *Broker) await(ctx context.Context, q *catalog.Queue, t *target, k *call) error {
	grace := time.NewTicker(b.config.LeaderlessGrace / 5)
	defer grace.Stop()
	alone := int64(0) // since when too few members are alive; 0: enough are
	for {
		select {
		case <-k.done:
			if k.result.Code == fsm.NoSession {
				return errLost
			}
			k.refused = b.answerError(k.kind, q, k.result.Code)
			return nil
		case <-ctx.Done():
			return b.leaderless(q)
		case <-grace.C:
			leader, since, _ := t.leaderNow()
			if b.hasMajority(q) {
				alone = 0
			} else if alone == 0 {
				alone = b.now()
			}
			without := leader == ""
			if alone != 0 && (!without || alone < since) {
				without, since = true, alone
			}
			if without && b.now()-since > b.config.LeaderlessGrace.Milliseconds() {
				return b.leaderless(q)
			}
		}
	}
}

// hasMajority reports whether enough members of a queue are alive to commit.
func (b *Broker) hasMajority(q *catalog.Queue) bool {
	if q.Local {
		return true
	}
	var members []string
	for _, m := range b.view().Members(q) {
		members = append(members, b.nodeName(m))
	}
	return b.mesh.HasMajority(members)
}

func (b *Broker) leaderless(q *catalog.Queue) error {
	return fsm.Refuse(fsm.Unavailable, fmt.Sprintf("queue '%s' in vhost '%s' has no leader", q.Name, q.VHost))
}

// Close returns what the session holds and ends its consumers. Publishes whose
// queue is gone are routed again first. It does not wait for queues without a
// leader: they are told when they have one again.
func (s *Session) Close(ctx context.Context) {
	s.mu.Lock()
	if !s.closing {
		s.conn.channels.Add(-1)
	}
	s.closing = true
	calls, strays := s.endLanes()
	s.mu.Unlock()
	if len(calls) == 0 && !strays {
		s.forget()
		return
	}
	done := make(chan struct{})
	s.broker().spawn("end a session", func() {
		defer close(done)
		s.finish(calls)
	})
	limit := time.NewTimer(closeWait)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	case <-ctx.Done():
	}
}

// endLanes tells the queues that have not been told that the session ends.
// strays: some publishes wait for the end of their queue. The lock is held.
func (s *Session) endLanes() (calls []*call, strays bool) {
	for _, l := range s.order {
		strays = strays || len(l.strays) > 0
		if l.over() || l.ending || l.next == 1 {
			continue
		}
		calls = append(calls, l.addCall(&logpb.Command{Kind: logpb.Command_SESSION_DOWN}))
	}
	return calls, strays
}

// strayRetry is the pause before a session that ends looks again at publishes
// whose queues end.
const strayRetry = 50 * time.Millisecond

// finish waits until the queues know that the session has ended.
func (s *Session) finish(calls []*call) {
	stop := s.broker().stop
	for {
		for _, k := range calls {
			select {
			case <-k.done:
			case <-stop:
				return
			}
		}
		s.mu.Lock()
		var strays bool
		calls, strays = s.endLanes()
		s.mu.Unlock()
		switch {
		case len(calls) > 0:
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
	b := s.broker()
	b.mu.Lock()
	delete(b.sessions, s.id.Num)
	delete(s.conn.sessions, s)
	b.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.order {
		l.target.detach(l)
	}
}
