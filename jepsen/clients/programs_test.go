package clients

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/long"
)

// mustStart starts three nodes for the time of the test.
func mustStart(t *testing.T, ctx context.Context, args ...string) *cluster.Cluster {
	t.Helper()
	return mustStartNodes(t, ctx, 3, args...)
}

func mustStartNodes(t *testing.T, ctx context.Context, nodes int, args ...string) *cluster.Cluster {
	t.Helper()
	dir := t.TempDir()
	binary, err := cluster.Build(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Start(ctx, cluster.Options{Binary: binary, Dir: dir, Nodes: nodes, Args: args})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return c
}

// TestPrograms runs whole programs of others against one cluster.
func TestPrograms(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var c *cluster.Cluster
	nodes := func() *cluster.Cluster {
		if c == nil {
			c = mustStart(t, ctx)
		}
		return c
	}
	t.Run("celery", func(t *testing.T) {
		long.Test(t)
		celery(t, ctx, nodes)
	})
	t.Run("prefetch of celery", func(t *testing.T) { celeryPrefetch(t, ctx, nodes) })
	t.Run("amqp-tools", func(t *testing.T) { tools(t, ctx, nodes) })
}

// celery has workers do tasks: results, groups, retries, a countdown, what is too late, late acks, priorities,
// what a process was doing that is killed, and questions to the worker.
func celery(t *testing.T, ctx context.Context, nodes func() *cluster.Cluster) {
	if out, err := exec.CommandContext(ctx, "/usr/bin/python3", "-c", "import celery").CombinedOutput(); err != nil {
		t.Skipf("not installed: celery: %v %s", err, out)
	}
	command := func(node int, args ...string) (*exec.Cmd, *bytes.Buffer) {
		cmd := exec.CommandContext(ctx, "/usr/bin/python3", args...)
		cmd.Dir = "testdata"
		cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "QUEUE=celery.work",
			"BROKER=amqp://guest:guest@"+nodes().Nodes[node].AMQP+"//")
		out := &bytes.Buffer{}
		cmd.Stdout, cmd.Stderr = out, out
		return cmd, out
	}
	start := func(node int, args ...string) (stop func()) {
		worker, log := command(node, append([]string{"-m", "celery", "-A", "celery_app", "worker", "--loglevel", "info"}, args...)...)
		worker.Cancel = func() error { return worker.Process.Signal(syscall.SIGTERM) }
		worker.WaitDelay = 20 * time.Second
		if err := worker.Start(); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := worker.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
			if err := worker.Wait(); err != nil {
				t.Errorf("worker: %v", err)
			}
			if t.Failed() {
				t.Logf("worker:\n%s", log)
			}
		}
	}
	do := func(what string) {
		work, out := command(2, "celery_app.py", what)
		if err := work.Run(); err != nil || !strings.HasSuffix(out.String(), "ok\n") {
			t.Errorf("%s: %v\n%s", what, err, out)
		}
	}
	do("before")
	defer start(1, "--pool", "solo", "-Q", "celery.work,celery.work.urgent", "-n", "one@h")()
	defer start(0, "--concurrency", "1", "-Q", "celery.work.risky", "-n", "two@h")()
	do("work")
}

// celeryPrefetch limits the consumers of three queues together, raises the limit and
// lowers it, with what a Celery worker does that with.
func celeryPrefetch(t *testing.T, ctx context.Context, nodes func() *cluster.Cluster) {
	cmd, err := script(python, "kombu", "celery_prefetch.py")(ctx, "")
	if err != nil {
		t.Skip(err)
	}
	cmd.Args = append(cmd.Args, nodes().Nodes[1].AMQP, "prefetch")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.HasSuffix(string(out), "ok\n") {
		t.Errorf("%v\n%s", err, out)
	}
}

// tools runs the command line tools of librabbitmq.
func tools(t *testing.T, ctx context.Context, nodes func() *cluster.Cluster) {
	if _, err := exec.LookPath("amqp-declare-queue"); err != nil {
		t.Skip("not installed: ", err)
	}
	url := "amqp://guest:guest@" + nodes().Nodes[0].AMQP
	for _, c := range []struct{ line, in, want string }{
		{"amqp-declare-queue -d -q tools", "", "tools\n"},
		{"amqp-publish -r tools -p -b first", "", ""},
		{"amqp-publish -r tools -p", "second", ""},
		{"amqp-get -q tools", "", "first"},
		{"amqp-consume -q tools -c 1 cat", "", "second"},
		{"amqp-delete-queue -q tools", "", "0\n"},
	} {
		words := strings.Fields(c.line)
		cmd := exec.CommandContext(ctx, words[0], append([]string{"-u", url}, words[1:]...)...)
		cmd.Stdin = strings.NewReader(c.in)
		var complaints bytes.Buffer
		cmd.Stderr = &complaints
		out, err := cmd.Output()
		if err != nil || string(out) != c.want {
			t.Errorf("%s: %v, %q %s, want %q", c.line, err, out, complaints.String(), c.want)
		}
	}
}
