package cluster

import (
	"crypto/tls"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/certs"
	"github.com/quorate/quorate/cluster/discovery"
	"github.com/quorate/quorate/cluster/discovery/dnstest"
)

// discovered is a cluster whose nodes reach each other over TCP, and find each other by an SRV name
// only. It has certificates.
type discovered struct {
	secured
	dns  *dnstest.Server
	host map[string]string // address of the loopback network that a node is at
	at   map[string]string // address of its listener
	lies *impostor
}

const serviceName = "_cluster._tcp.nodes.test"

// mustDiscover starts n1. The others are to join.
func mustDiscover(t *testing.T) *discovered {
	t.Helper()
	d := &discovered{dns: dnstest.New(t), host: map[string]string{}, at: map[string]string{}, lies: newImpostor(t)}
	d.certs = filepath.Join(t.TempDir(), "certs")
	if _, err := certs.Init(d.certs, certs.NewTerms(time.Hour)); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		d.host[name] = "127.0.0.1"
	}
	d.nodes = mustCluster(t, alone, func(c *nodes) {
		d.nodes = c
		c.change = d.change
	})
	return d
}

// change gives a node a listener of its own, and DNS the address of that.
func (d *discovered) change(config *Config) {
	d.t.Helper()
	name := config.Name
	config.Listener.Close()
	l, err := net.Listen("tcp", d.host[name]+":0")
	if err != nil {
		d.t.Fatal(err)
	}
	config.Listener, d.at[name] = l, l.Addr().String()
	config.Nodes = map[string]string{name: d.at[name]}
	if d.lists(name) {
		config.Contacts = []string{"srv:" + serviceName}
	}
	finder := discovery.Finder{Resolver: d.dns.Resolver()}
	config.Dial, config.Resolve = finder.Dial, finder.Addresses
	d.arm(config)
	d.publish()
}

// lists reports whether a node has the SRV name: all have, but the first one founds the cluster.
func (d *discovered) lists(name string) bool { return name != names[0] || len(d.at) > 1 }

// publish has DNS list an impostor, a host that is not there, and all nodes, in this order.
func (d *discovered) publish() {
	targets := []dnstest.ServiceHost{{Host: "impostor.test", Port: d.lies.port}, {Host: "gone.test", Port: 1, Priority: 1}}
	d.dns.Host("impostor.test", "127.0.0.9", d.lies.host) // nobody is at the first one
	for name, at := range d.at {
		a, err := net.ResolveTCPAddr("tcp", at)
		if err != nil {
			d.t.Fatal(err)
		}
		d.dns.Host(name+".test", a.IP.String())
		targets = append(targets, dnstest.ServiceHost{Host: name + ".test", Port: uint16(a.Port), Priority: 2})
	}
	d.dns.Service(serviceName, targets...)
}

// move ends nodes and starts them at another address.
func (d *discovered) move(host string, moving ...string) {
	d.t.Helper()
	for _, name := range moving {
		d.crash(name)
		d.host[name] = host
	}
	d.mustOpen(moving...)
	for _, name := range moving {
		until(d.t, name+" is known at its new address", func() bool {
			for _, n := range d.all {
				state, _ := n.View().NodeByName(name)
				if state.PeerAddress != d.at[name] || !n.mesh.Alive(name) {
					return false
				}
			}
			return true
		})
	}
	d.mustAgree()
}

// impostor is at an address that DNS gives as a node's, with a certificate of another authority.
type impostor struct {
	host      string
	port      uint16
	requested atomic.Int64 // connections
	trusted   atomic.Int64 // those on which it was told anything
}

func newImpostor(t *testing.T) *impostor {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "certs")
	if _, err := certs.Init(dir, certs.NewTerms(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := certs.Node(dir, "n1", certs.NewTerms(time.Hour)); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "n1.pem"), filepath.Join(dir, "n1.key"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.3:0", &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "quorate-join"}, ClientAuth: tls.RequestClientCert})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	i := &impostor{host: "127.0.0.3", port: uint16(l.Addr().(*net.TCPAddr).Port)}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				i.requested.Add(1)
				if n, err := conn.Read(make([]byte, 1)); n > 0 && err == nil {
					i.trusted.Add(1)
				}
			}()
		}
	}()
	return i
}

// Nodes join by an SRV name, and get back in at other addresses: one of three, which it announces,
// and all at once, when nothing but DNS knows where they are. Who is at a listed address and has
// no certificate of the cluster learns nothing.
func TestFoundByName(t *testing.T) {
	t.Parallel()
	d := mustDiscover(t)
	d.mustOpen("n2", "n3")
	cl := d.mustClient("n1")
	cl.mustDeclare("q")
	cl.publish("q", "a")
	cl.confirmed()
	d.mustMembers("q", names...)
	d.move("127.0.0.2", "n3")
	cl.publish("q", "b")
	cl.confirmed()
	d.move("127.0.0.4", names...)
	if info, err := d.mustClient("n2").count("q"); err != nil || info.Ready != 2 {
		t.Errorf("%d messages, %v", info.Ready, err)
	}
	if d.lies.requested.Load() == 0 || d.lies.trusted.Load() != 0 {
		t.Errorf("the impostor was asked %d times and trusted %d times", d.lies.requested.Load(), d.lies.trusted.Load())
	}
}
