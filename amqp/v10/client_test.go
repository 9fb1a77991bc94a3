package v10_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	client "github.com/Azure/go-amqp"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/fsm"
)

// Tests with the client library on which RabbitMQ's Go client and Azure's SDK are built.

// server is a Server on loopback, over a broker in memory.
type server struct {
	*amqp.Server
	t      testing.TB
	broker *amqptest.Broker
	addr   string
}

// mustServe starts a server that ends with the test, together with everything
// it has started.
func mustServe(t testing.TB, change func(*amqp.Config)) *server {
	t.Helper()
	b := amqptest.NewBroker()
	cfg := amqp.Config{Protocols: []amqp.Protocol{v10.Protocol{}}, Broker: b, Version: "1.2.3"}
	if change != nil {
		change(&cfg)
	}
	s, addr := amqptest.Serve(t, cfg, b)
	return &server{Server: s, t: t, broker: b, addr: addr}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *server) mustDial(t testing.TB, change func(*client.ConnOptions)) *client.Conn {
	t.Helper()
	o := &client.ConnOptions{SASLType: client.SASLTypePlain("guest", "guest"), ContainerID: "test"}
	if change != nil {
		change(o)
	}
	c, err := client.Dial(t.Context(), "amqp://"+s.addr, o)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func mustSession(t testing.TB, c *client.Conn) *client.Session {
	t.Helper()
	s, err := c.NewSession(t.Context(), nil)
	must(t, err)
	return s
}

func mustSender(t testing.TB, s *client.Session, address string) *client.Sender {
	t.Helper()
	l, err := s.NewSender(t.Context(), address, nil)
	must(t, err)
	return l
}

// mustDeclare makes a queue, with whatever protocol.
func (s *server) mustDeclare(names ...string) {
	s.t.Helper()
	c, err := s.broker.Connect(s.t.Context(), "guest", "/")
	must(s.t, err)
	x, err := c.OpenSession(nothing{})
	must(s.t, err)
	for _, name := range names {
		_, err := x.DeclareQueue(s.t.Context(), fsm.QueueSpec{Name: name, Durable: true})
		must(s.t, err)
	}
	x.Close(s.t.Context())
	c.Close(s.t.Context())
}

// nothing takes no events.
type nothing struct{ fsm.SessionEvents }

// condition is that of an error of a connection, session or link, or of an outcome.
func condition(err error) string {
	var conn *client.ConnError
	var session *client.SessionError
	var link *client.LinkError
	var e *client.Error
	switch {
	case errors.As(err, &link) && link.RemoteErr != nil:
		e = link.RemoteErr
	case errors.As(err, &session) && session.RemoteErr != nil:
		e = session.RemoteErr
	case errors.As(err, &conn) && conn.RemoteErr != nil:
		e = conn.RemoteErr
	case errors.As(err, &e):
	}
	if e == nil {
		return ""
	}
	return string(e.Condition)
}

func TestClientOpens(t *testing.T) {
	s := mustServe(t, nil)
	c := s.mustDial(t, func(o *client.ConnOptions) { o.Properties = map[string]any{"connection_name": "mine"} })
	p := c.Properties()
	if p["product"] != "quorate" || p["version"] != "4.3.0+quorate.1.2.3" || p["cluster_name"] == nil {
		t.Errorf("properties %v", p)
	}
	for range 3 {
		mustSession(t, c)
	}
	list := s.Connections()
	if len(list) != 1 || list[0].Protocol != "AMQP 1-0" || list[0].Given != "mine" || list[0].Channels != 3 || list[0].User != "guest" || list[0].Mechanism != "PLAIN" {
		t.Errorf("%+v", list)
	}
	must(t, c.Close())
}

func TestClientPublishes(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	c := s.mustDial(t, nil)
	l := mustSender(t, mustSession(t, c), "/queues/q")
	for range 1000 {
		must(t, l.Send(t.Context(), client.NewMessage([]byte("hello")), nil))
	}
	s.broker.AwaitPublished(1000)
	must(t, l.Close(t.Context()))
	must(t, c.Close())
}

func mustReceiver(t testing.TB, s *client.Session, address string, o *client.ReceiverOptions) *client.Receiver {
	t.Helper()
	l, err := s.NewReceiver(t.Context(), address, o)
	must(t, err)
	return l
}

func mustReceive(t testing.TB, l *client.Receiver) *client.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m, err := l.Receive(ctx, nil)
	must(t, err)
	return m
}

func TestClientReceives(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	c := s.mustDial(t, nil)
	x := mustSession(t, c)
	l := mustSender(t, x, "/queues/q")
	r := mustReceiver(t, x, "/queues/q", nil)
	for i := range 100 {
		body := bytes.Repeat([]byte{byte(i)}, i*1000)
		must(t, l.Send(t.Context(), client.NewMessage(body), nil))
		m := mustReceive(t, r)
		if !bytes.Equal(m.GetData(), body) {
			t.Fatalf("%d octets, want %d", len(m.GetData()), len(body))
		}
		must(t, r.AcceptMessage(t.Context(), m))
	}
	must(t, r.Close(t.Context()))
	must(t, x.Close(t.Context()))
}
