package discovery

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/discovery/dnstest"
)

func newFinder(t *testing.T) (*Finder, *dnstest.Server) {
	s := dnstest.New(t)
	return &Finder{Resolver: s.Resolver()}, s
}

func TestCheckContact(t *testing.T) {
	for contact, ok := range map[string]bool{
		"10.0.0.1:25672": true, "[::1]:25672": true, "nodes.example:25672": true, "srv:_cluster._tcp.example": true,
		"": false, "nodes.example": false, ":25672": false, "n1:": false, "srv:": false, "srv:name:25672": false, "srv:a b": false, "n1:1:2": false,
	} {
		if err := CheckContact(contact); (err == nil) != ok {
			t.Errorf("%q: %v", contact, err)
		}
	}
}

// A name stands for what DNS says at the moment, and nothing is remembered.
func TestAddresses(t *testing.T) {
	t.Parallel()
	f, dns := newFinder(t)
	find := func(contact string, want ...string) {
		t.Helper()
		got, err := f.Addresses(t.Context(), contact)
		slices.Sort(got)
		if slices.Sort(want); !slices.Equal(got, want) || (err == nil) != (len(want) > 0) {
			t.Errorf("%s is %v, %v; want %v", contact, got, err, want)
		}
	}
	find("127.0.0.9:1", "127.0.0.9:1")
	find("nodes.test:7")
	dns.Host("nodes.test", "127.0.0.2", "127.0.0.3", "::1")
	find("nodes.test:7", "127.0.0.2:7", "127.0.0.3:7", "[::1]:7")
	dns.Host("nodes.test", "127.0.0.4")
	find("nodes.test:7", "127.0.0.4:7")

	find("srv:_cluster._tcp.test")
	dns.Host("a.test", "127.0.0.5")
	dns.Host("b.test", "127.0.0.6")
	dns.Service("_cluster._tcp.test", dnstest.ServiceHost{Host: "a.test", Port: 25672}, dnstest.ServiceHost{Host: "b.test", Port: 35672}, dnstest.ServiceHost{Host: "gone.test", Port: 1})
	find("srv:_cluster._tcp.test", "127.0.0.5:25672", "127.0.0.6:35672")
	dns.Service("_cluster._tcp.test", dnstest.ServiceHost{Host: "gone.test", Port: 1})
	find("srv:_cluster._tcp.test")
}

// The targets of an SRV name come in the order of their priorities, and are bounded.
func TestServiceOrder(t *testing.T) {
	t.Parallel()
	f, dns := newFinder(t)
	dns.Host("a.test", "127.0.0.5")
	dns.Host("b.test", "127.0.0.6")
	dns.Service("_c._tcp.test", dnstest.ServiceHost{Host: "b.test", Port: 2, Priority: 9}, dnstest.ServiceHost{Host: "a.test", Port: 1, Priority: 3})
	if got, err := f.Addresses(t.Context(), "srv:_c._tcp.test"); err != nil || !slices.Equal(got, []string{"127.0.0.5:1", "127.0.0.6:2"}) {
		t.Errorf("%v, %v", got, err)
	}
	dns.Host("c.test", "127.0.0.7", "127.0.0.8", "127.0.0.9")
	many := make([]dnstest.ServiceHost, 30)
	for i := range many {
		many[i] = dnstest.ServiceHost{Host: "c.test", Port: uint16(i + 1)}
	}
	dns.Service("_many._tcp.test", many...)
	if got, err := f.Addresses(t.Context(), "srv:_many._tcp.test"); err != nil || len(got) != maxAddresses {
		t.Errorf("%d addresses, %v", len(got), err)
	}
}

// listen accepts connections at an address of the loopback network and closes them.
func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	return l
}

// Each address of a name is the first one in its time, and one that refuses is passed over.
func TestDialRotates(t *testing.T) {
	t.Parallel()
	f, dns := newFinder(t)
	first := listen(t, "127.0.0.2:0")
	port := first.Addr().(*net.TCPAddr).Port
	listen(t, net.JoinHostPort("127.0.0.3", strconv.Itoa(port)))
	dns.Host("node.test", "127.0.0.2", "127.0.0.3", "127.0.0.4") // the last refuses
	address := net.JoinHostPort("node.test", strconv.Itoa(port))
	reached := map[string]int{}
	for range 6 {
		conn, err := f.Dial(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		host, _, _ := strings.Cut(conn.RemoteAddr().String(), ":")
		reached[host]++
		conn.Close()
	}
	if reached["127.0.0.2"] < 2 || reached["127.0.0.3"] < 2 {
		t.Errorf("reached %v", reached)
	}
}

// All addresses together refuse, or the host has not refused.
func TestDialRefused(t *testing.T) {
	t.Parallel()
	f, dns := newFinder(t)
	l := listen(t, "127.0.0.2:0")
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	l.Close()
	dns.Host("gone.test", "127.0.0.3", "127.0.0.4")
	if _, err := f.Dial(t.Context(), "gone.test:"+port); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("all refuse: %v", err)
	}
	dns.Host("half.test", "127.0.0.3", "255.255.255.255")
	if _, err := f.Dial(t.Context(), "half.test:"+port); err == nil || errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("one cannot be reached: %v", err)
	}
	if _, err := f.Dial(t.Context(), "nosuch.test:"+port); err == nil || errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("no such name: %v", err)
	}
	if _, err := f.Dial(t.Context(), "127.0.0.3:"+port); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("an address: %v", err)
	}
}

// A resolver that does not answer holds nobody up for longer than the context.
func TestResolverHangs(t *testing.T) {
	t.Parallel()
	f := &Finder{Resolver: &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := f.Addresses(ctx, "nodes.test:1"); err == nil {
		t.Error("there is an address")
	}
}
