package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	natsVersion = "v2.15.2"
	natsModule  = "github.com/nats-io/nats-server/v2@" + natsVersion
	natsNodes   = 3
	natsStart   = time.Minute
	natsStop    = 20 * time.Second
	natsPoll    = 200 * time.Millisecond
	natsProbe   = 2 * time.Second
)

// natsCluster is three servers of NATS with JetStream on loopback.
type natsCluster struct {
	dir   string
	ports []int // for clients and for the other servers, of each node
	nodes []*exec.Cmd
}

// installNATS builds the server from its module, unless it was built before, and returns the path
// of the binary.
func installNATS(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, installTime)
	defer cancel()
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "quorate-bench", "nats-server-"+natsVersion)
	binary := filepath.Join(dir, "nats-server")
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "install", natsModule)
	cmd.Dir = dir // outside of any module
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go install %s: %w\n%s", natsModule, err, out)
	}
	return binary, nil
}

// startNATS starts the cluster and waits until it can create replicated streams. sync: every write
// is synced before it counts, as the other brokers do; otherwise files are synced every two
// minutes, which is the server's default.
func startNATS(ctx context.Context, binary, dir string, sync bool) (*natsCluster, error) {
	ctx, cancel := context.WithTimeout(ctx, natsStart)
	defer cancel()
	n := &natsCluster{dir: dir}
	if err := n.start(ctx, binary, sync); err != nil {
		n.stop()
		return nil, err
	}
	return n, nil
}

func (n *natsCluster) start(ctx context.Context, binary string, sync bool) (err error) {
	if n.ports, err = freePorts(2 * natsNodes); err != nil {
		return err
	}
	for i := range natsNodes {
		file := filepath.Join(n.dir, fmt.Sprintf("node%d.conf", i))
		if err := os.WriteFile(file, []byte(n.configuration(i, sync)), 0o644); err != nil {
			return err
		}
		cmd := exec.Command(binary, "--config", file)
		if err := launch(cmd, filepath.Join(n.dir, fmt.Sprintf("node%d.log", i)), nil); err != nil {
			return err
		}
		n.nodes = append(n.nodes, cmd)
	}
	for i := range natsNodes {
		if err := n.await(ctx, i); err != nil {
			return fmt.Errorf("NATS node %d: %w; its log is in %s", i+1, err, n.dir)
		}
	}
	return nil
}

// await waits until a node creates a stream with replicas on all nodes. A request to a cluster that
// has no leader yet is never answered.
func (n *natsCluster) await(ctx context.Context, i int) error {
	for {
		err := n.probe(ctx, i)
		if err == nil {
			return nil
		}
		if waitErr := pause(ctx, natsPoll); waitErr != nil {
			return errors.Join(err, waitErr)
		}
	}
}

func (n *natsCluster) probe(ctx context.Context, i int) error {
	conn, js, err := connectStreams(n.uri(i), nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, natsProbe)
	defer cancel()
	if _, err := js.AccountInfo(ctx); err != nil {
		return err
	}
	name := fmt.Sprintf("bench-probe-%d", i)
	return errors.Join(makeStream(ctx, js, name), removeStream(ctx, js, name))
}

// configuration sets no limits on storage except those of the machine.
func (n *natsCluster) configuration(i int, sync bool) string {
	var routes []string
	for k := range natsNodes {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", n.ports[2*k+1]))
	}
	interval := ""
	if sync {
		interval = "  sync_interval: always\n"
	}
	return fmt.Sprintf(`server_name: bench%d
listen: 127.0.0.1:%d
jetstream {
  store_dir: %q
  max_file_store: 1TB
%s}
cluster {
  name: bench
  listen: 127.0.0.1:%d
  routes: [%s]
}
`, i+1, n.ports[2*i], filepath.Join(n.dir, fmt.Sprintf("data%d", i)), interval, n.ports[2*i+1], strings.Join(routes, ", "))
}

func (n *natsCluster) uri(i int) string { return fmt.Sprintf("nats://127.0.0.1:%d", n.ports[2*i]) }

func (n *natsCluster) target() *target {
	t := &target{}
	for i, cmd := range n.nodes {
		t.uris, t.pids = append(t.uris, n.uri(i)), append(t.pids, cmd.Process.Pid)
	}
	return t
}

// stop stops what start has started.
func (n *natsCluster) stop() {
	for _, cmd := range n.nodes {
		_ = cmd.Process.Signal(syscall.SIGTERM) // a process that ignores it is killed below
	}
	for _, cmd := range n.nodes {
		end(cmd, natsStop)
	}
}
