package session

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
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
	in     *Sessions
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

	sessions map[*Session]struct{}              // guarded by the lock of Sessions
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
func (x *Sessions) Connect(ctx context.Context, user, vhost string) (*Connection, error) {
	if err := mayOpen(x.node.FreshView(ctx), user, vhost); err != nil {
		return nil, err
	}
	return x.connection(user, vhost), nil
}

func (x *Sessions) connection(user, vhost string) *Connection {
	return &Connection{in: x, user: user, vhost: vhost, number: x.lastConnection.Add(1)}
}

// Enter opens a vhost for a logged-in client, if the limits of node, vhost and user allow one more.
// The connection counts until it is closed.
func (x *Sessions) Enter(ctx context.Context, user, vhost string) (*Connection, error) {
	c := x.connection(user, vhost)
	err := x.limits.addConnection(ctx, c, x.enter(c))
	if err == nil {
		err = mayOpen(x.node.View(), user, vhost)
	}
	if err != nil {
		c.leave()
		return nil, err
	}
	x.Traffic.Count(traffic.ConnectionCreated)
	return c, nil
}

// leave stops counting the connection.
func (c *Connection) leave() {
	c.in.limits.tallies.leave(c)
	c.in.leave(c)
}

// OpenSession starts the session of a channel.
func (c *Connection) OpenSession(client fsm.SessionEvents) (*Session, error) {
	x := c.in
	if x.node.Number.Load() == 0 {
		return nil, fsm.Refuse(fsm.Internal, "this node has not joined the cluster yet")
	}
	if err := x.limits.addChannel(c); err != nil {
		return nil, err
	}
	s := newSession(c, client)
	s.openTraffic()
	x.add(s)
	return s, nil
}

// by returns who makes the connection's requests.
func (c *Connection) by() catalog.Client {
	return catalog.Client{User: c.user, Owner: c.owner()}
}

func (c *Connection) owner() catalog.Owner {
	return catalog.Owner{Node: fsm.NodeID(c.in.node.Number.Load()), Boot: c.in.node.Boot.Load(), Connection: c.number}
}

// Close removes the queues that the connection owns, and stops counting the connection.
func (c *Connection) Close(ctx context.Context) {
	c.leave()
	c.in.Traffic.Count(traffic.ConnectionClosed)
	c.in.owners.end(ctx, c)
}

// A user's rights are checked by the newest view whenever they are used. Two things continue
// without further requests: connections and consumers. So Renew checks these again whenever the
// catalog has changed rights. What is being registered at the same time checks once more itself,
// once Renew would find it: a connection when it is open, a consumer in Consume.

// Departed takes the users and vhosts removed from the catalog. Their clients have to leave, even
// if the name has been created again before anybody checks. It does not wait; Renew returns an
// error to each of them.
func (x *Sessions) Departed(users, vhosts []string) {
	if len(users)+len(vhosts) == 0 {
		return
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	for c := range x.connections {
		switch {
		case slices.Contains(vhosts, c.vhost):
			c.expel(vhostIsDown(c.vhost))
		case slices.Contains(users, c.user):
			c.expel(userIsGone(c.user))
		}
	}
}

func vhostIsDown(name string) string { return fmt.Sprintf("vhost '%s' is down", name) }
func userIsGone(name string) string  { return fmt.Sprintf("user '%s' was deleted", name) }

// expel makes Renew return an error. Only the first reason counts.
func (c *Connection) expel(reason string) { c.expelled.CompareAndSwap(nil, &reason) }

// mayStay returns an error if the connection could not be opened now.
func (c *Connection) mayStay(v *catalog.View) error {
	if why := c.expelled.Load(); why != nil {
		return fsm.Refuse(fsm.Forced, *why)
	}
	if _, ok := v.VHost(c.vhost); !ok {
		return fsm.Refuse(fsm.Forced, vhostIsDown(c.vhost))
	}
	if _, ok := v.User(c.user); !ok {
		return fsm.Refuse(fsm.Forced, userIsGone(c.user))
	}
	return mayOpen(v, c.user, c.vhost)
}

// Renew checks again that the user may be connected to the vhost and may read the queues it
// consumes from. If the permission is the same record as last time, consumers need no check.
func (c *Connection) Renew() error {
	v := c.in.node.View()
	if err := c.mayStay(v); err != nil {
		return err
	}
	p, _ := v.Permission(c.user, c.vhost)
	if c.granted.Swap(p) == p {
		return nil
	}
	for _, s := range c.in.of(c) {
		s.revoke(v)
	}
	return nil
}
