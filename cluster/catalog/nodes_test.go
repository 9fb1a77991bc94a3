package catalog

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/host"
	"github.com/quorate/quorate/cluster/logtest"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
)

// patience is how long a test waits for what must happen.
const patience = 4 * time.Minute

// await waits for a state.
func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("not in time: %s", what)
		}
	}
}

// node is what a catalog stands on: the links of a node, and the host of its queue groups, of which there are none.
type node struct {
	*host.Host
	config host.Config
	mesh   *peer.Mesh
	dir    string
	shut   func()
}

// trio is three nodes that know each other.
type trio struct {
	t     *testing.T
	hosts []*node
	log   *logtest.Lines
}

var trioNames = []string{"n1", "n2", "n3"}

func mustTrio(t *testing.T, tune ...func(*host.Config)) *trio {
	t.Helper()
	c := &trio{t: t, log: &logtest.Lines{}}
	listeners := map[string]net.Listener{}
	for _, name := range trioNames {
		listeners[name] = mustListen(t)
	}
	for _, name := range trioNames {
		c.hosts = append(c.hosts, mustNode(t, name, listeners, c.log, tune...))
	}
	return c
}

func mustListen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// mustAlone starts a node that is alone.
func mustAlone(t *testing.T, tune ...func(*host.Config)) *node {
	t.Helper()
	return mustNode(t, "n1", map[string]net.Listener{"n1": mustListen(t)}, &logtest.Lines{}, tune...)
}

// mustNode starts one of these nodes.
func mustNode(t *testing.T, name string, listeners map[string]net.Listener, log *logtest.Lines, tune ...func(*host.Config)) *node {
	t.Helper()
	others := map[string]string{}
	for n, l := range listeners {
		if n != name {
			others[n] = l.Addr().String()
		}
	}
	mesh, err := peer.New(peer.Config{
		Node: name, Cluster: "test", Listener: listeners[name], Peers: others, Timing: peer.Timing{SuspectAfter: 10 * time.Second},
		Incarnation: [16]byte{1 + byte(slices.Index(slices.Sorted(maps.Keys(listeners)), name))},
	})
	if err != nil {
		t.Fatal(err)
	}
	began, logger := time.Now(), slog.New(slog.NewTextHandler(log, nil))
	n := &node{mesh: mesh, dir: filepath.Join(t.TempDir(), name)}
	n.config = host.Config{
		Config: group.Config{
			Node: name, Mesh: mesh, Logger: logger,
			Clock: clock.New(clock.Config{
				Node: name, Nodes: []string{name}, Logger: logger,
				Wall: time.Now, Monotonic: func() time.Duration { return time.Since(began) }, MaxSkew: func() fsm.Millis { return 1000 },
			}),
			Exit:    func(code int) { panic(fmt.Sprint("exit ", code)) },
			Version: func() uint32 { return 1 }, Newest: 2,
		},
		KindElection: 16, KindLearner: 18,
	}
	for _, f := range tune {
		f(&n.config)
	}
	n.Host = host.New(n.config)
	n.Start()
	mesh.Watch(n.PeerChanged)
	mesh.Start()
	n.shut = sync.OnceFunc(func() {
		n.Close()
		if err := mesh.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(n.shut)
	return n
}

// handClock is a time that passes when the test lets it.
type handClock struct{ at atomic.Int64 }

func (c *handClock) now() time.Duration      { return time.Duration(c.at.Load()) }
func (c *handClock) pass(d time.Duration)    { c.at.Add(int64(d)) }
func (c *handClock) set(config *host.Config) { config.Awake = c.now }

// await waits for a state and lets time pass until then: nobody is blamed for
// what takes long before or after.
func (c *handClock) await(t *testing.T, what string, f func() bool) {
	t.Helper()
	await(t, what, func() bool {
		if f() {
			return true
		}
		c.pass(5 * time.Millisecond)
		return false
	})
}

func quickWatch(c *host.Config) { c.Progress = 300 * time.Millisecond }

// unproven is a past that cannot be proven.
type unproven struct{}

func (unproven) Doubt() string { return "lost" }
func (unproven) Prove() error  { return nil }
