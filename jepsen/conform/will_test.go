package conform

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestLastWill(t *testing.T) { willRows.run(t) }

var willRows = suite{test: "TestLastWill", title: "Last wills: what is left of queues that end", rows: []row{
	{id: "Q-LW1", what: "queue.delete: what is ready, held, scheduled and waits for a retry is dead-lettered as queue_deleted, once; delete-ok counts what was ready, and the name is free", run: func(t *T) {
		_, d, q := t.deadly("x-dead-letter-on-delete", true, "x-delayed-retry-type", "returned", "x-delayed-retry-min", int32(600_000))
		t.publish(q, body("held"))
		_, from := t.consume(q, 2)
		t.next(from)
		t.publish(q, body("retried"))
		t.must(t.next(from).Nack(false, true))
		t.publish(q, body("scheduled"), headers("x-opt-delivery-delay", int32(600_000)))
		t.publish(q, body("also held"))
		t.next(from)
		t.publishN(q, 3)
		n, err := t.ch().QueueDelete(q, false, false, false)
		t.must(err)
		t.equal("deleted", n, 3)
		seen := map[string]int{}
		for _, m := range t.take(d, 7) {
			seen[string(m.Body)]++
			t.equal("death", fmt.Sprint(t.death(m, 0)["reason"], " ", t.death(m, 0)["queue"], " ", t.death(m, 0)["count"]), "queue_deleted "+q+" 1")
		}
		t.equal("letters", fmt.Sprint(seen), "map[1:1 2:1 3:1 also held:1 held:1 retried:1 scheduled:1]")
		t.mustNotGet(d)
		t.equal("exists", t.exists(q), false)
		t.equal("new", t.ready(t.queue("q")), 0) // without arguments: it is another queue
	}},
	{id: "Q-LW2", what: "x-expires, and HTTP DELETE; if-empty and if-unused as without a last will; a purge leaves nothing", long: true, run: func(t *T) {
		x, d := t.dead()
		will := []any{"x-dead-letter-exchange", x, "x-dead-letter-on-delete", true}
		q := t.queue("lease", append(will, "x-expires", int32(1000))...)
		at := t.publishN(q, 2)
		t.soonGone(q, at.Add(ms(1000)))
		t.equal("of the lease", bodies(t.take(d, 2)), "1 2")

		q = t.queue("http", will...)
		t.publishN(q, 2)
		t.refused(amqp.PreconditionFailed, "", func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(q, false, true, false)
			return err
		})
		t.http(http.MethodDelete, "/api/queues/%2F/"+q, nil)
		t.equal("by HTTP", bodies(t.take(d, 2)), "1 2")

		q = t.queue("purged", will...)
		t.publishN(q, 2)
		_, err := t.ch().QueuePurge(q, false)
		t.must(err)
		_, err = t.ch().QueueDelete(q, false, false, false)
		t.must(err)
		t.readyUntil(d, 0, time.Now().Add(ms(300)))
	}},
	{id: "Q-LW3", what: "an exclusive queue whose connection ends, and an auto-delete one whose last consumer does, with what that holds", run: func(t *T) {
		x, d := t.dead()
		will := args("x-dead-letter-exchange", x, "x-dead-letter-on-delete", true)
		conn, err := amqp.Dial(t.Nodes[1].URI())
		t.must(err)
		ch, err := conn.Channel()
		t.must(err)
		_, err = ch.QueueDeclare(t.name("own"), false, false, true, false, will)
		t.must(err)
		t.publishN(t.name("own"), 2)
		_, ok, err := ch.Get(t.name("own"), false)
		t.must(err)
		t.equal("held", ok, true)
		t.must(conn.Close())
		t.equal("of the exclusive queue", len(t.take(d, 2)), 2)
		t.equal("exists", t.exists(t.name("own")), false)

		q := t.name("auto")
		_, err = t.ch().QueueDeclare(q, true, true, false, false, will)
		t.must(err)
		ch, from := t.consume(q, 1)
		t.publishN(q, 2)
		t.next(from)
		t.must(ch.Close())
		t.equal("of the auto-delete queue", len(t.take(d, 2)), 2)
		t.mustNotGet(d)
	}},
	{id: "Q-LW4", what: "by policy; without a dead-letter exchange it has no effect; a value that is none is refused", run: func(t *T) {
		_, d, q := t.deadly()
		t.policy("p", q, 0, definition{"dead-letter-on-delete": true})
		t.publishN(q, 1)
		t.eventually("the queue has heard of it", func() error {
			if in := t.http(http.MethodGet, "/api/queues/%2F/"+q, nil)["settings_in_force"]; in != true {
				return fmt.Errorf("settings_in_force: %v", in)
			}
			return nil
		})
		_, err := t.ch().QueueDelete(q, false, false, false)
		t.must(err)
		t.equal("letter", bodies(t.take(d, 1)), "1")
		none := t.queue("none", "x-dead-letter-on-delete", true)
		t.publishN(none, 1)
		n, err := t.ch().QueueDelete(none, false, false, false)
		t.must(err)
		t.equal("deleted", n, 1)
		t.refuseDeclare("odd", "invalid arg 'x-dead-letter-on-delete'", "x-dead-letter-on-delete", "yes")
	}},
	{id: "Q-LW5", what: "deleted twice at once while no queue takes the letters: neither loses any, and both are answered once a queue does", long: true, run: func(t *T) {
		x := t.exchange("X", "fanout")
		q := t.queue("q", "x-dead-letter-exchange", x, "x-dead-letter-on-delete", true, "x-dead-letter-strategy", "at-least-once")
		t.publishN(q, 2)
		deleted := make(chan error, 2)
		for n := range 2 {
			ch := t.openAt(n)
			go func() {
				_, err := ch.QueueDelete(q, false, false, false)
				deleted <- err
			}()
		}
		d := t.queue("D")
		t.bind(d, "", x)
		t.must(errors.Join(<-deleted, <-deleted))
		t.equal("letters", len(t.take(d, 2)), 2)
		t.mustNotGet(d)
		t.soonGone(q, time.Now())
	}},
}}

// willKillRows are rows of queues that are deleted and lose their leader meanwhile.
var willKillRows = []row{
	{id: "Q-LW1K", what: "5000 messages, 50 of them held; the queue is deleted, 20 letters are under way at a time, and its leader is killed in the middle: each is dead-lettered once, and the name is free", run: func(t *T) {
		_, d, q := t.deadly("x-dead-letter-on-delete", true, "x-dead-letter-max-pending", int32(20))
		t.publishMany(q, 5000)
		_, from := t.consume(q, 50)
		for range 50 {
			t.next(from)
		}
		ch := t.ch()
		deleted := make(chan struct{})
		go func() {
			defer close(deleted)
			_, _ = ch.QueueDelete(q, false, false, false) // its connection may be lost
		}()
		t.eventually("letters", func() error {
			if have, led := t.glance(d); !led || have == 0 {
				return fmt.Errorf("%d", have)
			}
			return nil
		})
		t.killLeader(q)
		had, _ := t.glance(d)
		t.Logf("%d letters have arrived when the node is back", had)
		<-deleted
		t.mustComeOnce(d, 5000)
		t.eventually("the name is free", func() error {
			if t.exists(q) {
				return errors.New("it is not")
			}
			return nil
		})
	}},
}
