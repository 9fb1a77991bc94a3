package conform

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
)

func TestTTL(t *testing.T) { ttlRows.run(t) }

// maxTTL is the longest life that can be asked for, in milliseconds: ten years
// of 365 days.
const maxTTL = 315_360_000_000

var ttlRows = suite{test: "TestTTL", title: "Message TTL", rows: []row{
	{id: "L01", what: "x-message-ttl: messages expire without a consumer", run: func(t *T) {
		q := t.queue("q", "x-message-ttl", int32(400))
		at := t.publish(q)
		t.readyUntil(q, 1, at.Add(ms(400)))
		t.soonReady(q, 0, at.Add(ms(400)))
		t.mustNotGet(q)
	}},
	{id: "L02", what: "x-message-ttl of every integer type", run: ttlTypes},
	{id: "L03", what: "x-message-ttl 4294967296", run: func(t *T) { t.queue("q", "x-message-ttl", int64(1)<<32) }},
	{id: "L04", what: "x-message-ttl of ten years", run: func(t *T) { t.queue("q", "x-message-ttl", int64(maxTTL)) }},
	{id: "L05", what: "x-message-ttl above ten years: 406", run: func(t *T) {
		t.refuseDeclare("q", "invalid arg 'x-message-ttl' for queue 'L05.q' in vhost '/': {value_too_large,", "x-message-ttl", int64(maxTTL+1))
	}},
	{id: "L06", what: "x-message-ttl -1: 406", run: func(t *T) {
		t.refuseDeclare("q", "invalid arg 'x-message-ttl' for queue 'L06.q' in vhost '/': {value_negative,-1}", "x-message-ttl", int32(-1))
	}},
	{id: "L07", what: "x-message-ttl as text: 406", run: func(t *T) {
		t.refuseDeclare("q", "expected integer, got longstr", "x-message-ttl", "60000")
	}},
	{id: "L08", what: "x-message-ttl as bool, double or timestamp: 406", run: func(t *T) {
		t.refuseDeclare("q", "expected integer, got bool", "x-message-ttl", true)
		t.refuseDeclare("q", "expected integer, got double", "x-message-ttl", 1.5)
		t.refuseDeclare("q", "expected integer, got timestamp", "x-message-ttl", time.Unix(1, 0))
	}},
	{id: "L09", what: "expiration on a queue without TTL", run: func(t *T) {
		q := t.queue("q")
		at := t.publish(q, expiration("400"))
		t.readyUntil(q, 1, at.Add(ms(400)))
		t.soonReady(q, 0, at.Add(ms(400)))
	}},
	{id: "L10", what: "expiration +400 and 0400 mean, and arrive as, 400", run: func(t *T) {
		for i, text := range []string{"+400", "0400"} {
			q := t.queue(fmt.Sprint("dies", i))
			at := t.publish(q, expiration(text))
			t.readyUntil(q, 1, at.Add(ms(400)))
			t.soonReady(q, 0, at.Add(ms(400)))
		}
		q := t.queue("lives")
		_, from := t.consume(q, 10)
		for _, text := range []string{"+400000", "0400000"} {
			t.publish(q, expiration(text))
			d := t.next(from)
			t.equal("expiration", d.Expiration, "400000")
		}
	}},
	{id: "L11", what: "expiration without a number: 406 no_integer", run: func(t *T) {
		q := t.queue("q")
		t.refusePublish(amqp.PreconditionFailed, "invalid expiration 'abc': no_integer", "", q, expiration("abc"))
		t.refusePublish(amqp.PreconditionFailed, "invalid expiration ' 5': no_integer", "", q, expiration(" 5"))
		t.refuseEmptyExpiration(q)
	}},
	{id: "L12", what: "expiration with something behind the number: 406 leftover_string", run: func(t *T) {
		q := t.queue("q")
		for text, rest := range map[string]string{"12x": "x", "5 ": " ", "1.5": ".5", "1e3": "e3"} {
			t.refusePublish(amqp.PreconditionFailed,
				fmt.Sprintf("invalid expiration '%s': {leftover_string,\"%s\"}", text, rest), "", q, expiration(text))
		}
	}},
	{id: "L13", what: "expiration -1: 406", run: func(t *T) {
		t.refusePublish(amqp.PreconditionFailed, "invalid expiration '-1': {value_negative,-1}", "", t.queue("q"), expiration("-1"))
	}},
	{id: "L14", what: "expiration of ten years, and above: 406", run: func(t *T) {
		q := t.queue("q")
		t.publish(q, expiration(fmt.Sprint(maxTTL)))
		t.refusePublish(amqp.PreconditionFailed, "{value_too_large,315360000001}", "", q, expiration(fmt.Sprint(maxTTL+1)))
		t.equal("ready", t.ready(q), 1)
	}},
	{id: "L15", what: "a bad expiration is refused without any binding", run: func(t *T) {
		t.refusePublish(amqp.PreconditionFailed, "invalid expiration", t.exchange("x", "fanout"), "", expiration("abc"))
	}},
	{id: "L16", what: "a missing exchange is reported before a bad expiration: 404", run: func(t *T) {
		t.refusePublish(amqp.NotFound, "no exchange", t.name("missing"), "", expiration("abc"))
	}},
	{id: "L17", what: "confirms: what was published before a bad expiration is kept", run: badAfterGood},
	{id: "L18", what: "queue TTL 10000 and expiration 400: 400", run: func(t *T) { t.dies(10000, "400", ms(400)) }},
	{id: "L19", what: "queue TTL 400 and expiration 60000: 400", run: func(t *T) { t.dies(400, "60000", ms(400)) }},
	{id: "L20", what: "fanout to queues of different TTL", run: func(t *T) {
		x := t.exchange("x", "fanout")
		a, b, c := t.queue("a", "x-message-ttl", int32(300)), t.queue("b", "x-message-ttl", int32(900)), t.queue("c")
		for _, q := range []string{a, b, c} {
			t.bind(q, "", x)
		}
		at := time.Now()
		t.send(x, "")
		t.soonReady(a, 0, at.Add(ms(300)))
		t.readyUntil(b, 1, at.Add(ms(900)))
		t.soonReady(b, 0, at.Add(ms(900)))
		t.equal("ready without TTL", t.ready(c), 1)
	}},
	{id: "L21", what: "a consumer sees the expiration as published", run: func(t *T) {
		q := t.queue("q", "x-message-ttl", int32(120000))
		t.publish(q, expiration("60000"))
		t.equal("expiration", t.mustGet(q).Expiration, "60000")
	}},
	{id: "L22", what: "TTL 0 without a consumer: confirmed, never ready, expired at once", run: func(t *T) {
		x, d := t.dead()
		q := t.queue("q", "x-message-ttl", int32(0), "x-dead-letter-exchange", x)
		t.publish(q)
		t.equal("ready", t.ready(q), 0)
		t.equal("reason", t.death(t.now().take(d, 1)[0], 0)["reason"], "expired")
	}},
	{id: "L23", what: "expiration 0 with a waiting consumer: delivered", run: func(t *T) {
		q := t.queue("q")
		_, from := t.consume(q, 1)
		t.publish(q, expiration("0"), body("now"))
		t.equal("body", string(t.next(from).Body), "now")
	}},
	{id: "L24", what: "expiration 0 while the only consumer's prefetch is in use: expired", run: func(t *T) {
		x, d := t.dead()
		q := t.queue("q", "x-dead-letter-exchange", x)
		_, from := t.consume(q, 1)
		t.publish(q, body("held"))
		held := t.next(from)
		t.publish(q, expiration("0"), body("zero"))
		t.equal("dead", bodies(t.now().take(d, 1)), "zero")
		t.must(held.Ack(false))
		t.publish(q, body("next"))
		t.equal("delivered", string(t.next(from).Body), "next")
	}},
	{id: "L25", what: "expiration 0 and mandatory: acked, not returned", run: func(t *T) {
		q, ch := t.queue("q"), t.ch()
		returned := ch.NotifyReturn(make(chan amqp.Return, 1))
		c, err := ch.PublishWithDeferredConfirmWithContext(t.ctx, "", q, true, false, amqp.Publishing{Expiration: "0"})
		t.must(err)
		if ok, err := c.WaitContext(t.ctx); err != nil || !ok {
			t.Fatalf("acked: %v, %v", ok, err)
		}
		select {
		case r := <-returned:
			t.Fatalf("returned: %v", r.ReplyText)
		default: // a return comes before its ack
		}
	}},
	{id: "L26", what: "an ack after the TTL is valid", lives: true, run: func(t *T) {
		_, d, q := t.mortal(500)
		held := t.holdBeyond(q, d, ms(1000))
		t.must(held.Ack(false))
		t.settled(q)
		t.equal("dead", t.ready(d), 0)
	}},
	{id: "L27", what: "returned after its TTL: expired, not redelivered", run: func(t *T) {
		_, d, q := t.mortal(500)
		held := t.holdBeyond(q, d, ms(1000))
		t.must(held.Nack(false, true))
		t.equal("reason", t.death(t.now().take(d, 1)[0], 0)["reason"], "expired")
		t.mustNotGet(q)
	}},
	{id: "L28", what: "a return does not extend the TTL", long: true, run: func(t *T) {
		q := t.queue("q", "x-message-ttl", int32(5000))
		at := t.publish(q)
		held := t.mustGet(q)
		t.waitUntil(at.Add(ms(500)))
		t.must(held.Nack(false, true))
		t.soonReady(q, 1, time.Now())
		t.readyUntil(q, 1, at.Add(ms(5000)))
		t.soonReady(q, 0, at.Add(ms(5000)))
	}},
	{id: "L29", what: "the channel closes after the TTL: expired", run: func(t *T) {
		_, d, q := t.mortal(500)
		t.holdBeyond(q, d, ms(1000))
		t.must(t.main.Close())
		t.equal("reason", t.death(t.now().take(d, 1)[0], 0)["reason"], "expired")
	}},
	{id: "L30", what: "the connection is lost after the TTL: expired, in order", run: func(t *T) {
		_, d, q := t.mortal(500)
		r, err := client.DialRaw(t.ctx, t.Nodes[0].AMQP)
		t.must(err)
		t.must(r.Consume(q))
		at := t.publishN(q, 3)
		for range 3 {
			_, err := r.Expect(60<<16 | 60)
			t.must(err)
		}
		t.waitUntil(at.Add(ms(1000)))
		t.must(r.Close())
		all := t.now().take(d, 3)
		t.equal("order", bodies(all), "1 2 3")
		for _, m := range all {
			t.equal("reason", t.death(m, 0)["reason"], "expired")
		}
	}},
	{id: "L31", what: "a policy's TTL applies to later messages only", run: func(t *T) {
		q := t.queue("q")
		t.publishN(q, 5)
		t.policy("p", q, 0, map[string]any{"message-ttl": 300})
		at := t.publishN(q, 5)
		t.soonReady(q, 5, at.Add(ms(300)))
		t.equal("kept", bodies(t.take(q, 5)), "1 2 3 4 5")
	}},
	{id: "L32", what: "a shorter policy TTL does not shorten the TTL of earlier messages", lives: true, run: func(t *T) {
		q := t.queue("q")
		t.policy("p", q, 0, map[string]any{"message-ttl": 60000})
		at := t.publish(q)
		t.policyAgain("p", q, 0, map[string]any{"message-ttl": 300})
		t.readyUntil(q, 1, at.Add(ms(1000)))
	}},
	{id: "L33", what: "a cleared policy TTL does not extend the TTL of earlier messages", run: func(t *T) {
		q := t.queue("q")
		t.policy("p", q, 0, map[string]any{"message-ttl": 800})
		at := t.publish(q)
		t.clearPolicy("p", q)
		t.soonReady(q, 0, at.Add(ms(800)))
	}},
	{id: "L34", what: "redeclare with another TTL: 406", lives: true, run: func(t *T) {
		t.queue("q", "x-message-ttl", int32(1000))
		t.refuseDeclare("q", "inequivalent arg 'x-message-ttl' for queue 'L34.q' in vhost '/': received '2000' but current is '1000'", "x-message-ttl", int32(2000))
	}},
	{id: "L35", what: "redeclare without the TTL: 406", lives: true, run: func(t *T) {
		t.queue("q", "x-message-ttl", int32(1000))
		t.refuseDeclare("q", "inequivalent arg 'x-message-ttl' for queue 'L35.q' in vhost '/': received none but current is the value '1000' of type")
	}},
	{id: "L36", what: "redeclare with another integer type", lives: true, run: func(t *T) {
		t.queue("q", "x-message-ttl", int32(1000))
		t.queue("q", "x-message-ttl", int64(1000))
	}},
	{id: "L37", what: "redeclare with -1: inequivalent rather than invalid", lives: true, run: func(t *T) {
		t.queue("q", "x-message-ttl", int32(1000))
		t.refuseDeclare("q", "inequivalent arg 'x-message-ttl'", "x-message-ttl", int32(-1))
	}},
	{id: "L38", what: "a passive declare compares nothing", lives: true, run: func(t *T) {
		q := t.queue("q", "x-message-ttl", int32(1000))
		_, err := t.ch().QueueDeclarePassive(q, true, false, false, false, with("x-message-ttl", int32(2000)))
		t.must(err)
	}},
	{id: "L39", what: "unknown arguments are never compared", run: func(t *T) {
		t.queue("q", "x-foo", int32(1))
		t.queue("q", "x-foo", int32(2))
	}},
	{id: "L40", what: "arguments of other queue types: 406", run: func(t *T) {
		t.refuseDeclare("q", "invalid arg 'x-queue-mode' for queue 'L40.q' in vhost '/' of queue type", "x-queue-mode", "lazy")
		t.refuseDeclare("q", "invalid arg 'x-max-priority' for queue 'L40.q' in vhost '/' of queue type", "x-max-priority", int32(5))
	}},
	{id: "L44", what: "20,000 messages that expire at one instant hide no message from basic.get", long: true, lives: true, run: ttlHidesNothing},
}}

// ttlHidesNothing publishes many messages that expire together, and one behind
// them that lives: whoever gets after that instant is not told that nothing is
// there.
func ttlHidesNothing(t *T) {
	const dying = 20_000
	q := t.queue("q")
	end := time.Now().Add(10 * time.Second)
	var answers []func() bool
	for range dying {
		life := max(time.Until(end).Milliseconds(), 0)
		answers = append(answers, t.sendLater("", q, expiration(strconv.FormatInt(life, 10))))
	}
	answers = append(answers, t.sendLater("", q, body("lives")))
	for _, acked := range answers {
		t.equal("confirmed", acked(), true)
	}
	for at := end.Add(-ms(20)); ; at = time.Now() { // those before the instant get what is about to die
		t.waitUntil(at)
		if d := t.mustGet(q); string(d.Body) == "lives" {
			return
		}
	}
}

// ttlTypes declares x-message-ttl as each integer type of the protocol.
func ttlTypes(t *T) {
	r, err := client.DialRaw(t.ctx, t.Nodes[0].AMQP)
	t.must(err)
	defer r.Close()
	for kind, value := range map[byte][]byte{
		'b': {100}, 'B': {200}, 's': {3, 232}, 'u': {0xff, 0xff}, 'I': {0, 0, 3, 232}, 'i': {0xff, 0xff, 0xff, 0xff},
		'l': {0, 0, 0, 0, 0, 0, 3, 232}, 'L': {0, 0, 0, 0, 0, 0, 3, 232},
	} {
		t.must(r.Declare(t.name(string(kind)), client.Join(
			client.Field("x-queue-type", 'S', client.LongString("quorum")...), client.Field("x-message-ttl", kind, value...))))
		if _, err := r.Expect(50<<16 | 11); err != nil {
			t.Errorf("type %c: %v", kind, err)
			return
		}
	}
}

// refuseEmptyExpiration publishes with the property present but empty, which
// clients leave out.
func (t *T) refuseEmptyExpiration(queue string) {
	t.Helper()
	r, err := client.DialRaw(t.ctx, t.Nodes[0].AMQP)
	t.must(err)
	defer r.Close()
	properties := binary.BigEndian.AppendUint16(nil, 1<<8) // expiration
	t.must(r.Publish("", queue, append(properties, client.ShortString("")...), nil))
	_, err = r.Expect(60<<16 | 80)
	var closed *client.Closed
	if !errors.As(err, &closed) || closed.Connection || closed.Code != amqp.PreconditionFailed || closed.Class != 60 || closed.Method != 40 {
		t.Fatalf("an empty expiration: %v", err)
	}
}

// badAfterGood publishes two messages without waiting, the second a bad one.
func badAfterGood(t *T) {
	q := t.queue("q")
	ch := t.open()
	t.must(ch.Confirm(false))
	confirms := ch.NotifyPublish(make(chan amqp.Confirmation, 2))
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	t.must(ch.PublishWithContext(t.ctx, "", q, false, false, amqp.Publishing{Body: []byte("good")}))
	t.must(ch.PublishWithContext(t.ctx, "", q, false, false, amqp.Publishing{Expiration: "abc"}))
	select {
	case err := <-closed:
		t.mustBe(err, amqp.PreconditionFailed, "invalid expiration 'abc'")
	case <-time.After(patience):
		t.Fatal("the channel stays open")
	}
	for c := range confirms {
		if c.DeliveryTag != 1 || !c.Ack {
			t.Errorf("confirm %d, acked: %v", c.DeliveryTag, c.Ack)
		}
	}
	t.equal("kept", bodies(t.take(q, 1)), "good")
}

// dies publishes a message with an expiration to a queue with a TTL.
func (t *T) dies(queueTTL int32, text string, after time.Duration) {
	t.Helper()
	q := t.queue("q", "x-message-ttl", queueTTL)
	at := t.publish(q, expiration(text))
	t.readyUntil(q, 1, at.Add(after))
	t.soonReady(q, 0, at.Add(after))
}

// mortal declares a queue with a TTL and a dead-letter exchange X, whose
// letters go to D.
func (t *T) mortal(ttl int32) (x, d, q string) {
	t.Helper()
	x, d = t.dead()
	return x, d, t.queue("q", "x-message-ttl", ttl, "x-dead-letter-exchange", x)
}

// holdBeyond publishes a message to a queue with a TTL of 500 ms, takes it, and waits.
func (t *T) holdBeyond(queue, dead string, wait time.Duration) *amqp.Delivery {
	t.Helper()
	held, at := t.inHand(t.ch(), queue, dead, ms(500))
	t.waitUntil(at.Add(wait))
	return held
}

// inHand publishes a message to a queue with a TTL and takes it. On a busy machine it may expire before: then another one is
// published when its letter is there.
func (t *T) inHand(ch *amqp.Channel, queue, dead string, ttl time.Duration) (held *amqp.Delivery, at time.Time) {
	t.Helper()
	for {
		at = t.publish(queue)
		d, ok, err := ch.Get(queue, false)
		t.must(err)
		if ok {
			return &d, at
		}
		if time.Since(at) < ttl {
			t.Fatalf("%s is empty", queue)
		}
		t.take(dead, 1)
	}
}

// settled waits until a queue holds nothing at all.
func (t *T) settled(queue string) { t.Helper(); t.settledTo(queue, 0) }

// policyAgain changes a policy and waits until the queue goes by it.
func (t *T) policyAgain(name, queue string, priority int, definition map[string]any) {
	t.Helper()
	t.policy(name, queue, priority, definition)
	t.eventually(queue+" goes by the new definition", func() error {
		q, err := t.Nodes[0].Queue(t.ctx, queue)
		if err == nil && fmt.Sprint(q.Effective) != fmt.Sprint(definition) {
			err = fmt.Errorf("%v", q.Effective)
		}
		return err
	})
}
