package conform

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestLocks(t *testing.T) { lockRows.run(t) }

var lockRows = suite{test: "TestLocks", title: "Locks", rows: []row{
	{id: "T-7", what: "TTL 500 and a lock of 1500: dead when the lock ends; the consumer goes on", long: true, run: func(t *T) {
		x, d := t.dead()
		q := t.queue("q", "x-dead-letter-exchange", x, "x-lock-duration", int32(1500))
		s := t.slow(q)
		at := t.publish(q, expiration("500"))
		s.take(t, 1500)
		t.readyUntil(d, 0, at.Add(ms(1500)))
		t.soonReady(d, 1, s.due)
		t.settled(q)
		t.publish(q, body("next"))
		t.equal("next", string(t.now().next(s.from).Body), "next")
		s.mustLive(t)
	}},
	{id: "T-110", what: "a lock of 2500 is renewed twice, then acked: no redelivery", long: true, run: func(t *T) {
		q := t.queue("q")
		w := t.worker(q, 10, "x-lock-duration", int32(2500))
		other := t.bystander(q)
		t.publish(q)
		d := t.now().next(w.from)
		for range 2 {
			t.waitUntil(time.Now().Add(ms(1500)))
			w.renews(0, "x-delivery-tag", int64(d.DeliveryTag))
		}
		t.waitUntil(time.Now().Add(ms(1500)))
		t.must(d.Ack(false))
		t.settled(q)
		t.nothingNext(other, time.Now().Add(ms(300)))
	}, lives: true},
	{id: "T-111", what: "a lock ends: another consumer gets the message, redelivered; the first one goes on", run: func(t *T) {
		q := t.queue("q")
		w := t.worker(q, 1, "x-lock-duration", int32(1000))
		at := t.publish(q)
		lost := t.now().next(w.from)
		due := time.Now().Add(ms(1000))
		other := t.bystander(q)
		d := t.by(due).next(other)
		t.notBefore(at, 1000)
		t.equal("redelivered", d.Redelivered, true)
		t.must(d.Ack(false))
		t.publish(q, body("next"))
		t.equal("next", string(t.now().next(w.from).Body), "next")
		t.must(lost.Nack(false, true))
		w.mustLive()
	}},
	{id: "T-112", what: "renewal of a lost lock: 404 and nack", run: func(t *T) {
		q := t.queue("q")
		w := t.worker(q, 1, "x-lock-duration", int32(1000))
		t.publish(q)
		lost := t.now().next(w.from)
		due := time.Now().Add(ms(1000))
		t.by(due).next(t.bystander(q))
		w.renews(amqp.NotFound, "x-delivery-tag", int64(lost.DeliveryTag))
		w.mustLive()
	}},
	{id: "T-113", what: "settled after the lock is lost: no error, counted, no effect", run: func(t *T) {
		q := t.queue("q")
		w := t.worker(q, 1, "x-lock-duration", int32(1000))
		t.publish(q)
		lost := t.now().next(w.from)
		due := time.Now().Add(ms(1000))
		d := t.by(due).next(t.bystander(q))
		t.must(lost.Ack(false))
		w.mustLive()
		t.eventually("the late settlement is counted", func() error {
			if c := t.lockCounts(q); c != [2]float64{1, 1} {
				return fmt.Errorf("lost and late: %v", c)
			}
			return nil
		})
		t.settledTo(q, 1)
		t.must(d.Ack(false))
		t.settled(q)
	}},
	{id: "T-114", what: "renewal by consumer, by tags, by multiple: what is not covered goes back", long: true, run: func(t *T) {
		t.renewsSome([]any{"x-consumer-tag", "worker"}, "")
		t.renewsSome([]any{"x-delivery-tags", []any{int64(1), int64(3)}}, "2")
		t.renewsSome([]any{"x-delivery-tag", int64(2), "x-multiple", true}, "3")
	}},
	{id: "T-115", what: "renewals extend a consumer timeout without a lock", long: true, run: func(t *T) {
		q := t.queue("q")
		w := t.worker(q, 10, "x-consumer-timeout", int32(2500))
		cancelled := w.ch.NotifyCancel(make(chan string, 1))
		t.publish(q)
		d := t.now().next(w.from)
		for range 3 {
			t.waitUntil(time.Now().Add(ms(1500)))
			w.renews(0, "x-delivery-tag", int64(d.DeliveryTag))
		}
		t.must(d.Ack(false))
		t.settled(q)
		w.mustLive()
		t.equal("cancelled", len(cancelled), 0)
	}, lives: true},
	{id: "T-116", what: "x-max-lock-duration 3000: lost then, however often it is renewed", long: true, run: func(t *T) {
		q := t.queue("q")
		w := t.worker(q, 1, "x-lock-duration", int32(2000), "x-max-lock-duration", int32(3000))
		at := t.publish(q)
		d := t.now().next(w.from)
		due := time.Now().Add(ms(3000))
		other := t.bystander(q)
		for time.Until(due) > ms(1000) {
			w.renews(0, "x-delivery-tag", int64(d.DeliveryTag))
			t.waitUntil(time.Now().Add(ms(500)))
		}
		t.by(due).next(other)
		t.notBefore(at, 3000)
		w.renews(amqp.NotFound, "x-delivery-tag", int64(d.DeliveryTag))
	}},
	{id: "T-118", what: "x-lock-mode head: no lock is lost in the prefetch buffer; with all, some are", long: true, run: func(t *T) {
		for mode, some := range map[string]bool{"head": false, "all": true} {
			q := t.queue(mode)
			t.publishN(q, 5)
			w := t.worker(q, 5, "x-lock-duration", int32(2500), "x-lock-mode", mode)
			redelivered := false
			for settled := 0; settled < 5; {
				d := t.now().next(w.from)
				redelivered = redelivered || d.Redelivered
				t.waitUntil(time.Now().Add(ms(1000)))
				t.must(d.Ack(false))
				if settled++; redelivered && some {
					break
				}
			}
			t.equal("redelivered with "+mode, redelivered || t.lockCounts(q)[0] > 0, some)
		}
	}},
	{id: "T-119", what: "x-lock-detach-grace: settled by its token after the connection is lost", long: true, run: func(t *T) {
		q, token, cut := t.detached(3000)
		t.command("message.settle", 0, true, headers("x-queue", q, "x-lock-token", token, "x-outcome", "ack"))
		t.settled(q)
		t.readyUntil(q, 0, cut.Add(ms(3300)))
		t.command("message.settle", amqp.NotFound, false, headers("x-queue", q, "x-lock-token", token, "x-outcome", "ack"))
	}, lives: true},
	{id: "T-120", what: "without that it is redelivered when the grace is over", long: true, run: func(t *T) {
		q, token, cut := t.detached(3000)
		t.readyUntil(q, 0, cut.Add(ms(3000)))
		t.soonReady(q, 1, cut.Add(ms(3000)))
		t.command("message.settle", amqp.NotFound, false, headers("x-queue", q, "x-lock-token", token, "x-outcome", "ack"))
		t.counted(t.take(q, 1)[0], "x-delivery-count", 1)
	}},
	{id: "T-121", what: "x-lock-auto-renew 3000 with a lock of 1000: a silent worker loses the message then", long: true, run: func(t *T) {
		q := t.queue("q")
		w := t.worker(q, 1, "x-lock-duration", int32(1000), "x-lock-auto-renew", int32(3000))
		at := t.publish(q)
		t.now().next(w.from)
		due := time.Now().Add(ms(3000))
		d := t.by(due).next(t.bystander(q))
		t.notBefore(at, 3000)
		t.equal("redelivered", d.Redelivered, true)
	}},
	{id: "T-122", what: "1000 settlements race the ends of locks: each has taken effect, or its message is redelivered once", long: true, run: racesLocks},
}}

// worker is a consumer that gives commands, on a channel of its own.
type worker struct {
	t       *T
	ch      *amqp.Channel
	from    <-chan amqp.Delivery
	returns chan amqp.Return
}

func (t *T) worker(queue string, prefetch int, pairs ...any) *worker {
	t.Helper()
	return t.workerOn(t.open(), queue, prefetch, pairs...)
}

func (t *T) workerOn(ch *amqp.Channel, queue string, prefetch int, pairs ...any) *worker {
	t.Helper()
	w := &worker{t: t, ch: ch, returns: ch.NotifyReturn(make(chan amqp.Return, 10))}
	t.must(ch.Confirm(false))
	t.must(ch.Qos(prefetch, 0, false))
	table := args(pairs...)
	t.asks(table)
	var err error
	w.from, err = ch.Consume(queue, "worker", false, false, false, false, table)
	t.must(err)
	return w
}

// ask gives a command, mandatory.
func (w *worker) ask(verb string, pairs ...any) *amqp.DeferredConfirmation {
	w.t.Helper()
	c, err := w.ch.PublishWithDeferredConfirmWithContext(w.t.ctx, "amq.quorate.command", verb, true, false, amqp.Publishing{Headers: args(pairs...)})
	w.t.must(err)
	return c
}

// renews renews locks, and checks the code with which the command is returned;
// 0: it is acked.
func (w *worker) renews(code uint16, pairs ...any) {
	w.t.Helper()
	w.does("lock.renew", code, pairs...)
}

// mustLive uses the channel: what was sent before was no error.
func (w *worker) mustLive() {
	w.t.Helper()
	w.t.must(w.ch.Qos(10, 0, false))
}

// bystander is a consumer without locks that has credit for 10.
func (t *T) bystander(queue string) <-chan amqp.Delivery {
	t.Helper()
	_, from := t.consume(queue, 10)
	return from
}

// lockCounts are how many locks of a queue were lost, and how many deliveries
// were settled afterwards.
func (t *T) lockCounts(queue string) [2]float64 {
	t.Helper()
	q := t.http("GET", "/api/queues/%2F/"+queue, nil)
	lost, _ := q["locks_lost_total"].(float64)
	late, _ := q["late_settlements_total"].(float64)
	return [2]float64{lost, late}
}

// renewsSome hands out three messages with a lock of 2500, renews some of them
// after 1500, and checks that another consumer gets the others first.
func (t *T) renewsSome(which []any, others string) {
	t.Helper()
	q := t.queue("q" + others)
	t.publishN(q, 3)
	at := time.Now()
	w := t.worker(q, 3, "x-lock-duration", int32(2500))
	for range 3 {
		t.now().next(w.from)
	}
	due := time.Now().Add(ms(2500))
	t.must(w.ch.Qos(3, 0, false))
	other := t.bystander(q)
	t.waitUntil(at.Add(ms(1500)))
	renewed := time.Now()
	w.renews(0, which...)
	again := time.Now().Add(ms(2500))
	t.must(w.ch.Cancel("worker", false)) // or it would get them again
	var came []string
	take := func(n int, due, notBefore time.Time) {
		for range n {
			d := t.by(due).next(other)
			if early := time.Until(notBefore); early > slack {
				t.Errorf("%s: %v early", d.Body, early)
			}
			came = append(came, string(d.Body))
			t.must(d.Ack(false))
		}
	}
	take(len(others), due, at.Add(ms(2500)))
	t.equal("not renewed", fmt.Sprint(came), fmt.Sprint(slices.DeleteFunc([]string{others}, func(s string) bool { return s == "" })))
	take(3-len(others), again, renewed.Add(ms(2500)))
}

// detached hands a locked message to a consumer with a grace, cuts its connection,
// and returns the message's token.
func (t *T) detached(grace int) (q, token string, cut time.Time) {
	t.Helper()
	q = t.queue("q")
	c := t.cuttable()
	ch, err := c.conn.Channel()
	t.must(err)
	w := t.workerOn(ch, q, 1, "x-lock-duration", int32(60_000), "x-lock-detach-grace", int32(grace), "x-delivery-info", true)
	t.publish(q)
	d := t.now().next(w.from)
	token, _ = d.Headers["x-lock-token"].(string)
	cut = time.Now()
	c.cut()
	return q, token, cut
}

// racesLocks settles each message when its lock ends, give or take 10 ms. What is
// redelivered is settled at once.
func racesLocks(t *T) {
	n := *races
	q := t.queue("q")
	t.publishMany(q, n)
	w := t.worker(q, n, "x-lock-duration", int32(1000))
	type settled struct {
		body   string
		answer *amqp.DeferredConfirmation
	}
	due, answers := make(chan func() settled, n), make(chan settled, n)
	redelivered := map[string]int{}
	var first atomic.Int64
	go func() {
		defer close(answers)
		for settle := range due {
			answers <- settle()
		}
	}()
	for seen := 0; seen < n; {
		d := t.now().next(w.from)
		if d.Redelivered {
			redelivered[string(d.Body)]++
			t.must(d.Ack(false))
			continue
		}
		seen++
		at := time.Now().Add(ms(1000 - 10 + int(first.Add(1))%21))
		due <- func() settled {
			t.waitUntil(at)
			return settled{string(d.Body), w.ask("message.settle", "x-delivery-tag", int64(d.DeliveryTag), "x-outcome", "ack")}
		}
	}
	close(due)
	go func() {
		for range w.returns {
		}
	}()
	took := map[string]bool{}
	pending := answers
	for pending != nil || len(redelivered)+len(took) < n {
		select {
		case s, ok := <-pending:
			if !ok {
				pending = nil
				continue
			}
			acked, err := s.answer.WaitContext(t.ctx)
			t.must(err)
			if acked {
				took[s.body] = true
			}
		case d := <-w.from:
			redelivered[string(d.Body)]++
			t.must(d.Ack(false))
		case <-t.ctx.Done():
			t.Fatalf("%d settled and %d redelivered, of %d", len(took), len(redelivered), n)
		}
	}
	go func() { // what was settled too late comes once more
		for d := range w.from {
			_ = d.Ack(false)
		}
	}()
	t.settled(q)
	for b, times := range redelivered {
		if took[b] || times != 1 {
			t.Errorf("message %s: settled %v, redelivered %d times", b, took[b], times)
		}
	}
	t.Logf("%d settled in time, %d redelivered", len(took), len(redelivered))
}

// nobodyLeads kills two of three nodes while a message is locked, for longer than
// the lock lasts. The settlement, which comes too late by the clock, takes effect.
func nobodyLeads(t *T) {
	q := t.queue("q")
	n, others := t.followers(q)
	w := t.workerOn(t.openAt(n), q, 1, "x-lock-duration", int32(3000))
	at := t.publish(q)
	d := t.next(w.from)
	_, other := t.consumeAt(n, q)
	t.waitUntil(at.Add(ms(1000)))
	for _, i := range others {
		t.must(t.Nodes[i].Kill(t.ctx))
	}
	t.waitUntil(at.Add(ms(3500)))
	for _, i := range others {
		t.must(t.Nodes[i].Restart())
	}
	t.must(d.Ack(false))
	for _, i := range others {
		t.must(t.Nodes[i].AwaitReady(t.ctx))
	}
	t.lostConnections()
	t.settled(q)
	t.equal("lost", t.lockCounts(q)[0], 0.0)
	t.nothingNext(other, time.Now().Add(ms(300)))
}
