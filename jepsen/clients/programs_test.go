package clients

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
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
	t.Run("tasks for later of celery", func(t *testing.T) {
		long.Test(t)
		ctx, cancel := context.WithTimeout(t.Context(), limit+time.Duration(*etaTasks)*30*time.Millisecond)
		defer cancel()
		celeryLater(t, ctx, nodes)
	})
	t.Run("prefetch of celery", func(t *testing.T) { celeryPrefetch(t, ctx, nodes) })
	t.Run("amqp-tools", func(t *testing.T) { tools(t, ctx, nodes) })
}

var etaTasks = flag.Int("clients.eta", 1000, "tasks for later, a multiple of ten")

// workshop runs Celery on a queue, and on others whose names begin with that of the queue.
type workshop struct {
	t     *testing.T
	ctx   context.Context
	nodes *cluster.Cluster
	queue string
	done  string // the file in which tasks say that they were done
}

// mustCelery finds Celery.
func mustCelery(t *testing.T, ctx context.Context, nodes func() *cluster.Cluster, queue string) *workshop {
	t.Helper()
	if out, err := exec.CommandContext(ctx, "/usr/bin/python3", "-c", "import celery").CombinedOutput(); err != nil {
		t.Skipf("not installed: celery: %v %s", err, out)
	}
	return &workshop{t, ctx, nodes(), queue, filepath.Join(t.TempDir(), "done")}
}

func (w *workshop) command(node int, args ...string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.CommandContext(w.ctx, "/usr/bin/python3", args...)
	cmd.Dir = "testdata"
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "QUEUE="+w.queue, "DONE="+w.done, "BROKER=amqp://guest:guest@"+w.nodes.Nodes[node].AMQP+"//")
	out := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out
}

// start starts a worker; stop lets it end what it is doing.
func (w *workshop) start(node int, args ...string) (stop func()) {
	worker, log := w.command(node, append([]string{"-m", "celery", "-A", "celery_app", "worker", "--loglevel", "info"}, args...)...)
	worker.Cancel = func() error { return worker.Process.Signal(syscall.SIGTERM) }
	worker.WaitDelay = 20 * time.Second
	if err := worker.Start(); err != nil {
		w.t.Fatal(err)
	}
	return func() {
		if err := worker.Process.Signal(syscall.SIGTERM); err != nil {
			w.t.Error(err)
		}
		if err := worker.Wait(); err != nil {
			w.t.Errorf("worker: %v", err)
		}
		if w.t.Failed() {
			w.t.Logf("worker:\n%s", log)
		}
	}
}

func (w *workshop) do(what ...string) {
	work, out := w.command(2, append([]string{"celery_app.py"}, what...)...)
	if err := work.Run(); err != nil || !strings.HasSuffix(out.String(), "ok\n") {
		w.t.Errorf("%v: %v\n%s", what, err, out)
	}
}

// celery has workers do tasks: results, groups, retries, a countdown, what is too late, late acks, priorities,
// what a process was doing that is killed, and questions to the worker.
func celery(t *testing.T, ctx context.Context, nodes func() *cluster.Cluster) {
	w := mustCelery(t, ctx, nodes, "celery.work")
	w.do("before")
	defer w.start(1, "--pool", "solo", "-Q", "celery.work,celery.work.urgent", "-n", "one@h")()
	defer w.start(0, "--concurrency", "1", "-Q", "celery.work.risky", "-n", "two@h")()
	w.do("work")
}

// celeryLater gives workers tasks for later. By a policy the broker holds them until they are due, so workers hold none
// of them, may be restarted meanwhile, and do each once, in time; what has expired does not come to them. A worker that
// is stopped does not ack what it has just done: that alone is done again.
func celeryLater(t *testing.T, ctx context.Context, nodes func() *cluster.Cluster) {
	w, live := mustCelery(t, ctx, nodes, "celery.eta"), *etaTasks/10*9
	n := w.nodes.Nodes[0]
	if err := n.SetPolicy(ctx, cluster.Policy{
		Name: "eta", Pattern: "^celery[.]eta[.]later$", ApplyTo: "queues", Definition: map[string]any{"delivery-time-header": "eta", "expiry-header": "expires"},
	}); err != nil {
		t.Fatal(err)
	}
	const maxHeld = 10 // a worker raises its prefetch count of 2 for each task with an eta that waits for its timer
	args := []string{"--pool", "solo", "--concurrency", "2", "--prefetch-multiplier", "1", "-Q", "celery.eta.later", "-n"}
	stop := w.start(1, append(args, "one@h")...)
	defer w.start(0, append(args, "two@h")...)()
	w.do("eta", strconv.Itoa(*etaTasks))
	if q, err := n.Queue(ctx, "celery.eta.later"); err != nil || q.Unacknowledged != 0 || q.Scheduled != live {
		t.Errorf("%v: workers hold %d, %d are scheduled", err, q.Unacknowledged, q.Scheduled)
	}
	lines := func() []string {
		all, err := os.ReadFile(w.done)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return strings.Split(string(all), "\n")
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for len(lines()) < live/3 && ctx.Err() == nil {
		<-tick.C
	}
	stop()
	defer w.start(2, append(args, "three@h")...)()
	done, again := map[int]bool{}, 0
	for read := 0; len(done) < live && ctx.Err() == nil; {
		<-tick.C
		for now := lines(); read < len(now)-1; read++ {
			var i int
			var late float64
			var which string
			if _, err := fmt.Sscan(now[read], &i, &late, &which); err != nil || done[i] && which != "again" || i%10 == 9 || late < 0 {
				t.Errorf("%q: %v, done before: %v", now[read], err, done[i])
			}
			if done[i] {
				again++
			}
			done[i] = true
		}
	}
	t.Logf("%d of %d tasks were done, %d of them twice", len(done), live, again)
	if q, err := n.Queue(ctx, "celery.eta.later"); err != nil || q.Ready != 0 || q.Scheduled != 0 || len(done) != live || again > maxHeld {
		t.Errorf("%v: %d are ready, %d scheduled, %d were done, %d twice", err, q.Ready, q.Scheduled, len(done), again)
	}
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
