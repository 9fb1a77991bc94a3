package sim

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// Promises about a cluster in which nothing is broken any more.
const (
	confirmsWithin = 10 * time.Second // every queue, through every node
	repairedWithin = 30 * time.Second // replicas have what their leader has
	drainedWithin  = time.Minute      // everything, and replicas are equal
)

// calm is how long nothing is broken before a script begins, and between its end
// and the healing.
const calm = 2 * time.Second

// result is what came out of a run.
type result struct {
	problems  []string
	virtual   time.Duration
	used      time.Duration // of processors
	confirmed int
	bytes     int64 // over the network
	// Of the nodes that were still there: what the disks hold, and the states of the
	// queues before they were stopped.
	disks    map[string]vfs.FS
	replicas []api.Replica
}

// hangs is how long virtual time may stand still on a real clock, and nobody run. It
// does when somebody waits for a sync.Mutex whose holder waits for time to pass.
const hangs = time.Minute

// endless is for how many times as long somebody may run meanwhile: the search for a
// bit that has flipped takes a minute where there is little of a processor.
const endless = 15

// play runs a cluster through a script.
func play(t *testing.T, s *script) (r result) {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	used := cpuTime()
	var beats atomic.Int64 // virtual seconds
	defer watch(s, &beats)()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		w := newWorld(s)
		ended := make(chan struct{})
		go func() {
			for sleepUnless(ended, time.Second) {
				beats.Add(1)
			}
		}()
		defer close(ended)
		r.confirmed = w.play(s)
		w.close()
		w.keep()
		r.problems, r.bytes, r.virtual = w.problems, w.net.moved, time.Since(began)
		r.disks, r.replicas = w.disks(), w.agreed
	})
	r.used = cpuTime() - used
	return r
}

// gcPercent is how much garbage a run may leave: a few dozen megabytes are alive.
const gcPercent = 400

// cpuTime is what this process has used of its processors.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// runs matches stacks of which one is that of a goroutine of a simulation that runs.
var runs = regexp.MustCompile(`(?m)^goroutine .*\[(runnable|running|syscall)\b.*synctest bubble`)

// maxHeap is what may be in memory: what a run needs is a few hundred megabytes. Goroutines that go round in
// one moment of virtual time may fill all of it, and time does not stand still while they run.
const maxHeap = 2 << 30

// heap is how many bytes are in memory, with garbage.
func heap() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// watch ends the process if virtual time stands still, or its memory grows, until the
// returned function is called.
func watch(s *script, beats *atomic.Int64) (stop func()) {
	look, weigh, ended := time.NewTicker(hangs), time.NewTicker(time.Second), make(chan struct{})
	stacks := func() []byte {
		all := make([]byte, 16<<20)
		return all[:runtime.Stack(all, true)]
	}
	go func() {
		still, last := 0, int64(0)
		for {
			select {
			case <-ended:
				return
			case <-weigh.C:
				if n := heap(); n > maxHeap {
					_ = pprof.Lookup("heap").WriteTo(os.Stderr, 1)
					panic(fmt.Sprintf("%d MiB are in memory in %s\n%s", n>>20, s, stacks()))
				}
				continue
			case <-look.C:
			}
			if now := beats.Load(); now != last {
				still, last = 0, now
				continue
			}
			all := stacks()
			if still++; still > endless || !runs.Match(all) {
				panic(fmt.Sprintf("virtual time stands still in %s\n%s", s, all))
			}
		}
	}()
	return func() { look.Stop(); weigh.Stop(); close(ended) }
}

// sleepUnless returns false as soon as ended is closed.
func sleepUnless(ended <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ended:
		return false
	case <-t.C:
		return true
	}
}

// play does what a script says while clients publish and consume, heals all, and
// judges. It returns how many messages were confirmed.
func (w *world) play(s *script) (confirmed int) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, name := range w.names {
		w.start(name)
	}
	if !w.awaitReady() {
		return 0
	}
	names := s.Flows
	if len(names) == 0 {
		names = usual
	}
	w.wrongBy, w.flows = s.wrongBy(), flows(w, s.Seed, names)
	if err := w.declare(ctx); err != nil {
		w.problem("%v", err)
		return 0
	}
	all := w.flows
	for _, f := range all {
		f.run(ctx)
	}
	began := time.Now()
	var ends []func()
	for _, f := range all {
		ends = append(ends, f.history.Fault("script", 0))
	}
	for _, step := range s.Steps {
		time.Sleep(time.Until(began.Add(calm + step.At.duration())))
		w.perform(step)
	}
	time.Sleep(calm)
	w.repair()
	healed := time.Now()
	supervised := w.superviseUntil(ctx)
	defer supervised()
	for _, end := range ends {
		end()
	}
	for _, f := range all {
		if f.idle {
			f.last.Store(true)
		}
	}
	w.probe(ctx, healed, w.names)
	late := time.AfterFunc(time.Until(healed.Add(drainedWithin)), cancel)
	defer late.Stop()
	for _, f := range all {
		f.last.Store(true)
	}
	for _, f := range all {
		f.publishing.Wait()
	}
	w.await(healed.Add(drainedWithin), "everything confirmed is delivered", func() string {
		for _, f := range all {
			if n := f.missing(); n > 0 && !f.kept {
				return fmt.Sprintf("%s: %d missing", f.publishTo, n)
			}
		}
		return ""
	})
	w.await(w.since(healed).Add(repairedWithin), "replicas of idle queues are complete", w.incomplete)
	for _, f := range all {
		f.stop()
	}
	for _, f := range all {
		f.consuming.Wait()
	}
	if w.await(healed.Add(drainedWithin), "replicas are equal", w.disagreement) {
		w.agreed = w.nodes[w.names[0]].running().node.Replicas()
	}
	for _, f := range all {
		for _, name := range w.names {
			ctx, done := context.WithTimeout(context.Background(), confirmsWithin)
			began := time.Now()
			err := f.drain(ctx, name)
			if err != nil && (w.nodes[name].running() == nil || w.since(began) != began) {
				err = f.drain(ctx, name) // it has read what no one had read for long, and begun anew
			}
			if err != nil {
				w.problem("drain %s at %s: %v", f.consume, name, err)
			}
			done()
		}
		f.verdict()
		confirmed += f.history.Confirmed()
	}
	return confirmed
}

// repair heals everything and starts all nodes.
func (w *world) repair() {
	w.net.heal()
	w.perform(step{Do: resume})
	for _, name := range w.names {
		w.nodes[name].clock.set(0, 0)
		w.nodes[name].mend()
		w.perform(step{Do: start, Node: name})
		if w.nodes[name].drained {
			w.perform(step{Do: revive, Node: name})
		}
	}
}

// superviseUntil supervises until the returned function is called.
func (w *world) superviseUntil(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { w.supervise(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// supervise starts nodes again that have found damage, as a supervisor does, until
// ctx ends.
func (w *world) supervise(ctx context.Context) {
	for sleep(ctx, 100*time.Millisecond) == nil {
		for _, name := range w.names {
			if m := w.nodes[name]; m.hasDamage() && m.running() == nil {
				w.perform(step{Do: start, Node: name})
				w.restarted.Store(time.Now().UnixNano())
			}
		}
	}
}

// since is when a node was started last for damage that it had found, but not before a moment.
func (w *world) since(moment time.Time) time.Time {
	if at := time.Unix(0, w.restarted.Load()); at.After(moment) {
		return at
	}
	return moment
}

// probe publishes to every queue that is not idle through these nodes.
func (w *world) probe(ctx context.Context, since time.Time, nodes []string) {
	ctx, cancel := context.WithDeadline(ctx, since.Add(confirmsWithin))
	defer cancel()
	var tasks sync.WaitGroup
	for _, f := range w.flows {
		if f.idle {
			continue
		}
		for _, name := range nodes {
			tasks.Go(func() {
				if err := f.probe(ctx, name); err != nil {
					w.problem("%v after everything was healed: %v", confirmsWithin, err)
				}
			})
		}
	}
	tasks.Wait()
}

// incomplete says which replica of an idle queue lacks entries.
func (w *world) incomplete() string {
	for _, f := range w.flows {
		if !f.idle || f.consume != f.publishTo {
			continue
		}
		p := w.nodes[w.names[0]].running()
		if p == nil {
			return w.names[0] + " does not run"
		}
		m := p.node.Management()
		q, known := m.Catalog.View().Queue("/", f.consume)
		if !known {
			return f.consume + " is not known"
		}
		ctx, cancel := context.WithTimeout(context.Background(), confirmsWithin)
		members := m.Cluster.Members(ctx, q)
		cancel()
		for _, x := range members {
			if x.LastLogIndex != members[0].LastLogIndex || x.LastLogIndex == 0 {
				return fmt.Sprintf("%s: %+v", f.consume, members)
			}
		}
	}
	return ""
}

// await waits until nothing is left to say, and notes what is left in the end.
func (w *world) await(end time.Time, what string, left func() string) bool {
	for {
		why := left()
		if why == "" {
			return true
		}
		if time.Now().After(end) {
			w.problem("not in time: %s: %s", what, why)
			return false
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// shrink removes steps from a failing script as long as it fails without them, many
// at a time at first. A script does not fail each time: steps count as needed if it
// fails in none of several runs without them.
func shrink(s *script, fails func(*script) bool) *script {
	plays := 0
	for size := len(s.Steps) / 2; size > 0; size /= 2 {
		for i := len(s.Steps) - size; i > -size; i -= size {
			less := &script{Seed: s.Seed, Nodes: s.Nodes, Flows: s.Flows, Idle: s.Idle, Steps: slices.Delete(slices.Clone(s.Steps), max(i, 0), i+size)}
			for n := 0; n < tries && plays < maxPlays; n++ {
				if plays++; fails(less) {
					s = less
					break
				}
			}
		}
	}
	return s
}

const (
	maxPlays = 200 // of a script that is being shrunk
	tries    = 3
)

// mustPlay fails the test if a run finds problems.
func mustPlay(t *testing.T, s *script) result {
	t.Helper()
	r := play(t, s)
	t.Logf("seed %d: %d steps, %d confirmed, %.1f MB between machines, %v virtual in %v of a processor: %.0f virtual seconds a second",
		s.Seed, len(s.Steps), r.confirmed, float64(r.bytes)/1e6, r.virtual.Round(time.Second), r.used.Round(time.Millisecond), r.virtual.Seconds()/max(r.used.Seconds(), 1e-3))
	if len(r.problems) > 0 {
		t.Errorf("%s\nscript: %s", strings.Join(r.problems, "\n"), s)
		if *shrinks {
			t.Logf("shrunk: %s", shrink(s, func(s *script) bool { return len(play(t, s).problems) > 0 }))
		}
	}
	return r
}
