package amqptest

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/quorate/quorate/amqp"
)

// Serve serves on loopback until the test ends. Then nothing may be left: no goroutine, no session of b, no memory that
// is held for clients; and nothing may have panicked. It returns the server and its address.
func Serve(t testing.TB, cfg amqp.Config, b *Broker) (s *amqp.Server, addr string) {
	t.Helper()
	CheckGoroutines(t)
	if cfg.Logger == nil && testing.Verbose() {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
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
		if n := s.Panics(); n != 0 {
			t.Errorf("%d panics", n)
		}
	})
	return s, l.Addr().String()
}

// ServeTLS has a server serve on loopback over TLS, too, until the test ends. Clients may have certificates of the authority, which
// it returns with the address.
func ServeTLS(t testing.TB, s *amqp.Server) (addr string, a *Authority) {
	t.Helper()
	a = NewAuthority(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		served <- s.Serve(tls.NewListener(l, &tls.Config{
			Certificates: []tls.Certificate{a.Issue("127.0.0.1")}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: a.Roots(),
		}))
	}()
	t.Cleanup(func() {
		l.Close()
		<-served
	})
	return l.Addr().String(), a
}
