package attack

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/stall"
)

// server is the binary under attack.
var server string

// machine measures how long this process was kept from running.
var machine *stall.Meter

// attacks counts the cases that were run.
var attacks atomic.Int64

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
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
		fmt.Println(attacks.Load(), "attacks")
	}
	return code
}

// attack runs one case.
func attack(t *testing.T, class, name string, try func(t *testing.T)) {
	t.Helper()
	t.Run(class+"/"+name, func(t *testing.T) {
		attacks.Add(1)
		try(t)
	})
}

// shared is the cluster of all cases that leave the nodes alone.
var shared sharedCluster

type sharedCluster struct {
	dir  string
	once sync.Once
	c    *cluster.Cluster
	err  error
}

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
	return whole(s.c)
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

// whole stops a cluster. No node may have ended by itself or panicked.
func whole(c *cluster.Cluster) error {
	err := c.Stop()
	for _, line := range c.Complaints() {
		err = errors.Join(err, errors.New("log: "+line))
	}
	return err
}
