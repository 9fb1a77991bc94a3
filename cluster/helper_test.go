package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/alarm"
	"github.com/quorate/quorate/cluster/certs"
	"github.com/quorate/quorate/cluster/session"
	"github.com/quorate/quorate/cluster/watchdog"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// nodes is a cluster of three in this process.
type nodes struct {
	t   testing.TB
	net *network
	dir string
	all map[string]*Node

	machines map[string]*machine

	properties        map[string]session.Properties // of a node; not there: none are read
	first             []string                      // nodes to start with; nil: all
	through           string                        // node through which others join; empty: they are on the list
	disconnectedGrace time.Duration
	leaderlessGrace   time.Duration            // longer than a busy machine takes for elections
	moved             map[string]string        // address of a node that the others know under its name
	listed            bool                     // the lists of all have the addresses that nodes have moved to
	exits             map[string]chan int      // takes the code with which a node ends; not there: it must not
	versions          map[string]fsm.Versions  // that a node supports; not there: those of the program
	ahead             map[string]*atomic.Int64 // ns by which a node's wall clock is ahead; not there: right
	gates             map[string]*gate         // to the disk of a node; not there: it never hangs
	bounds            watchdog.Bounds
	exit              func(name string, code int) // nil: no node ends
	change            func(*Config)               // of each node; nil: nothing is
}

var names = []string{"n1", "n2", "n3"}

// mustCluster starts three nodes. They are closed with the test, which fails
// if a goroutine of theirs is left.
func mustCluster(t testing.TB, options ...func(*nodes)) *nodes {
	t.Helper()
	c := &nodes{t: t, net: newNetwork(), dir: t.TempDir(), all: map[string]*Node{}, disconnectedGrace: time.Minute, leaderlessGrace: 2 * time.Minute}
	for _, o := range options {
		o(c)
	}
	t.Cleanup(c.closeAll)
	if c.first == nil {
		c.first = names
	}
	c.mustOpen(c.first...)
	if len(c.first)%2 == 1 {
		until(t, "all nodes vote on the catalog", c.allVote)
	}
	return c
}

func (c *nodes) config(name string) Config {
	logger := slog.New(slog.DiscardHandler)
	if os.Getenv("QUORATE_TEST_LOG") != "" {
		logger = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("node", name)
	}
	static := map[string]string{}
	var contacts []string
	for _, n := range names {
		if c.through == "" || n == name {
			static[n] = n
		}
	}
	if c.through != "" && c.through != name {
		contacts = []string{c.through}
	}
	at := name
	for n, to := range c.moved {
		if n == name {
			at = to
		}
		if _, on := static[n]; on && (n == name || c.listed) {
			static[n] = to
		}
	}
	memory, err := alarm.Part(0.5)
	if err != nil {
		c.t.Fatal(err)
	}
	config := Config{
		Probe: c.machine(name), MemoryLimit: memory,
		Contacts: contacts,
		Name:     name, ClusterName: "test", DataDir: filepath.Join(c.dir, name), Nodes: static,
		Listener: c.net.listen(c.t, at), Dial: c.net.dialer(name),
		Clock: func() time.Time { return time.Now().Add(c.wrongBy(name)) },
		Exit: func(code int) {
			if to := c.exits[name]; to != nil {
				to <- code
				return
			}
			if c.exit == nil {
				panic(fmt.Sprintf("node %s exits with %d", name, code))
			}
			c.exit(name, code)
		},
		Watchdog: c.bounds, DiskGate: c.gate(name),
		Logger: logger, Properties: c.propertiesOf(name), Fields: fieldsOfBody,
		DefaultVHost: "/", DefaultQueueType: catalog.QuorumType, DefaultUser: "guest", DefaultPassword: "guest",
		Token:           c.tokenFor(name),
		LeaderlessGrace: c.leaderlessGrace, Defaults: catalog.Defaults{DisconnectedTimeout: fsm.Millis(c.disconnectedGrace.Milliseconds())}, GroupSize: 3, Versions: c.versions[name],
	}
	if c.change != nil {
		c.change(&config)
	}
	return config
}

// View is the newest view of the catalog that a node has applied.
func (n *Node) View() *catalog.View { return n.catalog.View() }

// Propose commits catalog commands at a node.
func (n *Node) Propose(ctx context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error) {
	return n.catalog.Propose(ctx, commands...)
}

// Fresh reports whether a node may route by its view.
func (n *Node) Fresh() bool { return n.catalog.Fresh() }

// tokenFor is what lets a new node in through another one.
func (c *nodes) tokenFor(name string) (t certs.Token) {
	c.t.Helper()
	host := c.all[c.through]
	if _, err := os.Stat(filepath.Join(c.dir, name)); host == nil || name == c.through || err == nil {
		return t
	}
	err := retried(c.t, func(ctx context.Context) error {
		made, err := host.membership.CreateToken(ctx, fsm.Millis(time.Hour.Milliseconds()), "")
		if err == nil {
			t, err = certs.ParseToken(made.Token)
		}
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return t
}

func (c *nodes) wrongBy(name string) time.Duration {
	if by := c.ahead[name]; by != nil {
		return time.Duration(by.Load())
	}
	return 0
}

// stop ends a node in order.
func (c *nodes) stop(name string) {
	c.t.Helper()
	n := c.all[name]
	delete(c.all, name)
	err := n.Close()
	c.net.crash(name)
	if err != nil {
		c.t.Errorf("close %s: %v", name, err)
	}
}

// crash takes a node away from the others at once, and then ends it.
func (c *nodes) crash(name string) {
	c.t.Helper()
	c.net.crash(name)
	c.net.setMuted(name, true)
	ended, end := context.WithCancel(context.Background())
	end()
	c.all[name].Leave(ended) // it hands nothing over
	c.stop(name)
	c.net.setMuted(name, false)
}

func (c *nodes) closeAll() {
	var wait sync.WaitGroup
	for name, n := range c.all {
		wait.Go(func() {
			if err := n.Close(); err != nil {
				c.t.Errorf("close %s: %v", name, err)
			}
		})
	}
	wait.Wait()
}

// group finds a queue's replica on a node.
func (c *nodes) leader(queue string) string {
	for name, n := range c.all {
		for _, g := range n.host.Groups() {
			if g.Spec().Name == queue && g.Leading() != 0 {
				return name
			}
		}
	}
	return ""
}

func (c *nodes) mustLeader(queue string) string {
	c.t.Helper()
	var leader string
	until(c.t, "queue "+queue+" has a leader", func() bool { leader = c.leader(queue); return leader != "" })
	return leader
}

// other returns a node that is up and none of those named.
func (c *nodes) other(not ...string) string {
next:
	for _, name := range names {
		for _, n := range not {
			if n == name {
				continue next
			}
		}
		if c.all[name] != nil {
			return name
		}
	}
	c.t.Fatal("no other node is up")
	return ""
}

// mustAgree waits until all replicas of all queues have the same state, and
// every node has the replicas that the catalog wants.
func (c *nodes) mustAgree() {
	c.t.Helper()
	last := ""
	defer func() {
		if c.t.Failed() {
			c.t.Log(last)
		}
	}()
	until(c.t, "replicas agree", func() bool {
		for _, n := range c.all {
			_ = n.local.Barrier(context.Background()) // a change of leader meanwhile: the next look
		}
		last = c.disagreement()
		return last == ""
	})
}

// disagreement says where replicas differ, or are missing or left over.
func (c *nodes) disagreement() string {
	states := map[string]map[string]string{} // queue → node → state
	for name, n := range c.all {
		for _, q := range n.View().Queues() {
			id := fmt.Sprintf("%s/%d", q.Name, q.ID)
			if states[id] == nil {
				states[id] = map[string]string{}
			}
			if !q.Local {
				states[id][name] += ""
			}
		}
		for _, r := range n.Replicas() {
			id := fmt.Sprintf("%s/%d", r.Name, r.QueueID)
			if states[id] == nil {
				states[id] = map[string]string{}
			}
			states[id][name] = fmt.Sprintf("%s index=%d ready=%d unacked=%d outbox=%d", r.StateHash[:16], r.AppliedIndex, r.Ready, r.Unacknowledged, r.Outbox)
		}
	}
	for id, of := range states {
		different := map[string]bool{}
		for _, s := range of {
			different[s] = true
		}
		if len(of) != len(c.all) || len(different) != 1 || different[""] {
			return fmt.Sprintf("%s: %v", id, of)
		}
	}
	return ""
}

// client is one channel at one node, and what it was told.
type client struct {
	t       testing.TB
	node    string
	session *session.Session
	conn    *session.Connection
	next    uint64 // number of the next publish

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced at every event
	settled   map[uint64]bool
	why       map[uint64]error // of those that are not taken
	gone      []fsm.QueueID
	pending   int // publishes without an answer
	inbox     []fsm.Message
	cancelled []uint64
	timedOut  int
	lost      error
	ack       bool // acknowledge what comes
}

// mustClient opens a connection and a channel at a node.
func (c *nodes) mustClient(node string) *client {
	c.t.Helper()
	conn, err := c.all[node].Sessions().Connect(context.Background(), "guest", "/")
	if err != nil {
		c.t.Fatal(err)
	}
	cl := &client{t: c.t, node: node, conn: conn, changed: make(chan struct{}), settled: map[uint64]bool{}, why: map[uint64]error{}}
	if cl.session, err = conn.OpenSession(cl); err != nil {
		c.t.Fatal(err)
	}
	return cl
}

// event notes something under the client's lock.
func (c *client) event(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *client) Confirmed(first, last uint64, why error) {
	c.event(func() {
		for n := first; n <= last; n++ {
			if _, twice := c.settled[n]; twice {
				c.t.Errorf("publish %d is settled twice", n)
			}
			if c.settled[n] = fsm.IsConfirmed(why); why != nil {
				c.why[n] = why
			}
			c.pending--
		}
	})
}

func (c *client) Kept(deliveries []fsm.Held) {
	c.t.Errorf("deliveries are given back: %v", deliveries)
}

func (c *client) Refused(_ fsm.Payload, why *fsm.Refusal) {
	c.t.Errorf("a publish is refused: %v", why)
}

func (c *client) Returned(fsm.Payload) {
	c.t.Error("a message that was routed comes back")
}

func (c *client) Deliver(messages []fsm.Message) {
	c.event(func() { c.inbox = append(c.inbox, messages...) })
	if c.ack {
		for _, m := range messages {
			c.session.Settle(m.Consumer, []uint64{m.ID}, fsm.Ack)
		}
	}
}

func (c *client) Cancelled(consumer uint64) {
	c.event(func() { c.cancelled = append(c.cancelled, consumer) })
}

func (c *client) Revoked(consumer uint64, _ error) { c.Cancelled(consumer) }

func (c *client) Credited(uint64, fsm.LinkState) {}
func (c *client) Settled(uint64, []uint64)       {}
func (c *client) News(uint64, *fsm.News)         {}

func (c *client) Gone(queue fsm.QueueID) { c.event(func() { c.gone = append(c.gone, queue) }) }

func (c *client) TimedOut(uint64, []uint64, fsm.Millis, bool) { c.event(func() { c.timedOut++ }) }

func (c *client) Lost(err error) { c.event(func() { c.lost = err }) }

// await waits for a condition that is read under the client's lock.
func (c *client) await(what string, f func() bool) {
	c.t.Helper()
	end := time.NewTimer(patience)
	defer end.Stop()
	for {
		c.mu.Lock()
		done, changed := f(), c.changed
		c.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-end.C:
			c.mu.Lock()
			defer c.mu.Unlock()
			c.t.Fatalf("client at %s: not in time: %s (%d unconfirmed, %d delivered)", c.node, what, c.pending, len(c.inbox))
		}
	}
}

// publish sends a message through the default exchange.
func (c *client) publish(queue, body string) { c.t.Helper(); c.publishTTL(queue, body, -1) }

func (c *client) publishTTL(queue, body string, ttl fsm.Millis) {
	c.t.Helper()
	c.publishWith(queue, nil, body, ttl)
}

// publishWith publishes with encoded properties.
func (c *client) publishWith(queue string, properties []byte, body string, ttl fsm.Millis) {
	c.t.Helper()
	c.publishOf(queue, &fsm.Publish{TTL: ttl, Payload: append(fsm.AppendPayloadHead(nil, "", queue, properties), body...)})
}

// publishOf publishes a message that has everything but a place to go.
func (c *client) publishOf(queue string, p *fsm.Publish) {
	c.t.Helper()
	c.next++
	c.mu.Lock()
	c.pending++
	c.mu.Unlock()
	p.Number, p.RoutingKey, p.Priority, p.Headers = c.next, queue, -1, func() *fsm.Table { return nil }
	routed, err := c.session.Publish(p)
	if errors.Is(err, fsm.ErrNotFresh) {
		if err := c.session.Refresh(deadline(c.t)); err != nil {
			c.t.Fatal(err)
		}
		p.Fresh = true
		routed, err = c.session.Publish(p)
	}
	if err != nil || !routed {
		c.t.Fatalf("publish to %s: routed %v, %v", queue, routed, err)
	}
}

// confirmed waits until everything that was published has an answer.
func (c *client) confirmed() {
	c.t.Helper()
	c.await("all publishes are confirmed", func() bool { return c.pending == 0 })
	c.mu.Lock()
	defer c.mu.Unlock()
	for n, ok := range c.settled {
		if !ok {
			c.t.Fatalf("publish %d was refused", n)
		}
	}
}

func (c *client) mustDeclare(queue string, arguments ...*logpb.Field) fsm.QueueInfo {
	c.t.Helper()
	info, err := c.declare(fsm.QueueSpec{Name: queue, Durable: true, Arguments: &fsm.Table{Fields: arguments}})
	if err != nil {
		c.t.Fatalf("declare %s at %s: %v", queue, c.node, err)
	}
	return info
}

func (c *client) mustDeclareExchange(x fsm.ExchangeSpec) {
	c.t.Helper()
	if err := retried(c.t, func(ctx context.Context) error { return c.session.DeclareExchange(ctx, x) }); err != nil {
		c.t.Fatalf("declare %s at %s: %v", x.Name, c.node, err)
	}
}

func (c *client) mustBind(exchange, queue, key string) {
	c.t.Helper()
	b := fsm.BindSpec{Source: exchange, Destination: queue, RoutingKey: key}
	if err := retried(c.t, func(ctx context.Context) error { return c.session.Bind(ctx, b) }); err != nil {
		c.t.Fatalf("bind %s at %s: %v", queue, c.node, err)
	}
}

// mustDelete deletes a queue; that it is gone is no error.
func (c *client) mustDelete(queue string) {
	c.t.Helper()
	err := retried(c.t, func(ctx context.Context) error {
		_, err := c.session.DeleteQueue(ctx, queue, false, false)
		return err
	})
	if err != nil {
		c.t.Fatalf("delete %s at %s: %v", queue, c.node, err)
	}
}

func (c *client) mustConsume(queue string, number uint64, prefetch uint32) {
	c.t.Helper()
	err := retried(c.t, func(ctx context.Context) error {
		return c.session.Consume(ctx, fsm.ConsumeSpec{Queue: queue, Number: number, Tag: "c", Prefetch: prefetch})
	})
	if err != nil {
		c.t.Fatalf("consume from %s at %s: %v", queue, c.node, err)
	}
}

// bodies lists what has been delivered.
func (c *client) bodies() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for _, m := range c.inbox {
		all = append(all, string(m.Payload.Body()))
	}
	return all
}

// count asks the queue's leader how it stands.
func (c *client) count(queue string) (fsm.QueueInfo, error) {
	c.t.Helper()
	return c.declare(fsm.QueueSpec{Name: queue, Passive: true})
}

// declare declares a queue, see retried.
func (c *client) declare(q fsm.QueueSpec) (info fsm.QueueInfo, err error) {
	c.t.Helper()
	err = retried(c.t, func(ctx context.Context) (err error) {
		info, err = c.session.DeclareQueue(ctx, q)
		return err
	})
	return info, err
}

func (c *client) close() { c.session.Close(deadline(c.t)) }

func text(name, value string) *logpb.Field {
	return &logpb.Field{Name: name, Value: &logpb.Value{Tag: 'S', Str: []byte(value)}}
}

func integer(name string, value int64) *logpb.Field {
	return &logpb.Field{Name: name, Value: &logpb.Value{Tag: 'l', Int: value}}
}

// isRefusal reports whether err is a refusal of this kind.
func isRefusal(err error, kind fsm.Kind) bool {
	var r *fsm.Refusal
	return errors.As(err, &r) && r.Kind == kind
}
