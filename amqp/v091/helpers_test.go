package v091_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/v091"
)

// protocols are those of the servers under test.
var protocols = []amqp.Protocol{v091.Protocol{}}

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
	amqptest.CheckGoroutines(t)
	b := amqptest.NewBroker()
	cfg := amqp.Config{Protocols: protocols, Broker: b, Version: "1.2.3"}
	if testing.Verbose() {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	if change != nil {
		change(&cfg)
	}
	s, err := amqp.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != amqp.ErrServerClosed {
			t.Errorf("serve: %v", err)
		}
		b.AwaitSessions(0)
		if n := s.Held(); n != 0 {
			t.Errorf("%d octets are held for nobody", n)
		}
	})
	return &server{Server: s, t: t, broker: b, addr: l.Addr().String()}
}

// mustDial connects a client that has not said anything yet.
func (s *server) mustDial() *amqptest.Client {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	return amqptest.NewClient(s.t, conn)
}

// mustLogin connects a client up to connection.open-ok.
func (s *server) mustLogin(capabilities ...string) *amqptest.Client {
	s.t.Helper()
	c := s.mustDial()
	c.Login(amqptest.Tune(), capabilities...)
	return c
}

// mustConnect opens a socket to the server.
func (s *server) mustConnect() net.Conn {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	return conn
}

// mustReadAll reads up to the end of the stream.
func mustReadAll(t testing.TB, conn net.Conn) string {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
