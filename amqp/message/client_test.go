package message_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	client "github.com/Azure/go-amqp"
	rabbit "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/v091"
	wire091 "github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/amqp/v10"
	wire10 "github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Tests with a client library of each protocol, at one server.

// server is a server of both protocols on loopback, over a broker in memory, with a client of each.
type server struct {
	broker   *amqptest.Broker
	channel  *rabbit.Channel
	session  *client.Session
	receiver *client.Receiver // from the queue
	gone     chan *rabbit.Error
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mustServe starts a server that ends with the test. Both clients use the queue q.
func mustServe(t testing.TB, frameMax int) *server {
	t.Helper()
	amqptest.CheckGoroutines(t)
	b := amqptest.NewBroker()
	s, err := amqp.New(amqp.Config{Protocols: []amqp.Protocol{v091.Protocol{}, v10.Protocol{}}, Broker: b, Version: "1.2.3"})
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		must(t, s.Shutdown(ctx))
		<-served
		if n := s.Panics(); n != 0 {
			t.Errorf("%d panics", n)
		}
	})
	old, err := rabbit.DialConfig("amqp://guest:guest@"+l.Addr().String()+"/", rabbit.Config{FrameSize: frameMax})
	must(t, err)
	t.Cleanup(func() { old.Close() })
	x := &server{broker: b, gone: make(chan *rabbit.Error, 1)}
	x.channel, err = old.Channel()
	must(t, err)
	x.channel.NotifyClose(x.gone)
	_, err = x.channel.QueueDeclare("q", true, false, false, false, nil)
	must(t, err)
	c, err := client.Dial(t.Context(), "amqp://"+l.Addr().String(), &client.ConnOptions{SASLType: client.SASLTypePlain("guest", "guest"), MaxFrameSize: uint32(frameMax)})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	x.session, err = c.NewSession(t.Context(), nil)
	must(t, err)
	return x
}

// mustSend publishes by AMQP 1.0.
func (s *server) mustSend(t testing.TB, m *client.Message) {
	t.Helper()
	l, err := s.session.NewSender(t.Context(), "/queues/q", nil)
	must(t, err)
	must(t, l.Send(t.Context(), m, nil))
	must(t, l.Close(t.Context()))
}

// mustGet gets by 0-9-1.
func (s *server) mustGet(t testing.TB) rabbit.Delivery {
	t.Helper()
	d, ok, err := s.channel.Get("q", true)
	if err != nil || !ok {
		t.Fatalf("%v, %v", ok, err)
	}
	return d
}

// mustReceive receives by AMQP 1.0, and accepts.
func (s *server) mustReceive(t testing.TB) *client.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if s.receiver == nil {
		var err error
		s.receiver, err = s.session.NewReceiver(ctx, "/queues/q", nil)
		must(t, err)
	}
	m, err := s.receiver.Receive(ctx, nil)
	must(t, err)
	must(t, s.receiver.AcceptMessage(ctx, m))
	return m
}

// What a client of AMQP 1.0 has published, as a 0-9-1 client gets it.
func TestPublishedTo091(t *testing.T) {
	s := mustServe(t, 0)
	now := time.UnixMilli(1_700_000_000_123)
	id := client.UUID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	const name = "urn:uuid:01020304-0506-0708-090a-0b0c0d0e0f10"
	sent := &client.Message{
		Header: &client.MessageHeader{Durable: true, Priority: 7, TTL: time.Minute},
		Properties: &client.MessageProperties{
			MessageID: uint64(5), CorrelationID: id, UserID: []byte("guest"), ReplyTo: new("/queues/a%20b"), ContentType: new("text/plain"), ContentEncoding: new("gzip"),
			CreationTime: &now, GroupID: new("group"), Subject: new("lost"), To: new("/queues/lost"),
		},
		Annotations: client.Annotations{
			"x-own": "own", "x-cc": []any{"other"}, "x-basic-type": "kind", "x-list": []any{uint64(1), id, client.Symbol("s"), nil}, "x-map": map[string]any{"k": int8(-1)},
		},
		ApplicationProperties: map[string]any{
			"string": "s", "binary": []byte("b"), "ubyte": uint8(200), "byte": int8(-1), "ushort": uint16(60000), "short": int16(-300), "uint": uint32(4e9), "int": int32(-5),
			"ulong": uint64(7), "long": int64(-7), "float": float32(1.5), "double": 2.5, "bool": true, "time": now, "null": nil, "uuid": id,
		},
		Data: [][]byte{[]byte("one"), []byte("two")},
	}
	s.mustSend(t, sent)
	want := rabbit.Publishing{
		DeliveryMode: 2, Priority: 7, Expiration: "60000", MessageId: "5", CorrelationId: name, UserId: "guest", ReplyTo: "a b", ContentType: "text/plain", ContentEncoding: "gzip",
		Timestamp: time.Unix(1_700_000_000, 0), AppId: "group", Type: "kind", Body: []byte("onetwo"),
		Headers: rabbit.Table{
			"x-own": "own", "CC": []any{"other"}, "x-list": []any{int64(1), name, "s", nil}, "x-map": rabbit.Table{"k": int8(-1)},
			"string": "s", "binary": "b", "ubyte": byte(200), "byte": int8(-1), "ushort": uint16(60000), "short": int16(-300), "uint": uint32(4e9), "int": int32(-5),
			"ulong": int64(7), "long": int64(-7), "float": float32(1.5), "double": 2.5, "bool": true, "time": time.Unix(1_700_000_000, 0), "null": nil, "uuid": name,
		},
	}
	check := func(d rabbit.Delivery) {
		t.Helper()
		got := rabbit.Publishing{
			Headers: d.Headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode, Priority: d.Priority,
			CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Expiration: d.Expiration, MessageId: d.MessageId, Timestamp: d.Timestamp, Type: d.Type,
			UserId: d.UserId, AppId: d.AppId, Body: d.Body,
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
	}
	check(s.mustGet(t))
	deliveries, err := s.channel.Consume("q", "", true, false, false, false, nil)
	must(t, err)
	s.mustSend(t, sent)
	check(<-deliveries)
	// No header, and a body that is a value.
	s.mustSend(t, &client.Message{Value: map[string]any{"k": "v"}})
	d := <-deliveries
	if d.DeliveryMode != 0 || d.Type != "amqp-1.0" || len(d.Headers) > 0 {
		t.Errorf("%+v", d)
	}
	// Which is one again for a receiver there, by way of a 0-9-1 client.
	must(t, s.channel.Cancel(d.ConsumerTag, false))
	must(t, s.channel.Publish("", "q", false, false, rabbit.Publishing{Type: d.Type, Body: d.Body}))
	if m := s.mustReceive(t); !reflect.DeepEqual(m.Value, map[string]any{"k": "v"}) || m.Data != nil {
		t.Errorf("%+v", m)
	}
}

// What a 0-9-1 client has published, as a receiver of AMQP 1.0 gets it.
func TestPublishedTo10(t *testing.T) {
	s := mustServe(t, 0)
	const name = "urn:uuid:01020304-0506-0708-090a-0b0c0d0e0f10"
	must(t, s.channel.Publish("", "q", false, false, rabbit.Publishing{
		DeliveryMode: 2, Priority: 7, Expiration: "60000", MessageId: "m", CorrelationId: name, UserId: "guest", ReplyTo: "a b/ü", ContentType: "text/plain", ContentEncoding: "gzip",
		Timestamp: time.Unix(1_700_000_000, 0), AppId: "app", Type: "kind", Body: []byte("body"),
		Headers: rabbit.Table{
			"x-own": "own", "CC": []any{"q2"}, "BCC": []any{"q3"}, "x-list": []any{int64(1), "s", nil}, "x-map": rabbit.Table{"k": int8(-1)}, "list": []any{"l"}, "map": rabbit.Table{"k": "v"},
			"string": "s", "bytes": []byte("b"), "bool": true, "int8": int8(-1), "uint8": byte(200), "int16": int16(-300), "uint16": uint16(60000), "int32": int32(-5), "uint32": uint32(4e9),
			"int64": int64(-7), "float": float32(1.5), "double": 2.5, "time": time.Unix(5, 0), "null": nil, "decimal": rabbit.Decimal{Scale: 1, Value: 5},
		},
	}))
	m := s.mustReceive(t)
	p := m.Properties
	if !m.Header.Durable || m.Header.Priority != 7 || m.Header.TTL != time.Minute || !m.Header.FirstAcquirer || m.Header.DeliveryCount != 0 {
		t.Errorf("%+v", m.Header)
	}
	if p.MessageID != "m" || p.CorrelationID != (client.UUID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}) || string(p.UserID) != "guest" ||
		*p.ReplyTo != "/queues/a%20b%2F%C3%BC" || *p.ContentType != "text/plain" || *p.ContentEncoding != "gzip" || p.CreationTime.Unix() != 1_700_000_000 || *p.GroupID != "app" {
		t.Errorf("%+v", p)
	}
	annotations := client.Annotations{
		"x-exchange": "", "x-routing-key": "q", "x-own": "own", "x-cc": []any{"q2"}, "x-basic-type": "kind", "x-list": []any{int64(1), "s", nil}, "x-map": map[string]any{"k": int8(-1)},
	}
	if !reflect.DeepEqual(m.Annotations, annotations) {
		t.Errorf("%#v\nwant %#v", m.Annotations, annotations)
	}
	application := map[string]any{
		"string": "s", "bytes": []byte("b"), "bool": true, "int8": int8(-1), "uint8": byte(200), "int16": int16(-300), "uint16": uint16(60000), "int32": int32(-5), "uint32": uint32(4e9),
		"int64": int64(-7), "float": float32(1.5), "double": 2.5, "time": time.Unix(5, 0), "null": nil,
	}
	if !reflect.DeepEqual(m.ApplicationProperties, application) {
		t.Errorf("%#v\nwant %#v", m.ApplicationProperties, application)
	}
	if string(m.GetData()) != "body" || len(m.Data) != 1 {
		t.Errorf("%q", m.Data)
	}
	must(t, s.channel.Publish("", "q", false, false, rabbit.Publishing{}))
	if m := s.mustReceive(t); m.Header.Durable || len(m.Data) != 1 || len(m.Data[0]) != 0 || m.Properties != nil {
		t.Errorf("%+v", m)
	}
}

// Messages that are poison elsewhere are delivered, and so are those behind them. Neither a connection nor a channel
// or link ends.
func TestPoison(t *testing.T) {
	s := mustServe(t, 0)
	bare := func(annotations []byte, sections string) fsm.Payload {
		p, err := fsm.AppendBareHead(nil, "", "q", fsm.BareHeader{Priority: -1, TTL: -1}, annotations, nil)
		must(t, err)
		return append(p, sections...)
	}
	old := func(properties, body string) fsm.Payload {
		return append(fsm.AppendPayloadHead(nil, "", "q", []byte(properties)), body...)
	}
	types := string(wire091.AppendProperties(nil, &wire091.Properties{Present: wire091.FlagType, Type: []byte("amqp-1.0")}))
	many := append([]byte("\xd1\x00\x00\x00\x19\x00\x00\x00\x02\xa3\x03x-m\xc0\x0c\x01"), "\xf0\x00\x00\x00\x05\x00\x01\x00\x00\x40"...)
	for _, c := range []struct {
		name        string
		in          fsm.Payload
		get, gotten string // the body by 0-9-1, by AMQP 1.0; empty: there is no promise
	}{
		{"type amqp-1.0 with text", old(types, "text"), "text", "text"},
		{"type amqp-1.0 with half a value", old(types, "\x00\x53\x77\xa1\x09x"), "\x00\x53\x77\xa1\x09x", "\x00\x53\x77\xa1\x09x"},
		{"type amqp-1.0 with garbage in a value", old(types, "\x00\x53\x77\xc0\x03\x01\xff\x07"), "\x00\x53\x77\xc0\x03\x01\xff\x07", "\x00\x53\x77\xc0\x03\x01\xff\x07"},
		{"garbage for properties", old("\xff\xff\xff", "body"), "", "body"},
		{"an exchange that is no text, and names of a history", append(fsm.AppendPayloadHead(nil, "\xff", "\xfe", []byte{0, 0}), "body"...), "body", "body"},
		{"char, uuid, ulong in a list", bare(nil, "\x00\x53\x74\xc1\x1d\x04\xa1\x01c\x73\x00\x00\x00\xfc\xa1\x01u\x98"+strings.Repeat("u", 16)+"\x00\x53\x75\xa0\x04body"), "body", ""}, // which this client cannot read
		{"many nulls", bare(many, "\x00\x53\x75\xa0\x04body"), "body", ""},
		{"annotations that are none", bare([]byte("\xd1\xff"), "\x00\x53\x75\xa0\x04body"), "body", "body"},
		{"a bare message that is none", bare(nil, "garbage"), "garbage", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.get != "" {
				s.broker.Inject("q", fsm.Message{Payload: c.in})
				if d := s.mustGet(t); string(d.Body) != c.get {
					t.Errorf("got %q", d.Body)
				}
				s.broker.Inject("q", fsm.Message{Payload: c.in, Acquired: 1, Failed: 1})
				if d := s.mustGet(t); string(d.Body) != c.get || d.Headers["x-delivery-count"] != int64(1) {
					t.Errorf("got %q with %v", d.Body, d.Headers)
				}
			}
			if c.gotten != "" {
				s.broker.Inject("q", fsm.Message{Payload: c.in, Deaths: []*logpb.Death{
					{Reason: logpb.Death_EXPIRED, Queue: "\xff", Exchange: "a\x00", RoutingKeys: []string{"k", "\xff"}, LastExchange: "\xff", OriginalExpiration: "x", Count: 1},
				}})
				if m := s.mustReceive(t); string(m.GetData()) != c.gotten {
					t.Errorf("received %+v", m)
				}
				must(t, s.receiver.Close(t.Context()))
				s.receiver = nil
			}
			select {
			case err := <-s.gone:
				t.Fatal(err)
			default:
			}
		})
	}
}

// Headers of a message that do not fit into a frame of a 0-9-1 client are left out. The broker's own are there.
func TestHeadersThatFit(t *testing.T) {
	s := mustServe(t, 4096)
	death := &logpb.Death{Reason: logpb.Death_EXPIRED, Queue: "dead", Count: 1, Time: 1, First: true}
	m := &client.Message{ApplicationProperties: map[string]any{"small": "s", "large": strings.Repeat("l", 3700), "huge": strings.Repeat("h", 70000)}, Data: [][]byte{[]byte("body")}}
	b, err := m.MarshalBinary()
	must(t, err)
	p, err := fsm.AppendBareHead(nil, "", "q", fsm.BareHeader{Priority: -1, TTL: -1}, nil, nil)
	must(t, err)
	for n := range 40 {
		close := &client.Message{ApplicationProperties: map[string]any{"l": strings.Repeat("l", 4040+n)}, Data: [][]byte{[]byte("body")}}
		b, err := close.MarshalBinary()
		must(t, err)
		s.broker.Inject("q", fsm.Message{Payload: append(p[:len(p):len(p)], b...)})
		if d := s.mustGet(t); string(d.Body) != "body" || (len(d.Headers) > 0) != (n <= 23) {
			t.Errorf("%d bytes: %d headers", 4040+n, len(d.Headers))
		}
	}
	s.broker.Inject("q", fsm.Message{Payload: append(p[:len(p):len(p)], b...)})
	if d := s.mustGet(t); string(d.Body) != "body" || d.Headers["small"] != "s" || len(d.Headers) != 2 {
		t.Errorf("%+v", d)
	}
	s.broker.Inject("q", fsm.Message{Payload: append(p, b...), Deaths: []*logpb.Death{death, {Reason: logpb.Death_REJECTED, Queue: strings.Repeat("q", 255), Exchange: strings.Repeat("e", 255), Count: 1}}})
	if d := s.mustGet(t); string(d.Body) != "body" || d.Headers["small"] != "s" || d.Headers["x-first-death-queue"] != "dead" || d.Headers["large"] != nil {
		t.Errorf("%+v", d)
	}
}

// A body comes whole, in whatever pieces it was published, and whatever the frames of its receiver are.
func TestBodiesInPieces(t *testing.T) {
	s := mustServe(t, 4096)
	deliveries, err := s.channel.Consume("q", "", true, false, false, false, nil)
	must(t, err)
	for _, sizes := range [][]int{{0}, {1}, {4088}, {4089}, {100_000}, {0, 0}, {4088, 1}, {1, 4087, 1}, {5000, 0, 5000, 3}, {1, 1, 1, 1, 100_000, 1}} {
		m, body := new(client.Message), []byte(nil)
		for i, n := range sizes {
			piece := bytes.Repeat([]byte{byte('a' + i)}, n)
			m.Data, body = append(m.Data, piece), append(body, piece...)
		}
		s.mustSend(t, m)
		if d := <-deliveries; !bytes.Equal(d.Body, body) {
			t.Errorf("%v: %d octets", sizes, len(d.Body))
		}
	}
	many := &client.Message{}
	for range 20_000 {
		many.Data = append(many.Data, nil, []byte("x"))
	}
	s.mustSend(t, many)
	if d := <-deliveries; string(d.Body) != strings.Repeat("x", 20_000) {
		t.Errorf("%d octets", len(d.Body))
	}
}

// A history is one, whatever protocol a message came by and goes by.
func TestDeathsInBothProtocols(t *testing.T) {
	s := mustServe(t, 0)
	deaths := []*logpb.Death{
		{Reason: logpb.Death_REJECTED, Queue: "q2", Count: 2, Time: 2000, Exchange: "e2", RoutingKeys: []string{"a", "b"}, LastExchange: "e2"},
		{Reason: logpb.Death_EXPIRED, Queue: "q1", Count: 1, Time: 1000, RoutingKeys: []string{"q1"}, OriginalExpiration: "700", First: true},
	}
	head := fsm.AppendPayloadHead(nil, "dlx", "k", wire091.AppendProperties(nil, &wire091.Properties{Present: wire091.FlagExpiration, Expiration: []byte("700")}))
	bare, err := fsm.AppendBareHead(nil, "dlx", "k", fsm.BareHeader{Priority: -1, TTL: 700}, nil, nil)
	must(t, err)
	for _, p := range []fsm.Payload{append(head, "body"...), wire10.AppendData(bare, []byte("body"))} {
		s.broker.Inject("q", fsm.Message{Payload: p, Deaths: deaths})
		d := s.mustGet(t)
		entries, _ := d.Headers["x-death"].([]any)
		if d.Expiration != "" || string(d.Body) != "body" || d.Headers["x-first-death-queue"] != "q1" || d.Headers["x-last-death-reason"] != "rejected" || len(entries) != 2 ||
			entries[0].(rabbit.Table)["count"] != int64(2) || entries[1].(rabbit.Table)["original-expiration"] != "700" {
			t.Errorf("%+v", d)
		}
		s.broker.Inject("q", fsm.Message{Payload: p, Deaths: deaths})
		m := s.mustReceive(t)
		list, _ := m.Annotations["x-opt-deaths"].([]map[any]any)
		if m.Header.TTL != 0 || m.Header.FirstAcquirer || m.Annotations["x-first-death-queue"] != "q1" || m.Annotations["x-last-death-reason"] != "rejected" || len(list) != 2 {
			t.Fatalf("%+v, %T", m, m.Annotations["x-opt-deaths"])
		}
		want := map[any]any{
			"queue": "q1", "reason": "expired", "count": uint64(1), "first-time": time.UnixMilli(1000),
			"last-time": time.UnixMilli(1000), "exchange": "", "routing-keys": []string{"q1"}, "ttl": uint32(700),
		}
		if !reflect.DeepEqual(list[1], want) {
			t.Errorf("%#v\nwant %#v", list[1], want)
		}
		must(t, s.receiver.Close(t.Context()))
		s.receiver = nil
	}
}
