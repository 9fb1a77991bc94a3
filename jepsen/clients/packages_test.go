package clients

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
)

// packageSteps are what the programs over the client packages say they have done, in order.
var packageSteps = []string{"settled", "refused", "retried", "deferred", "scheduled", "paused", "sessions", "lost", "closed", "stalled", "held"}

// packages are the programs over the client packages.
var packages = []library{
	{"go", func(ctx context.Context, _ string) (*exec.Cmd, error) {
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), runGoPackage+"=1")
		return cmd, nil
	}},
	{"python", packaged(script(python, "pika", "packages.py"), "PYTHONPATH", "python")},
	{"js", packaged(script(node, "amqplib", "packages.js"), "QUORATE_CLIENT", "js")},
}

// packaged tells a program where its package is.
func packaged(prepare func(context.Context, string) (*exec.Cmd, error), variable, folder string) func(context.Context, string) (*exec.Cmd, error) {
	return func(ctx context.Context, dir string) (*exec.Cmd, error) {
		root, err := cluster.Root()
		if err != nil {
			return nil, err
		}
		cmd, err := prepare(ctx, dir)
		if err == nil {
			cmd.Env = append(cmd.Env, variable+"="+filepath.Join(root, "deploy", "clients", folder), "PYTHONDONTWRITEBYTECODE=1")
		}
		return cmd, err
	}
}

// TestPackages takes the client packages of all languages through the same steps at the same time. The leader of the
// queues in which each of them holds a lock at the end is killed once, when all hold one.
func TestPackages(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c := mustStart(t, ctx)
	victim := c.Nodes[2]
	var programs []*program
	var ready sync.WaitGroup // for the kill
	killed := make(chan struct{})
	for _, l := range packages {
		slow := mustRelay(t, c.Nodes[1].AMQP)
		p := &program{
			ctx: ctx, cluster: c, steps: packageSteps, ready: sync.OnceFunc(ready.Done), killed: killed, ended: make(chan struct{}),
			lead:  func(queue string) error { return lead(ctx, c, victim, queue) },
			stall: func() error { slow.stalled.Lock(); return nil },
		}
		programs = append(programs, p)
		ready.Add(1)
		go func() {
			defer close(p.ended)
			defer p.ready()
			var cmd *exec.Cmd
			if cmd, p.err = l.prepare(ctx, ""); p.err == nil {
				cmd.Env = append(cmd.Env, slowBroker+"="+slow.listener.Addr().String())
				p.err = p.run(cmd, "packages."+l.name)
			}
		}()
	}
	ready.Wait()
	if err := victim.Kill(ctx); err != nil {
		t.Error(err)
	}
	close(killed)
	for i, l := range packages {
		t.Run(l.name, func(t *testing.T) { programs[i].report(t) })
	}
	if err := victim.Restart(); err != nil {
		t.Error(err)
	} else if err := victim.AwaitReady(ctx); err != nil {
		t.Error(err)
	}
}

// lead makes a node the leader of a queue.
func lead(ctx context.Context, c *cluster.Cluster, n *cluster.Node, queue string) error {
	return await.Until(ctx, 50*time.Millisecond, "the leader of "+queue, func() (bool, error) {
		leader, err := c.Leader(ctx, queue)
		if err == nil && leader != n {
			_, _, err = n.Do(ctx, http.MethodPost, "/api/queues/%2F/"+url.PathEscape(queue)+"/actions", map[string]string{"action": "transfer_leadership", "node": n.Name()})
		}
		return err == nil && leader == n, err
	})
}

// slowBroker is the environment variable with the address of a relay to a node.
const slowBroker = "QUORATE_SLOW"

// relay passes on connections until it is stalled: they stay open, and nothing goes through.
type relay struct {
	listener net.Listener
	stalled  sync.Mutex // locked: it is
}

func mustRelay(t *testing.T, address string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: listener}
	t.Cleanup(func() {
		_ = listener.Close()
		_ = r.stalled.TryLock()
		r.stalled.Unlock()
	})
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", address)
			if err != nil {
				_ = from.Close()
				continue
			}
			go r.copy(from, to)
			go r.copy(to, from)
		}
	}()
	return r
}

func (r *relay) copy(to, from net.Conn) {
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		r.stalled.Lock()
		_, wrote := to.Write(buffer[:n])
		r.stalled.Unlock()
		if err != nil || wrote != nil {
			return
		}
	}
}
