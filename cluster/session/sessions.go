// Package session is what clients ask for: it opens their sessions, changes definitions, routes what
// they publish by the catalog's view, keeps their consumers, and executes their commands.
//
// It promises: a confirm is given only after the commands it stands for were applied; a session is
// notified by one call at a time, in order; a publish whose queue is gone is routed again. That
// commands and deliveries arrive once and in order is ensured by cluster/stream; what happens at the
// leaders of queues is cluster/queues. It knows neither AMQP frames nor raft.
package session

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/deadletter"
	"github.com/quorate/quorate/cluster/expiry"
	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/peerpb"
)

// Properties reads what sessions need to know of stored messages.
type Properties interface {
	deadletter.Properties
	// Describe returns all properties of a message, by name, as a delivery of it shows them.
	Describe(m *fsm.Message) *fsm.Table
	// Body returns the body of a message, as Describe shows its properties. It may be a part of the payload.
	Body(p fsm.Payload) []byte
	// Time reads the instant that a header holds. ok is false if there is none, or no such header.
	Time(p fsm.Payload, header string) (at fsm.Time, ok bool)
	// Check reports what is wrong with a payload that no protocol has checked.
	Check(p fsm.Payload) error
	// Encode encodes properties of the names and types that Describe gives. The error is a
	// *fsm.Refusal.
	Encode(properties *fsm.Table) ([]byte, error)
	// Publish makes a publish for a user of properties and a body that did not
	// come over AMQP. The error is a *fsm.Refusal.
	Publish(user, exchange, key string, properties *fsm.Table, body []byte) (*fsm.Publish, error)
	// Answer returns the properties of an answer in JSON to a request with this correlation id; nil:
	// it has none.
	Answer(correlationID []byte) []byte
	// Reason returns the reply code and text with which a refused command is returned; nil: there is
	// no such command.
	Reason(why *fsm.Refusal) (code uint16, text string)
}

// Config is what Sessions need.
type Config struct {
	Node        *self.Node
	Queues      *queues.Queues
	Uses        *expiry.Uses
	ClusterName string
	Properties  Properties
	Audit       *audit.Log // nil: nothing is audited
	Defaults    catalog.Defaults
	// LoopbackUsers may log in from loopback addresses only.
	LoopbackUsers []string
	// Logins configures what logins with passwords may cost.
	Logins login.Config
	// MaxConnections is the maximum number of clients connected to the node; 0: unlimited.
	MaxConnections int
}

// Sessions are the sessions of this node and the connections of its clients. Locks of sessions are
// taken before its lock, never under it.
type Sessions struct {
	*Authenticator
	// Traffic is what sessions have counted, up to the last CollectTraffic.
	Traffic *traffic.Table
	// Drifts are declares of what exists with other arguments.
	Drifts *Drifts

	config  Config
	node    *self.Node
	queues  *queues.Queues
	limits  limits
	answers answers
	replies replyRouter
	owners  *owners
	// browsing are who looks into queues and takes nothing.
	browsing *browsing

	lastSession, lastConnection atomic.Uint64 // numbers are used once

	mu          sync.RWMutex
	sessions    map[uint64]*Session
	connections map[*Connection]struct{} // connections of clients that have entered
}

// New returns what has no sessions yet.
func New(c Config) *Sessions {
	n := c.Node
	x := &Sessions{
		Authenticator: &Authenticator{node: n, gate: login.New(c.Logins), loopback: c.LoopbackUsers, audit: c.Audit},
		Traffic:       traffic.NewTable(), config: c, node: n, queues: c.Queues, owners: newOwners(n, c.Queues), Drifts: &Drifts{node: n, rows: map[drifted]*peerpb.Drift{}},
		browsing: newBrowsing(n, c.Queues.Inspector),
		limits:   limits{Node: n, connections: c.MaxConnections, tallies: tallies{by: map[counted]*tally{}}},
		answers:  answers{node: n, queues: c.Queues},
		sessions: map[uint64]*Session{}, connections: map[*Connection]struct{}{},
	}
	x.replies = replyRouter{Node: n, clients: x}
	return x
}

// Listen registers the handlers. It is called before the mesh starts.
func (x *Sessions) Listen() {
	x.replies.listen()
	peer.HandleAsk(x.node.Mesh, self.KindCounts, x.limits.counts)
}

// Close ends what sessions have left to be done. They must have been closed.
func (x *Sessions) Close() {
	x.owners.ended.Stop()
	x.browsing.rounds.Stop()
}

// Renew takes over the boot number of the node's new registration, which it made because the former
// boot was declared dead. All sessions of the former boot end: the queues no longer know them, or are
// about to learn. Connections are not closed here.
func (x *Sessions) Renew(boot uint64) {
	former, changed := x.renew(boot)
	if !changed {
		return
	}
	x.queues.Restart()
	for _, s := range former {
		s.abandon()
	}
}

// ClusterName is announced to clients.
func (x *Sessions) ClusterName() string { return x.config.ClusterName }

// RefusedCommands counts the commands of clients that did not take effect.
func (x *Sessions) RefusedCommands() uint64 { return x.answers.commands.Load() }

// QueueAdded is called when the catalog holds a new queue.
func (x *Sessions) QueueAdded(q *catalog.Queue) { x.owners.queueAdded(q) }

// QueueGone is called when a queue is gone from the catalog.
func (x *Sessions) QueueGone(id fsm.QueueID) { x.browsing.rounds.Add(id) }

// DropMissing forgets the queues that the catalog no longer holds.
func (x *Sessions) DropMissing() { x.browsing.all() }

// CollectTraffic adds what all sessions have counted.
func (x *Sessions) CollectTraffic() {
	for _, s := range x.all() {
		s.addTraffic()
	}
}

// session finds a session by its number; nil: there is none.
func (x *Sessions) session(num uint64) *Session {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.sessions[num]
}

// all lists the sessions.
func (x *Sessions) all() []*Session {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.Collect(maps.Values(x.sessions))
}

// of lists the sessions of a connection.
func (x *Sessions) of(c *Connection) []*Session {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.Collect(maps.Keys(c.sessions))
}

// add numbers a session and lists it under the node's current boot.
func (x *Sessions) add(s *Session) {
	x.mu.Lock() // the boot and the list of its sessions, see renew
	defer x.mu.Unlock()
	s.id = fsm.SessionID{Node: fsm.NodeID(x.node.Number.Load()), Boot: x.node.Boot.Load(), Num: x.lastSession.Add(1)}
	x.sessions[s.id.Num] = s
	if s.conn.sessions == nil {
		s.conn.sessions = map[*Session]struct{}{}
	}
	s.conn.sessions[s] = struct{}{}
}

// remove forgets a session.
func (x *Sessions) remove(s *Session) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.sessions, s.id.Num)
	delete(s.conn.sessions, s)
}

// renew sets the node's boot and lists the sessions of former ones; changed: the boot is new.
func (x *Sessions) renew(boot uint64) (former []*Session, changed bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.node.Boot.Swap(boot) == boot {
		return nil, false
	}
	for _, s := range x.sessions {
		if s.id.Boot != boot {
			former = append(former, s)
		}
	}
	return former, true
}

// enter lists a connection and returns the number of listed connections.
func (x *Sessions) enter(c *Connection) (count int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.connections[c] = struct{}{}
	return len(x.connections)
}

// leave removes a connection.
func (x *Sessions) leave(c *Connection) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.connections, c)
}

// ConsumingSessions lists the sessions of this node's clients that have consumers.
func (x *Sessions) ConsumingSessions() (list []*peerpb.ConsumingSession) {
	for _, s := range x.all() {
		if d := s.describe(); d != nil {
			list = append(list, d)
		}
	}
	return list
}

// CancelConsumer cancels the consumer of a queue that a client of this node has on a channel, and tells the
// client. What it holds can still be settled. It returns false if there is no such consumer.
func (x *Sessions) CancelConsumer(ctx context.Context, of fsm.QueueID, connection string, channel uint32, tag string) (bool, error) {
	for _, s := range x.all() {
		if at := s.origin(); at == nil || at.Connection != connection || at.Channel != channel {
			continue
		}
		if found, err := s.consumers.cancelFor(ctx, of, tag); found || err != nil {
			return found, err
		}
	}
	return false, nil
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
	name, _, channel, client := at.Where()
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

// openTraffic opens the session's record in the table.
func (s *Session) openTraffic() {
	origin := s.origin
	if _, ok := s.client.(located); !ok {
		origin = nil
	}
	s.traffic = s.conn.in.Traffic.Open(s.conn.vhost, traffic.ProtocolOf(s.conn.protocol), origin)
}

// releases reports whether what no queue has is released to its publisher, instead of confirmed.
func (s *Session) releases() bool { return traffic.ProtocolOf(s.conn.protocol) == traffic.AMQP10 }

// addTraffic adds what the session has counted to the table.
func (s *Session) addTraffic() {
	s.mu.Lock()
	for _, q := range s.order {
		s.tally.TakeQueue(q.of, &q.counts, &q.routes)
	}
	t := s.tally.Take()
	s.mu.Unlock()
	s.conn.in.Traffic.Add(s.traffic, &t)
}

// closeTraffic adds what is left and ends the session's record.
func (s *Session) closeTraffic() {
	s.addTraffic()
	s.conn.in.Traffic.Close(s.traffic)
}

// countDelivered counts messages for consumers. The lock is held.
func (q *sessionQueue) countDelivered(messages []fsm.Message) {
	var of *consumer
	number := uint64(0)
	for i := range messages {
		m := &messages[i]
		if of == nil || m.Consumer != number {
			of, number = q.session.known[m.Consumer], m.Consumer
		}
		what := traffic.Deliver
		if of != nil && of.NoAck {
			what = traffic.DeliverNoAck
		}
		q.counts[what]++
		if m.Acquired > 0 {
			q.counts[traffic.Redeliver]++
		}
	}
}

// countGet counts a get from a queue. m nil: it found nothing.
func (x *consumers) countGet(id fsm.QueueID, m *fsm.Message, noAck bool) {
	x.session.mu.Lock()
	defer x.session.mu.Unlock()
	q := x.session.streams.queues[id]
	if q == nil {
		return // the queue is gone, and so are its counts
	}
	switch {
	case m == nil:
		q.counts[traffic.GetEmpty]++
		return
	case noAck:
		q.counts[traffic.GetNoAck]++
	default:
		q.counts[traffic.Get]++
	}
	if m.Acquired > 0 {
		q.counts[traffic.Redeliver]++
	}
}

// countSettled counts what a client has settled. The lock is held.
func (q *sessionQueue) countSettled(count int, outcome fsm.Outcome) {
	if outcome == fsm.Ack {
		q.counts[traffic.Ack] += uint64(count)
	}
}
