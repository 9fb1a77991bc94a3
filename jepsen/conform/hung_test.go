package conform

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/cluster"
)

// proven is how long a node must be gone to count as dead.
const proven = 2 * time.Second

// hungNodeRows let the nodes of consumers die, or fall silent, while these hold
// something.
var hungNodeRows = []row{
	{id: "CT29", what: "the leader dies 300 ms before the deadline: one return, one cancel, not early", run: leaderDiesBeforeTimeout},
	{id: "CT30", what: "clocks of nodes differ, the leader changes: never early, nothing twice, replicas equal", test: "jepsen: TestConsumerTimeoutWithWrongClock"},
	{id: "C10", what: "a consumer's node is suspected for less than the disconnected timeout: nothing is redelivered; acks work afterwards", in: "C11"},
	{id: "C11", what: "the same for longer: redelivered elsewhere, not as failed; late acks are harmless", run: nodeHangs},
	{id: "C11a", what: "an exclusive consumer whose node stays suspected for longer is replaced; it is cancelled when its node is back", in: "C11"},
	{id: "C12", what: "a consumer's node is killed: redelivered as soon as it is certain, as failed", run: func(t *T) {
		q := t.queue("q")
		n, others := t.followers(q)
		s := t.slowOn(t.openAt(n), q, "slow")
		t.publish(q)
		t.next(s.from)
		_, from := t.consumeAt(others[0], q)
		t.must(t.Nodes[n].Kill(t.ctx))
		d := t.by(time.Now().Add(proven)).next(from)
		t.counted(&d, "x-delivery-count", 1)
		t.must(d.Ack(false))
		t.must(t.Nodes[n].Restart())
		t.lostConnections()
		t.must(t.Nodes[n].AwaitReady(t.ctx))
	}},
}

// followers are a node that does not lead a queue, and then the others.
func (t *T) followers(queue string) (n int, others []int) {
	t.Helper()
	var leader *cluster.Node
	t.eventually(queue+" has a leader", func() (err error) {
		leader, err = t.Leader(t.ctx, queue)
		return err
	})
	at := slices.Index(t.Nodes, leader)
	return (at + 1) % 3, []int{at, (at + 2) % 3}
}

// consumeAt starts a consumer at node n, on a channel of its own.
func (t *T) consumeAt(n int, queue string) (*amqp.Channel, <-chan amqp.Delivery) {
	t.Helper()
	ch := t.openAt(n)
	from, err := ch.Consume(queue, "", false, false, false, false, nil)
	t.must(err)
	return ch, from
}

func leaderDiesBeforeTimeout(t *T) {
	const timeout = 2500
	q := t.queue("q")
	n, others := t.followers(q)
	leader := t.Nodes[others[0]]
	s := t.slowOn(t.openAt(n), q, "slow", "x-consumer-timeout", int32(timeout))
	at := t.publish(q)
	s.take(t, timeout)
	_, from := t.consumeAt(others[1], q)
	t.waitUntil(at.Add(ms(timeout - 300)))
	t.must(leader.Kill(t.ctx))
	d := t.by(s.due.Add(electing)).next(from) // the consumer gets the time back in which nobody led
	t.notBefore(at, timeout)
	t.equal("acquired", fmt.Sprint(d.Headers["x-acquired-count"]), "1")
	if v, ok := d.Headers["x-delivery-count"]; ok {
		t.Errorf("x-delivery-count %v", v)
	}
	s.mustBeCancelled(t)
	t.must(leader.Restart())
	t.must(leader.AwaitReady(t.ctx))
	t.nothingNext(from, time.Now().Add(ms(300)))
	if len(s.cancelled) > 0 {
		t.Error("cancelled twice")
	}
	t.must(d.Ack(false))
	t.lostConnections()
	t.settledTo(q, 0)
}

// nodeHangs stops a process that serves consumers of three queues: what
// it holds stays with it, or goes back after a second; an exclusive one.
func nodeHangs(t *T) {
	const held = 5
	n, others := t.followers(t.queue("q"))
	short := t.queueAt(others[0], "short", "x-consumer-disconnected-timeout", int32(1000))
	long := t.queueAt(others[0], "long")
	alone := t.queueAt(others[0], "alone", "x-consumer-disconnected-timeout", int32(1000))
	var deliveries [2][]amqp.Delivery
	for i, q := range []string{short, long} {
		s := t.slowOn(t.openAt(n), q, "slow")
		t.publishN(q, held)
		for range held {
			deliveries[i] = append(deliveries[i], t.next(s.from))
		}
	}
	exclusive := t.openAt(n)
	cancelled := exclusive.NotifyCancel(make(chan string, 1))
	_, err := exclusive.Consume(alone, "first", false, true, false, false, nil)
	t.must(err)
	_, fromShort := t.consumeAt(others[0], short)
	_, fromLong := t.consumeAt(others[1], long)

	stopped := t.Nodes[n]
	t.must(stopped.Signal(syscall.SIGSTOP))
	due := time.Now().Add(proven + ms(1000))
	second := func() (<-chan amqp.Delivery, error) {
		return t.openAt(others[1]).Consume(alone, "second", false, true, false, false, nil)
	}
	if _, err := second(); !isCode(err, amqp.AccessRefused) {
		t.Errorf("a second exclusive consumer: %v", err)
	}
	var again []amqp.Delivery
	for range held {
		d := t.by(due).next(fromShort)
		t.counted(&d, "x-acquired-count", 1)
		if v, ok := d.Headers["x-delivery-count"]; ok {
			t.Errorf("x-delivery-count %v", v)
		}
		again = append(again, d)
	}
	var fromAlone <-chan amqp.Delivery
	t.by(due).eventually("the exclusive consumer makes way", func() (err error) {
		fromAlone, err = second()
		return err
	})
	t.nothingNext(fromLong, time.Now().Add(ms(200)))
	t.must(stopped.Signal(syscall.SIGCONT))
	t.must(stopped.AwaitReady(t.ctx))

	tag, _ := within(t.now(), "word to the exclusive consumer", cancelled)
	t.equal("cancelled", tag, "first")
	t.publish(alone)
	d := t.next(fromAlone)
	for _, d := range slices.Concat(deliveries[0], deliveries[1], again, []amqp.Delivery{d}) {
		t.must(d.Ack(false))
	}
	for _, q := range []string{short, long, alone} {
		t.eventually(q+" is empty", func() error {
			counts, err := t.Nodes[others[0]].Queue(t.ctx, q)
			return errors.Join(err, expectNone(counts.Messages))
		})
	}
	t.nothingNext(fromLong, time.Now().Add(ms(100)))
}

func expectNone(messages int) error {
	if messages > 0 {
		return fmt.Errorf("%d messages", messages)
	}
	return nil
}

// queueAt declares a queue that a node leads.
func (t *T) queueAt(n int, name string, pairs ...any) string {
	t.Helper()
	q := t.name(name)
	_, err := t.openAt(n).QueueDeclare(q, true, false, false, false, with(append([]any{"x-queue-leader-locator", "client-local"}, pairs...)...))
	t.must(err)
	return q
}
