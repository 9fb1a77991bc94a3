package alarm

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// testLinks are those to the nodes in alive.
type testLinks struct {
	alive      map[string]bool
	broken     error
	sent       [][]string // resources, by message
	complaints int
}

func (l *testLinks) Peers() (all []peer.PeerStatus) {
	for node := range l.alive {
		all = append(all, peer.PeerStatus{Node: node})
	}
	return all
}

func (l *testLinks) Alive(node string) bool        { return l.alive[node] }
func (l *testLinks) Complain(_, _ string, _ error) { l.complaints++ }
func (l *testLinks) take() (sent [][]string)       { sent, l.sent = l.sent, nil; return sent }
func (l *testLinks) Send(_ string, _ peer.Kind, head []byte, _ ...[]byte) error {
	if l.broken != nil {
		return l.broken
	}
	var m peerpb.ResourceAlarms
	if err := proto.Unmarshal(head, &m); err != nil {
		return err
	}
	l.sent = append(l.sent, m.Resources)
	return nil
}

// blocked is why publishers are blocked.
type blocked string

func (b *blocked) SetAlarm(reason string) { *b = blocked(reason) }
func (b *blocked) Relieve(int64)          {}

// holders are publishers that are asked to give up memory.
type holders struct {
	blocked
	excess []int64
}

func (h *holders) Relieve(excess int64) { h.excess = append(h.excess, excess) }

// Publishers of a node whose memory stays short are asked for what is too much, from the second check on; neither
// another node's alarm nor a full disk is theirs.
func TestRelieves(t *testing.T) {
	c, l, _, p := testCluster()
	h := &holders{}
	c.Block(h)
	check := func(used int64, want ...int64) {
		t.Helper()
		p.used = used
		c.checked(c.watch.Check())
		if !slices.Equal(h.excess, want) {
			t.Errorf("with %d used: asked for %d, want %d", used, h.excess, want)
		}
		h.excess = nil
	}
	check(400)
	check(600)
	check(600, 100)
	check(550, 50)
	p.disk = 49
	check(400)
	check(400)
	p.disk = 500
	message, err := proto.Marshal(&peerpb.ResourceAlarms{Resources: []string{Memory}})
	if err != nil {
		t.Fatal(err)
	}
	l.alive["b"] = true
	c.Receive("b", message, nil)
	check(400)
	check(400)
}

func testCluster() (*Cluster, *testLinks, *blocked, *pretended) {
	p, l, b := &pretended{disk: 500}, &testLinks{alive: map[string]bool{"b": true}}, new(blocked)
	log := slog.New(slog.DiscardHandler)
	c := NewCluster(New(Config{Memory: Limit{absolute: 500}, Disk: Limit{absolute: 50}, Probe: p, Logger: log, Now: time.Now}), l, 1, log)
	c.Block(b)
	return c, l, b, p
}

// TestAnnounce: a node announces once that it has no alarm, and with every check
// that it has one; an announcement that could not be sent is repeated.
func TestAnnounce(t *testing.T) {
	c, l, b, p := testCluster()
	check := func(why blocked, want ...[]string) {
		t.Helper()
		c.checked(c.watch.Check())
		if got := l.take(); !slices.EqualFunc(got, want, slices.Equal) || *b != why {
			t.Errorf("announced %q, want %q; blocked %q, want %q", got, want, *b, why)
		}
	}
	l.broken = errors.New("no link")
	check("")
	l.broken = nil
	check("", nil)
	check("")
	p.used = 500
	check("low on memory", []string{Memory})
	p.disk = 49
	check("low on memory & disk", []string{Disk, Memory})
	check("low on memory & disk", []string{Disk, Memory})
	p.used, p.disk = 0, 50
	check("", nil)
	check("")
	c.PeerChanged(peer.Event{Node: "b", Up: true})
	if got := l.take(); len(got) != 1 || len(got[0]) != 0 {
		t.Errorf("a node that has come up is sent %q", got)
	}
}

// TestOthers: alarms of another node count while it is up, whether the node or
// its alarms come first.
func TestOthers(t *testing.T) {
	c, l, b, _ := testCluster()
	receive := func(from string, resources ...string) {
		t.Helper()
		message, err := proto.Marshal(&peerpb.ResourceAlarms{Resources: resources})
		if err != nil {
			t.Fatal(err)
		}
		c.Receive(from, message, nil)
	}
	expect := func(what string, want blocked) {
		t.Helper()
		if *b != want {
			t.Errorf("%s: blocked %q, want %q", what, *b, want)
		}
	}
	receive("b", Disk, "something new")
	expect("an alarm", "low on disk")
	receive("b", "something new")
	expect("nothing that is known", "")
	receive("d", Memory)
	expect("a node that is not up", "")
	l.alive["d"] = true
	c.PeerChanged(peer.Event{Node: "d", Up: true})
	expect("and comes up", "low on memory")
	c.PeerChanged(peer.Event{Node: "d"})
	expect("and dies", "")
	c.PeerChanged(peer.Event{Node: "d", Up: true})
	expect("and comes up again", "")
	c.Receive("b", []byte{0xff}, nil)
	if l.complaints != 1 {
		t.Errorf("%d complaints about a message that makes no sense", l.complaints)
	}
}

func TestSetLimit(t *testing.T) {
	c, _, b, _ := testCluster()
	half, bad := 0.5, -1.0
	for _, test := range []struct {
		name string
		to   api.Limit
		kind fsm.Kind
	}{
		{"none", api.Limit{Relative: &half}, fsm.NotFoundKind},
		{"disk_free_limit", api.Limit{}, fsm.Precondition},
		{"disk_free_limit", api.Limit{Relative: &half, Absolute: "1"}, fsm.Precondition},
		{"disk_free_limit", api.Limit{Relative: &bad}, fsm.Precondition},
		{"vm_memory_high_watermark", api.Limit{Absolute: "much"}, fsm.Precondition},
	} {
		r := (*fsm.Refusal)(nil)
		if err := c.SetLimit(test.name, test.to); !errors.As(err, &r) || r.Kind != test.kind {
			t.Errorf("%s to %+v: %v", test.name, test.to, err)
		}
	}
	if err := c.SetLimit("disk_free_limit", api.Limit{Absolute: "501"}); err != nil || *b != "low on disk" {
		t.Errorf("a limit above what is free: %v, blocked %q", err, *b)
	}
}
