package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// located is a channel that knows its origin: the name of its connection, what the client calls that, its number
// there, and the client's address.
type located interface {
	Where() (connection, given string, channel uint16, client netip.AddrPort)
}

// cancellable is a channel that knows whether its client understands that a consumer is cancelled.
type cancellable interface{ Cancellable() bool }

// Connection is one client's connection to one vhost.
type Connection struct {
	in     *Sessions
	user   string
	vhost  string
	number uint64
	// protocol is that of audit.Origin.
	protocol string
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
		return fsm.Refuse(fsm.NoVHost, fmt.Sprintf("vhost %s not found", vhost))
	}
	if _, ok := v.Permission(user, vhost); !ok {
		return fsm.Refuse(fsm.NoAccess, fmt.Sprintf("access to vhost '%s' refused for user '%s'", vhost, user))
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
	return &Connection{in: x, user: user, vhost: vhost, number: x.lastConnection.Add(1), protocol: "amqp"}
}

// Enter opens a vhost for a logged-in client, whose protocol audit.From knows, if the limits of node, vhost and user allow one more.
// The connection counts until it is closed.
func (x *Sessions) Enter(ctx context.Context, user, vhost string) (*Connection, error) {
	c := x.connection(user, vhost)
	c.protocol = cmp.Or(audit.From(ctx).Protocol, c.protocol)
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
	if _, ok := v.User(c.user); !ok && c.user != catalog.Broker {
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

// ownersAgain is when the exclusive queues of a connection that has ended are deleted again if that has failed,
// and how long an attempt may take.
const (
	ownersAgain = time.Second
	ownersWait  = 10 * time.Second
)

// owners are the connections of this node that may have exclusive queues. Once one has ended its queues are
// deleted, whatever comes between: a catalog without a leader, or a declaration that takes effect later. What
// a former boot of the node owned is the catalog's business.
type owners struct {
	*self.Node
	queues *queues.Queues
	ended  *worker.Queue[catalog.Owner]

	mu   sync.Mutex
	open map[uint64]struct{} // by number
}

func newOwners(n *self.Node, q *queues.Queues) *owners {
	o := &owners{Node: n, queues: q, open: map[uint64]struct{}{}}
	o.ended = worker.NewQueue(n.Guard, "delete exclusive queues", 8, o.delete)
	o.ended.Start()
	return o
}

// add records that a connection is about to declare an exclusive queue.
func (o *owners) add(c *Connection) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open[c.number] = struct{}{}
}

// end deletes the exclusive queues of a connection.
func (o *owners) end(ctx context.Context, c *Connection) {
	if !o.remove(c) {
		return
	}
	if err := o.bequeath(ctx, c.owner()); err != nil {
		o.Logger.Warn("what exclusive queues leave behind is not dead-lettered yet", "connection", c.number, "error", err)
		o.ended.Add(c.owner())
		return
	}
	if _, err := o.Catalog.Propose(ctx, deleteOwned(c.owner())); err != nil {
		o.Logger.Warn("exclusive queues are not deleted yet", "connection", c.number, "error", err)
		o.ended.Add(c.owner())
	}
}

// remove forgets a connection, and reports whether it was known.
func (o *owners) remove(c *Connection) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, was := o.open[c.number]
	delete(o.open, c.number)
	return was
}

// queueAdded deletes a queue whose connection to this node has ended already.
func (o *owners) queueAdded(q *catalog.Queue) {
	if !q.Exclusive || !o.Is(q.Owner.Node) || q.Owner.Boot != o.Boot.Load() {
		return
	}
	o.mu.Lock()
	_, lives := o.open[q.Owner.Connection]
	o.mu.Unlock()
	if !lives {
		o.ended.Add(q.Owner)
	}
}

// delete deletes the queues of a connection that has ended.
func (o *owners) delete(owner catalog.Owner) (again time.Duration) {
	ctx, cancel := context.WithTimeout(o.Life(), ownersWait)
	defer cancel()
	if o.bequeath(ctx, owner) != nil {
		return ownersAgain
	}
	if _, err := o.Catalog.Note(ctx, deleteOwned(owner)); err != nil {
		return ownersAgain
	}
	return 0
}

// bequeath deletes those queues of a connection that has ended whose last will is to be carried out, and returns when
// they are gone. They are on this node.
func (o *owners) bequeath(ctx context.Context, owner catalog.Owner) error {
	ctx, cancel := context.WithTimeout(ctx, ownersWait)
	defer cancel()
	var left []*catalog.Queue
	for _, q := range o.View().Owned(owner) {
		if !o.View().HasWill(q) {
			continue
		}
		if g := o.Groups.Group(q.Group); g != nil {
			left = append(left, q)
			if err := g.Submit(group.BatchOf(&logpb.Command{Kind: logpb.Command_DELETE, Delete: &logpb.Delete{}})); err != nil {
				return err
			}
		}
	}
	for _, q := range left {
		if err := o.queues.Leaders.AwaitGone(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

func deleteOwned(owner catalog.Owner) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteOwned{DeleteOwned: &logpb.DeleteOwned{Owner: owner.Proto()}}}
}

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
		return fsm.Refuse(fsm.LimitReached, fmt.Sprintf("connection refused: node connection limit (%d) is reached", limit))
	}
	if _, ok := v.VHost(c.vhost); !ok {
		return mayOpen(v, c.user, c.vhost)
	}
	err := l.check(ctx, v, c)
	if access := mayOpen(v, c.user, c.vhost); err != nil && access != nil {
		return errors.Join(err, access) // which of them comes first is the protocol's
	}
	return err
}

// addChannel counts one more channel. It returns an error if the user has too many.
func (l *limits) addChannel(c *Connection) error {
	l.tallies.channel(c, 1)
	quota := l.View().UserQuota(c.user, catalog.MaxChannels)
	if !quota.Exceeded(l.countsFor(context.Background(), c, quota)(quota).Channels) {
		return nil
	}
	l.tallies.channel(c, -1)
	return fsm.Refuse(fsm.LimitReached, fmt.Sprintf("number of channels opened for user '%s' has reached the maximum allowed user limit of %d", c.user, quota.Limit))
}

// check returns an error if there are too many connections. This one is already counted.
func (l *limits) check(ctx context.Context, v *catalog.View, c *Connection) error {
	ofVHost, ofUser := v.VHostQuota(c.vhost, catalog.MaxConnections), v.UserQuota(c.user, catalog.MaxConnections)
	n := l.countsFor(ctx, c, ofVHost, ofUser)
	if ofVHost.Exceeded(n(ofVHost).OfVhost) {
		return fsm.Refuse(fsm.LimitReached, fmt.Sprintf("access to vhost '%s' refused for user '%s': connection limit (%d) is reached", c.vhost, c.user, ofVHost.Limit))
	}
	if ofUser.Exceeded(n(ofUser).OfUser) {
		return fsm.Refuse(fsm.LimitReached, fmt.Sprintf("connection refused for user '%s': user connection limit (%d) is reached", c.user, ofUser.Limit))
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
	answers := stats.Everywhere(ctx, l.Peers, "count clients", countsWait, self.KindCounts, req, l.counts)
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
