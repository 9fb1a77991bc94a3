package broker

import (
	"cmp"
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// getToken marks the consumer numbers that stand for a session's gets at one
// of its queues: the rest of the number is that queue's index.
const getToken = 1 << 63

// closeWait bounds how long closing a session waits for its queues.
const closeWait = 3 * time.Second

// Session is one channel of one client of this node.
type Session struct {
	conn   *Connection
	id     fsm.SessionID
	client fsm.SessionEvents

	mu        sync.Mutex
	queues    map[fsm.QueueID]*sessionQueue
	order     []*sessionQueue // those that are not known to be gone, by index
	lastIndex uint64          // of the newest one
	consumers map[uint64]*consumer
	eventQueue
	closing    bool
	isLost     bool
	ended      bool // its boot is over: no queue takes anything from it, see end
	turn       int  // the queue that is asked first for what it is behind with
	replies    replies
	strays     []stray // to be routed again before the lock is released
	refreshing bool    // strays wait for a view that is up to date

	window
	publisher // used by the publishing goroutine only
}

// publisher is what a session keeps from one publish to the next.
type publisher struct {
	message   catalog.Message // the last one
	route     []*catalog.Queue
	fanned    []fsm.QueueID // the last route that led to several queues; never changed
	allowed   string        // exchange that may be written to …
	allowedIn *catalog.View
	topics    *catalog.TopicPermission // … and with which routing keys; nil: with all
}

func (s *Session) broker() *Broker { return s.conn.broker }

// queue finds or makes what the session knows of a queue, and its stream there.
// The lock is held.
func (s *Session) queue(q *catalog.Queue) *sessionQueue {
	if u := s.queues[q.ID]; u != nil {
		return u
	}
	r := s.broker().routes.Route(q)
	u := &sessionQueue{session: s}
	u.stream = stream.New(u, u, s.id, r)
	if s.ended {
		u.stream.Abandon()
		return u
	}
	if r.Attach(u.stream); u.stream.Gone() {
		return u
	}
	s.lastIndex++
	u.index = s.lastIndex
	s.order = append(s.order, u)
	s.queues[q.ID] = u
	return u
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
		fan = s.newFanout(s.route)
	}
	s.lock()
	defer s.unlock()
	for _, q := range s.route {
		s.sendCopy(q, p, fan, limits)
	}
}

// Settle ends deliveries.
func (s *Session) Settle(number uint64, ids []uint64, outcome fsm.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if number&getToken != 0 {
		if i, ok := s.findQueue(number &^ getToken); ok {
			s.order[i].stream.AddSettle(0, ids, outcome)
		}
		return
	}
	if c := s.consumers[number]; c != nil {
		c.at.stream.AddSettle(number, ids, outcome)
		c.Unsettled -= len(ids)
		s.forgetSettled(number, c)
	}
}

// findQueue returns the place of a queue in order. The lock is held.
func (s *Session) findQueue(index uint64) (int, bool) {
	return slices.BinarySearchFunc(s.order, index, func(q *sessionQueue, index uint64) int { return cmp.Compare(q.index, index) })
}

// lose tells the client, once, that the session is over. The lock is held.
func (s *Session) lose(why error) {
	if s.isLost || s.closing {
		return
	}
	s.isLost = true
	s.events = append(s.events, event{kind: eventLost, err: why})
}

// end ends the session in all queues: it belongs to a boot that is over.
func (s *Session) end() {
	s.lock()
	defer s.unlock()
	s.ended, s.strays = true, nil
	for _, q := range s.order {
		q.strays = nil // nobody waits for them any more
		if !q.stream.Over() {
			q.stream.Abandon()
		}
		q.stream.Route().Detach(q.stream)
	}
	s.lose(errLost)
}

// LostText says why sessions end with the boot of their node.
const LostText = "the cluster took this node for dead and has ended its sessions; connect again"

// errLost is what the users of a session are told that a queue has given up.
var errLost = fsm.Refuse(fsm.Forced, LostText)

// queueGone forgets a queue that is gone, and what was known by it. The lock is
// held.
func (s *Session) queueGone(q *sessionQueue) {
	for number, c := range s.consumers {
		if c.at == q {
			s.cancelled(q, number)
			delete(s.consumers, number) // nothing can be settled any more
		}
	}
	if i, ok := s.findQueue(q.index); ok && s.queues[q.stream.Queue()] == q {
		delete(s.queues, q.stream.Queue())
		s.order = slices.Delete(s.order, i, i+1)
	}
	s.takeStrays(q)
}

// cancelled ends a consumer that its queue has ended, and tells the client once.
// The lock is held.
func (s *Session) cancelled(q *sessionQueue, number uint64) {
	if c := s.consumers[number]; c == nil || c.at != q || c.over {
		return
	}
	s.consumerOver(number)
	s.events = append(s.events, event{kind: eventCancelled, consumer: number})
}

// do sends a command and waits for its answer.
func (s *Session) do(ctx context.Context, q *catalog.Queue, c *logpb.Command) (*stream.Call, error) {
	r, k := s.begin(q, c)
	return k, s.broker().await(ctx, q, r, k)
}

// begin sends a command.
func (s *Session) begin(q *catalog.Queue, c *logpb.Command) (*stream.Route, *stream.Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to := s.queue(q).stream
	return to.Route(), to.Request(c)
}

// await waits for the answer to a call, which may be a refusal. It gives up early
// if for longer than the grace the queue has no leader, or one that may still
// believe in itself but has lost the majority: the command stays in its stream.
func (b *Broker) await(ctx context.Context, q *catalog.Queue, to *stream.Route, k *stream.Call) error {
	grace := time.NewTicker(b.config.LeaderlessGrace / 5)
	defer grace.Stop()
	alone := int64(0) // since when too few members are alive; 0: enough are
	for {
		select {
		case <-k.Done():
			if k.Result.Code == fsm.NoSession {
				return errLost
			}
			k.Refused = b.answerError(k.Kind, q, k.Result.Code)
			return nil
		case <-ctx.Done():
			return b.leaderless(q)
		case <-grace.C:
			leader, since, _ := to.Leader()
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
		s.conn.broker.tallies.channel(s.conn, -1)
	}
	s.closing = true
	calls, strays := s.endStreams()
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

// endStreams tells the queues that have not been told that the session ends.
// strays: some publishes wait for the end of their queue. The lock is held.
func (s *Session) endStreams() (calls []*stream.Call, strays bool) {
	for _, q := range s.order {
		strays = strays || len(q.strays) > 0
		if to := q.stream; to.Over() || to.Ending() || to.Next() == 1 {
			continue
		}
		calls = append(calls, q.stream.Request(&logpb.Command{Kind: logpb.Command_SESSION_DOWN}))
	}
	return calls, strays
}

// strayRetry is the pause before a session that ends looks again at publishes
// whose queues end.
const strayRetry = 50 * time.Millisecond

// finish waits until the queues know that the session has ended.
func (s *Session) finish(calls []*stream.Call) {
	stop := s.broker().stop
	for {
		for _, k := range calls {
			select {
			case <-k.Done():
			case <-stop:
				return
			}
		}
		s.mu.Lock()
		var strays bool
		calls, strays = s.endStreams()
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
	for _, q := range s.order {
		q.stream.Route().Detach(q.stream)
	}
}
