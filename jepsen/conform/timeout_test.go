package conform

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
)

func TestTimeout(t *testing.T) { timeoutRows.run(t) }

var timeoutRows = suite{test: "TestTimeout", title: "Consumer timeouts", rows: []row{
	{id: "CT1", what: "basic.cancel after the timeout; another consumer gets the message, redelivered", run: func(t *T) {
		q, s, at := t.late(1000)
		d := t.by(s.due).other(q)
		t.notBefore(at, 1000)
		t.equal("redelivered", d.Redelivered, true)
		s.mustBeCancelled(t)
		t.must(d.Ack(false))
		t.settledTo(q, 0)
	}},
	{id: "CT2", what: "without consumer_cancel_notify: 406, the connection stays open, the message goes back", long: true, run: incapable},
	{id: "CT3", what: "basic.get: 406, and the message goes back", run: func(t *T) {
		q := t.queue("q", "x-consumer-timeout", int32(1000))
		t.publish(q)
		ch := t.open()
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		_, ok, err := ch.Get(q, false)
		t.must(err)
		t.equal("got", ok, true)
		t.mustBe(t.by(time.Now().Add(ms(1000))).endedWith(&slow{closed: closed}), amqp.PreconditionFailed, "delivery acknowledgement on channel")
		t.now().take(q, 1)
	}},
	{id: "CT4", what: "the consumer's argument applies, not the queue's", run: func(t *T) {
		t.fires(1000, []any{"x-consumer-timeout", int32(60000)}, []any{"x-consumer-timeout", int32(1000)}, nil)
	}},
	{id: "CT5", what: "even if it is longer", long: true, run: func(t *T) {
		t.fires(2500, []any{"x-consumer-timeout", int32(500)}, []any{"x-consumer-timeout", int32(2500)}, nil)
	}},
	{id: "CT6", what: "of queue and policy the smaller: the policy's", run: func(t *T) {
		t.fires(1000, []any{"x-consumer-timeout", int32(5000)}, nil, definition{"consumer-timeout": 1000})
	}},
	{id: "CT7", what: "of queue and policy the smaller: the queue's", run: func(t *T) {
		t.fires(1000, []any{"x-consumer-timeout", int32(1000)}, nil, definition{"consumer-timeout": 5000})
	}},
	{id: "CT8", what: "the node's value applies if no other is set; its default is 1800000", long: true, run: func(t *T) {
		inherited := func(t *T) string {
			q := t.queue("shown")
			t.consume(q, 1)
			c := t.consumerOf(q)
			return fmt.Sprint(c.Timeout, c.Source)
		}
		t.equal("timeout", inherited(t), "1800000node")
		set := newT(t.T, mustNodes(t.T, 1, "--set", "consumer_timeout=1000"), t.row)
		t.equal("timeout that is set", inherited(set), "1000node")
		set.fires(1000, nil, nil, nil)
	}},
	{id: "CT9", what: "wrong values of the consumer: 406", run: func(t *T) {
		q := t.queue("q")
		for _, v := range []any{int32(-1), "never", true} {
			t.refused(amqp.PreconditionFailed, "invalid arg 'x-consumer-timeout' for queue 'CT9.q' in vhost '/'", func(ch *amqp.Channel) error {
				_, err := ch.Consume(q, "", false, false, false, false, args("x-consumer-timeout", v))
				return err
			})
		}
	}},
	{id: "CT10", what: "wrong values of the queue: 406", run: func(t *T) {
		for _, v := range []any{int32(-1), "1000", 1.5} {
			t.refuseDeclare("q", "invalid arg 'x-consumer-timeout' for queue 'CT10.q' in vhost '/'", "x-consumer-timeout", v)
		}
	}},
	{id: "CT11", what: "wrong values of a policy are refused", run: func(t *T) {
		for _, v := range []any{-5, "1s"} {
			p := cluster.Policy{Name: t.name("p"), Pattern: "^CT11$", Definition: definition{"consumer-timeout": v}}
			status, answer, err := t.Nodes[0].Do(t.ctx, http.MethodPut, p.Path(), p)
			t.must(err)
			if words := "is not a valid consumer timeout"; status != http.StatusBadRequest || !strings.Contains(string(answer), words) {
				t.Errorf("%v: status %d, %s; not %q", v, status, answer, words)
			}
		}
	}},
	{id: "CT12", what: "only deliveries that are due go back", long: true, run: func(t *T) { t.partial(false) }},
	{id: "CT13", what: "deliveries that are not due can be acked", long: true, run: func(t *T) { t.partial(true) }},
	{id: "CT14", what: "a late ack is not an error and removes nothing", run: func(t *T) {
		q, s, _ := t.late(1000)
		d := t.by(s.due).other(q)
		t.must(s.delivery.Ack(false))
		s.mustLive(t)
		t.settledTo(q, 1)
		t.must(d.Ack(false))
		t.settledTo(q, 0)
	}},
	{id: "CT15", what: "a late reject dead-letters nothing", long: true, run: func(t *T) {
		x, dead := t.dead()
		q, s, _ := t.late(1000, "x-dead-letter-exchange", x)
		d := t.by(s.due).other(q)
		t.must(s.delivery.Reject(false))
		s.mustLive(t)
		t.readyUntil(dead, 0, time.Now().Add(ms(300)))
		t.must(d.Ack(false))
	}},
	{id: "CT16", what: "three timeouts: x-acquired-count, no x-delivery-count", run: func(t *T) { t.timesOut(3) }},
	{id: "CT17", what: "a delivery limit of 1 does not count timeouts", run: func(t *T) { t.timesOut(5, "x-delivery-limit", int32(1)) }},
	{id: "CT18", what: "messages that go back keep their order, before new ones", run: func(t *T) {
		q := t.queue("q")
		t.publishN(q, 3)
		s := t.slow(q, "x-consumer-timeout", int32(1000))
		for range 3 {
			s.take(t, 1000)
		}
		t.publish(q, body("4"))
		s.mustBeCancelled(t)
		t.equal("order", bodies(t.now().take(q, 4)), "1 2 3 4")
	}},
	{id: "CT19", what: "another consumer of the channel continues", run: func(t *T) {
		q, s, _ := t.late(1000)
		second := t.queue("second")
		from, err := s.ch.Consume(second, "second", false, false, false, false, nil)
		t.must(err)
		s.mustBeCancelled(t)
		t.publish(second)
		d := t.now().next(from)
		t.must(d.Ack(false))
		t.settledTo(second, 0)
		t.now().take(q, 1)
	}},
	{id: "CT20", what: "the cancelled consumer's tag is free at once", run: func(t *T) {
		q, s, _ := t.late(1000)
		s.mustBeCancelled(t)
		from, err := s.ch.Consume(q, "slow", false, false, false, false, nil)
		t.must(err)
		d := t.now().next(from)
		t.must(d.Ack(false))
		t.settledTo(q, 0)
	}},
	{id: "CT21", what: "single active consumer: both time out, one subscribes again: it is served", run: func(t *T) {
		q := t.queue("q", "x-single-active-consumer", true)
		t.publish(q)
		var both [2]*slow
		for i := range both {
			both[i] = t.slow(q, "x-consumer-timeout", int32(500))
			both[i].take(t.now(), 500)
			both[i].mustBeCancelled(t)
		}
		again := t.slowOn(both[0].ch, q, "again")
		for range 2 {
			d := t.now().next(again.from)
			t.must(d.Ack(false))
			if d.Redelivered {
				t.publish(q)
			}
		}
		t.settledTo(q, 0)
	}},
	{id: "CT22", what: "single active consumer: the next one takes over from one that times out", run: func(t *T) {
		q, s, at := t.late(1000, "x-single-active-consumer", true)
		d := t.by(s.due).other(q)
		t.notBefore(at, 1000)
		s.mustBeCancelled(t)
		t.must(d.Ack(false))
		t.settledTo(q, 0)
	}},
	{id: "CT23", what: "single active consumer: no other gets anything while it holds deliveries that are not due", long: true, run: func(t *T) { t.keepsPlace() },
		but: "holds with `x-consumer-timeout-action: suspend`; a consumer that is cancelled is replaced at once"},
	{id: "CT24", what: "suspend: no deliveries until the late ones are acked", run: func(t *T) { t.suspended(1) }},
	{id: "CT25", what: "suspend: both of two must be acked", run: func(t *T) { t.suspended(2) }},
	{id: "CT26", what: "without acknowledgements there is no timeout", run: func(t *T) {
		q, ch := t.queue("q"), t.open()
		cancelled := ch.NotifyCancel(make(chan string, 1))
		from, err := ch.Consume(q, "", true, false, false, false, args("x-consumer-timeout", int32(300)))
		t.must(err)
		t.publish(q)
		t.next(from)
		select {
		case tag := <-cancelled:
			t.Fatalf("%q is cancelled", tag)
		case <-time.After(ms(900)):
		}
	}},
	{id: "CT27", what: "a new policy applies to the next delivery, not to outstanding ones", run: func(t *T) {
		q := t.queue("q")
		t.policy("p", q, 1, definition{"consumer-timeout": 60000})
		t.inherits(q, 60000)
		s := t.slow(q)
		t.publish(q, body("old"))
		t.next(s.from)
		t.policy("p", q, 1, definition{"consumer-timeout": 1000})
		t.inherits(q, 1000)
		t.publish(q, body("new"))
		s.take(t, 1000)
		s.mustBeCancelled(t)
		t.equal("back", bodies(t.now().take(q, 1)), "new")
		t.settledTo(q, 1)
	}},
	{id: "CT28", what: "a consumer that the client has cancelled: the message goes back, the channel stays open", run: func(t *T) {
		q, s, _ := t.late(1000)
		t.must(s.ch.Cancel("slow", false))
		t.by(s.due).take(q, 1)
		s.mustLive(t)
	}},
	{id: "CT31", what: "timeouts and late acks are counted, listed and logged", run: func(t *T) {
		q, s, _ := t.late(500, "x-consumer-timeout-action", "suspend")
		d := t.by(s.due).other(q)
		t.metric(1, "quorate_consumer_timeout_actions_total", `action="suspend"`)
		t.metric(1, "quorate_consumer_timeouts_total")
		var figures struct {
			TimedOut int `json:"messages_timed_out_total"`
		}
		t.must(t.Nodes[0].Call(t.ctx, http.MethodGet, "/api/queues/%2F/"+q, nil, &figures))
		t.equal("the queue's count", figures.TimedOut, 1)
		t.eventually("it is logged once", func() error {
			if n := t.Logged("consumer timeout", q, "slow", "[1]", "timeout_ms", "500"); n != 1 {
				return fmt.Errorf("%d lines", n)
			}
			return nil
		})
		c := t.consumerNamed(q, "slow")
		t.equal("consumer", fmt.Sprint(c.Activity, c.TimedOut, c.Timeout, c.Source), "timeout1 500consumer")
		t.must(s.delivery.Ack(false))
		t.eventually("the late ack is counted", func() error {
			if c := t.consumerNamed(q, "slow"); c.LateAcks != 1 || c.TimedOut != 0 {
				return fmt.Errorf("%+v", c)
			}
			return nil
		})
		t.must(d.Ack(false))
	}},
	{id: "CT32", what: "the action by policy: suspend, without an argument; the consumer's own argument overrides it", run: func(t *T) {
		q := t.queue("q")
		t.policy("p", q, 1, definition{"consumer-timeout-action": "suspend", "consumer-timeout": 500})
		t.inherits(q, 500)
		t.resumes(q)
		s := t.slow(q, "x-consumer-timeout-action", "cancel")
		t.publish(q)
		s.take(t, 500)
		s.mustBeCancelled(t)
	}},
	{id: "CT33", what: "the action by an argument of the queue, which overrides the policy's", run: func(t *T) {
		q := t.queue("q", "x-consumer-timeout-action", "suspend", "x-consumer-timeout", int32(500))
		t.policy("p", q, 1, definition{"consumer-timeout-action": "cancel"})
		t.resumes(q)
		local := t.name("local")
		t.declare(t.ch(), local, flags{}, args("x-consumer-timeout-action", "suspend", "x-consumer-timeout", int32(500)))
		t.resumes(local)
	}},
	{id: "CT34", what: "the action by consumer_timeout_action of the node; the default is cancel", long: true, run: func(t *T) {
		set := newT(t.T, mustNodes(t.T, 1, "--set", "consumer_timeout_action=suspend", "--set", "consumer_timeout=500"), t.row)
		set.resumes(set.queue("q"))
		t.fires(500, []any{"x-consumer-timeout", int32(500)}, nil, nil)
	}},
	{id: "CT35", what: "a consumer that was cancelled for a timeout is listed with the status timeout until it has settled", run: func(t *T) {
		q, s, _ := t.late(500)
		s.mustBeCancelled(t)
		t.eventually("it is cancelled and late", func() error {
			if c := t.consumerNamed(q, "slow"); c.Activity != "timeout" || c.Active || c.TimedOut != 1 {
				return fmt.Errorf("%+v", c)
			}
			return nil
		})
		t.must(s.delivery.Ack(false))
		t.settledTo(q, 1)
		t.eventually("it is not listed", func() error {
			if n := len(t.consumersOf(q)); n != 0 {
				return fmt.Errorf("%d consumers", n)
			}
			return nil
		})
		t.take(q, 1)
	}},
}}

// resumes lets a consumer without arguments be late: it is not cancelled, shows
// the status timeout, and gets more once it has settled.
func (t *T) resumes(queue string) {
	t.Helper()
	ch := t.open()
	s := t.slowOn(ch, queue, "slow")
	t.publish(queue, body("1"))
	s.take(t, 500)
	c := t.by(s.due).eventualActivity(queue, "slow", "timeout")
	t.equal("late", c.TimedOut, 1)
	t.must(ch.Ack(1, false))
	d := t.next(s.from)
	t.equal("again", fmt.Sprint(string(d.Body), d.Redelivered), "1true")
	t.must(d.Ack(false))
	t.eventualActivity(queue, "slow", "up")
	select {
	case <-s.cancelled:
		t.Error("it is cancelled")
	default:
	}
	t.must(ch.Close())
}

func (t *T) eventualActivity(queue, tag, activity string) (c shown) {
	t.Helper()
	t.eventually(activity, func() error {
		if c = t.consumerNamed(queue, tag); c.Activity != activity {
			return fmt.Errorf("it is %s", c.Activity)
		}
		return nil
	})
	return c
}

// slow is a consumer that does not ack, on a channel of its own.
type slow struct {
	ch        *amqp.Channel
	from      <-chan amqp.Delivery
	cancelled chan string
	closed    chan *amqp.Error
	due       time.Time     // for its cancellation; zero: it has no instant
	delivery  amqp.Delivery // of late
}

// take takes a delivery that is held for too long from then on.
func (s *slow) take(t *T, timeout int) amqp.Delivery {
	t.Helper()
	d := t.next(s.from)
	s.due = time.Now().Add(ms(timeout))
	return d
}

func (t *T) slow(queue string, pairs ...any) *slow {
	t.Helper()
	return t.slowOn(t.open(), queue, "slow", pairs...)
}

func (t *T) slowOn(ch *amqp.Channel, queue, tag string, pairs ...any) *slow {
	t.Helper()
	s := &slow{ch: ch, cancelled: ch.NotifyCancel(make(chan string, 2)), closed: ch.NotifyClose(make(chan *amqp.Error, 1))}
	t.must(ch.Qos(10, 0, false))
	var err error
	table := args(pairs...)
	t.asks(table)
	s.from, err = ch.Consume(queue, tag, false, false, false, false, table)
	t.must(err)
	return s
}

// late hands a message to a slow consumer with this timeout. pairs are
// arguments of the queue, those of the consumer among them.
func (t *T) late(timeout int32, pairs ...any) (q string, s *slow, at time.Time) {
	t.Helper()
	q = t.queue("q", pairs...)
	s = t.slow(q, append([]any{"x-consumer-timeout", timeout}, pairs...)...)
	at = t.publish(q)
	s.delivery = s.take(t, int(timeout))
	return q, s, at
}

// other is the next delivery of another consumer.
func (t *T) other(queue string) amqp.Delivery {
	t.Helper()
	_, from := t.consume(queue, 10)
	return t.next(from)
}

func (t *T) notBefore(at time.Time, timeout int) {
	t.Helper()
	if early := time.Until(at.Add(ms(timeout))); early > slack {
		t.Errorf("%v early", early)
	}
}

func (s *slow) mustBeCancelled(t *T) {
	t.Helper()
	began := time.Now()
	select {
	case tag := <-s.cancelled:
		t.equal("cancelled", tag, "slow")
	case err := <-s.closed:
		t.Fatalf("the channel is closed: %v", err)
	case <-time.After(patience):
		t.Fatal("no basic.cancel")
	}
	t.by(s.due).inTime("basic.cancel", began)
	s.mustLive(t)
}

// mustLive uses the channel: what was sent before has been read, and was no error.
func (s *slow) mustLive(t *T) {
	t.Helper()
	t.must(s.ch.Qos(10, 0, false))
}

func (t *T) endedWith(s *slow) error {
	t.Helper()
	err, _ := within(t, "end of the channel", s.closed)
	return err
}

// fires checks that what decides of these is a timeout.
func (t *T) fires(timeout int, queue, consumer []any, policy definition) {
	t.Helper()
	q := t.queue("q", queue...)
	if policy != nil {
		t.policy("p", q, 1, policy)
		t.inherits(q, timeout)
	}
	s := t.slow(q, consumer...)
	at := t.publish(q)
	s.take(t, timeout)
	s.mustBeCancelled(t)
	t.notBefore(at, timeout)
	t.now().take(q, 1)
}

// inForce waits until consumers of a queue inherit a timeout.
func (t *T) inherits(queue string, timeout int) {
	t.Helper()
	ch, _ := t.consume(queue, 1)
	t.eventually(fmt.Sprintf("a timeout of %d is in force", timeout), func() error {
		if c := t.consumerOf(queue); c.Timeout != int64(timeout) {
			return fmt.Errorf("it is %d", c.Timeout)
		}
		return nil
	})
	t.must(ch.Close())
}

// partial hands out two messages, the second of which is due later.
func (t *T) partial(ack bool) {
	t.Helper()
	const timeout = 3000
	q := t.queue("q")
	s := t.slow(q, "x-consumer-timeout", int32(timeout))
	t.publish(q, body("1"))
	s.take(t, timeout)
	t.waitUntil(time.Now().Add(ms(1500)))
	at := t.publish(q, body("2"))
	second := t.next(s.from)
	due := time.Now().Add(ms(timeout))
	s.mustBeCancelled(t)
	if ack {
		t.must(second.Ack(false))
		s.mustLive(t)
	}
	t.equal("back", bodies(t.now().take(q, 1)), "1")
	if ack {
		t.settledTo(q, 0)
		return
	}
	t.by(due).take(q, 1)
	t.notBefore(at, timeout)
}

// timesOut lets a message time out so often.
func (t *T) timesOut(n int, pairs ...any) {
	t.Helper()
	q := t.queue("q", pairs...)
	t.publish(q)
	for range n {
		s := t.slow(q, "x-consumer-timeout", int32(200))
		s.take(t.now(), 200)
		s.mustBeCancelled(t)
	}
	d := t.now().take(q, 1)[0]
	t.equal("acquired", fmt.Sprint(d.Headers["x-acquired-count"]), fmt.Sprint(n))
	if v, ok := d.Headers["x-delivery-count"]; ok {
		t.Errorf("x-delivery-count %v", v)
	}
}

// suspended lets n messages time out of a consumer that is suspended for it.
func (t *T) suspended(n int) {
	t.Helper()
	q := t.queue("q")
	s := t.slow(q, "x-consumer-timeout", int32(300), "x-consumer-timeout-action", "suspend")
	t.publishN(q, n)
	var all []amqp.Delivery
	for range n {
		all = append(all, s.take(t, 300))
	}
	t.by(s.due).take(q, n)
	t.publish(q, body("new"))
	for _, d := range all {
		t.nothingNext(s.from, time.Now().Add(ms(300)))
		t.must(d.Ack(false))
	}
	d := t.now().next(s.from)
	t.equal("then", string(d.Body), "new")
	t.must(d.Ack(false))
}

// incapable is a client that cannot be told of a cancelled consumer.
func incapable(t *T) {
	q := t.queue("q", "x-consumer-timeout", int32(1000))
	r, err := client.DialRaw(t.ctx, t.Nodes[0].AMQP)
	t.must(err)
	defer r.Close()
	t.must(r.Consume(q))
	t.publish(q)
	_, err = r.Expect(60<<16 | 60)
	t.must(err)
	due := time.Now().Add(ms(1000))
	_, err = r.Expect(60<<16 | 30) // a cancel must not come, a close must
	var closed *client.Closed
	if words := "delivery acknowledgement on channel 1 timed out. Timeout value used: 1000 ms."; !errors.As(err, &closed) ||
		closed.Connection || closed.Code != amqp.PreconditionFailed || !strings.Contains(closed.Text, words) {
		t.Fatalf("the channel ends with %v", err)
	}
	t.notLate("the close", due)
	t.must(r.OpenChannel(2))
	t.now().take(q, 1)
}

// keepsPlace lets a single active consumer be late with one of two messages.
func (t *T) keepsPlace() {
	t.Helper()
	const timeout = 3000
	q := t.queue("q", "x-single-active-consumer", true)
	s := t.slow(q, "x-consumer-timeout", int32(timeout), "x-consumer-timeout-action", "suspend")
	_, next := t.consume(q, 10)
	t.publish(q, body("1"))
	t.next(s.from)
	t.waitUntil(time.Now().Add(ms(1000)))
	at := t.publish(q, body("2"))
	s.take(t, timeout)
	for _, want := range []string{"1", "2"} {
		d := t.by(s.due).next(next)
		t.notBefore(at, timeout)
		t.equal("delivery", string(d.Body), want)
		t.must(d.Ack(false))
	}
	t.settledTo(q, 0)
}

// shown is a consumer as the HTTP API shows it.
type shown struct {
	Tag      string `json:"consumer_tag"`
	Activity string `json:"activity_status"`
	Active   bool   `json:"active"`
	TimedOut int    `json:"timed_out"`
	LateAcks int    `json:"consumer_timeout_late_acks_total"`
	Timeout  int64  `json:"effective_timeout_ms"`
	Source   string `json:"timeout_source"`
	Queue    struct {
		Name string `json:"name"`
	} `json:"queue"`
}

// consumerOf is some consumer of a queue.
func (t *T) consumerOf(queue string) shown { t.Helper(); return t.consumerNamed(queue, "") }

func (t *T) consumerNamed(queue, tag string) (c shown) {
	t.Helper()
	t.eventually(queue+" has a consumer", func() error {
		all := t.consumersOf(queue)
		for _, c = range all {
			if tag == "" || c.Tag == tag {
				return nil
			}
		}
		return fmt.Errorf("none of %d", len(all))
	})
	return c
}

// consumersOf lists the consumers of a queue; none while they are not known.
func (t *T) consumersOf(queue string) (all []shown) {
	t.Helper()
	status, answer, err := t.Nodes[0].Do(t.ctx, "GET", "/api/consumers/%2F", nil)
	if err != nil || status != 200 {
		return nil
	}
	t.must(json.Unmarshal(answer, &all))
	return slices.DeleteFunc(all, func(c shown) bool { return c.Queue.Name != queue })
}
