package broker

import (
	"context"
	"fmt"
	mathrand "math/rand/v2"
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

	mu        sync.Mutex
	lanes     map[fsm.QueueID]*lane
	byIndex   []*lane          // nil: its queue is gone
	consumers map[uint64]*lane // by consumer number
	events    []event
	spare     []event
	calling   bool
	closing   bool
	isLost    bool
	turn      int // the lane that asks first for what it is behind with
	replies   replies

	// What the channel has been given of consumers' messages and has not
	// written, in weight. hungry: somebody is behind and waits for it to fall.
	unwritten atomic.Int64
	hungry    atomic.Bool

	// Used by the publishing goroutine only.
	message   catalog.Message // the last one
	route     []*catalog.Queue
	allowed   string // exchange that may be written to …
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
	l.consumers[0] = &consumer{}
	if t.attach(l); l.gone {
		return l
	}
	l.index = len(s.byIndex)
	s.byIndex = append(s.byIndex, l)
	s.lanes[q.ID] = l
	return l
}

// Publish routes a message and sends it to every queue that wants it.
func (s *Session) Publish(p *fsm.Publish) (bool, error) {
	if p.Exchange == catalog.CommandExchange {
		s.command(s.broker().view(), p)
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
	_, err := s.routePublish(p)
	return err
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
		err = s.mayDelay(v, p)
	}
	return limits, err
}

// enqueue sends a message to the queues in route.
func (s *Session) enqueue(p *fsm.Publish, limits catalog.Ceilings) {
	var fan *fanout
	if len(s.route) > 1 {
		fan = &fanout{left: len(s.route)}
	}
	s.mu.Lock()
	for _, q := range s.route {
		l := s.lane(q)
		switch {
		case l.gone:
			s.publishDone(p.Number, fan, true)
		case !l.lost: // else the channel is about to end, without a confirm
			l.addPublish(p, fan, limits.PlusOne(q), q.StoreOf != "")
		}
	}
	s.release()
}

// publishDone counts one queue's answer to a publish. The lock is held.
func (s *Session) publishDone(number uint64, fan *fanout, ok bool) {
	if fan != nil {
		fan.refused = fan.refused || !ok
		if fan.left--; fan.left > 0 {
			return
		}
		ok = !fan.refused
	}
	s.settledEvent(number, ok)
}

// Settle ends deliveries.
func (s *Session) Settle(number uint64, ids []uint64, outcome fsm.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if number&getToken != 0 {
		if i := int(number &^ getToken); i < len(s.byIndex) && s.byIndex[i] != nil {
			s.byIndex[i].addSettle(0, ids, outcome)
		}
		return
	}
	if l := s.consumers[number]; l != nil {
		l.addSettle(number, ids, outcome)
	}
}

// finished takes the answer to one command. The lock is held.
func (s *Session) finished(l *lane, o *op, r fsm.Result) {
	switch {
	case o.call != nil:
		if number := o.call.cancel; number != 0 {
			l.returnUnseen(number)
			delete(l.consumers, number)
		}
		// Whoever waits goes on after the events that came before the answer.
		s.events = append(s.events, event{kind: eventAnswered, call: o.call, result: r})
	case o.asked != nil:
		s.commandDone(o.asked, r)
	case o.payload != nil:
		s.publishDone(o.number, o.fan, r.Code != fsm.Rejected)
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

// errLost is what the users of a session are told that a queue has given up.
var errLost = fsm.Refuse(fsm.Internal, "the cluster took this node for dead and has ended the session")

// told takes a notice about a consumer.
func (s *Session) told(l *lane, n told) {
	s.mu.Lock()
	switch n.kind {
	case peerpb.Notice_TIMED_OUT:
		number := n.consumer
		if number == 0 {
			number = getToken | uint64(l.index)
		}
		s.events = append(s.events, event{kind: eventTimedOut, consumer: number, ids: n.ids, limit: n.limit})
	case peerpb.Notice_CANCELLED:
		s.cancelled(l, n.consumer)
	case peerpb.Notice_GONE:
		for number := range l.consumers {
			s.cancelled(l, number)
		}
		if s.lanes[l.target.id] == l {
			delete(s.lanes, l.target.id)
			s.byIndex[l.index] = nil
		}
	}
	s.release()
}

// cancelled forgets a consumer whose queue is gone and tells the client once.
func (s *Session) cancelled(l *lane, number uint64) {
	if number == 0 || l.consumers[number] == nil {
		return
	}
	delete(l.consumers, number)
	delete(s.consumers, number)
	s.events = append(s.events, event{kind: eventCancelled, consumer: number})
}

// revoke ends the consumers of queues that the user may not read any more.
// What they hold can still be settled.
func (s *Session) revoke(v *catalog.View) {
	s.mu.Lock()
	for number, l := range s.consumers {
		q, ok := v.QueueByID(l.target.id)
		if !ok || l.consumers[number] == nil || v.May(s.conn.user, s.conn.vhost, catalog.Read, q.Name) {
			continue
		}
		l.addCall(&logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: number}})
		s.events = append(s.events, event{kind: eventCancelled, consumer: number})
	}
	s.release()
}

// do sends a command and waits for its answer.
func (s *Session) do(ctx context.Context, q *catalog.Queue, c *logpb.Command) (*call, error) {
	s.mu.Lock()
	l := s.lane(q)
	k := l.addCall(c)
	s.mu.Unlock()
	return k, s.broker().await(ctx, q, l.target, k)
}

// await waits for a call. It gives up early if for longer than the grace the
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

// Close returns what the session holds and ends its consumers.
func (s *Session) Close(ctx context.Context) {
	s.mu.Lock()
	if !s.closing {
		s.conn.channels.Add(-1)
	}
	s.closing = true
	var calls []*call
	for _, l := range s.byIndex {
		if l == nil || l.over() || l.next == 1 {
			continue
		}
		calls = append(calls, l.addCall(&logpb.Command{Kind: logpb.Command_SESSION_DOWN}))
	}
	s.mu.Unlock()
	limit := time.NewTimer(closeWait)
	defer limit.Stop()
	for i, k := range calls {
		select {
		case <-k.done:
			continue
		case <-limit.C:
		case <-ctx.Done():
		}
		// Queues without a leader are told when they have one again.
		s.broker().spawn(func() { s.closeLater(calls[i:]) })
		return
	}
	s.forget()
}

func (s *Session) closeLater(calls []*call) {
	for _, k := range calls {
		select {
		case <-k.done:
		case <-s.broker().stop:
			return
		}
	}
	s.forget()
}

// forget removes the session from this node.
func (s *Session) forget() {
	b := s.broker()
	b.mu.Lock()
	delete(b.sessions, s.id.Num)
	b.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.byIndex {
		if l != nil {
			l.target.detach(l)
		}
	}
}
