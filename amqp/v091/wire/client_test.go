package wire_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/amqp/v091/wire"
)

const echoFrameMax = 8192

// echo is the least that a client takes for a broker: it says ok to
// everything and delivers each publish to the client's only consumer.
type echo struct {
	t    *testing.T
	conn net.Conn
	r    *wire.Reader
	tag  uint64 // of the last publish and delivery
}

// serve answers until connection.close.
func (e *echo) serve() error {
	if _, err := io.ReadFull(e.conn, make([]byte, 8)); err != nil { // the protocol header
		return err
	}
	start := &wire.ConnectionStart{
		VersionMinor: 9, Mechanisms: "AMQPLAIN PLAIN", Locales: "en_US",
		ServerProperties: wire.Table{
			{Name: "product", Value: wire.String("echo")},
			{Name: "capabilities", Value: wire.Nested(wire.Table{{Name: "basic.nack", Value: wire.Bool(true)}})},
		},
	}
	if err := e.send(wire.AppendMethod(nil, 0, start)); err != nil {
		return err
	}
	for {
		f, err := e.r.ReadFrame()
		if err != nil {
			return err
		}
		if f.Type == wire.FrameHeartbeat {
			continue
		}
		m, err := wire.DecodeMethod(f.Payload)
		if err != nil {
			return err
		}
		if err := e.answer(f.Channel, m); err != nil {
			return err
		}
		if _, ok := m.(*wire.ConnectionClose); ok {
			return nil
		}
	}
}

func (e *echo) send(b []byte) error {
	_, err := e.conn.Write(b)
	return err
}

func (e *echo) answer(channel uint16, m wire.Method) error {
	var ok wire.Method
	switch m := m.(type) {
	case *wire.ConnectionStartOK:
		if m.Mechanism != "PLAIN" || m.Response != "\x00user\x00secret" {
			e.t.Errorf("start-ok: %+v", m)
		}
		ok = &wire.ConnectionTune{ChannelMax: 10, FrameMax: echoFrameMax}
	case *wire.ConnectionTuneOK:
		return nil
	case *wire.ConnectionOpen:
		ok = &wire.ConnectionOpenOK{}
	case *wire.ConnectionClose:
		ok = &wire.ConnectionCloseOK{}
	case *wire.ChannelOpen:
		ok = &wire.ChannelOpenOK{}
	case *wire.ConfirmSelect:
		ok = &wire.ConfirmSelectOK{}
	case *wire.QueueDeclare:
		e.checkDeclare(m)
		ok = &wire.QueueDeclareOK{Queue: m.Queue, MessageCount: 1, ConsumerCount: 2}
	case *wire.BasicConsume:
		ok = &wire.BasicConsumeOK{ConsumerTag: m.ConsumerTag}
	case *wire.BasicPublish:
		return e.publish(channel, m)
	default:
		return fmt.Errorf("unexpected %s", wire.MethodName(wire.ID(m)))
	}
	return e.send(wire.AppendMethod(nil, channel, ok))
}

func (e *echo) checkDeclare(m *wire.QueueDeclare) {
	want := &wire.QueueDeclare{Queue: "q", Durable: true, AutoDelete: true, Arguments: wire.Table{{Name: "x-expires", Value: wire.Int32(1000)}}}
	if !reflect.DeepEqual(m, want) {
		e.t.Errorf("declare: %+v, want %+v", m, want)
	}
}

// publish reads the content, confirms it and delivers it, marked by a header.
func (e *echo) publish(channel uint16, m *wire.BasicPublish) error {
	f, err := e.r.ReadFrame()
	if err != nil {
		return err
	}
	h, err := wire.DecodeHeader(f.Payload, wire.ClassBasic, m.MethodID())
	if err != nil {
		return err
	}
	e.tag++
	set := wire.Table{{Name: "x-acquired-count", Value: wire.Int64(int64(e.tag))}}
	properties, err := wire.EditProperties(nil, h.Properties, &wire.Edit{Remove: wire.FlagExpiration, SetHeaders: set})
	if err != nil {
		return err
	}
	body := make([]byte, h.BodySize)
	for rest := body; len(rest) > 0; {
		head, err := e.r.ReadFrameHeader()
		if err == nil {
			err = e.r.ReadPayloadInto(rest[:head.Size])
		}
		if err != nil {
			return err
		}
		rest = rest[head.Size:]
	}
	b := wire.AppendAck(nil, channel, e.tag, false)
	b = wire.AppendDeliver(b, channel, "c", e.tag, true, []byte(m.Exchange), []byte(m.RoutingKey))
	b = wire.AppendHeader(b, channel, wire.ClassBasic, h.BodySize, properties)
	return e.send(wire.AppendBody(b, channel, body, echoFrameMax))
}

// mustDial connects a client to an echo.
func mustDial(t *testing.T) *amqp.Connection {
	t.Helper()
	client, server := net.Pipe()
	done := make(chan error, 1)
	go func() {
		e := &echo{t: t, conn: server, r: wire.NewReader(server, echoFrameMax)}
		err := e.serve()
		server.Close()
		done <- err
	}()
	conn, err := amqp.Open(client, amqp.Config{SASL: []amqp.Authentication{&amqp.PlainAuth{Username: "user", Password: "secret"}}, Vhost: "/"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("echo: %v", err)
		}
	})
	return conn
}

// must returns v unless err is set.
func must[V any](v V, err error) func(t *testing.T) V {
	return func(t *testing.T) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// TestClient lets a client library judge the codec in both directions.
func TestClient(t *testing.T) {
	ch := must(mustDial(t).Channel())(t)
	q := must(ch.QueueDeclare("q", true, true, false, false, amqp.Table{"x-expires": int32(1000)}))(t)
	if q.Name != "q" || q.Messages != 1 || q.Consumers != 2 {
		t.Errorf("declared %+v", q)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	deliveries := must(ch.Consume("q", "c", false, false, false, false, nil))(t)

	headers := amqp.Table{
		"bool": true, "byte": byte(200), "int8": int8(-3), "int16": int16(-300), "int32": int32(-70000), "int64": int64(-1 << 40),
		"float32": float32(1.5), "float64": 2.5, "decimal": amqp.Decimal{Scale: 2, Value: 314}, "string": "text",
		"bytes": []byte{0, 255}, "time": time.Unix(1700000000, 0), "nil": nil,
		"array": []interface{}{int32(1), "two", nil}, "table": amqp.Table{"nested": amqp.Table{"x": int64(1)}},
	}
	for _, size := range []int{0, 1, echoFrameMax - wire.FrameOverhead, 100000} {
		sent := amqp.Publishing{
			Headers: headers, ContentType: "text/plain", ContentEncoding: "utf-8", DeliveryMode: 2, Priority: 5,
			CorrelationId: "co", ReplyTo: "re", Expiration: "1000", MessageId: "me", Timestamp: time.Unix(1700000001, 0),
			Type: "ty", UserId: "us", AppId: "ap", Body: bytes.Repeat([]byte("x"), size),
		}
		confirm := must(ch.PublishWithDeferredConfirm("", "k", false, false, sent))(t)
		d := <-deliveries
		if !confirm.Wait() {
			t.Error("not confirmed")
		}
		checkDelivery(t, &d, &sent)
	}
}

func checkDelivery(t *testing.T, d *amqp.Delivery, sent *amqp.Publishing) {
	t.Helper()
	if !bytes.Equal(d.Body, sent.Body) {
		t.Errorf("a body of %d bytes, sent %d", len(d.Body), len(sent.Body))
	}
	if d.ConsumerTag != "c" || d.RoutingKey != "k" || !d.Redelivered {
		t.Errorf("delivered to %q with key %q, redelivered %v", d.ConsumerTag, d.RoutingKey, d.Redelivered)
	}
	if d.Headers["x-acquired-count"] != int64(d.DeliveryTag) {
		t.Errorf("x-acquired-count is %v", d.Headers["x-acquired-count"])
	}
	delete(d.Headers, "x-acquired-count")
	if !reflect.DeepEqual(d.Headers, sent.Headers) {
		t.Errorf("headers %v\nsent    %v", d.Headers, sent.Headers)
	}
	got := []string{d.ContentType, d.ContentEncoding, d.CorrelationId, d.ReplyTo, d.Expiration, d.MessageId, d.Type, d.UserId, d.AppId}
	if s := strings.Join(got, " "); s != "text/plain utf-8 co re  me ty us ap" {
		t.Errorf("properties %q", s)
	}
	if d.DeliveryMode != 2 || d.Priority != 5 || !d.Timestamp.Equal(sent.Timestamp) {
		t.Errorf("delivery mode %d, priority %d, timestamp %v", d.DeliveryMode, d.Priority, d.Timestamp)
	}
}
