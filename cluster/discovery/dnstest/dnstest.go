// Package dnstest is a DNS server for tests: it answers, on loopback, for the few names that a test
// gives it, and says of all others that they do not exist.
package dnstest

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// Server answers questions about hosts (A, AAAA) and services (SRV).
type Server struct {
	conn net.PacketConn

	mu       sync.Mutex
	hosts    map[string][]netip.Addr
	services map[string][]ServiceHost
}

// ServiceHost is one line of a service.
type ServiceHost struct {
	Host     string
	Port     uint16
	Priority uint16
}

// New starts a server, which ends with the test.
func New(t testing.TB) *Server {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{conn: conn, hosts: map[string][]netip.Addr{}, services: map[string][]ServiceHost{}}
	var done sync.WaitGroup
	done.Go(s.run)
	t.Cleanup(func() {
		conn.Close()
		done.Wait()
	})
	return s
}

// Resolver returns a resolver that asks this server. It offers large answers over UDP and asks
// again over TCP if one has been cut off; the server has no TCP, so answers are never cut off.
func (s *Server) Resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", s.conn.LocalAddr().String())
	}}
}

// Host sets the addresses of a name; none: the name does not exist.
func (s *Server) Host(name string, addresses ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts[name] = nil
	for _, a := range addresses {
		s.hosts[name] = append(s.hosts[name], netip.MustParseAddr(a))
	}
}

// Service sets what an SRV name stands for.
func (s *Server) Service(name string, targets ...ServiceHost) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.services[name] = targets
}

func (s *Server) run() {
	in := make([]byte, 4096)
	for {
		n, from, err := s.conn.ReadFrom(in)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(in[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		s.answer(&m)
		if out, err := m.Pack(); err == nil {
			_, _ = s.conn.WriteTo(out, from)
		}
	}
}

// answer makes an answer of a question.
func (s *Server) answer(m *dnsmessage.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := m.Questions[0]
	name := strings.TrimSuffix(q.Name.String(), ".")
	m.Header = dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true, RecursionDesired: m.RecursionDesired, RecursionAvailable: true}
	m.Additionals = nil
	add := func(body dnsmessage.ResourceBody) {
		m.Answers = append(m.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}, Body: body})
	}
	for _, ip := range s.hosts[name] {
		switch {
		case q.Type == dnsmessage.TypeA && ip.Is4():
			add(&dnsmessage.AResource{A: ip.As4()})
		case q.Type == dnsmessage.TypeAAAA && ip.Is6():
			add(&dnsmessage.AAAAResource{AAAA: ip.As16()})
		}
	}
	if q.Type == dnsmessage.TypeSRV {
		for _, t := range s.services[name] {
			add(&dnsmessage.SRVResource{Priority: t.Priority, Weight: 1, Port: t.Port, Target: dnsmessage.MustNewName(t.Host + ".")})
		}
	}
	if len(s.hosts[name]) == 0 && len(s.services[name]) == 0 {
		m.RCode = dnsmessage.RCodeNameError
	}
}
