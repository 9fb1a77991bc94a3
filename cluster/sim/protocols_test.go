package sim

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/Azure/go-amqp"
	rabbit "github.com/rabbitmq/amqp091-go"
)

// both are clients of both protocols at different nodes of a cluster.
type both struct {
	t       *testing.T
	ctx     context.Context
	channel *rabbit.Channel
	session *amqp.Session
}

func (b *both) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *both) declare(queue string, exclusive bool, arguments rabbit.Table) {
	b.t.Helper()
	_, err := b.channel.QueueDeclare(queue, !exclusive, false, exclusive, false, arguments)
	b.must(err)
}

func (b *both) sender(address string) *amqp.Sender {
	b.t.Helper()
	s, err := b.session.NewSender(b.ctx, address, nil)
	b.must(err)
	return s
}

func (b *both) receiver(queue string) *amqp.Receiver {
	b.t.Helper()
	r, err := b.session.NewReceiver(b.ctx, "/queues/"+queue, &amqp.ReceiverOptions{Credit: 10})
	b.must(err)
	return r
}

func (b *both) receive(r *amqp.Receiver) *amqp.Message {
	b.t.Helper()
	m, err := r.Receive(b.ctx, nil)
	b.must(err)
	return m
}

// consume returns deliveries that are acknowledged by hand.
func (b *both) consume(queue string) <-chan rabbit.Delivery {
	b.t.Helper()
	d, err := b.channel.Consume(queue, "", false, false, false, false, nil)
	b.must(err)
	return d
}

func (b *both) next(deliveries <-chan rabbit.Delivery) rabbit.Delivery {
	b.t.Helper()
	select {
	case d, ok := <-deliveries:
		if !ok {
			b.t.Fatal("the channel has ended")
		}
		return d
	case <-b.ctx.Done():
		b.t.Fatal("nothing came")
	}
	panic("unreachable")
}

// Clients of both protocols share queues, exchanges, counts and histories, and answer each other's requests.
func TestProtocolsTogether(t *testing.T) {
	inWorld(t, func(ctx context.Context, t *testing.T, w *world) {
		conn, ch, err := w.connect(ctx, w.dialer("old"), w.names[0])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		b := &both{t, ctx, ch, w.dial10(ctx, t, "new", w.names[1])}
		for _, part := range []func(*testing.T, *both){testSharedOrder, testSharedCounts, testSharedHistory, testSharedReplies} {
			part(t, b)
		}
	})
}

// Publishers of both protocols, one after the other, by an exchange to two queues: a consumer of each sees all in order.
func testSharedOrder(t *testing.T, b *both) {
	for _, q := range []string{"order-old", "order-new"} {
		b.declare(q, false, rabbit.Table{"x-queue-type": "quorum"})
		b.must(b.channel.QueueBind(q, "", "amq.fanout", false, nil))
	}
	b.must(b.channel.Confirm(false))
	s := b.sender("/exchanges/amq.fanout")
	const count = 20
	for i := range count {
		if i%2 == 0 {
			b.must(s.Send(b.ctx, &amqp.Message{Properties: &amqp.MessageProperties{MessageID: uint64(i)}, Data: [][]byte{[]byte("b"), fmt.Append(nil, i)}}, nil))
			continue
		}
		c, err := b.channel.PublishWithDeferredConfirm("amq.fanout", "", false, false, rabbit.Publishing{MessageId: fmt.Sprint(i), Body: fmt.Append(nil, "b", i)})
		b.must(err)
		if ok, err := c.WaitContext(b.ctx); err != nil || !ok {
			t.Fatalf("%v, %v", ok, err)
		}
	}
	deliveries, r := b.consume("order-old"), b.receiver("order-new")
	for i := range count {
		d := b.next(deliveries)
		if d.MessageId != fmt.Sprint(i) || string(d.Body) != fmt.Sprint("b", i) {
			t.Errorf("message %d for 0-9-1 is %+v", i, d)
		}
		b.must(d.Ack(false))
		m := b.receive(r)
		body := ""
		for _, d := range m.Data {
			body += string(d)
		}
		if fmt.Sprint(m.Properties.MessageID) != fmt.Sprint(i) || body != fmt.Sprint("b", i) {
			t.Errorf("message %d for AMQP 1.0 is %+v", i, m)
		}
		b.must(r.AcceptMessage(b.ctx, m))
	}
}

// What one protocol calls a failure counts in the other.
func testSharedCounts(t *testing.T, b *both) {
	b.declare("counts", false, rabbit.Table{"x-queue-type": "quorum"})
	b.must(b.sender("/queues/counts").Send(b.ctx, amqp.NewMessage([]byte("m")), nil))
	deliveries := b.consume("counts")
	d := b.next(deliveries)
	b.must(d.Reject(true))
	d = b.next(deliveries)
	if d.Headers["x-delivery-count"] != int64(1) || !d.Redelivered {
		t.Errorf("%+v", d)
	}
	b.must(b.channel.Cancel(d.ConsumerTag, false))
	r := b.receiver("counts")
	b.must(d.Reject(true))
	m := b.receive(r)
	if m.Header.DeliveryCount != 2 || m.Header.FirstAcquirer {
		t.Errorf("%+v", m.Header)
	}
	b.must(r.ModifyMessage(b.ctx, m, &amqp.ModifyMessageOptions{DeliveryFailed: true}))
	m = b.receive(r)
	b.must(r.Close(b.ctx))
	if d = b.next(b.consume("counts")); d.Headers["x-delivery-count"] != int64(3) {
		t.Errorf("%+v after %+v", d, m.Header)
	}
}

// A message dies by one protocol and by the other: its history is one, and says when.
func testSharedHistory(t *testing.T, b *both) {
	b.declare("dying", false, rabbit.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
	b.declare("dead", false, rabbit.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dying"})
	b.must(b.sender("/queues/dying").Send(b.ctx, &amqp.Message{
		Header: &amqp.MessageHeader{TTL: time.Hour}, Annotations: amqp.Annotations{"x-own": "own"}, ApplicationProperties: map[string]any{"p": int32(5)}, Data: [][]byte{[]byte("m")},
	}, nil))
	r, deliveries := b.receiver("dying"), b.consume("dead")
	m := b.receive(r)
	b.must(r.RejectMessage(b.ctx, m, nil))
	d := b.next(deliveries)
	deaths, _ := d.Headers["x-death"].([]any)
	if len(deaths) != 1 || d.Headers["x-first-death-queue"] != "dying" || d.Headers["x-own"] != "own" || d.Headers["p"] != int32(5) || d.Expiration != "" || string(d.Body) != "m" {
		t.Errorf("%+v", d)
	}
	b.must(sleep(b.ctx, time.Minute))
	b.must(d.Nack(false, false))
	m = b.receive(r)
	b.must(sleep(b.ctx, time.Minute))
	b.must(r.RejectMessage(b.ctx, m, nil))
	d = b.next(deliveries)
	b.must(d.Nack(false, false))
	m = b.receive(r)
	list, _ := m.Annotations["x-opt-deaths"].([]map[any]any)
	if len(list) != 2 || m.Header.TTL != 0 || m.Annotations["x-first-death-queue"] != "dying" || m.Annotations["x-own"] != "own" {
		t.Fatalf("%+v", m)
	}
	for i, queue := range []string{"dead", "dying"} {
		first, _ := list[i]["first-time"].(time.Time)
		last, _ := list[i]["last-time"].(time.Time)
		if list[i]["queue"] != queue || list[i]["count"] != uint64(2) || last.Sub(first) < time.Minute {
			t.Errorf("death %d is %v", i, list[i])
		}
	}
	b.must(r.AcceptMessage(b.ctx, m))
}

// A request goes by one protocol and its answer comes by the other: to a queue of its own, and directly.
func testSharedReplies(t *testing.T, b *both) {
	b.declare("requests", false, rabbit.Table{"x-queue-type": "quorum"})
	b.declare("my answers/ü", true, nil)
	direct, err := b.channel.Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil)
	b.must(err)
	answers, requests := b.consume("my answers/ü"), b.receiver("requests")
	relay, err := b.session.NewSender(b.ctx, "", nil)
	b.must(err)
	for to, from := range map[string]<-chan rabbit.Delivery{"my answers/ü": answers, "amq.rabbitmq.reply-to": direct} {
		b.must(b.channel.Publish("", "requests", false, false, rabbit.Publishing{ReplyTo: to, CorrelationId: "c", Body: []byte("question")}))
		m := b.receive(requests)
		b.must(relay.Send(b.ctx, &amqp.Message{
			Properties: &amqp.MessageProperties{To: m.Properties.ReplyTo, CorrelationID: m.Properties.CorrelationID}, Value: "answer",
		}, nil))
		b.must(requests.AcceptMessage(b.ctx, m))
		d := b.next(from)
		if d.CorrelationId != "c" || d.Type != "amqp-1.0" || string(d.Body) != "\x00\x53\x77\xa1\x06answer" {
			t.Errorf("the answer to %s is %+v", to, d)
		}
	}
	b.must(requests.Close(b.ctx))
	// The other way, to a queue.
	b.declare("new answers", false, rabbit.Table{"x-queue-type": "quorum"})
	to := "/queues/new%20answers"
	b.must(b.sender("/queues/requests").Send(b.ctx, &amqp.Message{Properties: &amqp.MessageProperties{ReplyTo: &to, CorrelationID: amqp.UUID{1}}, Data: [][]byte{nil}}, nil))
	d := b.next(b.consume("requests"))
	b.must(b.channel.Publish("", d.ReplyTo, false, false, rabbit.Publishing{CorrelationId: d.CorrelationId, Body: []byte("answer")}))
	if m := b.receive(b.receiver("new%20answers")); m.Properties.CorrelationID != (amqp.UUID{1}) || string(m.GetData()) != "answer" {
		t.Errorf("the answer is %+v", m)
	}
}
