package broker

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// Connection is one client's connection to one vhost.
type Connection struct {
	broker *Broker
	user   string
	vhost  string
	number uint64
	owns   atomic.Bool // an exclusive queue was declared

	// Of Broker.tallies.
	channels int64 // that are open
	counted  bool

	sessions map[*Session]struct{}              // Broker.mu guards it
	expelled atomic.Pointer[string]             // why its client has to leave; nil: it may stay
	granted  atomic.Pointer[catalog.Permission] // with which consumers were looked at last, see Renew
}

// mayOpen refuses a vhost that is not there, or not for this user.
func mayOpen(v *catalog.View, user, vhost string) error {
	if _, ok := v.VHost(vhost); !ok {
		return fsm.Refuse(fsm.NotAllowed, fmt.Sprintf("vhost %s not found", vhost))
	}
	if _, ok := v.Permission(user, vhost); !ok {
		return fsm.Refuse(fsm.NotAllowed, fmt.Sprintf("access to vhost '%s' refused for user '%s'", vhost, user))
	}
	return nil
}

// Connect opens a vhost for a user that has logged in, on behalf of something
// that is no client's connection: limits do not concern it. See Enter.
func (b *Broker) Connect(ctx context.Context, user, vhost string) (*Connection, error) {
	if err := mayOpen(b.freshView(ctx), user, vhost); err != nil {
		return nil, err
	}
	return b.connection(user, vhost), nil
}

func (b *Broker) connection(user, vhost string) *Connection {
	return &Connection{broker: b, user: user, vhost: vhost, number: b.connNumber.Add(1)}
}

// OpenSession starts the session of a channel.
func (c *Connection) OpenSession(client fsm.SessionEvents) (*Session, error) {
	b := c.broker
	self := fsm.NodeID(b.self.Load())
	if self == 0 {
		return nil, fsm.Refuse(fsm.Internal, "this node has not joined the cluster yet")
	}
	if err := c.addChannel(); err != nil {
		return nil, err
	}
	b.mu.Lock() // the boot and the list of its sessions, see Broker.Renew
	defer b.mu.Unlock()
	s := &Session{
		conn: c, client: client,
		id:        fsm.SessionID{Node: self, Boot: b.boot.Load(), Num: b.sessionNumber.Add(1)},
		queues:    map[fsm.QueueID]*sessionQueue{},
		consumers: map[uint64]*consumer{},
		publisher: publisher{message: catalog.Message{Local: b.leadsHere, Passed: b.used}},
	}
	b.sessions[s.id.Num] = s
	if c.sessions == nil {
		c.sessions = map[*Session]struct{}{}
	}
	c.sessions[s] = struct{}{}
	return s, nil
}
