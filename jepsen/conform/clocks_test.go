package conform

import (
	"fmt"
	"testing"
	"time"
)

func TestClocks(t *testing.T) { clockRows.run(t) }

// clockRows have something due while nodes die, lose their data, or have their
// clocks set.
var clockRows = suite{test: "TestClocks", title: "Due while nodes die or clocks are wrong", rough: true, rows: []row{
	{id: "T-72", what: "1000 delayed by 5 s; the leader of the store is killed at 2 s, the next one at 5 s: each arrives once", run: func(t *T) {
		const delay = 5000
		x, q := t.delayed("fanout")
		at := t.publishDelayed(x, 1000, delay)
		store := "amq.delayed-" + x
		t.waitUntil(at.Add(ms(2000)))
		t.killLeader(store)
		t.readyUntil(q, 0, at.Add(ms(delay)))
		t.killLeader(store)
		t.by(at.Add(ms(delay))).mustComeOnce(q, 1000)
	}},
	{id: "T-73", what: "the node that leads the store is lost with its data: what it kept is delivered when due", run: func(t *T) {
		const delay = 4000
		x, q := t.delayed("fanout")
		at := t.publishDelayed(x, 300, delay)
		leader := t.leaderOf("amq.delayed-" + x)
		t.must(leader.Kill(t.ctx))
		t.must(leader.LoseData())
		t.lostConnections()
		ch, from := t.consumeAt(leader.Number%len(t.Nodes), q)
		seen := map[string]bool{}
		for len(seen) < 300 {
			m := t.by(at.Add(ms(delay))).next(from)
			t.notBefore(at, delay)
			if seen[string(m.Body)] {
				t.Fatalf("message %s came twice", m.Body)
			}
			seen[string(m.Body)] = true
			t.must(m.Ack(false))
		}
		t.nothingNext(from, time.Now().Add(ms(300)))
		t.must(ch.Close())
		t.must(leader.Restart()) // with nothing
		t.must(leader.AwaitReady(t.ctx))
		t.must(t.AwaitQuorumPlusOne(t.ctx))
	}},
	{id: "T-74", what: "no majority at the due time, and for 5 s more: nothing is delivered; afterwards everything, once", run: func(t *T) {
		const delay = 5000 // who kills nodes on a busy machine takes a while
		x, q := t.delayed("fanout")
		ch, from := t.consumeAt(0, q)
		at := t.publishDelayed(x, 100, delay)
		for _, n := range t.Nodes[1:] {
			t.must(n.Kill(t.ctx))
		}
		if time.Since(at) > ms(delay) {
			t.Fatal("the majority was there when they were due")
		}
		t.nothingNext(from, at.Add(ms(delay+5000)))
		for _, n := range t.Nodes[1:] {
			t.must(n.Restart())
		}
		seen := map[string]bool{}
		back := t.by(time.Now().Add(healing))
		for len(seen) < 100 {
			m := back.next(from)
			if seen[string(m.Body)] {
				t.Fatalf("message %s came twice", m.Body)
			}
			seen[string(m.Body)] = true
			t.must(m.Ack(false))
		}
		t.nothingNext(from, time.Now().Add(ms(300)))
		t.must(ch.Close())
		for _, n := range t.Nodes[1:] {
			t.must(n.AwaitReady(t.ctx))
		}
		t.lostConnections()
	}},
	{id: "T-95K", what: "cancelled when due while the leader is killed: each is cancelled or delivered, none both", run: func(t *T) {
		// A cancel whose answer is lost with the leader may have taken effect.
		t.raceCancels(ms(*races/2)).mustBeDisjoint(t, *races)
	}, but: "a command that is nacked for want of a leader may have taken effect; then the message is not delivered either"},
	{id: "T-172", what: "the leader's clock steps 5 s ahead, and later 5 s back: deadlines and schedules stay", run: func(t *T) {
		const life = 6000
		x, d := t.dead()
		q, later := t.queue("q", "x-dead-letter-exchange", x), t.queue("later")
		leader := t.leaderOf(q)
		at := t.publishMany(q, 100, expiration("6000"))
		due := t.publishMany(later, 100, headers("x-opt-delivery-delay", int32(life)))
		t.must(leader.SetClock(t.ctx, 5*time.Second))
		t.must(leader.SetClock(t.ctx, 0))
		t.must(leader.SetClock(t.ctx, -5*time.Second))
		t.readyUntil(d, 0, at.Add(ms(life-50)))
		t.readyUntil(later, 0, due.Add(ms(life-50)))
		t.by(at.Add(ms(life))).mustComeOnce(d, 100)
		t.by(due.Add(ms(life))).mustComeOnce(later, 100)
		t.must(leader.SetClock(t.ctx, 0))
	}},
	{id: "T-173", what: "a leader 0.9 s ahead hands over to a correct node: what is dead stays dead, later deadlines are on time", run: func(t *T) {
		x, d := t.dead()
		q := t.queue("q", "x-dead-letter-exchange", x)
		leader := t.leaderOf(q)
		t.must(leader.SetClock(t.ctx, ms(900)))
		at := t.publishMany(q, 50, expiration("1500"))
		t.by(at.Add(ms(1500))).mustComeOnce(d, 50)
		at = t.publishMany(q, 50, expiration("4000"))
		t.must(leader.Cycle(t.ctx, false))
		t.lostConnections()
		t.readyUntil(d, 0, at.Add(ms(4000-50)))
		t.by(at.Add(ms(4000))).mustComeOnce(d, 50)
		t.mustNotGet(q)
		t.must(leader.SetClock(t.ctx, 0))
	}},
	{id: "T-174", what: "all nodes are down beyond a TTL: dead before any delivery; what a consumer held comes back, since its connection is gone", run: func(t *T) {
		_, d, q := t.mortal(3000)
		held := t.queue("held", "x-consumer-timeout", int32(600_000))
		t.publish(q)
		t.publish(held)
		t.mustGet(held)
		t.restartAll(ms(4000))
		_, from := t.consume(q, 1)
		t.now().take(d, 1)
		t.nothingNext(from, time.Now().Add(ms(300)))
		t.equal("redelivered", t.now().take(held, 1)[0].Redelivered, true)
	}},
}}

// publishDelayed publishes the bodies 1 … n to a delayed exchange, without
// waiting for each confirm; all must be confirmed.
func (t *T) publishDelayed(exchange string, n, delay int) (first time.Time) {
	t.Helper()
	defer t.begins()()
	first = time.Now()
	var waits []func() bool
	for i := range n {
		waits = append(waits, t.sendLater(exchange, "", headers("x-delay", int32(delay)), body(fmt.Sprint(i+1))))
	}
	for _, acked := range waits {
		t.equal("acked", acked(), true)
	}
	return first
}
