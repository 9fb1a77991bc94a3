package broker

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// located is a channel that says where its client is: the name of its
// connection, its number there, and the client's address.
type located interface {
	Where() (connection string, channel uint16, client netip.AddrPort)
}

// Connection is one client's connection to one vhost.
type Connection struct {
	broker *Broker
	user   string
	vhost  string
	number uint64
	owns   atomic.Bool // an exclusive queue was declared

	// Of the limits' tallies.
	channels  int64 // that are open
	isCounted bool

	sessions map[*Session]struct{}              // guarded by the registry
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
	return &Connection{broker: b, user: user, vhost: vhost, number: b.clients.lastConnection.Add(1)}
}

// Enter opens a vhost for a client that has logged in, if node, vhost and user may
// have one more. The connection counts until it is closed.
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
	return c, nil
}

// leave counts the connection no more.
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
	b.clients.add(s, b.node)
	return s, nil
}

// by is who the connection's requests come from.
func (c *Connection) by() catalog.Client {
	return catalog.Client{User: c.user, Owner: c.owner()}
}

func (c *Connection) owner() catalog.Owner {
	return catalog.Owner{Node: fsm.NodeID(c.broker.number.Load()), Boot: c.broker.boot.Load(), Connection: c.number}
}

// Close removes the queues that the connection owns. It counts no more.
func (c *Connection) Close(ctx context.Context) {
	c.leave()
	if !c.owns.Load() {
		return
	}
	_, err := c.broker.catalog.Propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteOwned{
		DeleteOwned: &logpb.DeleteOwned{Owner: c.owner().Proto()},
	}})
	if err != nil {
		c.broker.slog.Warn("exclusive queues are not deleted", "connection", c.number, "error", err)
	}
}
