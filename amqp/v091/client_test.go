package v091_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/amqp"
)

// Tests with the client library most Go programs use.

func (s *server) mustOpen() *amqp091.Connection {
	s.t.Helper()
	c, err := amqp091.Dial("amqp://guest:guest@" + s.addr + "/")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

func mustChannel(t testing.TB, c *amqp091.Connection) *amqp091.Channel {
	t.Helper()
	ch, err := c.Channel()
	must(t, err)
	return ch
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustDeclare(t testing.TB, ch *amqp091.Channel, name string) {
	t.Helper()
	_, err := ch.QueueDeclare(name, true, false, false, false, nil)
	must(t, err)
}

// receive waits for a value of a channel.
func receive[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v, ok := <-c:
		if !ok {
			t.Fatal("channel closed")
		}
		return v
	case <-time.After(time.Minute):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func TestClientPublishConsume(t *testing.T) {
	s := mustServe(t, nil)
	ch := mustChannel(t, s.mustOpen())
	mustDeclare(t, ch, "q")
	deliveries, err := ch.Consume("q", "", false, false, false, false, nil)
	must(t, err)
	want := amqp091.Publishing{
		ContentType: "text/plain", ContentEncoding: "utf-8", DeliveryMode: 2, Priority: 7, CorrelationId: "c", ReplyTo: "r",
		Expiration: "60000", MessageId: "m", Timestamp: time.Unix(1_700_000_000, 0), Type: "t", UserId: "guest", AppId: "a",
		Headers: amqp091.Table{
			"bool": true, "int8": int8(-1), "uint8": byte(1), "int16": int16(-2), "uint16": uint16(2), "int32": int32(-3),
			"uint32": uint32(3), "int64": int64(-4), "float": float32(1.5), "double": 2.5, "decimal": amqp091.Decimal{Scale: 2, Value: 345},
			"string": "s", "bytes": []byte{0, 255}, "array": []any{int32(1), "x"}, "time": time.Unix(5, 0), "void": nil,
			"table": amqp091.Table{"in": int32(1)},
		},
		Body: []byte("body"),
	}
	must(t, ch.Publish("", "q", false, false, want))
	d := receive(t, deliveries)
	got := amqp091.Publishing{
		Headers: d.Headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode,
		Priority: d.Priority, CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Expiration: d.Expiration, MessageId: d.MessageId,
		Timestamp: d.Timestamp, Type: d.Type, UserId: d.UserId, AppId: d.AppId, Body: d.Body,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if d.DeliveryTag != 1 || d.Redelivered || d.RoutingKey != "q" {
		t.Errorf("delivery %+v", d)
	}
	must(t, d.Nack(false, true))
	if d := receive(t, deliveries); !d.Redelivered || d.Headers["x-acquired-count"] != int64(1) {
		t.Errorf("redelivery %+v", d)
	}
}

// TestClientConfirms publishes many messages from several channels and checks
// that each is confirmed once and that all arrive in order.
func TestClientConfirms(t *testing.T) {
	const channels, messages = 4, 3000
	s := mustServe(t, nil)
	conn := s.mustOpen()
	done := make(chan error, channels)
	for i := range channels {
		ch := mustChannel(t, conn)
		mustDeclare(t, ch, fmt.Sprint("q", i))
		must(t, ch.Confirm(false))
		confirms := ch.NotifyPublish(make(chan amqp091.Confirmation, messages))
		go func() {
			for n := range messages {
				err := ch.PublishWithContext(context.Background(), "", fmt.Sprint("q", i), false, false, amqp091.Publishing{Body: fmt.Append(nil, n)})
				if err != nil {
					done <- err
					return
				}
			}
			for n := range messages {
				if c := <-confirms; !c.Ack || c.DeliveryTag != uint64(n+1) {
					done <- fmt.Errorf("confirm %d is %+v", n+1, c)
					return
				}
			}
			done <- nil
		}()
	}
	for range channels {
		must(t, receive(t, done))
	}
	for i := range channels {
		ch := mustChannel(t, conn)
		must(t, ch.Qos(100, 0, false))
		deliveries, err := ch.Consume(fmt.Sprint("q", i), "", false, false, false, false, nil)
		must(t, err)
		for n := range messages {
			d := receive(t, deliveries)
			if string(d.Body) != fmt.Sprint(n) {
				t.Fatalf("message %d is %s", n, d.Body)
			}
			if n%7 == 6 {
				must(t, d.Ack(true))
			}
		}
	}
}

func TestClientReturnsBeforeConfirm(t *testing.T) {
	s := mustServe(t, nil)
	ch := mustChannel(t, s.mustOpen())
	must(t, ch.Confirm(false))
	returns := ch.NotifyReturn(make(chan amqp091.Return, 1000))
	confirms := ch.NotifyPublish(make(chan amqp091.Confirmation, 1))
	for n := range 500 {
		must(t, ch.Publish("", "nowhere", true, false, amqp091.Publishing{MessageId: fmt.Sprint(n)}))
		if c := receive(t, confirms); !c.Ack {
			t.Fatalf("%+v", c)
		}
		select {
		case r := <-returns:
			if r.MessageId != fmt.Sprint(n) || r.ReplyCode != amqp091.NoRoute || r.ReplyText != "NO_ROUTE" {
				t.Fatalf("%+v", r)
			}
		default:
			t.Fatal("confirmed before it was returned")
		}
	}
}

// TestClientCancelNotify checks that the client hears of a deleted queue, and
// can use the tag again.
func TestClientCancelNotify(t *testing.T) {
	s := mustServe(t, nil)
	conn := s.mustOpen()
	ch := mustChannel(t, conn)
	mustDeclare(t, ch, "q")
	cancels := ch.NotifyCancel(make(chan string, 1))
	deliveries, err := ch.Consume("q", "tag", false, false, false, false, nil)
	must(t, err)
	_, err = mustChannel(t, conn).QueueDelete("q", false, false, false)
	must(t, err)
	if tag := receive(t, cancels); tag != "tag" {
		t.Errorf("cancelled %s", tag)
	}
	awaitEnd(t, deliveries)
	mustDeclare(t, ch, "q")
	_, err = ch.Consume("q", "tag", false, false, false, false, nil)
	must(t, err)
}

func TestClientConsumerTimeout(t *testing.T) {
	s := mustServe(t, nil)
	ch := mustChannel(t, s.mustOpen())
	mustDeclare(t, ch, "q")
	cancels := ch.NotifyCancel(make(chan string, 1))
	deliveries, err := ch.Consume("q", "tag", false, false, false, false, nil)
	must(t, err)
	must(t, ch.Publish("", "q", false, false, amqp091.Publishing{}))
	late := receive(t, deliveries)
	s.broker.TimeOut("q", 1000)
	receive(t, cancels)
	awaitEnd(t, deliveries)
	again, err := ch.Consume("q", "tag", false, false, false, false, nil)
	must(t, err)
	must(t, late.Ack(false))
	d := receive(t, again)
	must(t, d.Ack(false))
}

// awaitEnd waits until the client has closed a consumer's deliveries. It reports the cancel before:
// a consumer that begins in between with the same tag would be closed instead.
func awaitEnd(t *testing.T, deliveries <-chan amqp091.Delivery) {
	t.Helper()
	select {
	case d, more := <-deliveries:
		if more {
			t.Fatalf("delivery %d after the cancel", d.DeliveryTag)
		}
	case <-time.After(time.Minute):
		t.Fatal("the consumer goes on")
	}
}

// TestClientChannelError checks that an error ends its channel only.
func TestClientChannelError(t *testing.T) {
	s := mustServe(t, nil)
	conn := s.mustOpen()
	ch, other := mustChannel(t, conn), mustChannel(t, conn)
	_, err := ch.QueueDeclarePassive("missing", false, false, false, false, nil)
	e := new(amqp091.Error)
	if !errors.As(err, &e) || e.Code != 404 || e.Reason != "NOT_FOUND - no queue 'missing' in vhost '/'" {
		t.Errorf("%v", err)
	}
	mustDeclare(t, other, "q")
	mustDeclare(t, mustChannel(t, conn), "q")
}

// TestClientOtherChannels checks that a channel that waits for the broker does
// not hold up another one.
func TestClientOtherChannels(t *testing.T) {
	s := mustServe(t, nil)
	conn := s.mustOpen()
	ch, other := mustChannel(t, conn), mustChannel(t, conn)
	s.broker.Block("DeclareQueue")
	declared := make(chan error, 1)
	go func() {
		_, err := ch.QueueDeclare("q", true, false, false, false, nil)
		declared <- err
	}()
	s.broker.AwaitBlocked("DeclareQueue")
	must(t, other.ExchangeDeclare("x", "fanout", false, false, false, false, nil))
	must(t, other.Qos(1, 0, false))
	s.broker.Unblock("DeclareQueue")
	must(t, receive(t, declared))
}

// TestClientHeldPublisher checks that publishes without an outcome hold the
// client at its socket.
func TestClientHeldPublisher(t *testing.T) {
	s := mustServe(t, nil)
	s.broker.HoldConfirms()
	ch := mustChannel(t, s.mustOpen())
	mustDeclare(t, ch, "q")
	const messages = 6000
	published := make(chan error, 1)
	go func() {
		for range messages {
			if err := ch.Publish("", "q", false, false, amqp091.Publishing{Body: []byte("x")}); err != nil {
				published <- err
				return
			}
		}
		published <- nil
	}()
	s.broker.AwaitPublished(4096)
	if n := s.broker.Published(); n != 4096 {
		t.Errorf("%d publishes taken, want 4096", n)
	}
	s.broker.ReleaseConfirms(false)
	must(t, receive(t, published))
	s.broker.AwaitPublished(messages)
}

// TestClientShutdown checks what clients hear when the server stops, each in
// the moment in which its connection has opened.
func TestClientShutdown(t *testing.T) {
	for range 100 {
		s := mustServe(t, nil)
		closed := s.mustOpen().NotifyClose(make(chan *amqp091.Error, 1))
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		must(t, s.Shutdown(ctx))
		cancel()
		e := receive(t, closed)
		if e.Code != 320 || e.Reason != "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'" {
			t.Fatalf("%v", e)
		}
	}
}

// TestClientSuspend checks that a suspended server ends its connections, lets
// nobody in, and serves again when it is resumed.
func TestClientSuspend(t *testing.T) {
	s := mustServe(t, nil)
	closed := s.mustOpen().NotifyClose(make(chan *amqp091.Error, 1))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s.Suspend(ctx, "Node was put into maintenance mode")
	if e := receive(t, closed); e.Code != 320 || e.Reason != "CONNECTION_FORCED - Node was put into maintenance mode" {
		t.Fatalf("%v", e)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	if err := s.Serve(l); err != amqp.ErrServerClosed {
		t.Fatalf("a suspended server serves: %v", err)
	}
	s.Resume()
	l, err = net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	conn, err := amqp091.Dial("amqp://guest:guest@" + l.Addr().String() + "/")
	must(t, err)
	must(t, conn.Close())
	s.Suspend(ctx, "again")
	if err := receive(t, served); err != amqp.ErrServerClosed {
		t.Fatal(err)
	}
	s.Resume()
}

// TestClientClose checks that what a connection owns is gone when close-ok
// comes.
func TestClientClose(t *testing.T) {
	s := mustServe(t, nil)
	conn := s.mustOpen()
	ch := mustChannel(t, conn)
	_, err := ch.QueueDeclare("q", false, false, true, false, nil)
	must(t, err)
	must(t, conn.Close())
	if state := s.broker.String(); state != "" {
		t.Errorf("left: %s", state)
	}
}

// TestConnections looks at what is open, and ends it by name.
func TestConnections(t *testing.T) {
	s := mustServe(t, nil)
	conn, err := amqp091.DialConfig("amqp://guest:guest@"+s.addr, amqp091.Config{
		Heartbeat: 7 * time.Second, Properties: amqp091.Table{"connection_name": "mine", "product": "test"},
	})
	must(t, err)
	closed := conn.NotifyClose(make(chan *amqp091.Error, 1))
	ch := mustChannel(t, conn)
	mustChannel(t, conn)
	must(t, ch.Close())
	all := s.Connections()
	for len(all) == 1 && all[0].Channels > 1 && t.Context().Err() == nil { // the close is answered, and counted next
		runtime.Gosched()
		all = s.Connections()
	}
	if len(all) != 1 {
		t.Fatalf("%+v", all)
	}
	i := all[0]
	name := conn.LocalAddr().String() + " -> " + s.addr
	if i.Name != name || i.Given != "mine" || i.User != "guest" || i.VHost != "/" || i.Channels != 1 ||
		i.Heartbeat != 7*time.Second || i.Mechanism != "PLAIN" || i.TLS != "" || i.Closing || i.Received == 0 || i.Sent == 0 || i.Reads == 0 || i.Writes == 0 {
		t.Errorf("%+v", i)
	}
	if n := len(i.Properties.GetFields()); n < 3 {
		t.Errorf("%d client properties", n)
	}
	if s.CloseConnection("nobody", "no reason") || !s.CloseConnection(name, "a reason") {
		t.Error("another connection is closed")
	}
	if e := receive(t, closed); e.Code != 320 || e.Reason != "CONNECTION_FORCED - a reason" {
		t.Errorf("%v", e)
	}
	s.broker.AwaitSessions(0)
}
