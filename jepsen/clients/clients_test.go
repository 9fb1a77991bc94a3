package clients

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// limit bounds the whole test.
const limit = 4 * time.Minute

// library is a client library under test.
type library struct {
	name string
	// prepare makes its program ready in a folder of its own. A missing error
	// says what is not installed here.
	prepare func(ctx context.Context, dir string) (*exec.Cmd, error)
}

var libraries = []library{
	{"amqp091-go", func(ctx context.Context, _ string) (*exec.Cmd, error) {
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), runGoClient+"=1")
		return cmd, nil
	}},
	{"pika", script(python, "pika", "pika_client.py")},
	{"kombu", script(python, "kombu", "kombu_client.py")},
	{"bunny", script(ruby, "bunny", "bunny_client.rb")},
	{"php-amqplib", script(php, "PhpAmqpLib/autoload.php", "php_client.php")},
	{"amqplib", script(node, "amqplib", "node_client.js")},
	{"librabbitmq", librabbitmq},
	{"java", java},
}

func TestMain(m *testing.M) {
	if os.Getenv(runGoClient) != "" {
		goClient(strings.Split(os.Args[1], ","), os.Args[2])
		return
	}
	if os.Getenv(runGoPackage) != "" {
		goPackage(strings.Split(os.Args[1], ","), os.Args[2])
		return
	}
	if address := os.Getenv(standInFor); address != "" {
		standIn(address, os.Args[1:])
		return
	}
	os.Exit(m.Run())
}

// TestLibraries takes all libraries through all steps at the same time. The
// node that all of them are connected to is killed once, when all are ready.
func TestLibraries(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c := mustStart(t, ctx)
	victim := c.Nodes[2]
	t.Cleanup(func() {
		if !victim.Alive() {
			if err := victim.Restart(); err != nil {
				t.Error(err)
			} else if err := victim.AwaitReady(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	programs := make([]*program, len(libraries))
	var ready sync.WaitGroup // for the kill
	killed := make(chan struct{})
	for i, l := range libraries {
		p := &program{ctx: ctx, cluster: c, steps: librarySteps, ready: sync.OnceFunc(ready.Done), killed: killed, ended: make(chan struct{})}
		programs[i] = p
		ready.Add(1)
		folder := t.TempDir()
		go func() {
			defer close(p.ended)
			defer p.ready()
			var cmd *exec.Cmd
			if cmd, p.err = l.prepare(ctx, folder); p.err == nil {
				p.err = p.run(cmd, strings.ReplaceAll(l.name, "-", "")+".client")
			}
		}()
	}
	ready.Wait()
	if err := victim.Kill(ctx); err != nil {
		t.Error(err)
	}
	close(killed)
	for i, l := range libraries {
		t.Run(l.name, func(t *testing.T) { programs[i].report(t) })
	}
}
