package session

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// registry holds the sessions of this node and the connections of its clients. Locks of sessions
// are taken before its lock, never under it.
type registry struct {
	lastSession, lastConnection atomic.Uint64 // numbers are used once
	traffic                     *traffic.Table
	owners                      *owners

	mu          sync.RWMutex
	sessions    map[uint64]*Session
	connections map[*Connection]struct{} // connections of clients that have entered
}

// session finds a session by its number; nil: there is none.
func (r *registry) session(num uint64) *Session {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.sessions[num]
}

// all lists the sessions.
func (r *registry) all() []*Session {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Collect(maps.Values(r.sessions))
}

// of lists the sessions of a connection.
func (r *registry) of(c *Connection) []*Session {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Collect(maps.Keys(c.sessions))
}

// add numbers a session and lists it under the node's current boot.
func (r *registry) add(s *Session, n *node) {
	r.mu.Lock() // the boot and the list of its sessions, see renew
	defer r.mu.Unlock()
	s.id = fsm.SessionID{Node: fsm.NodeID(n.number.Load()), Boot: n.boot.Load(), Num: r.lastSession.Add(1)}
	r.sessions[s.id.Num] = s
	if s.conn.sessions == nil {
		s.conn.sessions = map[*Session]struct{}{}
	}
	s.conn.sessions[s] = struct{}{}
}

// remove forgets a session.
func (r *registry) remove(s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sessions, s.id.Num)
	delete(s.conn.sessions, s)
}

// renew sets the node's boot and lists the sessions of former ones; changed: the boot is new.
func (r *registry) renew(n *node, boot uint64) (former []*Session, changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n.boot.Swap(boot) == boot {
		return nil, false
	}
	for _, s := range r.sessions {
		if s.id.Boot != boot {
			former = append(former, s)
		}
	}
	return former, true
}

// enter lists a connection and returns the number of listed connections.
func (r *registry) enter(c *Connection) (count int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.connections[c] = struct{}{}
	return len(r.connections)
}

// leave removes a connection.
func (r *registry) leave(c *Connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.connections, c)
}

// expel marks the connections of users and vhosts that are gone.
func (r *registry) expel(users, vhosts []string) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for c := range r.connections {
		switch {
		case slices.Contains(vhosts, c.vhost):
			c.expel(vhostIsDown(c.vhost))
		case slices.Contains(users, c.user):
			c.expel(userIsGone(c.user))
		}
	}
}

// ConsumingSessions lists the sessions of this node's clients that have consumers.
func (b *Broker) ConsumingSessions() (list []*peerpb.ConsumingSession) {
	for _, s := range b.clients.all() {
		if d := s.describe(); d != nil {
			list = append(list, d)
		}
	}
	return list
}

// CancelConsumer cancels the consumer of a queue that a client of this node has on a channel, and tells the
// client. What it holds can still be settled. It returns false if there is no such consumer.
func (b *Broker) CancelConsumer(ctx context.Context, of fsm.QueueID, connection string, channel uint32, tag string) (bool, error) {
	for _, s := range b.clients.all() {
		if at := s.origin(); at == nil || at.Connection != connection || at.Channel != channel {
			continue
		}
		if found, err := s.consumers.cancelFor(ctx, of, tag); found || err != nil {
			return found, err
		}
	}
	return false, nil
}

// Timeouts lists the last consumer timeouts in queues that this node led, and which consumers of its
// own clients were told of one, both by age.
func (b *Broker) Timeouts() *peerpb.TimeoutsReply { return b.late.last.list() }

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
