package broker

import (
	"fmt"
	"maps"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// What a user may do is asked when it is done, by the newest view. Two things go
// on without being asked for: connections and consumers. So these are looked at
// again whenever the catalog has changed what users may do, by Renew. What is
// registered at the same time looks again itself, once Renew would find it: a
// connection when it is open, a consumer in Consume.

// Departed is told which users and vhosts the catalog has lost. Their clients
// have to leave, also if another one of that name is there before anybody looks.
// It does not wait; Renew says so to each of them.
func (b *Broker) Departed(users, vhosts []string) {
	if len(users)+len(vhosts) == 0 {
		return
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	for c := range b.entered {
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
	b.mu.RLock()
	mine := slices.Collect(maps.Keys(c.sessions))
	b.mu.RUnlock()
	for _, s := range mine {
		s.revoke(v)
	}
	return nil
}

// revoke ends the consumers of queues that the user may not read any more.
// What they hold can still be settled.
func (s *Session) revoke(v *catalog.View) {
	s.lock()
	defer s.unlock()
	for number, c := range s.consumers {
		q, ok := v.QueueByID(c.at.stream.Queue())
		if !ok || c.over || c.revoked {
			continue
		}
		if err := v.CheckRead(s.conn.user, q); err != nil {
			c.revoked = true
			c.at.stream.Request(&logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: number}})
			s.events = append(s.events, event{kind: eventRevoked, consumer: number, err: err})
		}
	}
}

// stillReads refuses what was begun with an older view and may not be done by
// the newest one.
func (s *Session) stillReads(q *catalog.Queue) error {
	return s.broker().view().CheckRead(s.conn.user, q)
}
