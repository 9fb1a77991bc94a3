package conform

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
)

func TestCluster(t *testing.T) { clusterRows.run(t) }

var clusterRows = suite{test: "TestCluster", title: "Nodes restart, die or freeze", rough: true, rows: slices.Concat([]row{
	{id: "C16", what: "rebalance with all leaders on one node: spread evenly within one, no channel closed, confirms continue", run: func(t *T) {
		for i := range 9 {
			t.queue(fmt.Sprint(i))
		}
		ch := t.openAt(1)
		t.must(ch.Confirm(false))
		stop, sent := make(chan struct{}), make(chan error, 1)
		go func() { sent <- t.publishUntil(ch, t.name("0"), stop) }()
		var r struct{ Moved, Left int }
		t.post("/api/quorate/rebalance", map[string]string{"queue_pattern": "^C16"}, &r)
		t.equal("moved", r.Moved, 6)
		close(stop)
		t.must(<-sent)
		for r.Left > 0 { // who is given a leadership may lose the election, to a member that was not meant
			t.post("/api/quorate/rebalance", map[string]string{"queue_pattern": "^C16"}, &r)
		}
		t.eventually("three leaders on each node", func() error {
			for _, n := range t.Nodes {
				if led := t.led(n, "C16."); led != 3 {
					return fmt.Errorf("node %d leads %d, after %+v", n.Number, led, r)
				}
			}
			return nil
		})
		if ch.IsClosed() || t.ch().IsClosed() {
			t.Error("a channel is closed")
		}
	}},
	{id: "C17", what: "check quorum-critical on each node with one down: critical; when it is back: not", run: func(t *T) {
		t.queue("q")
		t.must(t.AwaitQuorumPlusOne(t.ctx))
		t.down(2, func() {
			t.eventually("the others are critical", func() error { return t.critical(true, t.Nodes[0], t.Nodes[1]) })
		})
		t.eventually("no node is critical", func() error { return t.critical(false, t.Nodes...) })
	}},
	{id: "C18", what: "await quorum + 1 while a node is down: waits, and returns when it has caught up", run: func(t *T) {
		q := t.queue("q")
		awaited := make(chan error, 1)
		t.down(2, func() {
			t.eventually("the node is missed", func() error { return t.critical(true, t.Nodes[0]) })
			t.publishMany(q, 2000)
			go func() { awaited <- t.AwaitQuorumPlusOne(t.ctx) }()
			select {
			case err := <-awaited:
				t.Fatalf("it returns: %v", err)
			case <-time.After(ms(500)):
			}
		})
		t.must(<-awaited)
	}},
	{id: "C19", what: "drain: new connections refused, old ones closed with 320, leaders moved; the node follows; revive undoes it", run: func(t *T) {
		q := t.queue("q")
		n := t.Nodes[0]
		closed := t.conn(0).NotifyClose(make(chan *amqp.Error, 1))
		d, err := n.Drain(t.ctx)
		t.must(err)
		t.equal("left", d.Left, 0)
		t.mustBe(<-closed, amqp.ConnectionForced, "Node was put into maintenance mode")
		t.lostConnections()
		if conn, err := client.Connect(t.ctx, n.URI()); err == nil {
			conn.Close()
			t.Error("the node lets a client in")
		}
		t.equal("queues that it leads", t.led(n, ""), 0)
		t.mustDrain(n, true)
		t.follows(n, q)
		t.must(n.Revive(t.ctx))
		t.mustDrain(n, false)
		conn, err := client.Connect(t.ctx, n.URI())
		t.must(err)
		t.must(conn.Close())
	}},
	{id: "C20", what: "rolling restart with drains under load: no confirmed message lost, none twice without a mark", test: "jepsen: TestRollingRestart/drain"},
	{id: "C21", what: "the same with SIGKILL, each node when no queue needs it", test: "jepsen: TestRollingRestart/kill"},
	{id: "C31", what: "an alarm of one node blocks the publishers of all, loses nothing, and ends with its cause or its node", run: func(t *T) {
		memoryAlarm(t)
		diskAlarm(t)
	}},
}, outageRows)}

// publishUntil publishes to a queue, each message after the confirm of the one
// before.
func (t *T) publishUntil(ch *amqp.Channel, queue string, stop <-chan struct{}) error {
	for {
		c, err := ch.PublishWithDeferredConfirmWithContext(t.ctx, "", queue, false, false, amqp.Publishing{})
		if err != nil {
			return err
		}
		if ok, err := c.WaitContext(t.ctx); err != nil || !ok {
			return errors.Join(err, fmt.Errorf("acked: %v", ok))
		}
		select {
		case <-stop:
			return nil
		default:
		}
	}
}

// post makes a call at the first node that must succeed.
func (t *T) post(path string, in, out any) {
	t.Helper()
	t.must(t.Nodes[0].Call(t.ctx, http.MethodPost, path, in, out))
}

// led counts the queues with a prefix that a node leads.
func (t *T) led(n *cluster.Node, prefix string) (count int) {
	t.Helper()
	all, err := n.Replicas(t.ctx)
	t.must(err)
	for _, r := range all {
		if r.Leader && strings.HasPrefix(r.Name, prefix) {
			count++
		}
	}
	return count
}

// down calls do while a node is stopped.
func (t *T) down(node int, do func()) {
	t.Helper()
	n := t.Nodes[node]
	t.must(n.Shutdown(t.ctx))
	do()
	t.must(n.Restart())
	t.must(n.AwaitReady(t.ctx))
}

// critical checks that queues need each of the nodes, or none of them.
func (t *T) critical(want bool, nodes ...*cluster.Node) error {
	for _, n := range nodes {
		have, err := n.Critical(t.ctx)
		if err == nil && have != want {
			err = fmt.Errorf("node %d is critical: %v", n.Number, have)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mustDrain checks what the list of nodes says.
func (t *T) mustDrain(n *cluster.Node, want bool) {
	t.Helper()
	var nodes []struct {
		Name         string
		BeingDrained bool `json:"being_drained"`
	}
	t.must(t.Nodes[1].Call(t.ctx, http.MethodGet, "/api/nodes", nil, &nodes))
	for _, x := range nodes {
		if x.BeingDrained != (want && x.Name == fmt.Sprintf("n%d", n.Number)) {
			t.Errorf("nodes: %v", nodes)
		}
	}
}

// follows checks that a node that does not lead gets what is published.
func (t *T) follows(n *cluster.Node, queue string) {
	t.Helper()
	ch := t.openAt(1)
	t.must(ch.Confirm(false))
	for range 3 {
		c, err := ch.PublishWithDeferredConfirmWithContext(t.ctx, "", queue, false, false, amqp.Publishing{})
		t.must(err)
		_, err = c.WaitContext(t.ctx)
		t.must(err)
	}
	t.eventually("the drained node has the messages", func() error {
		all, err := t.Snapshot(t.ctx)
		for _, r := range all {
			if r.Node == fmt.Sprintf("n%d", n.Number) && r.Name == queue && r.Ready == 3 && !r.Leader {
				return nil
			}
		}
		return errors.Join(err, errors.New("it has not"))
	})
}
