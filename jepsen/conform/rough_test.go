package conform

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
)

func TestRough(t *testing.T) { roughRows.run(t) }

var roughRows = suite{test: "TestRough", title: "Nodes stop or die", rough: true, rows: append([]row{
	{id: "L42", what: "1000 messages expire once although the leader dies", run: func(t *T) {
		x, d := t.dead()
		q := t.queue("q", "x-message-ttl", int32(3000), "x-dead-letter-exchange", x)
		at := t.publishMany(q, 1000)
		t.killLeader(q)
		t.soonReady(q, 0, at.Add(ms(3000)))
		t.by(at.Add(ms(3000))).mustComeOnce(d, 1000)
	}},
	{id: "T-112h", what: "times in headers of the publisher's own, and the leader is killed while the messages wait: none early, none lost, none twice", run: timesOfHeaderAndKill},
	{id: "D49", what: "dead letters arrive once although their queue's leader dies", run: func(t *T) {
		x, d := t.dead()
		q := t.queue("q", "x-dead-letter-exchange", x, "x-dead-letter-strategy", "at-least-once", "x-overflow", "reject-publish")
		at := t.publishMany(q, 1000, expiration("1000"))
		t.killLeader(q)
		t.by(at.Add(ms(1000))).mustComeOnce(d, 1000)
	}},
	{id: "H09", what: "short TTLs behind long ones expire on time although the leader dies", run: shortLivesOutliveLeader},
	{id: "H10", what: "a leader whose clock is 5 s ahead transfers its leadership: nothing expires early or twice, or is redelivered", run: func(t *T) {
		x, d := t.dead()
		q := t.queue("q", "x-dead-letter-exchange", x)
		leader, err := t.Leader(t.ctx, q)
		t.must(err)
		t.must(leader.SetClock(t.ctx, 5*time.Second))
		at := t.publishMany(q, 100, expiration("4000"))
		t.killLeader(q)
		t.must(leader.SetClock(t.ctx, 0))
		// Clocks are read over the network, so to within tens of milliseconds.
		t.readyUntil(d, 0, at.Add(ms(4000-50)))
		t.by(at.Add(ms(4000))).mustComeOnce(d, 100)
		t.settled(q)
	}},
	{id: "T-2", what: "100 letters in order, each once, although the leader dies", run: func(t *T) {
		_, d, q := t.mortal(3000)
		at := t.publishN(q, 100)
		t.killLeader(q)
		t.equal("order", bodies(t.by(at.Add(ms(3000))).take(d, 100)), numbers(100))
		t.settled(q)
	}},
	{id: "T-4", what: "returned after its TTL under a new leader: expired, not redelivered", run: func(t *T) {
		_, d, q := t.mortal(500)
		leader, err := t.Leader(t.ctx, q)
		t.must(err)
		held, at := t.inHand(t.openAt(leader.Number%len(t.Nodes)), q, d, ms(500)) // at a node that lives on
		t.must(leader.Kill(t.ctx))
		t.must(leader.Restart())
		t.waitUntil(at.Add(ms(1500)))
		t.must(held.Nack(false, true))
		t.lostConnections()
		t.must(leader.AwaitReady(t.ctx))
		t.now().take(d, 1)
		t.settled(q)
	}},
	{id: "T-117", what: "the lock of 3000 of a client of another node, nobody leads from 1000 to 3500: the ack takes effect", run: nobodyLeads, lives: true},
	{id: "Q-R4", what: "a message that waits for its next retry is delivered on time although the leader dies", run: func(t *T) {
		q := t.queue("q", "x-delayed-retry-type", "all", "x-delayed-retry-min", int32(4000))
		t.publish(q)
		d := t.mustGet(q)
		at := time.Now()
		t.must(d.Reject(true))
		t.awaitQueue(q, func(c counts) bool { return c.Delayed == 1 })
		t.killLeader(q)
		t.readyUntil(q, 0, at.Add(ms(4000-50)))
		t.soonReady(q, 1, at.Add(ms(4000)))
		t.counted(t.take(q, 1)[0], "x-delivery-count", 1)
	}},
	{id: "T-40", what: "the hold recipe while the leader is killed: delivered once, not early, unchanged", run: func(t *T) {
		work := t.orders()
		hold := t.hold("hold", 3000, 8000)
		at := t.publish(hold, body("parcel"))
		t.killLeader(hold)
		m := t.by(at.Add(ms(3000))).take(work, 1)[0]
		if early := time.Until(at.Add(ms(3000))); early > slack {
			t.Errorf("%v early", early)
		}
		t.equal("message", fmt.Sprint(string(m.Body), " by ", m.Exchange, " ", m.RoutingKey), "parcel by "+t.name("orders")+" ship")
		t.deaths(m, 1)
		t.soonGone(hold, at.Add(ms(8000)))
		t.equal("more", t.ready(work), 0)
	}},
	{id: "T-46", what: "five rounds of reject and hold while the leader is killed", run: func(t *T) {
		work := t.name("work")
		hold := t.queue("hold", "x-message-ttl", int32(300), "x-dead-letter-exchange", "", "x-dead-letter-routing-key", work)
		t.queue("work", "x-dead-letter-exchange", "", "x-dead-letter-routing-key", hold)
		t.publish(work)
		due := time.Now()
		for round := range 5 {
			if round == 2 {
				// Nothing answers a reject: one that the leader has not had goes
				// with its node, and the message comes to work once more instead.
				t.awaitQueue(work, func(c counts) bool { return c.Unacknowledged == 0 })
				t.killLeader(hold)
			}
			t.must(t.by(due).take1(work).Reject(false))
			due = time.Now().Add(ms(300))
		}
		m := t.by(due).take(work, 1)[0]
		t.deaths(m, 2)
		for i := range 2 {
			t.equal("count", t.death(m, i)["count"], int64(5))
		}
	}},
	{id: "T-52", what: "a confirmed publish to a hold queue whose leader dies: exactly one copy", run: func(t *T) {
		work := t.orders()
		hold := t.hold("hold", 2000, 20000)
		at := t.publishMany(hold, 200)
		t.killLeader(hold)
		t.by(at.Add(ms(2000))).mustComeOnce(work, 200)
	}},
}, slices.Concat(stopRows, hungNodeRows, orderKillRows, forwardKillRows, groupKillRows, parkedKillRows, pauseKillRows, dispatchKillRows, willKillRows, prefetchLimitKillRows, takeKillRows, redriveKillRows, ageKillRows, redeclareKillRows)...)}

func TestOutages(t *testing.T) { allStopRows.run(t) }

// allStopRows wait for a deadline while all nodes, each in turn, or a majority do
// not run.
var allStopRows = suite{test: "TestOutages", title: "All nodes stop, or a majority", rough: true, rows: []row{
	{id: "L41", what: "a TTL message survives a restart of all nodes and keeps its deadline", run: func(t *T) {
		x, d := t.dead()
		q := t.queue("q", "x-dead-letter-exchange", x)
		at := t.publish(q, expiration("15000"))
		t.restartAll(0)
		t.readyUntil(q, 1, at.Add(ms(15000)))
		t.soonReady(q, 0, at.Add(ms(15000)))
		t.equal("reason", t.death(t.now().take(d, 1)[0], 0)["reason"], "expired")
	}},
	{id: "E14", what: "leases restart after an outage of all nodes", run: func(t *T) {
		// Longer than nodes take to start on a busy machine, shorter than the outage.
		q := t.queue("q", "x-expires", int32(6000))
		t.restartAll(ms(7000))
		at := time.Now()
		if !t.exists(q) {
			t.Fatal("gone at the start")
		}
		t.soonGone(q, at.Add(ms(6000)))
	}},
	{id: "Q-RD4S", what: "a redrive that a queue goes on with goes on after a restart of all nodes, and each letter comes back once", run: func(t *T) {
		_, dead, q := t.deadly()
		t.publishN(q, 60)
		for range 60 {
			t.must(t.mustGet(q).Reject(false))
		}
		t.settledTo(dead, 60)
		n := t.redrives(dead, map[string]any{"rate": 15})
		t.restartAll(0)
		t.equal("taken", t.redriven(dead, n)["taken"], 60.0)
		t.mustComeOnce(q, 60)
	}},
	{id: "T-18", what: "a deadline survives a restart of each node in turn", run: func(t *T) {
		_, d, q := t.mortal(20000)
		at := t.publish(q)
		for _, n := range t.Nodes {
			t.must(n.Shutdown(t.ctx))
			t.must(n.Restart())
			t.must(n.AwaitReady(t.ctx))
		}
		t.lostConnections()
		t.readyUntil(d, 0, at.Add(ms(20000)))
		t.by(at.Add(ms(20000))).take(d, 1)
	}},
	{id: "T-19", what: "a deadline within an outage: nothing is delivered, the dead letter arrives", run: func(t *T) {
		_, d, q := t.mortal(3000)
		t.publish(q)
		t.restartAll(ms(5000))
		_, from := t.consume(q, 1)
		t.now().take(d, 1)
		t.nothingNext(from, time.Now().Add(ms(300)))
	}},
	{id: "T-26", what: "without a majority nothing expires and nothing is delivered; afterwards expired before any delivery", run: func(t *T) {
		_, d, q := t.mortal(1000)
		t.publish(q)
		for _, n := range t.Nodes[1:] {
			t.must(n.Kill(t.ctx))
		}
		t.waitUntil(time.Now().Add(ms(1100))) // its leader holds on for longer
		t.must(t.Nodes[1].Restart())
		t.must(t.Nodes[1].AwaitReady(t.ctx))
		t.lostConnections()
		_, from := t.consume(q, 1)
		t.now().take(d, 1)
		t.nothingNext(from, time.Now().Add(ms(300)))
		t.must(t.Nodes[2].Restart())
		t.must(t.Nodes[2].AwaitReady(t.ctx))
	}},
}}

// shortLivesOutliveLeader kills the leader between the first death and the next.
func shortLivesOutliveLeader(t *T) {
	x, d := t.dead()
	q := t.queue("q", "x-dead-letter-exchange", x)
	n, others := t.followers(q)
	leader := t.Nodes[others[0]]
	ch, from := t.consumeAt(n, d)
	defer ch.Close()
	lives := map[string]int{"m1": 5000, "m2": 400, "m3": 1200}
	sent := map[string]time.Time{}
	for _, name := range []string{"m1", "m2", "m3"} {
		sent[name] = t.publish(q, expiration(fmt.Sprint(lives[name])), body(name))
	}
	for _, name := range []string{"m2", "m3", "m1"} {
		m := t.by(sent[name].Add(ms(lives[name]))).next(from)
		t.equal("order", string(m.Body), name)
		t.notBefore(sent[name], lives[name])
		t.must(m.Ack(false))
		if name == "m2" {
			t.waitUntil(sent["m1"].Add(ms(800)))
			t.must(leader.Kill(t.ctx))
		}
	}
	t.nothingNext(from, time.Now().Add(ms(300)))
	t.must(leader.Restart())
	t.must(leader.AwaitReady(t.ctx))
	t.lostConnections()
	t.settled(q)
}

// numbers is 1 … n, joined.
func numbers(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprint(i+1))
	}
	return strings.Join(all, " ")
}

// lostConnections forgets the row's connections: their nodes have ended.
func (t *T) lostConnections() {
	t.connecting.Lock()
	defer t.connecting.Unlock()
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
	defer t.begins()()
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
