package session

import (
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// A user's rights are checked by the newest view whenever they are used. Two things continue
// without further requests: connections and consumers. So Renew checks these again whenever the
// catalog has changed rights. What is being registered at the same time checks once more itself,
// once Renew would find it: a connection when it is open, a consumer in Consume.

// Departed takes the users and vhosts removed from the catalog. Their clients have to leave, even
// if the name has been created again before anybody checks. It does not wait; Renew returns an
// error to each of them.
func (b *Broker) Departed(users, vhosts []string) {
	if len(users)+len(vhosts) > 0 {
		b.clients.expel(users, vhosts)
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
