package conform

import (
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// rfc3339 is an instant as Python's isoformat has it, in a zone far from here.
func rfc3339(at time.Time) string {
	return at.In(time.FixedZone("", -9*3600)).Format("2006-01-02T15:04:05.000000-07:00")
}

func timesOfHeader(t *T) {
	q := t.queue("q", "x-delivery-time-header", "eta")
	due := time.Now().Add(ms(1500)).Truncate(time.Second).Add(time.Second)
	for i, eta := range []any{rfc3339(due), due.UTC().Format(time.RFC3339), due.Unix(), due.UnixMilli(), float64(due.Unix()), fmt.Sprint(due.Unix())} {
		t.publish(q, headers("eta", eta), body(fmt.Sprint("later ", i)))
	}
	now := time.Now()
	for _, eta := range []any{nil, "soon", true, rfc3339(now.Add(-time.Hour)), int32(7), "2031-01-01T00:00:00"} {
		t.publish(q, headers("eta", eta), body("now"))
	}
	t.publish(q, headers("eta", rfc3339(due.Add(time.Hour)), "x-opt-delivery-time", int64(1)), body("now"))
	t.publish(q, body("now"))
	t.soonReady(q, 8, now)
	t.readyUntil(q, 8, due)
	t.soonReady(q, 14, due)
	for _, m := range t.take(q, 14)[8:] {
		t.equal("x-scheduled-for of "+string(m.Body), m.Headers["x-scheduled-for"], due.UnixMilli())
		if m.Headers["eta"] == nil {
			t.Errorf("%s has lost its header", m.Body)
		}
	}
	t.refuseDeclare("refused", "invalid_header_name", "x-delivery-time-header", "")
	t.refuseDeclare("refused", "unacceptable_type", "x-expiry-header", int32(7))
}

func expiriesOfHeader(t *T) {
	_, d, q := t.deadly()
	t.policy("p", q, 0, map[string]any{"expiry-header": "expires", "delivery-time-header": "eta"})
	ends := time.Now().Add(ms(1500))
	t.publish(q, headers("expires", rfc3339(ends)), body("ready"))
	t.publish(q, headers("expires", ends.UnixMilli(), "eta", rfc3339(ends.Add(-ms(700)))), body("delayed"))
	t.publish(q, headers("expires", rfc3339(ends)), expiration("100"), body("sooner"))
	t.publish(q, headers("expires", nil), body("never"))
	from := time.Now()
	t.publish(q, headers("expires", rfc3339(from)), body("late"))
	t.publish(q, headers("expires", rfc3339(from.Add(time.Hour)), "eta", rfc3339(from.Add(2*time.Hour))), body("at no time"))
	t.soonReady(d, 3, from.Add(ms(100)))
	t.readyUntil(d, 3, ends)
	t.soonReady(d, 5, ends)
	t.equal("those that die", sortedBodies(t.take(d, 5)), "at no time,delayed,late,ready,sooner")
	t.equal("what is left", bodies(t.take(q, 1)), "never")
	got, err := t.ch().Consume(q, "", true, false, false, false, nil)
	t.must(err)
	t.publish(q, headers("expires", rfc3339(time.Now().Add(-time.Second))), body("dead on arrival"))
	t.publish(q, body("alive"))
	m, _ := within(t, "message", got)
	t.equal("what is delivered", string(m.Body), "alive")
	t.equal("letter", bodies(t.take(d, 1)), "dead on arrival")
}

// sortedBodies are the bodies of messages, in the order of the alphabet.
func sortedBodies(all []*amqp.Delivery) string {
	var out []string
	for _, m := range all {
		out = append(out, string(m.Body))
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

func timesOfHeaderAndKill(t *T) {
	const n = 200
	_, d, q := t.deadly("x-delivery-time-header", "eta", "x-expiry-header", "expires")
	due := time.Now().Add(ms(8000))
	for i := range n {
		at := due.Add(time.Duration(i) * 10 * time.Millisecond)
		t.publish(q, headers("eta", rfc3339(at), "expires", rfc3339(at.Add(time.Hour))), body(fmt.Sprint(i)))
		t.publish(q, headers("expires", rfc3339(at)), body(fmt.Sprint(i)))
	}
	if time.Now().After(due) {
		t.Skip("the machine is too busy: publishing takes longer than the messages wait")
	}
	t.killLeader(q)
	seen := map[string]time.Time{}
	take := func(what, queue string) {
		for _, m := range t.take(queue, n) {
			if at, twice := seen[what+string(m.Body)]; twice {
				t.Errorf("%s %s came at %v, and again", what, m.Body, at)
			}
			seen[what+string(m.Body)] = time.Now()
			var i int
			_, err := fmt.Sscan(string(m.Body), &i)
			t.must(err)
			if early := time.Until(due.Add(time.Duration(i) * 10 * time.Millisecond)); early > slack {
				t.Errorf("%s %d is %v early", what, i, early)
			}
		}
	}
	t.waitUntil(due.Add(n * 10 * time.Millisecond))
	take("letter", d)
	take("message", q)
	t.settled(q)
}
