package conform

import (
	"fmt"
	"slices"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/cluster"
)

func TestTypes(t *testing.T) { typeRows.run(t) }

// givenBack is more often than the delivery limit of quorum queues.
const givenBack = 30

var typeRows = suite{test: "TestTypes", title: "Queue types", rows: []row{
	{id: "TY1", what: "declared classic, without a type, lazy or with priorities: a message that comes back 30 times stays", run: func(t *T) {
		for i, table := range classicTables {
			for _, closes := range []bool{false, true} {
				q := t.name(fmt.Sprint(i, closes))
				t.declare(t.ch(), q, flags{durable: true}, table)
				t.publish(q, body(q))
				for range givenBack {
					t.giveBack(q, closes)
				}
				t.equal(q, string(t.mustGet(q).Body), q)
			}
		}
	}},
	{id: "TY2", what: "declared quorum: a message that comes back 21 times is gone", run: func(t *T) {
		q := t.queue("q")
		t.publish(q)
		for range 21 {
			t.giveBack(q, false)
		}
		t.mustNotGet(q)
	}},
	{id: "TY3", what: "a limit that is set holds whatever the type", run: func(t *T) {
		for i, table := range []amqp.Table{args("x-delivery-limit", int32(1)), args("x-queue-type", "classic", "x-delivery-limit", int32(1))} {
			q := t.name(fmt.Sprint(i))
			t.declare(t.ch(), q, flags{durable: true}, table)
			t.publish(q)
			t.giveBack(q, false)
			t.giveBack(q, false)
			t.mustNotGet(q)
		}
	}},
	{id: "TY4", what: "declared classic: priorities only with x-max-priority, and none is 0", run: func(t *T) {
		for want, table := range map[string]amqp.Table{"0 5 1 9": args("x-queue-type", "classic"), "9 5 1 0": args("x-max-priority", int32(10))} {
			q := t.name(want[:1])
			t.declare(t.ch(), q, flags{durable: true}, table)
			for _, p := range []uint8{0, 5, 1, 9} {
				t.publish(q, priority(p), body(fmt.Sprint(p)))
			}
			t.equal("order", bodies(t.take(q, 4)), want)
		}
	}},
	{id: "TY5", what: "declared classic: basic.get beside a single active consumer", run: func(t *T) {
		q := t.name("q")
		t.declare(t.ch(), q, flags{durable: true}, args("x-queue-type", "classic", "x-single-active-consumer", true))
		t.publish(q)
		t.mustGet(q)
	}},
	{id: "TY6", what: "apply-to goes by the declared type", run: func(t *T) {
		classic, quorum := t.name("classic"), t.queue("quorum")
		t.declare(t.ch(), classic, flags{durable: true}, args())
		t.setPolicy(cluster.Policy{Name: "c", Pattern: t.row, ApplyTo: "classic_queues", Definition: definition{"max-length": 3}})
		t.setPolicy(cluster.Policy{Name: "q", Pattern: t.row, ApplyTo: "quorum_queues", Definition: definition{"max-length": 4}})
		t.mustApply(classic, "c", definition{"max-length": 3})
		t.mustApply(quorum, "q", definition{"max-length": 4})
		t.publishN(classic, 10)
		t.readyIs(classic, 3)
	}},
	{id: "TY7", what: "a declare that names no type, or classic, finds a queue of any type; quorum finds no classic one: 406", run: func(t *T) {
		classic, quorum := t.name("classic"), t.queue("quorum")
		for _, kind := range []string{"classic", "", "undefined"} {
			t.declare(t.ch(), classic, flags{durable: true}, args("x-queue-type", kind))
			t.declare(t.ch(), quorum, flags{durable: true}, args("x-queue-type", kind))
		}
		t.refuseDeclare("classic", "inequivalent arg 'x-queue-type' for queue 'TY7.classic' in vhost '/': received 'quorum' but current is 'classic'")
	}},
	{id: "TY8", what: "declared classic: no counts of deliveries, whatever the limits, but for consumers that ask for x-delivery-info", run: func(t *T) {
		for i, table := range append(slices.Clone(classicTables), args("x-delivery-limit", int32(9))) {
			q := t.name(fmt.Sprint(i))
			t.declare(t.ch(), q, flags{durable: true}, table)
			t.setPolicy(cluster.Policy{Name: fmt.Sprint("p", i), Pattern: "^" + q + "$", ApplyTo: "queues", Definition: definition{"delivery-limit": 8}})
			t.publish(q)
			t.giveBack(q, false)
			d := t.mustGet(q)
			t.equal("redelivered", d.Redelivered, true)
			t.counted(d, "x-acquired-count", 0)
			t.counted(d, "x-delivery-count", 0)
			t.must(d.Reject(true))
			for info, n := range []int{0, 1} {
				ch, from := t.consume(q, 1, "x-delivery-info", info == 1)
				d := t.next(from)
				t.equal("redelivered", d.Redelivered, true)
				t.counted(&d, "x-acquired-count", n*(2+info))
				t.counted(&d, "x-delivery-count", n*(2+info))
				t.must(ch.Close()) // fails once more
			}
		}
	}},
}}

// classicTables are arguments of queues that are classic.
var classicTables = []amqp.Table{
	nil, args("x-queue-type", "classic"), args("x-queue-type", ""), args("x-queue-type", "undefined"), args("x-queue-mode", "lazy"), args("x-max-priority", int32(10)),
}

// giveBack gets a message and rejects it with requeue, or closes the channel.
func (t *T) giveBack(queue string, closes bool) {
	t.Helper()
	ch := t.open()
	defer ch.Close()
	var d amqp.Delivery
	t.eventually(queue+" has a message", func() error {
		var ok bool
		var err error
		if d, ok, err = ch.Get(queue, false); err == nil && !ok {
			err = fmt.Errorf("it is empty")
		}
		return err
	})
	if !closes {
		t.must(d.Reject(true))
	}
}

// readyIs waits until so many messages are ready.
func (t *T) readyIs(queue string, n int) {
	t.Helper()
	t.eventually(fmt.Sprint(n, " are ready in ", queue), func() error {
		if have := t.ready(queue); have != n {
			return fmt.Errorf("%d are", have)
		}
		return nil
	})
}
