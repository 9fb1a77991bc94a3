package attack

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/stall"
)

// server is the binary under attack.
var server string

// machine measures how long this process was kept from running.
var machine *stall.Meter

// attacks are the names of the cases that were run.
var attacks struct {
	mu    sync.Mutex
	names []string
}

// atOnce is how many of the tests run side by side that mostly wait, have a cluster
// of their own, or touch only what is their party's. All others come before them, one at
// a time.
const atOnce = "6"

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	if err := flag.Set("test.parallel", atOnce); err != nil { // -parallel is parsed after it, and wins
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	flag.Parse()
	dir, err := os.MkdirTemp("", "attack")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if server, err = cluster.BuildRelease(context.Background(), dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	shared.dir = dir
	machine = stall.Start()
	defer machine.Stop()
	code := m.Run()
	if err := shared.stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if testing.Verbose() {
		fmt.Printf("%d attacks; the nodes of the shared cluster had %d MiB, at most\n", len(attacks.names), shared.peak>>20)
	}
	if flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.skip").Value.String() == "" && !testing.Short() {
		if err := listed("../../docs/security.md", attacks.names); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	return code
}

// attack runs one case.
func attack(t *testing.T, class, name string, try func(t *testing.T)) {
	t.Helper()
	t.Run(class+"/"+name, func(t *testing.T) {
		attacks.mu.Lock()
		attacks.names = append(attacks.names, class+"/"+name)
		attacks.mu.Unlock()
		try(t)
	})
}

// listing is the name of a case as a page lists it: its class, what is known of
// it, and "…" for the rest.
var listing = regexp.MustCompile("`((?:[a-z]+)/[^`]*)`")

// listed says which cases of a page there are not among those that were run.
func listed(page string, names []string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	classes := map[string]bool{}
	for _, name := range names {
		class, _, _ := strings.Cut(name, "/")
		classes[class] = true
	}
	for _, m := range listing.FindAllStringSubmatch(string(text), -1) {
		class, _, _ := strings.Cut(m[1], "/")
		start, open := strings.CutSuffix(m[1], "…")
		is := func(name string) bool { return name == start || open && strings.HasPrefix(name, start) }
		if classes[class] && !slices.ContainsFunc(names, is) {
			err = errors.Join(err, fmt.Errorf("%s lists the case %q, which there is not", page, m[1]))
		}
	}
	return err
}

// shared is the cluster of all cases that leave the nodes alone.
var shared sharedCluster

type sharedCluster struct {
	dir  string
	once sync.Once
	c    *cluster.Cluster
	err  error
	peak int64 // bytes, of the node that had most; set by stop
}

// maxMemory is what a node of the shared cluster may ever have had resident,
// whatever was done to it.
const maxMemory = 512 << 20

func (s *sharedCluster) mustGet(t *testing.T) *cluster.Cluster {
	t.Helper()
	s.once.Do(func() {
		s.c, s.err = cluster.Start(context.Background(), cluster.Options{Binary: server, Dir: s.dir, Args: []string{
			"--set=cluster.ssl_options.cakeyfile=" + filepath.Join(s.dir, "data", "certs", "ca.key"), // or nodes would not hear who has no certificate
		}})
	})
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.c
}

func (s *sharedCluster) stop() error {
	if s.c == nil {
		return nil
	}
	var err error
	for _, n := range s.c.Nodes {
		peak, failed := n.PeakRSSBytes()
		if s.peak = max(s.peak, peak); failed == nil && peak > maxMemory {
			failed = fmt.Errorf("node %d had %d MiB resident, %d are allowed", n.Number, peak>>20, maxMemory>>20)
		}
		err = errors.Join(err, failed)
	}
	return errors.Join(err, whole(s.c))
}

// mustStart starts a cluster for one test.
func mustStart(t *testing.T, o cluster.Options) *cluster.Cluster {
	t.Helper()
	return mustStartIn(t, t.TempDir(), o)
}

func mustStartIn(t *testing.T, dir string, o cluster.Options) *cluster.Cluster {
	t.Helper()
	o.Binary, o.Dir = server, dir
	c, err := cluster.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := whole(c); err != nil {
			t.Error(err)
		}
	})
	return c
}

// mustChannel connects to a node as somebody honest, from one of this machine's
// addresses or, if that is empty, from any. end closes the connection.
func mustChannel(t *testing.T, n *cluster.Node, from string) (ch *amqp.Channel, end func()) {
	t.Helper()
	conn, err := connectFrom(t.Context(), n, from)
	if err != nil {
		t.Fatal(err)
	}
	if ch, err = conn.Channel(); err != nil {
		_ = conn.Close()
		t.Fatal(err)
	}
	return ch, func() { _ = conn.Close() }
}

func connectFrom(ctx context.Context, n *cluster.Node, host string) (*amqp.Connection, error) {
	if host == "" {
		return client.Connect(ctx, n.URI())
	}
	return amqp.DialConfig(n.URI(), amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}, Timeout: patience}
		return d.DialContext(ctx, network, addr)
	}})
}

// whole stops a cluster. No node may have ended by itself or panicked.
func whole(c *cluster.Cluster) error {
	err := c.Stop()
	for _, line := range c.Complaints() {
		err = errors.Join(err, errors.New("log: "+line))
	}
	return err
}
