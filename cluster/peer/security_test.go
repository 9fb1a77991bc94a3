package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/cluster/certs"
	"github.com/quorate/quorate/cluster/logtest"
	"github.com/quorate/quorate/proto/peerpb"
)

// authority has the certificates of a test's nodes in a folder.
type authority struct {
	t   testing.TB
	dir string
}

func mustAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t, t.TempDir()}
	if _, err := certs.Init(a.dir, certs.NewTerms(time.Hour)); err != nil {
		t.Fatal(err)
	}
	return a
}

// mustKeys makes the keys of a node.
func (a *authority) mustKeys(name string) *certs.Keys {
	a.t.Helper()
	if _, err := certs.Node(a.dir, name, certs.NewTerms(time.Hour)); err != nil {
		a.t.Fatal(err)
	}
	k, err := certs.Open(name, certs.Files{
		Authorities: filepath.Join(a.dir, certs.AuthorityFile),
		Certificate: filepath.Join(a.dir, name+".pem"), Key: filepath.Join(a.dir, name+".key"),
	}, func(err error) { a.t.Error(err) })
	if err != nil {
		a.t.Fatal(err)
	}
	return k
}

func TestTLS(t *testing.T) {
	for _, tcp := range []bool{true, false} {
		a := mustAuthority(t)
		c := newCluster(t, tcp, 2, func(cfg *Config) { cfg.Security = &Security{Keys: a.mustKeys(cfg.Node)} })
		c.startAll(echo)
		req := strings.Repeat("x", 900<<10)
		reply, err := c.members["n1"].Call(t.Context(), "n2", testEcho, []byte(req))
		if err != nil || string(reply) != "n1 "+req {
			t.Fatalf("%d bytes, %v", len(reply), err)
		}
	}
}

func TestTLSRefusesAWrongName(t *testing.T) {
	a := mustAuthority(t)
	somebody := a.mustKeys("somebody")
	c := newCluster(t, true, 2, func(cfg *Config) { cfg.Security = &Security{Keys: somebody} })
	m := c.create("n1")
	c.create("n2").Start()
	m.Start()
	p := m.sortedPeers()[0]
	mustWait(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return strings.Contains(p.logged[p.addresses.next().name], "somebody")
	}, "no complaint about the name")
	if p.isAlive() {
		t.Error("somebody passes for n2")
	}
}

// lines counts the logged lines with a text.
func lines(log *logtest.Lines, with string) (n int) {
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, with) {
			n++
		}
	}
	return n
}

// stranger speaks gRPC to a node, on a connection that it has secured as s says.
func stranger(t *testing.T, c *cluster, to string, s *Security) peerpb.PeerClient {
	t.Helper()
	conn, _, err := s.connect(t.Context(), func() (net.Conn, error) { return c.net.dialer("raw")(t.Context(), c.addrs[to]) }, destination{node: to})
	if err != nil {
		t.Fatal(err)
	}
	cc, err := newClientConn(conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return peerpb.NewPeerClient(cc)
}

// helloFrom is what a node with this name says first.
func helloFrom(t *testing.T, node string) *batch {
	t.Helper()
	hello, err := (&Config{Cluster: "test", Node: node, Incarnation: nextIncarnation()}).hello()
	if err != nil {
		t.Fatal(err)
	}
	return hello
}

// A certificate opens the links of the node that it names, and of no other one.
func TestNamesAreBoundToCertificates(t *testing.T) {
	a := mustAuthority(t)
	var said logtest.Lines
	questions := 0
	c := newCluster(t, true, 3, func(cfg *Config) {
		cfg.Security = &Security{Keys: a.mustKeys(cfg.Node)}
		cfg.Logger = slog.New(slog.NewTextHandler(&said, nil))
		cfg.Admit = func(node string, _ []byte) error {
			if node == "stray" {
				questions++
			}
			return nil
		}
		cfg.Introduce = func(_ context.Context, who Caller, ask []byte) ([]byte, error) {
			return []byte("acceptLink"), who.Is(string(ask))
		}
	})
	m := c.create("n1")
	m.Start()
	n2 := c.configs["n2"].Security.Keys
	for _, tc := range []struct {
		name string
		keys Keys
		says string // as which node; a link
		want codes.Code
		log  string
	}{
		{"its own name", n2, "n2", codes.OK, ""},
		{"another member's name", n2, "n3", codes.FailedPrecondition, errUnproven.Error()},
		{"the name of the node itself", n2, "n1", codes.FailedPrecondition, errUnproven.Error()},
		{"no member", a.mustKeys("stray"), "stray", codes.PermissionDenied, ErrUnknownNode.Error()},
		{"no member, as one", a.mustKeys("stray2"), "n3", codes.PermissionDenied, ErrUnknownNode.Error()},
	} {
		client := stranger(t, c, "n1", &Security{Keys: tc.keys})
		stream, err := client.Link(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.SendMsg(helloFrom(t, tc.says)) // receiving says why it fails
		var in inMessage
		if err := stream.RecvMsg(&in); status.Code(err) != tc.want || tc.log != "" && lines(&said, tc.log) != 1 {
			t.Errorf("%s: %v; logged: %s", tc.name, err, &said)
		}
	}
	if questions != 1 {
		t.Errorf("whether there is a new member was asked %d times", questions)
	}
	client := stranger(t, c, "n1", &Security{Keys: n2})
	for node, want := range map[string]codes.Code{"n2": codes.OK, "n3": codes.Unavailable} {
		stream, err := client.Introduce(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.SendMsg(single(kindHello, []byte(node)))
		var in inMessage
		if err := stream.RecvMsg(&in); status.Code(err) != want {
			t.Errorf("n2 introduces itself as %s: %v", node, err)
		}
	}
	if err := snapshotAs(t, client, "n3"); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "no link from this node") {
		t.Errorf("n2 sends a snapshot as n3: %v", err)
	}
}

// snapshotAs opens a stream for a snapshot.
func snapshotAs(t *testing.T, client peerpb.PeerClient, node string) error {
	t.Helper()
	incarnation := nextIncarnation()
	stream, err := client.Snapshot(metadata.AppendToOutgoingContext(t.Context(), nodeKey, node, incarnationKey, string(incarnation[:])))
	if err != nil {
		t.Fatal(err)
	}
	return stream.RecvMsg(&inMessage{})
}

// A snapshot that comes in the name of another node is not believed, even while
// that node has a link.
func TestSnapshotsAreBoundToCertificates(t *testing.T) {
	a := mustAuthority(t)
	c := newCluster(t, true, 3, func(cfg *Config) { cfg.Security = &Security{Keys: a.mustKeys(cfg.Node)} })
	c.startAll(nil)
	n3 := c.configs["n3"]
	for _, from := range []string{"n2", "n3"} {
		client := stranger(t, c, "n1", &Security{Keys: c.configs[from].Security.Keys})
		stream, err := client.Snapshot(metadata.AppendToOutgoingContext(t.Context(), nodeKey, "n3", incarnationKey, string(n3.Incarnation[:])))
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.SendMsg(single(kindPing, nil))
		var in inMessage
		err = stream.RecvMsg(&in)
		if from == "n2" && (status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "no link from this node")) {
			t.Errorf("n2 sends a snapshot of n3's: %v", err)
		}
		if f, _, e := nextFrame(in.data); from == "n3" && (err != nil || e != nil || !strings.Contains(string(f.body), "in a snapshot stream")) {
			t.Errorf("n3's own is refused: %v, %q", err, f.body)
		}
	}
}

// Who knows no TLS gets nothing but the end of the connection.
func TestPlainIsRefused(t *testing.T) {
	a := mustAuthority(t)
	var said logtest.Lines
	c := newCluster(t, true, 2, func(cfg *Config) {
		cfg.Security = &Security{Keys: a.mustKeys(cfg.Node)}
		cfg.Logger = slog.New(slog.NewTextHandler(&said, nil))
	})
	m := c.create("n1")
	m.Start()
	stream, err := stranger(t, c, "n1", nil).Link(t.Context())
	if err == nil {
		_ = stream.SendMsg(helloFrom(t, "n2"))
		err = stream.RecvMsg(&inMessage{})
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a plain link: %v", err)
	}
	mustWait(t, func() bool { return lines(&said, errHandshake.Error()) == 1 }, "the refusal is not logged")
}

// A node without keys takes no links, and dials none.
func TestNoKeys(t *testing.T) {
	c := newCluster(t, true, 2, func(cfg *Config) { cfg.Security = &Security{Keys: noKeys{}} })
	m := c.create("n1")
	m.Start()
	conn, err := c.net.dialer("raw")(t.Context(), c.addrs["n1"])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if n, err := io.Copy(io.Discard, conn); n != 0 || err != nil && !errors.Is(err, io.EOF) {
		t.Errorf("%d bytes, %v", n, err)
	}
	p := m.sortedPeers()[0]
	mustWait(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return strings.Contains(p.logged[p.addresses.next().name], errNone.Error())
	}, "no complaint")
}

type noKeys struct{}

var errNone = errors.New("no keys")

func (noKeys) Server() (*tls.Config, error)       { return nil, errNone }
func (noKeys) Client(string) (*tls.Config, error) { return nil, errNone }

func (noKeys) Invited([]byte) (*tls.Config, error) { return nil, errors.New("none") }
func (noKeys) Authority() ([]byte, error)          { return nil, errors.New("none") }

// Nodes with plain links, mixed ones and secured ones find each other, as far
// as one side knows what the other one wants.
func TestMixedLinks(t *testing.T) {
	a := mustAuthority(t)
	security := map[string]*Security{
		"n1": nil, "n2": {Keys: a.mustKeys("n2"), Mixed: true},
		"n3": {Keys: a.mustKeys("n3"), Mixed: true}, "n4": {Keys: a.mustKeys("n4")},
	}
	c := newCluster(t, true, 4, func(cfg *Config) { cfg.Security = security[cfg.Node] })
	var all []*member
	for name := range c.configs {
		m := c.create(name)
		echo(m)
		all = append(all, m)
		m.Start()
	}
	for _, m := range all {
		for name := range c.configs {
			if apart := []string{"n1", "n4"}; name != m.name && !(slices.Contains(apart, name) && slices.Contains(apart, m.name)) {
				c.mustUp(m, name)
				if reply, err := m.Call(t.Context(), name, testEcho, []byte("hi")); err != nil || string(reply) != m.name+" hi" {
					t.Errorf("%s calls %s: %q, %v", m.name, name, reply, err)
				}
			}
		}
	}
	for from, to := range map[string]string{"n1": "n4", "n4": "n1"} {
		if c.members[from].Alive(to) {
			t.Errorf("%s has a link to %s", from, to)
		}
	}
	// n2 and n3 could speak plain, and do not.
	if p := c.members["n3"].peer("n2").streamFrom(); p == nil || proofOf(p.stream.Context()).plain {
		t.Error("the link between nodes that know TLS is plain")
	}
}

// Connections that have not proved anything are bounded, in all and for one
// address.
func TestUnprovenAreBounded(t *testing.T) {
	e := newServerCredentials(nil, nil)
	host := func(k int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(k >> 8), byte(k)}) }
	for k := range maxUnprovenHost {
		if !e.enter(host(0)) {
			t.Fatalf("the connection number %d of an address is refused", k+1)
		}
	}
	if e.enter(host(0)) {
		t.Error("one too many of an address is let in")
	}
	for k := range maxUnproven - maxUnprovenHost {
		if !e.enter(host(k + 1)) {
			t.Fatalf("the connection number %d of all is refused", maxUnprovenHost+k+1)
		}
	}
	if e.enter(host(1000)) {
		t.Error("one too many of all is let in")
	}
	e.leave(host(1))
	if !e.enter(host(1000)) || e.unproven[host(1)] != 0 || len(e.unproven) != maxUnproven-maxUnprovenHost+1 {
		t.Errorf("the place of one that has left is not given away: %v", e.unproven)
	}
}

// Joiners are bounded, for one address and in all; whoever leaves is replaced by one, once.
func TestJoinersAreBounded(t *testing.T) {
	e := newServerCredentials(nil, nil)
	host := func(k int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(k)}) }
	var in []net.Conn
	receive := func(k int) error {
		a, b := net.Pipe()
		t.Cleanup(func() { a.Close(); b.Close() })
		g, err := e.receive(a, host(k))
		if err == nil {
			in = append(in, g)
		}
		return err
	}
	for k := range maxJoiners {
		if err := receive(k / maxJoinersHost); err != nil {
			t.Fatalf("joiner %d: %v", k+1, err)
		}
		if k == maxJoinersHost-1 && receive(0) == nil {
			t.Error("one too many of an address")
		}
	}
	if receive(200) == nil {
		t.Error("one too many of all")
	}
	for range 2 {
		_ = in[0].Close()
	}
	if receive(200) != nil || receive(201) == nil {
		t.Error("whoever has left twice is replaced by two, or by none")
	}
}

// A token goes to nobody who may not see it.
func TestInvitationIsChecked(t *testing.T) {
	away := &remoteConn{to: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}}
	near := &remoteConn{to: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}}
	pin := []byte("pin")
	for _, tc := range []struct {
		by   *Invitation
		p    *proof
		conn net.Conn
		says string
	}{
		{nil, unproved(), away, ""},
		{&Invitation{}, unproved(), near, ""},
		{&Invitation{}, unproved(), away, "cluster.allow_plain_links"},
		{&Invitation{Plain: true}, unproved(), away, ""},
		{&Invitation{Authority: pin}, unproved(), near, "the link is plain"},
		{&Invitation{Authority: pin, Plain: true}, unproved(), near, "the link is plain"},
		{&Invitation{Authority: pin}, &proof{}, away, ""},
		{&Invitation{}, &proof{}, near, "whose links are plain"},
	} {
		if err := tc.by.check(tc.p, tc.conn); (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%+v, %+v to %v: %v, want %q", tc.by, tc.p, tc.conn.RemoteAddr(), err, tc.says)
		}
	}
}

// remoteConn is a connection to somewhere.
type remoteConn struct {
	net.Conn
	to net.Addr
}

func (c *remoteConn) RemoteAddr() net.Addr { return c.to }
