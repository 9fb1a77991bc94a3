package conform

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/internal/stall"
)

func TestExpiryAnywhere(t *testing.T) { headRows.run(t) }

var headRows = suite{test: "TestExpiryAnywhere", title: "Expiry anywhere in a queue", rows: []row{
	{id: "H01", what: "a short TTL behind a message without TTL", run: func(t *T) {
		_, d, q := t.deadly()
		t.publish(q, body("m1"))
		at := t.publish(q, body("m2"), expiration("400"))
		t.readyUntil(q, 2, at.Add(ms(400)))
		t.soonReady(q, 1, at.Add(ms(400)))
		t.equal("dead", bodies(t.now().take(d, 1)), "m2")
	}},
	{id: "H02", what: "three messages expire at their deadlines", long: true, run: func(t *T) {
		_, d, q := t.deadly()
		at := t.publish(q, body("m1"), expiration("5000"))
		two := t.publish(q, body("m2"), expiration("400"))
		three := t.publish(q, body("m3"), expiration("1200"))
		all := append(t.by(two.Add(ms(400))).take(d, 1), t.by(three.Add(ms(1200))).take(d, 1)...)
		t.readyUntil(d, 0, at.Add(ms(5000)))
		t.equal("order", bodies(append(all, t.by(at.Add(ms(5000))).take(d, 1)...)), "m2 m3 m1")
	}},
	{id: "H03", what: "100 random TTLs: expired in the order of their deadlines, none early", long: true, run: randomLives},
	{id: "H04", what: "a short TTL of low priority behind a high priority", run: func(t *T) {
		q := t.queue("q")
		t.publish(q, priority(9))
		at := t.publish(q, priority(1), expiration("400"))
		t.readyUntil(q, 2, at.Add(ms(400)))
		t.soonReady(q, 1, at.Add(ms(400)))
	}},
	{id: "H05", what: "a short TTL among returned messages", long: true, run: func(t *T) {
		_, d, q := t.deadly()
		t.publish(q, body("m1"))
		at := t.publish(q, body("m2"), expiration("1500"))
		t.mustGet(q)
		t.must(t.mustGet(q).Nack(true, true))
		t.soonReady(q, 2, time.Now())
		t.readyUntil(q, 2, at.Add(ms(1500)))
		t.soonReady(q, 1, at.Add(ms(1500)))
		t.equal("dead", bodies(t.now().take(d, 1)), "m2")
	}},
	{id: "H06", what: "an expiry in the middle frees space in a full queue", run: func(t *T) {
		q := t.queue("q", "x-max-length", int32(2), "x-overflow", "reject-publish")
		t.publish(q, body("m1"))
		at := t.publish(q, body("m2"), expiration("400"))
		t.soonReady(q, 1, at.Add(ms(400)))
		t.equal("acked", t.send("", q, body("m3")), true)
		t.equal("kept", bodies(t.take(q, 2)), "m1 m3")
	}},
	{id: "H07", what: "expired messages are neither delivered nor counted", run: func(t *T) {
		q := t.queue("q")
		t.publish(q, body("m1"))
		at := t.publish(q, body("m2"), expiration("400"))
		t.soonReady(q, 1, at.Add(ms(400)))
		d := t.mustGet(q)
		t.equal("body", string(d.Body), "m1")
		t.equal("message-count", d.MessageCount, uint32(0))
		t.mustNotGet(q)
	}},
	{id: "H08", what: "50,000 messages expire at one instant: none delivered, all dead-lettered, the queue keeps working", long: true, run: deathsAtOnce},
}}

// randomLives checks each letter's time by the publisher's clock.
func randomLives(t *T) {
	_, d, q := t.deadly()
	due := map[string]time.Time{}
	const n = 100
	for i := range n {
		life := 200 + rand.IntN(2800)
		name := strconv.Itoa(i)
		at := t.publish(q, expiration(strconv.Itoa(life)), body(name))
		due[name] = at.Add(ms(life))
	}
	_, from := t.consume(d, n)
	looked := time.Now()
	var last time.Time
	for range n {
		m := t.next(from)
		at, ok := due[string(m.Body)]
		if !ok {
			t.Fatalf("message %s came twice", m.Body)
		}
		delete(due, string(m.Body))
		t.by(at).inTime("message "+string(m.Body), looked)
		if early := time.Until(at); early > slack {
			t.Errorf("message %s is %v early", m.Body, early)
		}
		// A life begins with the enqueue, which is later than the publish by a
		// time that differs; deadlines that near each other may change places.
		if last.Sub(at) > ms(500) {
			t.Errorf("message %s comes after one that was due %v later", m.Body, last.Sub(at))
		}
		if at.After(last) {
			last = at
		}
		t.must(m.Ack(false))
	}
}

// deathsAtOnce lets many messages die within an instant, and uses the queue
// meanwhile: what it publishes stands behind all that is to die, and nothing
// but the first message, which is held, stands before.
func deathsAtOnce(t *T) {
	const n = 50_000
	_, d, q := t.deadly()
	t.publish(q, body("eternal"))
	eternal := t.mustGet(q)
	due := t.publishExpiring(q, n, time.Now().Add(20*time.Second))
	_, from := t.consume(d, 1000)
	t.waitUntil(due.Add(slack))
	first := t.by(due).next(from)
	t.equal("letter", string(first.Body), "mortal")
	t.must(first.Ack(false))
	came, began := 1, time.Now()
	var longest time.Duration
	published, got := 0, 0
	for came < n && time.Since(began) < rowLimit/2 {
		took, body := t.probe(q)
		longest = max(longest, took)
		if published++; body == "live" {
			got++
		} else if body != "" {
			t.Fatalf("%q is delivered after its time", body)
		}
		came += t.drain(from, n-came)
	}
	t.equal("letters", came, n)
	if bound := stall.Tolerance(machine.Longest(began)); longest > bound {
		t.Errorf("a publish or a get took %v, allowed are %v", longest, bound)
	}
	t.Logf("a publish or a get took at most %v; the last letter came %v after the deadline",
		longest.Round(time.Millisecond), time.Since(due).Round(time.Millisecond))
	t.nothingNext(from, time.Now().Add(ms(300)))
	t.must(eternal.Nack(false, true))
	t.equal("left", bodies(t.now().take(q, 1+published-got)), strings.TrimSpace("eternal"+strings.Repeat(" live", published-got)))
	t.settled(q)
}

// publishExpiring publishes messages that die at about an instant, and returns
// when the last of them is due.
func (t *T) publishExpiring(queue string, n int, at time.Time) (due time.Time) {
	t.Helper()
	due = at
	for sent := 0; sent < n; sent += 1000 {
		var waits []func() bool
		life := max(time.Until(at), 0)
		for range 1000 {
			waits = append(waits, t.sendLater("", queue, expiration(strconv.FormatInt(life.Milliseconds()+1, 10)), body("mortal")))
		}
		for _, wait := range waits {
			t.equal("acked", wait(), true)
		}
		if last := time.Now().Add(life + ms(1)); last.After(due) { // a life begins before its confirm
			due = last
		}
	}
	return due
}

// probe publishes a message behind all others and gets the first one that may
// be handed out, "" if what has died is still in the way, and returns how long
// the slower of the two took.
func (t *T) probe(queue string) (longest time.Duration, text string) {
	t.Helper()
	began := time.Now()
	t.equal("acked", t.send("", queue, body("live")), true)
	longest = time.Since(began)
	began = time.Now()
	m := t.get(queue)
	longest = max(longest, time.Since(began))
	if m == nil {
		return longest, ""
	}
	t.must(m.Ack(false))
	return longest, string(m.Body)
}

// drain acks what a consumer has now, at most n deliveries, and waits a little
// for the first.
func (t *T) drain(from <-chan amqp.Delivery, n int) (came int) {
	t.Helper()
	for came < n {
		select {
		case m := <-from:
			t.equal("letter", fmt.Sprint(string(m.Body), " ", m.Redelivered), "mortal false")
			t.must(m.Ack(false))
			came++
		case <-time.After(ms(1)):
			return came
		}
	}
	return came
}
