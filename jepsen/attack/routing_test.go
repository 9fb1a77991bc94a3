package attack

import (
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/internal/stall"
)

// empty waits until no queue of the party's vhost holds anything.
func (p *party) empty(queues ...string) {
	p.Helper()
	mustAwait(p.T, "empty queues", func() (bool, error) {
		sum := 0
		for _, q := range queues {
			sum += p.ready(q)
		}
		return sum == 0, nil
	})
}

func (p *party) bind(queue, key, exchange string) {
	p.Helper()
	if err := p.owner.QueueBind(queue, key, exchange, false, nil); err != nil {
		p.Fatal(err)
	}
}

// TestRoutes: what a publish costs is bounded, whatever users have bound.
func TestRoutes(t *testing.T) {
	attack(t, "routing", "a pattern of many wildcards", func(t *testing.T) {
		p := newParty(t)
		p.queue("q")
		for _, pattern := range []string{"#.#.#", strings.Repeat("#.", 20) + "a", "a.#.b.#.c.#"} {
			err := p.channel(p.connect(1)).QueueBind("q", pattern, "amq.topic", false, nil)
			p.refused(err, 406, fmt.Sprintf("Topic binding key '%s' uses %d '#' wildcards, at most 2 are allowed", pattern, strings.Count(pattern, "#")))
		}
	})
	attack(t, "routing", "a thousand patterns that almost match", func(t *testing.T) {
		p := newParty(t)
		p.queue("q")
		for i := range 1000 {
			word := "." + strings.Repeat("*.", i%40)
			if err := p.owner.QueueBind("q", "#.a"+word+"b.#."+fmt.Sprint("c", i/40), "amq.topic", true, nil); err != nil {
				t.Fatal(err)
			}
		}
		ch := p.channel(p.connect(1))
		if err := ch.Confirm(false); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for range 100 {
			d, err := ch.PublishWithDeferredConfirm("amq.topic", strings.Repeat("a.b.", 63)+"a", false, false, amqp.Publishing{})
			if err != nil || !d.Wait() {
				t.Fatalf("publish: %v", err)
			}
		}
		if took, allowed := time.Since(began), stall.Tolerance(machine.Longest(began)); took > allowed {
			t.Errorf("100 publishes take %v, allowed are %v", took, allowed)
		}
	})
	attack(t, "routing", "exchanges that are bound in a circle", func(t *testing.T) {
		p := newParty(t)
		p.queue("q")
		const around = 50
		for i := range around {
			p.exchange(fmt.Sprint("x", i), "fanout", nil)
			p.bind("q", "", fmt.Sprint("x", i))
		}
		for i := range around {
			for _, to := range []int{i, (i + 1) % around, (i + 7) % around} { // itself included
				if err := p.owner.ExchangeBind(fmt.Sprint("x", to), "", fmt.Sprint("x", i), false, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
		p.publish("x0", "", amqp.Publishing{})
		if n := p.ready("q"); n != 1 {
			t.Errorf("%d messages of one", n)
		}
	})
	attack(t, "routing", "alternate exchanges in a circle", func(t *testing.T) {
		p := newParty(t)
		for i := range 3 {
			p.exchange(fmt.Sprint("x", i), "direct", amqp.Table{"alternate-exchange": fmt.Sprint("x", (i+1)%3)})
		}
		ch := p.channel(p.connect(2))
		returns := ch.NotifyReturn(make(chan amqp.Return, 1))
		since := time.Now()
		if err := ch.Publish("x0", "nowhere", true, false, amqp.Publishing{}); err != nil {
			t.Fatal(err)
		}
		if r := soon(p, since, "the return", returns); r.ReplyCode != 312 {
			t.Errorf("returned with %d %s", r.ReplyCode, r.ReplyText)
		}
	})
	attack(t, "routing", "dead letters in a circle", func(t *testing.T) {
		p := newParty(t)
		for i := range 3 {
			_, err := p.owner.QueueDeclare(fmt.Sprint("q", i), true, false, false, false, amqp.Table{
				"x-message-ttl": int32(1), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": fmt.Sprint("q", (i+1)%3),
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		for range 10 {
			p.publish("", "q0", amqp.Publishing{})
		}
		p.empty("q0", "q1", "q2")
	})
	attack(t, "routing", "dead letters to the queue they come from", func(t *testing.T) {
		p := newParty(t)
		_, err := p.owner.QueueDeclare("q", true, false, false, false, amqp.Table{"x-max-length": int32(1), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			p.publish("", "q", amqp.Publishing{})
		}
		mustAwait(t, "one message", func() (bool, error) { return p.ready("q") == 1, nil })
	})
	attack(t, "routing", "copies without end", func(t *testing.T) {
		p := newParty(t)
		p.queue("q")
		var keys []any
		for range 5000 {
			keys = append(keys, "q")
		}
		p.publish("", "q", amqp.Publishing{Headers: amqp.Table{"CC": keys, "BCC": keys}})
		if n := p.ready("q"); n != 1 {
			t.Errorf("%d messages of one", n)
		}
	})
}
