package group

import (
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/quorate/quorate/fsm"
)

// BenchmarkWake is what it costs to wake a group of three replicas by a message, all three nodes together, and to have it
// sleep again. Beside it stands what the message costs in a group that is awake. A queue that keeps messages sleeps with
// its machine and its log in memory, an empty one without.
func BenchmarkWake(b *testing.B) {
	b.Run("full", func(b *testing.B) { wakeMany(b, &QueueConfig{}) })
	b.Run("empty", func(b *testing.B) { wakeMany(b, &QueueConfig{MaxLengthPlusOne: 1, AuditMaxPlusOne: 1}) })
}

func wakeMany(b *testing.B, config *QueueConfig) {
	n := min(b.N, 200)
	c := &dozers{trio: mustTrio(b, func(c *HostConfig) {
		sleepy(c)
		c.IdleAfter = time.Hour // the benchmark has them sleep
	}), seqs: map[fsm.GroupID]uint64{}}
	for id := fsm.GroupID(1); id <= fsm.GroupID(n); id++ {
		for _, h := range c.hosts {
			if _, err := h.Open(Spec{Group: id, Queue: fsm.QueueID(id) << 16, VHost: "/", Name: "q", Members: trioNames, Config: config}); err != nil {
				b.Fatal(err)
			}
		}
		c.mustLead(id)
	}
	for id := range n {
		c.publish(fsm.GroupID(id + 1))
	}
	var publish, wake, rest spent
	var terms uint64
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N / n {
		b.StopTimer()
		publish.measure(c, c.publish)
		rest.measure(c, c.rest)
		idle := runtime.NumGoroutine()
		before := c.terms()
		b.StartTimer()
		wake.measure(c, c.publish)
		b.StopTimer()
		terms += c.terms() - before
		b.ReportMetric(float64(runtime.NumGoroutine()-idle)/float64(3*n), "goroutines/replica")
		b.StartTimer()
	}
	b.StopTimer()
	publish.report(b, "publish")
	rest.report(b, "rest")
	wake.report(b, "wake")
	b.ReportMetric(float64(wake.cpu-publish.cpu)/float64(publish.cpu), "wake/publish")
	b.ReportMetric(float64(terms), "terms")
}

// dozers are groups that sleep when they are told to.
type dozers struct {
	*trio
	seqs map[fsm.GroupID]uint64
}

// publish has a group take a message, on all members.
func (c *dozers) publish(id fsm.GroupID) {
	g := c.hosts[0].Group(id)
	c.seqs[id]++
	if err := g.Submit(enqueues(c.seqs[id], -1, "m")); err != nil {
		c.t.Fatal(err)
	}
	o := c.hosts[0].outside
	o.await(c.t, "the message is taken", func() bool { return len(o.outcomes) > 0 })
	o.mu.Lock()
	o.outcomes = o.outcomes[:0]
	o.mu.Unlock()
}

// rest has a group sleep, its leader last.
func (c *dozers) rest(id fsm.GroupID) {
	lead := c.hosts[0].Group(id)
	i := lead.running.Load()
	var at RecordedAt
	c.until("nothing happens", func() (ok bool) {
		at, ok = i.Idle(0)
		return ok
	})
	i.order.tellCommitted(at.Raft)
	for _, h := range c.hosts[1:] {
		g := h.Group(id)
		c.until("a follower sleeps", func() bool {
			return g.Sleep(func(i *Instance) bool { return i.Follows("n1", at) })
		})
	}
	c.until("the leader sleeps", func() bool { return lead.Sleep(func(*Instance) bool { return true }) })
}

// until waits for what is about to happen.
func (c *dozers) until(what string, f func() bool) {
	tick := time.NewTicker(100 * time.Microsecond)
	defer tick.Stop()
	for limit := time.Now().Add(patience); !f(); <-tick.C {
		if time.Now().After(limit) {
			c.t.Fatalf("not in time: %s", what)
		}
	}
}

func (c *dozers) terms() (sum uint64) {
	for id := range c.seqs {
		for _, h := range c.hosts {
			sum += h.Group(id).Term()
		}
	}
	return sum
}

// spent is what something has cost.
type spent struct {
	n      int
	cpu    time.Duration
	wall   []time.Duration
	syncs  uint64
	allocs uint64
	bytes  uint64
}

func (s *spent) measure(c *dozers, f func(id fsm.GroupID)) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu, syncs := cpuTime(), c.syncs()
	for id := range len(c.seqs) {
		began := time.Now()
		f(fsm.GroupID(id + 1))
		s.wall = append(s.wall, time.Since(began))
	}
	s.cpu += cpuTime() - cpu
	s.syncs += c.syncs() - syncs
	runtime.ReadMemStats(&after)
	s.allocs += after.Mallocs - before.Mallocs
	s.bytes += after.TotalAlloc - before.TotalAlloc
	s.n += len(c.seqs)
}

func (s *spent) report(b *testing.B, what string) {
	slices.Sort(s.wall)
	per := func(v float64, unit string) { b.ReportMetric(v/float64(s.n), what+"-"+unit) }
	per(float64(s.cpu.Microseconds()), "cpu-µs")
	per(float64(s.syncs), "syncs")
	per(float64(s.allocs), "allocs")
	per(float64(s.bytes), "B")
	b.ReportMetric(float64(s.wall[len(s.wall)*99/100].Microseconds()), what+"-p99-µs")
}

// syncs counts the durable writes of all nodes.
func (c *trio) syncs() (n uint64) {
	for _, h := range c.hosts {
		for _, k := range h.store.Metrics().Syncs.Of {
			n += k
		}
	}
	return n
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
