package conform

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestKeep(t *testing.T) { keepRows.run(t) }

var keepRows = suite{test: "TestKeep", title: "What is kept for later", rows: []row{
	{id: "DL-13", what: "nobody takes messages from a hold queue: 403; what dies in it goes on", run: func(t *T) {
		_, d, q := t.deadly("x-hold", true, "x-message-ttl", int32(1000))
		words := "queue '" + q + "' in vhost '/' is a hold queue"
		t.publishN(q, 2)
		t.refused(amqp.AccessRefused, words, func(ch *amqp.Channel) error {
			_, err := ch.Consume(q, "", false, false, false, false, nil)
			return err
		})
		t.refused(amqp.AccessRefused, words, func(ch *amqp.Channel) error {
			_, _, err := ch.Get(q, true)
			return err
		})
		t.equal("dead", bodies(t.take(d, 2)), "1 2")
		t.publish(q)
		n, err := t.ch().QueuePurge(q, false)
		t.must(err)
		t.equal("purged", n, 1)
	}},
	{id: "DL-6", what: "a bound of pending dead letters: beyond it they are sent once, without being kept", run: func(t *T) {
		x := t.name("X")
		q := t.queue("q", "x-dead-letter-exchange", x, "x-dead-letter-strategy", "at-least-once", "x-dead-letter-max-pending", int32(2))
		t.publishN(q, 2, expiration("0"))
		t.pending(q, 2)
		t.publish(q, expiration("0"), body("nowhere to go"))
		_, d := t.dead() // for the letters that wait, too
		t.equal("kept", bodies(t.take(d, 2)), "1 2")
		t.pending(q, 0)
		t.publish(q, expiration("0"), body("3"))
		t.equal("kept again", bodies(t.take(d, 1)), "3")
	}},
	{id: "SB-24", what: "an exchange's TTL limits dead letters that it brings", run: func(t *T) {
		last, d := t.dead()
		for i, strategy := range []string{"at-most-once", "at-least-once"} {
			x := t.exchange(fmt.Sprint("x", i), "fanout", "x-message-ttl", int32(700))
			q := t.queue(fmt.Sprint("q", i), "x-dead-letter-exchange", x, "x-dead-letter-strategy", strategy)
			target := t.queue(fmt.Sprint("target", i), "x-dead-letter-exchange", last)
			t.bind(target, "", x)
			t.publish(q)
			m := t.take1(q)
			at := time.Now()
			t.must(m.Reject(false))
			letter := t.take(d, 1)[0]
			if early := ms(700) - time.Since(at); early > slack {
				t.Errorf("%s: %v early", strategy, early)
			}
			t.equal("died in", t.death(letter, 0)["queue"], target)
			t.equal("reason", t.death(letter, 0)["reason"], "expired")
		}
	}},
}}
