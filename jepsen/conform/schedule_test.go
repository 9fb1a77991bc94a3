package conform

import (
	"flag"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestSchedule(t *testing.T) { scheduleRows.run(t) }

var (
	dying   = flag.Int("dying", 20_000, "messages of row T-24 that expire at one instant")
	pending = flag.Int("pending", 20_000, "messages of row T-79 that are scheduled for later")
	races   = flag.Int("races", 1000, "messages of row T-95")
)

const (
	noSwitch = "TTLs have no switch: what a queue does depends on what clients and operators declare, never on a node's environment"
	onlyFew  = "fewer messages, for the time it takes; "
)

var scheduleRows = suite{test: "TestSchedule", title: "Many deadlines, schedules, races", rows: []row{
	{id: "T-24", what: "many messages with one deadline, a live publisher and consumer: all gone soon after it, no dead one delivered, publishes are confirmed meanwhile", long: true,
		run: dieTogether, but: onlyFew + "`-dying 200000` for all"},
	{id: "T-30", what: "a non-durable, auto-delete queue with a TTL of 5 s and a dead-letter exchange; nobody looks for 6 s; then the letter has its x-death", long: true, run: func(t *T) {
		x, dead, q := t.name("dlx"), t.name("dlq"), t.name("q")
		ch := t.ch()
		t.must(ch.ExchangeDeclare(x, "direct", false, true, false, false, nil))
		for name, table := range map[string]amqp.Table{
			dead: nil, q: {"x-message-ttl": int32(5000), "x-dead-letter-exchange": x, "x-dead-letter-routing-key": "expired"},
		} {
			_, err := ch.QueueDeclare(name, false, true, false, false, table)
			t.must(err)
		}
		t.must(ch.QueueBind(dead, "expired", x, false, nil))
		at := t.publish(q, body("mortal"))
		t.waitUntil(at.Add(ms(6000)))
		from, err := ch.Consume(dead, "", false, false, false, false, nil)
		t.must(err)
		m := t.by(at.Add(ms(5000))).next(from)
		t.must(m.Ack(false))
		t.deaths(&m, 1)
		e := t.death(&m, 0)
		if _, ok := e["time"].(time.Time); !ok {
			t.Errorf("time is %T", e["time"])
		}
		delete(e, "time")
		t.equal("x-death", e, amqp.Table{"reason": "expired", "queue": q, "exchange": "", "routing-keys": []any{q}, "count": int64(1)})
		t.nothingNext(from, time.Now().Add(ms(300)))
	}},
	{id: "T-31", what: "an expiration of 5 s in a queue without TTL: gone at 5 s", long: true, run: func(t *T) {
		q := t.queue("q")
		at := t.publish(q, expiration("5000"))
		t.readyUntil(q, 1, at.Add(ms(5000)))
		t.soonReady(q, 0, at.Add(ms(5000)))
	}},
	{id: "T-32", what: "the same from pika, bunny, php-amqplib, amqplib, librabbitmq and the Java client", test: "jepsen/clients: TestLibraries"},
	{id: "T-33", what: "expirations that are no number, negative, fractions, or present and empty: 406", test: "jepsen/conform: TestTTL/L11, TestTTL/L12, TestTTL/L13"},
	{id: "T-34", what: "x-message-ttl of every integer type; as text, -1, 1.5: 406", test: "jepsen/conform: TestTTL/L02, TestTTL/L06, TestTTL/L07, TestTTL/L08"},
	{id: "T-35", what: "expiration 10000, queue TTL 400: 400; with x-ttl-precedence message: 10000", long: true, run: func(t *T) {
		lowest, first := t.queue("lowest", "x-message-ttl", int32(400)), t.queue("first", "x-message-ttl", int32(400), "x-ttl-precedence", "message")
		at := t.publish(lowest, expiration("10000"))
		long := t.publish(first, expiration("10000"))
		t.soonReady(lowest, 0, at.Add(ms(400)))
		t.readyUntil(first, 1, long.Add(ms(10000)))
		t.soonReady(first, 0, long.Add(ms(10000)))
	}},
	{id: "T-36", what: "TTLs switched off", but: noSwitch},
	{id: "T-37", what: "expired twice, with a rejection between: x-death has two entries, the newest first, and counts", run: func(t *T) {
		work := t.name("work")
		hold := t.queue("hold", "x-message-ttl", int32(300), "x-dead-letter-exchange", "", "x-dead-letter-routing-key", work)
		t.queue("work", "x-dead-letter-exchange", "", "x-dead-letter-routing-key", hold)
		at := t.publish(hold)
		for count := int64(1); count <= 2; count++ {
			m := t.by(at.Add(ms(300))).take1(work)
			t.deaths(m, int(2*count-1-count/2))
			t.equal("newest", fmt.Sprint(t.death(m, 0)["queue"], " ", t.death(m, 0)["reason"], " ", t.death(m, 0)["count"]), fmt.Sprint(hold, " expired ", count))
			if count == 2 {
				t.equal("other", fmt.Sprint(t.death(m, 1)["queue"], " ", t.death(m, 1)["reason"], " ", t.death(m, 1)["count"]), work+" rejected 1")
			}
			t.must(m.Reject(false))
			at = time.Now()
		}
	}},
	{id: "T-38", what: "x-death.time is an AMQP timestamp", test: "jepsen/conform: TestDeadLetters/D01"},
	{id: "T-79", what: "many messages are scheduled for much later: 100 that are due in a second are on time", long: true, run: farSchedules,
		but: onlyFew + "`-pending 1000000` for all; their memory is measured by `quorate-bench suite -only scheduled`"},
	{id: "T-95", what: "a thousand messages, each cancelled at the instant it is due: each is either cancelled or delivered", long: true, run: func(t *T) {
		r := t.raceCancels(0)
		r.mustBeDisjoint(t, 0)
	}},
	{id: "T-101", what: "a scheduled message that is rejected: dead-lettered at once, not delayed again, with x-scheduled-for", run: func(t *T) {
		_, d, q := t.deadly()
		at := t.publish(q, headers("x-opt-delivery-delay", int32(700)))
		sent := time.Now()
		t.readyUntil(q, 0, at.Add(ms(700)))
		t.soonReady(q, 1, sent.Add(ms(700)))
		m := t.take1(q)
		due, ok := m.Headers["x-scheduled-for"].(int64)
		if !ok || due < at.Add(ms(700)-slack).UnixMilli() || due > sent.Add(ms(700)+slack).UnixMilli() {
			t.Errorf("x-scheduled-for is %v", m.Headers["x-scheduled-for"])
		}
		t.must(m.Reject(false))
		letter := t.now().take(d, 1)[0]
		t.equal("reason", t.death(letter, 0)["reason"], "rejected")
		t.equal("x-scheduled-for", letter.Headers["x-scheduled-for"], due)
		t.absent(letter.Headers, "x-opt-delivery-delay")
		t.settled(q)
	}},
	{id: "T-102", what: "the delay of a queue's policy is changed while a message waits: that one keeps its time, new ones get the new one", long: true, run: func(t *T) {
		q := t.queue("q")
		t.policy("p", q, 0, map[string]any{"delivery-delay": 1500})
		at := t.publish(q, body("old"))
		t.policyAgain("p", q, 0, map[string]any{"delivery-delay": 3000})
		again := t.publish(q, body("new"))
		t.readyUntil(q, 0, at.Add(ms(1500)))
		t.soonReady(q, 1, at.Add(ms(1500)))
		t.readyUntil(q, 1, again.Add(ms(3000)))
		t.soonReady(q, 2, again.Add(ms(3000)))
		t.equal("order", bodies(t.take(q, 2)), "old new")
		argued := t.queue("argued", "x-delivery-delay", int32(1000))
		at = t.publish(argued)
		t.readyUntil(argued, 0, at.Add(ms(1000)))
		t.soonReady(argued, 1, at.Add(ms(1000)))
	}},
	{id: "T-103", what: "max-length 5 of ready and scheduled messages: the oldest ready one is dropped, never a scheduled one; without ready ones a publish is refused", lives: true, run: func(t *T) {
		x, d := t.dead()
		later := headers("x-opt-delivery-delay", int32(20_000))
		q := t.queue("q", "x-max-length", int32(5), "x-dead-letter-exchange", x)
		for i := range 3 {
			t.publish(q, later, body(fmt.Sprint("later ", i)))
		}
		for i := range 3 {
			t.publish(q, body(fmt.Sprint("ready ", i)))
		}
		letters := t.take(d, 1)
		t.equal("dropped", bodies(letters)+" "+fmt.Sprint(t.death(letters[0], 0)["reason"]), "ready 0 maxlen")
		info, err := t.Nodes[0].Queue(t.ctx, q)
		t.must(err)
		t.equal("scheduled, all", fmt.Sprint(info.Scheduled, info.Messages), "3 5")
		full := t.queue("full", "x-max-length", int32(5))
		for range 5 {
			t.publish(full, later)
		}
		t.equal("acked", t.send("", full), false)
		info, err = t.Nodes[0].Queue(t.ctx, full)
		t.must(err)
		t.equal("scheduled, all", fmt.Sprint(info.Scheduled, info.Messages), "5 5")
	}},
	{id: "T-110h", what: "x-delivery-time-header: a message is ready when that header says, as RFC 3339 in any zone, seconds or milliseconds; what holds no time is ready at once", run: timesOfHeader},
	{id: "T-111h", what: "expiry-header by policy: a message dies when that header says, be it delayed or not; one that has expired dies at once, without reaching a waiting consumer", run: expiriesOfHeader},
	{id: "T-170", what: "the leader's clock an hour ahead, nobody agrees: nothing expires early, clock_skew is raised", test: "cluster: TestWrongClockOfLeader; jepsen: TestExpiryWithWrongClock"},
	{id: "T-171", what: "the leader's clock an hour behind: a TTL lasts no longer", test: "cluster: TestWrongClockOfLeader; jepsen: TestExpiryWithWrongClock"},
	{id: "T-175", what: "the same log on several replicas, restarted, from snapshots and offline: equal bytes after 400,000 random timed operations", test: "fsm/fsmtest: TestModel, TestCutOfEntries, TestRedundantTicks"},
	{id: "T-176", what: "a rolling upgrade with mixed versions: no divergence, no loss", test: "cluster: TestMixedVersions; jepsen: TestUpgrade"},
	{id: "T-177", what: "queues without timed state write nothing while they are idle", test: "jepsen: TestIdleQueuesWriteNothing"},
}}

// dieTogether lets messages expire at one instant in a queue that is used.
func dieTogether(t *T) {
	const window = 100
	within := max(10*time.Second, time.Duration(*dying)*300*time.Microsecond)
	q, end, enqueue := t.publishDying(within)
	for time.Until(end) < ms(300) { // the machine is too busy
		t.Logf("publishing takes longer than %v", within)
		within *= 2
		q, end, enqueue = t.publishDying(within)
	}
	stop, published := make(chan struct{}), make(chan []time.Duration, 1)
	go func() { published <- t.publishLive(q, stop) }()
	t.waitUntil(end.Add(-ms(200)))
	_, from := t.consume(q, window)
	late, live := 0, 0
	for gone := (time.Time{}); live == 0 || time.Since(gone) < ms(500); {
		m := t.next(from)
		switch string(m.Body) {
		case "dies":
			if time.Now().After(end.Add(enqueue + slack)) {
				late++
			}
		default:
			if live++; live == 1 {
				t.by(end.Add(enqueue+4*time.Second)).inTime("all are gone", time.Now().Add(time.Hour))
				gone = time.Now()
			}
		}
		t.must(m.Ack(false))
	}
	close(stop)
	if late > window {
		t.Errorf("%d dead messages delivered, %d were on their way", late, window)
	}
	took := <-published
	slices.Sort(took)
	t.Logf("%d publishes, p99 %v; %d were on their way at the deadline", len(took), took[len(took)*99/100], late)
	if p99, most := took[len(took)*99/100], t.allowed(); p99 > most {
		t.Errorf("p99 of a publish is %v, allowed are %v", p99, most)
	}
}

// publishDying publishes messages that expire at one instant to a queue of their
// own. A message lives from its enqueue, and ends so much later than the instant.
func (t *T) publishDying(within time.Duration) (q string, end time.Time, enqueue time.Duration) {
	const batch = 500
	q = t.queue("q" + within.String())
	end = time.Now().Add(within)
	for n := 0; n < *dying; n += batch {
		began := time.Now()
		var answers []func() bool
		for range min(batch, *dying-n) {
			life := max(time.Until(end).Milliseconds(), 0)
			answers = append(answers, t.sendLater("", q, body("dies"), expiration(strconv.FormatInt(life, 10))))
		}
		for _, acked := range answers {
			t.equal("confirmed", acked(), true)
		}
		enqueue = max(enqueue, time.Since(began))
	}
	return q, end, enqueue
}

// publishLive publishes messages that live, each after the confirm of the one
// before, and returns how long each took.
func (t *T) publishLive(queue string, stop <-chan struct{}) (took []time.Duration) {
	ch, err := t.conn(1).Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	for err == nil {
		began := time.Now()
		var c *amqp.DeferredConfirmation
		if c, err = ch.PublishWithDeferredConfirmWithContext(t.ctx, "", queue, false, false, amqp.Publishing{Body: []byte("lives")}); err == nil {
			_, err = c.WaitContext(t.ctx)
		}
		took = append(took, time.Since(began))
		select {
		case <-stop:
			return took
		case <-time.After(ms(5)):
		}
	}
	t.Errorf("publish: %v", err)
	return took
}

// farSchedules publishes messages for much later, and some for soon behind them.
func farSchedules(t *T) {
	const soon = 100
	q := t.queue("q")
	answers := make([]func() bool, 0, *pending)
	for i := range *pending {
		answers = append(answers, t.sendLater("", q, headers("x-opt-delivery-delay", int64(3_600_000+i*7919%1000))))
	}
	for _, acked := range answers {
		t.equal("acked", acked(), true)
	}
	_, from := t.consume(q, soon)
	var due []time.Time
	for i := range soon {
		t.publish(q, headers("x-opt-delivery-delay", int32(1000)), body(fmt.Sprint(i)))
		due = append(due, time.Now().Add(ms(1000)))
	}
	for i := range soon {
		m := t.by(due[i]).next(from)
		t.equal("order", string(m.Body), fmt.Sprint(i))
		if early := time.Until(due[i]); early > slack+t.longest {
			t.Errorf("message %d is %v early", i, early)
		}
	}
	info, err := t.Nodes[0].Queue(t.ctx, q)
	t.must(err)
	t.equal("still waiting", info.Scheduled, *pending)
}

// cancelled is what came of messages that were cancelled when they were due.
type cancelled struct {
	acked     map[string]bool // the broker said that it cancelled it; false: that it did not
	delivered map[string]int
}

// raceCancels schedules messages, 1 ms after each other, and cancels each when
// it is due, through another node than that which consumes. kill is when the
// queue's leader is killed, after the first is due; 0: never. Clients are at
// nodes that do not die.
func (t *T) raceCancels(kill time.Duration) *cancelled {
	t.Helper()
	q := t.queue("q")
	n, others := t.followers(q)
	publisher, canceller := t.openAt(n), t.openAt(others[1])
	t.must(publisher.Confirm(false))
	t.must(canceller.Confirm(false))
	first := time.Now().Add(max(ms(2000), time.Duration(*races)*ms(2)))
	due := func(i int) time.Time { return first.Add(ms(i)) }
	var answers []*amqp.DeferredConfirmation
	for i := range *races {
		c, err := publisher.PublishWithDeferredConfirmWithContext(t.ctx, "", q, false, false, amqp.Publishing{
			Body: []byte(fmt.Sprint(i)), Headers: args("x-opt-delivery-time", due(i).UnixMilli(), "x-schedule-id", fmt.Sprint(i)),
		})
		t.must(err)
		answers = append(answers, c)
	}
	for _, c := range answers {
		if ok, err := c.WaitContext(t.ctx); err != nil || !ok {
			t.Fatalf("acked: %v, %v", ok, err)
		}
	}
	answers = answers[:0]
	_, from := t.consumeAt(n, q)
	var killing sync.WaitGroup
	var killed error
	if kill > 0 {
		leader := t.Nodes[others[0]]
		killing.Go(func() {
			select {
			case <-t.ctx.Done():
			case <-time.After(time.Until(first.Add(kill))):
			}
			if killed = leader.Kill(t.ctx); killed == nil {
				killed = leader.Restart()
			}
			if killed == nil {
				killed = leader.AwaitReady(t.ctx)
			}
		})
	}
	for i := range *races {
		t.waitUntil(due(i).Add(-ms(i % 10)))
		c, err := canceller.PublishWithDeferredConfirmWithContext(t.ctx, "amq.quorate.command", "schedule.cancel", false, false,
			amqp.Publishing{Headers: args("x-queue", q, "x-schedule-id", fmt.Sprint(i))})
		t.must(err)
		answers = append(answers, c)
	}
	r := &cancelled{map[string]bool{}, map[string]int{}}
	for i, c := range answers {
		ok, err := c.WaitContext(t.ctx)
		t.must(err)
		r.acked[fmt.Sprint(i)] = ok
	}
	killing.Wait()
	t.must(killed)
	if kill > 0 {
		t.lostConnectionTo(others[0])
	}
	t.by(due(*races)).quietlyScheduled(n, q)
	for {
		select {
		case m := <-from:
			r.delivered[string(m.Body)]++
			t.must(m.Ack(false))
		case <-time.After(ms(500)):
			return r
		}
	}
}

// mustBeDisjoint checks that each message was cancelled or delivered, and none
// both. A command whose answer went with a leader may have taken effect though
// it was nacked: so many may be neither.
func (r *cancelled) mustBeDisjoint(t *T, neither int) {
	t.Helper()
	ok, none := 0, 0
	for id, acked := range r.acked {
		switch n := r.delivered[id]; {
		case acked && n > 0:
			t.Errorf("message %s was cancelled and delivered", id)
		case n > 1:
			t.Errorf("message %s was delivered %d times", id, n)
		case acked:
			ok++
		case n == 0:
			none++
		}
	}
	t.Logf("%d cancelled, %d delivered, %d neither", ok, len(r.delivered), none)
	if none > neither {
		t.Errorf("%d messages were neither cancelled nor delivered", none)
	}
	if ok == 0 || len(r.delivered) == 0 {
		t.Logf("no race: all went one way")
	}
}

// quietlyScheduled waits until a queue has nothing scheduled any more.
func (t *T) quietlyScheduled(node int, queue string) {
	t.Helper()
	t.eventually("nothing is scheduled", func() error {
		info, err := t.Nodes[node].Queue(t.ctx, queue)
		if err == nil && info.Scheduled > 0 {
			err = fmt.Errorf("%d are", info.Scheduled)
		}
		return err
	})
}

// lostConnectionTo forgets the row's connection to a node that has ended.
func (t *T) lostConnectionTo(node int) {
	t.connecting.Lock()
	defer t.connecting.Unlock()
	t.conns[node] = nil
	if node == 0 {
		t.main = nil
	}
}
