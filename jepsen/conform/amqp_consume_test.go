package conform

import (
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
)

// unknownTag checks that settling ends the channel.
func (t *T) unknownTag(tag int, do func(ch *amqp.Channel) error) {
	t.Helper()
	t.closedWith(t.conn(0), amqp.PreconditionFailed, fmt.Sprintf("unknown delivery tag %d", tag), func(ch *amqp.Channel) { t.must(do(ch)) })
}

// bodiesOf are the bodies of the next n deliveries.
func (t *T) bodiesOf(from <-chan amqp.Delivery, n int) (got []string, all []amqp.Delivery) {
	t.Helper()
	for range n {
		d := t.next(from)
		got, all = append(got, string(d.Body)), append(all, d)
	}
	return got, all
}

// soon is long enough for what would come at once, were it to come.
func soon() time.Time { return time.Now().Add(ms(300)) }

const (
	timeoutText = "delivery acknowledgement on channel 1 timed out. Timeout value used: 1000 ms. This timeout value can be configured"
	exclusive   = "' in vhost '/' in exclusive use"
)

var consumeRows = []row{
	{id: "A075", what: "tags that are not outstanding: 406; 0 with multiple is all", run: func(t *T) {
		q := t.queue("q")
		t.publishN(q, 1)
		t.unknownTag(1, func(ch *amqp.Channel) error { return ch.Ack(1, false) })
		t.unknownTag(0, func(ch *amqp.Channel) error { return ch.Ack(0, false) })
		t.unknownTag(7, func(ch *amqp.Channel) error { return ch.Nack(7, false, true) })
		t.unknownTag(7, func(ch *amqp.Channel) error { return ch.Reject(7, true) })
		t.unknownTag(7, func(ch *amqp.Channel) error { return ch.Ack(7, true) })
		ch := t.open()
		t.must(ch.Ack(0, true))
		t.must(ch.Qos(1, 0, false)) // it is open
		t.unknownTag(1, func(ch *amqp.Channel) error {
			_, _, err := ch.Get(q, false)
			t.must(err)
			t.must(ch.Ack(1, false))
			return ch.Ack(1, false)
		})
	}},
	{id: "A076", what: "multiple with a tag that is settled: 406", run: func(t *T) {
		q := t.queue("q")
		t.publishN(q, 5)
		t.unknownTag(2, func(ch *amqp.Channel) error {
			for range 5 {
				_, _, err := ch.Get(q, false)
				t.must(err)
			}
			t.must(ch.Ack(2, false))
			t.must(ch.Ack(3, true))
			t.must(ch.Qos(1, 0, false))
			return ch.Ack(2, true)
		})
	}},
	{id: "A077", what: "nack and reject with requeue: the headers of the message", run: func(t *T) {
		q := t.queue("q")
		t.publish(q)
		counts := func(d *amqp.Delivery) []any {
			return []any{d.Redelivered, d.Headers["x-acquired-count"], d.Headers["x-delivery-count"]}
		}
		d := t.mustGet(q)
		t.equal("at first", counts(d), []any{false, nil, nil})
		t.must(d.Nack(false, true))
		d = t.comesBack(q)
		t.equal("after nack", counts(d), []any{true, int64(1), nil})
		t.must(d.Reject(true))
		t.equal("after reject", counts(t.comesBack(q)), []any{true, int64(2), int64(1)})
	}},
	{id: "A078", what: "prefetch_size: 540; global counts all consumers of the channel", run: func(t *T) {
		r := t.raw()
		t.must(r.Method(1, 60<<16|10, []byte{0, 0, 0, 10, 0, 0, 0}))
		t.closes(r, amqp.NotImplemented, "prefetch_size!=0 (10)", "60,10")
		q := t.queue("q")
		t.publishN(q, 6)
		p := t.limited(2)
		p.consumeAs(q, "one")
		p.consumeAs(q, "two")
		p.take(2)
		p.quiet()
	}},
	{id: "A079", what: "prefetch 2, two consumers: two each", run: func(t *T) {
		q := t.queue("q")
		t.publishN(q, 6)
		ch := t.open()
		t.must(ch.Qos(2, 0, false))
		t.twoEach(q, ch)
	}},
	{id: "A080", what: "a consumer tag in use: 530", run: func(t *T) {
		r := t.raw()
		q := t.queue("q")
		for range 2 {
			t.must(r.Method(1, methodConsume, client.Join([]byte{0, 0}, client.ShortString(q), client.ShortString("tag"), []byte{0, 0, 0, 0, 0})))
		}
		t.closes(r, amqp.NotAllowed, "attempt to reuse consumer tag 'tag'", "60,20")
	}},
	{id: "A081", what: "exclusive consumers: 403", run: func(t *T) {
		q := t.queue("q")
		alone := func(exclusive bool) func(ch *amqp.Channel) error {
			return func(ch *amqp.Channel) error {
				_, err := ch.Consume(q, "", false, exclusive, false, false, nil)
				return err
			}
		}
		first := t.open()
		t.must(alone(true)(first))
		t.refused(amqp.AccessRefused, "queue '"+q+exclusive, alone(false))
		t.must(first.Close())
		t.must(alone(false)(t.open()))
		t.refused(amqp.AccessRefused, "queue '"+q+exclusive, alone(true))
	}},
	{id: "A082", what: "x-priority: the higher one first, as long as its prefetch allows", run: func(t *T) {
		q := t.queue("q")
		_, low := t.consume(q, 1, "x-priority", int32(0))
		_, high := t.consume(q, 1, "x-priority", int32(10))
		t.publishN(q, 2)
		t.equal("high", string(t.next(high).Body), "1")
		d := t.next(low)
		t.equal("low", string(d.Body), "2")
		t.refused(amqp.PreconditionFailed, `invalid arg 'x-priority' for queue '`+q+`' in vhost '/': "expected integer, got longstr"`, func(ch *amqp.Channel) error {
			_, err := ch.Consume(q, "", false, false, false, false, args("x-priority", "high"))
			return err
		})
	}},
	{id: "A083", what: "consumer arguments of streams: 406; unknown ones are accepted", run: func(t *T) {
		q := t.queue("q")
		t.refused(amqp.PreconditionFailed, "invalid arg 'x-stream-offset' for queue '"+q+"' in vhost '/' of queue type rabbit_quorum_queue", func(ch *amqp.Channel) error {
			_, err := ch.Consume(q, "", false, false, false, false, args("x-stream-offset", "first"))
			return err
		})
		t.consume(q, 1, "x-foo", "y", "x-cancel-on-ha-failover", true)
	}},
	{id: "A084", what: "cancelling an unknown tag", run: func(t *T) { t.must(t.ch().Cancel(t.name("none"), false)) }},
	{id: "A085", what: "basic.get with a single active consumer: 405", run: func(t *T) {
		q := t.queue("q", "x-single-active-consumer", true)
		t.refused(amqp.ResourceLocked, "basic.get operations are not supported by \"quorum\" queues with single active consumer", func(ch *amqp.Channel) error {
			_, _, err := ch.Get(q, false)
			return err
		})
	}},
	{id: "A086", what: "recover: all are redelivered; without requeue 540", run: func(t *T) {
		q := t.queue("q")
		t.publishN(q, 2)
		ch, from := t.consume(q, 2)
		_, first := t.bodiesOf(from, 2)
		//lint:ignore SA1019 the row is about this method
		t.must(ch.Recover(true))
		again := map[string]bool{}
		for range 2 {
			d := t.next(from)
			again[string(d.Body)] = d.Redelivered && d.DeliveryTag > first[1].DeliveryTag
		}
		t.equal("again", again, map[string]bool{"1": true, "2": true})
		r := t.raw()
		t.must(r.Method(1, 60<<16|110, []byte{0}))
		t.closes(r, amqp.NotImplemented, "requeue=false", "60,110")
	}},
	{id: "A087", what: "flow: on is answered, off is 540", run: func(t *T) {
		r := t.raw()
		t.must(r.Method(1, methodChannelFlow, []byte{1}))
		args, err := r.Expect(ok(methodChannelFlow))
		t.must(err)
		t.equal("active", args, []byte{1})
		t.must(r.Method(1, methodChannelFlow, []byte{0}))
		t.closes(r, amqp.NotImplemented, "active=false", "20,20")
	}},
	{id: "A091", what: "10,000 confirms: each tag once", run: func(t *T) {
		const n = 10_000
		q := t.queue("q")
		ch := t.open()
		t.must(ch.Confirm(false))
		confirms := ch.NotifyPublish(make(chan amqp.Confirmation, n))
		for range n {
			t.must(ch.PublishWithContext(t.ctx, "", q, false, false, amqp.Publishing{}))
		}
		seen := map[uint64]bool{}
		for range n {
			select {
			case c := <-confirms:
				if !c.Ack || seen[c.DeliveryTag] || c.DeliveryTag > n {
					t.Fatalf("confirm %+v, seen %v", c, seen[c.DeliveryTag])
				}
				seen[c.DeliveryTag] = true
			case <-time.After(patience):
				t.Fatalf("%d of %d confirms", len(seen), n)
			}
		}
		t.equal("ready", t.ready(q), n)
	}},
	{id: "A092", what: "max-length 1 and reject-publish: one ack, four nacks", run: func(t *T) {
		q := t.queue("q", "x-max-length", int32(1), "x-overflow", "reject-publish")
		var answers []func() bool
		for range 5 {
			answers = append(answers, t.sendLater("", q))
		}
		acks := 0
		for _, answer := range answers {
			if answer() {
				acks++
			}
		}
		t.equal("acks and messages", []int{acks, t.ready(q)}, []int{1, 1})
	}},
	{id: "A093", what: "confirms while the leader dies", test: "jepsen: TestKilledLeader, TestChaos"},
	{id: "A095", what: "a consumer timeout: basic.cancel, the message goes to another consumer", run: func(t *T) {
		q := t.queue("q", "x-consumer-timeout", int32(1000))
		ch, from := t.consume(q, 1)
		gone := ch.NotifyCancel(make(chan string, 1))
		at := time.Now() // the message may be handed out before its confirm is here
		t.publish(q)
		d := t.next(from)
		tag, _ := within(t.by(time.Now().Add(ms(1000))), "cancel", gone)
		t.equal("tag", tag, d.ConsumerTag)
		if took := time.Since(at); took < ms(1000)-slack {
			t.Errorf("cancelled after %v", took)
		}
		_, other := t.consume(q, 1)
		again := t.now().next(other)
		t.must(again.Ack(false))
		t.equal("redelivered", []any{again.Redelivered, again.Headers["x-acquired-count"]}, []any{true, int64(1)})
		// The late ack, and the tag again.
		t.must(d.Ack(false))
		from, err := ch.Consume(q, d.ConsumerTag, false, false, false, false, nil)
		t.must(err)
		t.publish(q, body("next"))
		t.eventually("a delivery under the tag", func() error {
			select {
			case d := <-from:
				return d.Ack(false)
			case d := <-other:
				t.must(d.Ack(false))
				t.publish(q, body("next"))
				return errors.New("the other consumer has it")
			case <-time.After(ms(100)):
				return errors.New("nothing")
			}
		})
	}},
	{id: "A096", what: "after that: a late ack, and the tag reused", in: "A095"},
	{id: "A097", what: "x-consumer-timeout-action: suspend", long: true, run: func(t *T) {
		q := t.queue("q", "x-consumer-timeout", int32(1000))
		ch, from := t.consume(q, 1, "x-consumer-timeout-action", "suspend")
		gone := ch.NotifyCancel(make(chan string, 1))
		t.publish(q, body("1"))
		d := t.next(from)
		t.soonReady(q, 1, time.Now().Add(ms(1000)))
		t.publish(q, body("2"))
		t.nothingNext(from, soon())
		t.must(d.Ack(false))
		t.equal("redelivered", t.next(from).Redelivered, true)
		select {
		case <-gone:
			t.Error("cancelled")
		default:
		}
	}},
	{id: "A098", what: "a consumer timeout without cancel-notify, and of a get: 406 with its value", long: true, run: func(t *T) {
		q := t.queue("q", "x-consumer-timeout", int32(1000))
		t.publishN(q, 2)
		r := t.raw()
		t.must(r.Consume(q))
		get := t.open()
		closed := get.NotifyClose(make(chan *amqp.Error, 1))
		t.eventually("a message to get", func() error {
			if _, ok, err := get.Get(q, false); err != nil || !ok {
				return fmt.Errorf("%v %w", ok, err)
			}
			return nil
		})
		got := time.Now()
		ended, _ := within(t.by(got.Add(ms(1000))), "end of the get's channel", closed)
		t.mustBe(ended, amqp.PreconditionFailed, "timed out. Timeout value used: 1000 ms.")
		t.closesChannel(r, amqp.PreconditionFailed, timeoutText, "0,0")
	}},
	{id: "A099", what: "one of three acked before the timeout: two go back", run: func(t *T) {
		q := t.queue("q", "x-consumer-timeout", int32(1000))
		t.publishN(q, 3)
		_, from := t.consume(q, 3)
		_, all := t.bodiesOf(from, 3)
		t.must(all[1].Ack(false))
		t.soonReady(q, 2, time.Now().Add(ms(1000)))
		t.equal("left", bodies(t.take(q, 2)), "1 3")
	}},
	{id: "A100", what: "the refusals of a user without permissions", run: permissionMatrix},
	{id: "A101", what: "topic permissions", run: func(t *T) {
		conn := t.as("u", "", ".*", ".*", ".*")
		x, q := t.exchange("x", "topic"), t.local("q")
		t.bind(q, "#", x)
		path := "/api/topic-permissions/%2F/" + t.name("u")
		status, answer, err := t.Nodes[0].Do(t.ctx, "PUT", path, map[string]string{"exchange": x, "write": `^ok\.`, "read": `^{username}\.`})
		if t.must(err); status >= 300 {
			t.Fatalf("%d %s", status, answer)
		}
		ch, err := conn.Channel()
		t.must(err)
		t.must(ch.PublishWithContext(t.ctx, x, "ok.1", false, false, amqp.Publishing{Body: []byte("x")}))
		t.equal("got", bodies(t.take(q, 1)), "x")
		where := "access to topic 'bad' in exchange 'A101.x' in vhost '/' refused for user 'A101.u'"
		publish := func(key string, p amqp.Publishing) func(ch *amqp.Channel) {
			return func(ch *amqp.Channel) { t.must(ch.PublishWithContext(t.ctx, x, key, false, false, p)) }
		}
		t.closedWith(conn, amqp.AccessRefused, "write "+where, publish("bad", amqp.Publishing{}))
		t.closedWith(conn, amqp.AccessRefused, "write "+where, publish("ok.1", amqp.Publishing{Headers: args("CC", []any{"bad"})}))
		mine := t.name("mine")
		ch, err = conn.Channel()
		t.must(err)
		_, err = ch.QueueDeclare(mine, false, false, true, false, nil)
		t.must(err)
		t.must(ch.QueueBind(mine, t.name("u")+".x", x, false, nil))
		t.mustBe(ch.QueueBind(mine, "bad", x, false, nil), amqp.AccessRefused, "read "+where)
	}},
	{id: "A102", what: "limits of vhosts and users, counted at all nodes", run: limitsHold},
	{id: "A103", what: "a vhost is deleted while it has connections, at all nodes", run: vhostGoes},
}

// comesBack gets a message that has been given back.
func (t *T) comesBack(queue string) (d *amqp.Delivery) {
	t.Helper()
	t.eventually("it comes back", func() error {
		if d = t.get(queue); d == nil {
			return errors.New("empty")
		}
		return nil
	})
	return d
}

// twoEach starts two consumers on a channel and checks that each gets two of
// the queue's six messages.
func (t *T) twoEach(queue string, ch *amqp.Channel) {
	t.Helper()
	for range 2 {
		from, err := ch.Consume(queue, "", false, false, false, false, nil)
		t.must(err)
		t.bodiesOf(from, 2)
		t.nothingNext(from, soon())
	}
	t.equal("ready", t.ready(queue), 2)
}

// permissionMatrix does what needs each permission as a user who lacks it.
func permissionMatrix(t *T) {
	q, x := t.local("q"), t.exchange("x", "fanout")
	other := t.name("other")
	declare := func(name string, pairs ...any) func(ch *amqp.Channel) error {
		return func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(name, true, false, false, false, with(pairs...))
			return err
		}
	}
	none := t.as("none", "", "^$", "^$", "^$")
	own := t.as("own", "", "^A100.own", "^A100.own", "^A100.own")
	for words, call := range map[string]func(ch *amqp.Channel) error{
		"configure access to queue 'A100.other'": declare(other),
		"configure access to queue 'A100.q'":     func(ch *amqp.Channel) error { _, err := ch.QueueDelete(q, false, false, false); return err },
		"configure access to exchange 'A100.x'":  func(ch *amqp.Channel) error { return ch.ExchangeDelete(x, false, false) },
		"configure access to exchange 'A100.other'": func(ch *amqp.Channel) error {
			return ch.ExchangeDeclare(other, "fanout", true, false, false, false, nil)
		},
		"write access to queue 'A100.q'":    func(ch *amqp.Channel) error { return ch.QueueBind(q, "", x, false, nil) },
		"write access to exchange 'A100.x'": func(ch *amqp.Channel) error { return ch.ExchangeBind(x, "", "amq.fanout", false, nil) },
		"read access to queue 'A100.q'":     func(ch *amqp.Channel) error { _, _, err := ch.Get(q, true); return err },
	} {
		t.each(none, amqp.AccessRefused, "ACCESS_REFUSED - "+words+" in vhost '/' refused for user 'A100.none'", map[string]func(ch *amqp.Channel) error{words: call})
	}
	for words, calls := range map[string]map[string]func(ch *amqp.Channel) error{
		"read access to queue 'A100.q'": {
			"consume": func(ch *amqp.Channel) error { _, err := ch.Consume(q, "", false, false, false, false, nil); return err },
			"purge":   func(ch *amqp.Channel) error { _, err := ch.QueuePurge(q, false); return err },
		},
		"write access to queue 'A100.q'": {
			"unbind": func(ch *amqp.Channel) error { return ch.QueueUnbind(q, "", x, nil) },
		},
		"configure access to queue 'A100.q'": {
			"passive": func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclarePassive(q, true, false, false, false, nil)
				return err
			},
		},
		"configure access to exchange 'A100.x'": {
			"passive exchange": func(ch *amqp.Channel) error {
				return ch.ExchangeDeclarePassive(x, "fanout", true, false, false, false, nil)
			},
		},
	} {
		t.each(none, amqp.AccessRefused, words+" in vhost '/' refused for user 'A100.none'", calls)
	}
	mine := t.name("own")
	for words, call := range map[string]func(ch *amqp.Channel) error{
		"read access to exchange 'A100.x'":    func(ch *amqp.Channel) error { return ch.QueueBind(mine, "", x, false, nil) },
		"write access to exchange 'A100.dlx'": declare(mine, "x-dead-letter-exchange", t.name("dlx")),
		"write access to exchange 'A100.fall'": func(ch *amqp.Channel) error {
			return ch.ExchangeDeclare(mine, "fanout", true, false, false, false, args("alternate-exchange", t.name("fall")))
		},
	} {
		t.each(own, amqp.AccessRefused, words+" in vhost '/' refused for user 'A100.own'", map[string]func(ch *amqp.Channel) error{words: call})
	}
	t.closedWith(none, amqp.AccessRefused, "write access to exchange 'A100.x' in vhost '/' refused for user 'A100.none'", func(ch *amqp.Channel) {
		t.must(ch.PublishWithContext(t.ctx, x, "", false, false, amqp.Publishing{}))
	})
}
