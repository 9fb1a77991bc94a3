package broker

import (
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// What a user may do is asked when it is done, by the newest view. Two things go
// on without being asked for: connections and consumers. So these are looked at
// again whenever the catalog has changed what users may do, by Renew. What is
// registered at the same time looks again itself, once Renew would find it: a
// connection when it is open, a consumer in Consume.

// Departed takes the users and vhosts that the catalog has lost. Their clients
// have to leave, also if another one of that name is there before anybody looks.
// It does not wait; Renew says so to each of them.
func (b *Broker) Departed(users, vhosts []string) {
	if len(users)+len(vhosts) > 0 {
		b.clients.expel(users, vhosts)
	}
}

func vhostIsDown(name string) string { return fmt.Sprintf("vhost '%s' is down", name) }
func userIsGone(name string) string  { return fmt.Sprintf("user '%s' was deleted", name) }

// expel makes Renew refuse. Only the first reason counts.
func (c *Connection) expel(reason string) { c.expelled.CompareAndSwap(nil, &reason) }

// mayStay refuses a connection that could not be opened now.
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

// Renew looks again at what the user may do: be connected to the vhost, and read
// the queues it consumes from. A permission that is the same record as last time
// needs no look at consumers.
func (c *Connection) Renew() error {
	b := c.broker
	v := b.view()
	if err := c.mayStay(v); err != nil {
		return err
	}
	p, _ := v.Permission(c.user, c.vhost)
	if c.granted.Swap(p) == p {
		return nil
	}
	for _, s := range b.clients.of(c) {
		s.revoke(v)
	}
	return nil
}
