package conform

import (
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
)

func TestRough(t *testing.T) { roughRows.run(t) }

var roughRows = suite{test: "TestRough", title: "Nodes stop or die", rough: true, rows: []row{
	{id: "L41", what: "a TTL message survives a restart of all nodes and keeps its deadline", run: func(t *T) {
		x, d := t.dead()
		q := t.queue("q", "x-dead-letter-exchange", x)
		at := t.publish(q, expiration("15000"))
		t.restartAll(0)
		t.readyUntil(q, 1, at.Add(ms(15000)))
		t.soonReady(q, 0, at.Add(ms(15000)))
		t.equal("reason", t.death(t.take(d, 1)[0], 0)["reason"], "expired")
	}},
	{id: "L42", what: "1000 messages expire once although the leader dies meanwhile", run: func(t *T) {
		x, d := t.dead()
		q := t.queue("q", "x-message-ttl", int32(3000), "x-dead-letter-exchange", x)
		at := t.publishMany(q, 1000)
		t.killLeader(q)
		t.soonReady(q, 0, at.Add(ms(3000)))
		t.mustComeOnce(d, 1000)
	}},
	{id: "E14", what: "leases begin anew after an outage of all nodes", run: func(t *T) {
		q := t.queue("q", "x-expires", int32(4000))
		t.restartAll(ms(5000))
		at := time.Now()
		if !t.exists(q) {
			t.Fatal("gone at the start")
		}
		t.soonGone(q, at.Add(ms(4000)))
	}},
	{id: "D49", what: "dead letters arrive once although their queue's leader dies meanwhile", run: func(t *T) {
		x, d := t.dead()
		q := t.queue("q", "x-dead-letter-exchange", x, "x-dead-letter-strategy", "at-least-once", "x-overflow", "reject-publish")
		t.publishMany(q, 1000, expiration("1000"))
		t.killLeader(q)
		t.mustComeOnce(d, 1000)
	}},
	{id: "H09", what: "short lives behind long ones end on time although the leader dies", run: func(t *T) {
		x, d := t.dead()
		q := t.queue("q", "x-dead-letter-exchange", x)
		t.publish(q, expiration("5000"), body("m1"))
		t.publish(q, expiration("400"), body("m2"))
		t.publish(q, expiration("1200"), body("m3"))
		t.killLeader(q)
		t.equal("order", bodies(t.take(d, 3)), "m2 m3 m1")
		t.equal("more", t.ready(d), 0)
	}},
}}

// lostConnections forgets the row's connections: their nodes have ended.
func (t *T) lostConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.conns)
	t.main = nil
}

// restartAll stops all nodes, waits, and starts them again.
func (t *T) restartAll(pause time.Duration) {
	t.Helper()
	for _, n := range t.Nodes {
		t.must(n.Shutdown(t.ctx))
	}
	t.waitUntil(time.Now().Add(pause))
	for _, n := range t.Nodes {
		t.must(n.Restart())
	}
	t.lostConnections()
	for _, n := range t.Nodes {
		t.must(n.AwaitReady(t.ctx))
	}
}

// killLeader kills the node that leads a queue, starts it again, and waits
// until the queue can be used.
func (t *T) killLeader(queue string) {
	t.Helper()
	var leader *cluster.Node
	t.eventually(queue+" has a leader", func() (err error) {
		leader, err = t.Leader(t.ctx, queue)
		return err
	})
	t.must(leader.Kill(t.ctx))
	t.must(leader.Restart())
	t.lostConnections()
	t.must(leader.AwaitReady(t.ctx))
}

// publishMany publishes messages with the bodies 1 … n, without waiting for
// each confirm; all must be confirmed.
func (t *T) publishMany(queue string, n int, options ...option) (first time.Time) {
	t.Helper()
	first = time.Now()
	var waits []func() bool
	for i := range n {
		waits = append(waits, t.sendLater("", queue, append(options, body(fmt.Sprint(i+1)))...))
	}
	for i, wait := range waits {
		if !wait() {
			t.Fatalf("message %d is refused", i+1)
		}
	}
	return first
}

// mustComeOnce takes the bodies 1 … n from a queue, each once.
func (t *T) mustComeOnce(queue string, n int) {
	t.Helper()
	seen := map[string]bool{}
	_, from := t.consume(queue, 500)
	for len(seen) < n {
		d := t.next(from)
		if seen[string(d.Body)] {
			t.Fatalf("message %s came twice", d.Body)
		}
		seen[string(d.Body)] = true
		t.must(d.Ack(false))
	}
	t.nothingNext(from, time.Now().Add(ms(300)))
}
