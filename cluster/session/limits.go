package session

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/peerpb"
)

// countsWait bounds how long other nodes may take to report their number of clients. Clients of a
// node that does not answer are not counted.
const countsWait = 2 * time.Second

// limits enforces the cluster-wide limits of vhosts and users on connections and channels, and the
// node's limit on connections.
//
// A connection or channel is counted before it is checked against the limit. So among nodes that
// hear each other there are never more than the limit; of two that compete for the last place, both
// may be refused.
type limits struct {
	*self.Node
	connections int // maximum number of clients at this node; 0: unlimited
	tallies     tallies
}

// addConnection counts a connection and returns an error if there are too many. here is the number
// of connections at this node, this one included.
func (l *limits) addConnection(ctx context.Context, c *Connection, here int) error {
	l.tallies.enter(c)
	v := l.View()
	if limit := l.connections; limit > 0 && here > limit {
		return fsm.Refuse(fsm.NotAllowed, fmt.Sprintf("connection refused: node connection limit (%d) is reached", limit))
	}
	if _, ok := v.VHost(c.vhost); !ok {
		return mayOpen(v, c.user, c.vhost)
	}
	return l.check(ctx, v, c)
}

// addChannel counts one more channel. It returns an error if the user has too many.
func (l *limits) addChannel(c *Connection) error {
	l.tallies.channel(c, 1)
	quota := l.View().UserQuota(c.user, catalog.MaxChannels)
	if !quota.Exceeded(l.countsFor(context.Background(), c, quota)(quota).Channels) {
		return nil
	}
	l.tallies.channel(c, -1)
	return fsm.Refuse(fsm.NotAllowed, fmt.Sprintf("number of channels opened for user '%s' has reached the maximum allowed user limit of %d", c.user, quota.Limit))
}

// check returns an error if there are too many connections. This one is already counted.
func (l *limits) check(ctx context.Context, v *catalog.View, c *Connection) error {
	ofVHost, ofUser := v.VHostQuota(c.vhost, catalog.MaxConnections), v.UserQuota(c.user, catalog.MaxConnections)
	n := l.countsFor(ctx, c, ofVHost, ofUser)
	if ofVHost.Exceeded(n(ofVHost).OfVhost) {
		return fsm.Refuse(fsm.NotAllowed, fmt.Sprintf("access to vhost '%s' refused for user '%s': connection limit (%d) is reached", c.vhost, c.user, ofVHost.Limit))
	}
	if ofUser.Exceeded(n(ofUser).OfUser) {
		return fsm.Refuse(fsm.NotAllowed, fmt.Sprintf("connection refused for user '%s': user connection limit (%d) is reached", c.user, ofUser.Limit))
	}
	return nil
}

// countsFor counts the clients of a connection's vhost and user for some quotas: at this node, or
// at all nodes that answer. The other nodes are asked only if a quota needs it.
func (l *limits) countsFor(ctx context.Context, c *Connection, quotas ...catalog.Quota) func(catalog.Quota) *peerpb.CountsReply {
	here := l.counts(&peerpb.CountsRequest{Vhost: c.vhost, User: c.user})
	whole := here
	if slices.ContainsFunc(quotas, func(q catalog.Quota) bool { return q.Whole && q.Limit >= 0 }) {
		whole = l.countAll(ctx, c)
	}
	return func(q catalog.Quota) *peerpb.CountsReply {
		if q.Whole {
			return whole
		}
		return here
	}
}

// countAll counts the clients of a connection's vhost and user at all nodes that answer.
func (l *limits) countAll(ctx context.Context, c *Connection) *peerpb.CountsReply {
	req := &peerpb.CountsRequest{Vhost: c.vhost, User: c.user}
	answers := stats.AskAll(ctx, l.Peers, stats.Question[*peerpb.CountsReply]{
		Doing: "count clients", Wait: countsWait,
		Here: func() *peerpb.CountsReply { return l.counts(req) },
		Ask: func(ctx context.Context, node string) (*peerpb.CountsReply, error) {
			return peer.Ask[peerpb.CountsReply](ctx, l.Mesh, node, self.KindCounts, req)
		},
	})
	for node, err := range answers.Failed {
		l.Logger.Warn("clients of peer not counted", "node", node, "error", err)
	}
	sum := &peerpb.CountsReply{}
	for _, r := range answers.Of {
		sum.OfVhost, sum.OfUser, sum.Channels = sum.OfVhost+r.OfVhost, sum.OfUser+r.OfUser, sum.Channels+r.Channels
	}
	return sum
}

// counts counts the clients of this node.
func (l *limits) counts(m *peerpb.CountsRequest) *peerpb.CountsReply {
	user := l.tallies.of(counted{true, m.User})
	return &peerpb.CountsReply{
		OfVhost: uint64(l.tallies.of(counted{false, m.Vhost}).connections),
		OfUser:  uint64(user.connections), Channels: uint64(user.channels),
	}
}

// tallies counts what each user and each vhost has open at this node.
//
// Invariant: connections > 0 for each listed user or vhost; a user's channels are the sum over the
// user's connections that have entered and not left.
type tallies struct {
	mu sync.Mutex
	by map[counted]*tally
}

// counted identifies a counter: the connections of a user, or to a vhost.
type counted struct {
	user bool
	name string
}

// tally is the number of a user's connections and channels, or of a vhost's connections.
type tally struct{ connections, channels int64 }

// enter counts a connection.
func (t *tallies) enter(c *Connection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.isCounted = true
	for _, of := range c.counted() {
		if t.by[of] == nil {
			t.by[of] = &tally{}
		}
		t.by[of].connections++
	}
}

// leave stops counting a connection and its remaining channels.
func (t *tallies) leave(c *Connection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !c.isCounted {
		return
	}
	c.isCounted = false
	for _, of := range c.counted() {
		one := t.by[of]
		if of.user {
			one.channels -= c.channels
		}
		if one.connections--; one.connections == 0 {
			delete(t.by, of)
		}
	}
}

// channel adds to the channels of a connection.
func (t *tallies) channel(c *Connection, more int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.channels += more
	if c.isCounted {
		t.by[counted{true, c.user}].channels += more
	}
}

// of returns the tally of a user or a vhost.
func (t *tallies) of(who counted) tally {
	t.mu.Lock()
	defer t.mu.Unlock()
	if one := t.by[who]; one != nil {
		return *one
	}
	return tally{}
}

func (c *Connection) counted() [2]counted { return [2]counted{{false, c.vhost}, {true, c.user}} }
