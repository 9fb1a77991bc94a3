package broker

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/peerpb"
)

// countsWait bounds how long other nodes may take to say how many clients they
// have. Those of a node that does not answer do not count.
const countsWait = 2 * time.Second

// Enter opens a vhost for a client that has logged in, if vhost and user have
// room for one more. The connection counts until it is closed.
//
// It counts before it is known whether there is room. So there are never more
// than the limit among nodes that hear each other; of two that come at once
// for the last place, both may be refused.
func (b *Broker) Enter(ctx context.Context, user, vhost string) (*Connection, error) {
	c := b.connection(user, vhost)
	b.mu.Lock()
	b.entered[c] = struct{}{}
	here := len(b.entered)
	b.mu.Unlock()
	b.tallies.enter(c)
	v := b.view()
	var err error
	if most := b.config.MaxConnections; most > 0 && here > most {
		err = fsm.Refuse(fsm.NotAllowed, fmt.Sprintf("connection refused: node connection limit (%d) is reached", most))
	} else if _, ok := v.VHost(vhost); !ok {
		err = mayOpen(v, user, vhost)
	} else {
		err = b.hasRoom(ctx, v, c)
	}
	if err == nil {
		err = mayOpen(b.view(), user, vhost)
	}
	if err != nil {
		b.leave(c)
		return nil, err
	}
	return c, nil
}

func (b *Broker) leave(c *Connection) {
	b.tallies.leave(c)
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.entered, c)
}

// hasRoom refuses a connection, which is counted, if there are too many.
func (b *Broker) hasRoom(ctx context.Context, v *catalog.View, c *Connection) error {
	ofVHost, ofUser := v.VHostQuota(c.vhost, catalog.MaxConnections), v.UserQuota(c.user, catalog.MaxConnections)
	n := b.countsFor(ctx, c, ofVHost, ofUser)
	if ofVHost.Exceeded(n(ofVHost).OfVhost) {
		return fsm.Refuse(fsm.NotAllowed, fmt.Sprintf("access to vhost '%s' refused for user '%s': connection limit (%d) is reached", c.vhost, c.user, ofVHost.Limit))
	}
	if ofUser.Exceeded(n(ofUser).OfUser) {
		return fsm.Refuse(fsm.NotAllowed, fmt.Sprintf("connection refused for user '%s': user connection limit (%d) is reached", c.user, ofUser.Limit))
	}
	return nil
}

// addChannel counts one more channel, unless the user has too many. As with
// connections, it is counted first.
func (c *Connection) addChannel() error {
	b := c.broker
	b.tallies.channel(c, 1)
	most := b.view().UserQuota(c.user, catalog.MaxChannels)
	if !most.Exceeded(b.countsFor(context.Background(), c, most)(most).Channels) {
		return nil
	}
	b.tallies.channel(c, -1)
	return fsm.Refuse(fsm.NotAllowed, fmt.Sprintf("number of channels opened for user '%s' has reached the maximum allowed user limit of %d", c.user, most.Limit))
}

// countsFor counts the clients of a connection's vhost and user for each of some
// quotas: at this node, or at all that answer. The others are asked only if one of
// the quotas needs it.
func (b *Broker) countsFor(ctx context.Context, c *Connection, quotas ...catalog.Quota) func(catalog.Quota) *peerpb.CountsReply {
	here := b.counts(&peerpb.CountsRequest{Vhost: c.vhost, User: c.user})
	whole := here
	if slices.ContainsFunc(quotas, func(q catalog.Quota) bool { return q.Whole && q.Limit >= 0 }) {
		whole = b.countAll(ctx, c)
	}
	return func(q catalog.Quota) *peerpb.CountsReply {
		if q.Whole {
			return whole
		}
		return here
	}
}

// countAll counts the clients of a connection's vhost and user at all nodes
// that answer.
func (b *Broker) countAll(ctx context.Context, c *Connection) *peerpb.CountsReply {
	ctx, cancel := context.WithTimeout(ctx, countsWait)
	defer cancel()
	req := &peerpb.CountsRequest{Vhost: c.vhost, User: c.user}
	sum := b.counts(req)
	var mu sync.Mutex
	var asked sync.WaitGroup
	for _, p := range b.mesh.Peers() {
		if !b.mesh.Alive(p.Node) {
			continue
		}
		b.inParallel(&asked, "count clients", func() {
			r, err := peer.Ask[peerpb.CountsReply](ctx, b.mesh, p.Node, kindCounts, req)
			if err != nil {
				b.slog.Warn("clients of peer not counted", "node", p.Node, "error", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			sum.OfVhost, sum.OfUser, sum.Channels = sum.OfVhost+r.OfVhost, sum.OfUser+r.OfUser, sum.Channels+r.Channels
		})
	}
	asked.Wait()
	return sum
}

// counts counts the clients of this node.
func (b *Broker) counts(m *peerpb.CountsRequest) *peerpb.CountsReply {
	user := b.tallies.of(tallied{true, m.User})
	return &peerpb.CountsReply{
		OfVhost: uint64(b.tallies.of(tallied{false, m.Vhost}).connections),
		OfUser:  uint64(user.connections), Channels: uint64(user.channels),
	}
}
