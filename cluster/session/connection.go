package session

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// located is a channel that knows its origin: the name of its connection, its number there, and the
// client's address.
type located interface {
	Where() (connection string, channel uint16, client netip.AddrPort)
}

// cancellable is a channel that knows whether its client understands that a consumer is cancelled.
type cancellable interface{ Cancellable() bool }

// Connection is one client's connection to one vhost.
type Connection struct {
	broker *Broker
	user   string
	vhost  string
	number uint64
	// consumes says that a consumer or a get has been requested: acks may stand behind publishes in
	// the socket, so publishes do not wait for consumers. It stays.
	consumes atomic.Bool
	// audited says that whoever opened the connection audits what it is used for.
	audited bool

	// Used by the tallies of the limits.
	channels  int64 // open channels
	isCounted bool

	sessions map[*Session]struct{}              // guarded by the registry
	expelled atomic.Pointer[string]             // why the client has to leave; nil: it may stay
	granted  atomic.Pointer[catalog.Permission] // permission at the last check of the consumers, see Renew
}

// mayOpen returns an error if the vhost does not exist or the user has no access to it.
func mayOpen(v *catalog.View, user, vhost string) error {
	if _, ok := v.VHost(vhost); !ok {
		return fsm.Refuse(fsm.NotAllowed, fmt.Sprintf("vhost %s not found", vhost))
	}
	if _, ok := v.Permission(user, vhost); !ok {
		return fsm.Refuse(fsm.NotAllowed, fmt.Sprintf("access to vhost '%s' refused for user '%s'", vhost, user))
	}
	return nil
}

// Connect opens a vhost for a logged-in user on behalf of something other than a client connection,
// to which limits do not apply. See Enter.
func (b *Broker) Connect(ctx context.Context, user, vhost string) (*Connection, error) {
	if err := mayOpen(b.freshView(ctx), user, vhost); err != nil {
		return nil, err
	}
	return b.connection(user, vhost), nil
}

func (b *Broker) connection(user, vhost string) *Connection {
	return &Connection{broker: b, user: user, vhost: vhost, number: b.clients.lastConnection.Add(1)}
}

// Enter opens a vhost for a logged-in client, if the limits of node, vhost and user allow one more.
// The connection counts until it is closed.
func (b *Broker) Enter(ctx context.Context, user, vhost string) (*Connection, error) {
	c := b.connection(user, vhost)
	err := b.limits.addConnection(ctx, c, b.clients.enter(c))
	if err == nil {
		err = mayOpen(b.view(), user, vhost)
	}
	if err != nil {
		c.leave()
		return nil, err
	}
	b.clients.traffic.Count(traffic.ConnectionCreated)
	return c, nil
}

// leave stops counting the connection.
func (c *Connection) leave() {
	c.broker.limits.removeConnection(c)
	c.broker.clients.leave(c)
}

// OpenSession starts the session of a channel.
func (c *Connection) OpenSession(client fsm.SessionEvents) (*Session, error) {
	b := c.broker
	if b.number.Load() == 0 {
		return nil, fsm.Refuse(fsm.Internal, "this node has not joined the cluster yet")
	}
	if err := b.limits.addChannel(c); err != nil {
		return nil, err
	}
	s := newSession(c, client)
	s.openTraffic()
	b.clients.add(s, b.node)
	return s, nil
}

// by returns who makes the connection's requests.
func (c *Connection) by() catalog.Client {
	return catalog.Client{User: c.user, Owner: c.owner()}
}

func (c *Connection) owner() catalog.Owner {
	return catalog.Owner{Node: fsm.NodeID(c.broker.number.Load()), Boot: c.broker.boot.Load(), Connection: c.number}
}

// Close removes the queues that the connection owns, and stops counting the connection.
func (c *Connection) Close(ctx context.Context) {
	c.leave()
	c.broker.clients.traffic.Count(traffic.ConnectionClosed)
	c.broker.clients.owners.end(ctx, c)
}
