package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v091"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/cluster"
	"github.com/quorate/quorate/cluster/alarm"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// dataDir is the data folder of every node, on its own disk.
const dataDir = "/data"

// patience is how long, in virtual time, a simulation waits for what must happen
// while nothing is broken.
const patience = time.Minute

// world is a cluster in this process, with everything that it stands on.
type world struct {
	net   *network
	rng   *rand.Rand // of the disks
	names []string
	nodes map[string]*machine
	ended sync.WaitGroup // processes that are being cleaned up
	fates fates

	idle      time.Duration // see script.Idle
	paused    atomic.Bool   // nothing new is published
	restarted atomic.Int64  // when a node was started last for damage that it had found

	flows    []*flow
	wrongBy  time.Duration // of the script
	mu       sync.Mutex
	problems []string
	agreed   []api.Replica // the states of all queues, in which all replicas were
}

// machine is what a node's processes run on, one after the other.
type machine struct {
	name  string
	clock wallClock

	mu       sync.Mutex
	disk     *vfs.MemFS
	run      *process      // nil: none
	stopping *process      // ends in order, and uses the disk until then; nil: none
	stuck    chan struct{} // closed when the disk works again; nil: it does
	// failing is what the disk answers; nil: it works.
	failing atomic.Pointer[failure]
	flips   []flipped // bits that are wrong on the disk, since whenever
	damaged bool      // bits have flipped since the healing
	dark    bool      // the machine has lost power since its process began
	drained bool      // by a script

	maintenance chan struct{} // see maintained
}

// process is one run of a node.
type process struct {
	w       *world
	m       *machine
	host    *host
	node    *cluster.Node
	server  *amqp.Server
	joining context.CancelFunc
	opened  chan struct{} // closed when it is open, or could not be opened
	joined  chan struct{} // closed when it has joined, or has given up
	ready   atomic.Bool
	exits   atomic.Int64 // how often it has ended itself

	mu       sync.Mutex
	listener *listener // nil: shut
	dead     atomic.Bool
	serving  sync.WaitGroup
}

// wallClock is a machine's clock: it may be wrong, and run fast or slow.
type wallClock struct {
	mu     sync.Mutex
	since  time.Time
	ahead  time.Duration // at since
	drift  float64       // seconds gained per second
	gained time.Duration // by drift, until since
}

// monotonic is the time since some moment, as the machine counts it.
func (c *wallClock) monotonic(from time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	return now.Sub(from) + c.gained + time.Duration(c.drift*float64(now.Sub(c.since)))
}

func (c *wallClock) offset(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ahead + time.Duration(c.drift*float64(now.Sub(c.since)))
}

// set makes the clock wrong from now on.
func (c *wallClock) set(ahead time.Duration, drift float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.gained += time.Duration(c.drift * float64(now.Sub(c.since)))
	c.since, c.ahead, c.drift = now, ahead, drift
}

func newWorld(s *script) *world {
	w := &world{net: newNetwork(s.Seed), rng: rand.New(rand.NewPCG(s.Seed, 2)), nodes: map[string]*machine{}, idle: s.Idle.duration()}
	for k := range s.Nodes {
		name := nodeName(k)
		w.names = append(w.names, name)
		w.nodes[name] = &machine{name: name, disk: vfs.NewCrashableMem(), clock: wallClock{since: time.Now()}, maintenance: make(chan struct{}, 1)}
	}
	return w
}

// start starts the process of a node. It joins by itself.
func (w *world) start(name string) *process {
	m := w.nodes[name]
	p := &process{w: w, m: m, host: w.net.join(name), opened: make(chan struct{}), joined: make(chan struct{})}
	m.begin(p)
	defer close(p.opened)
	logger := slog.New(slog.DiscardHandler)
	if os.Getenv("QUORATE_TEST_LOG") != "" {
		logger = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("self", name)
	}
	node, err := cluster.Open(p.config(logger))
	if err != nil {
		if !p.dead.Load() {
			w.problem("%s does not start: %v", name, err)
		}
		close(p.joined)
		m.take(p)
		return p
	}
	p.node = node
	p.server, err = amqp.New(amqp.Config{
		Broker: brokerAdapter{node.Sessions()}, Protocols: []amqp.Protocol{v091.Protocol{}, v10.Protocol{}}, Logger: logger, Heartbeat: 10 * time.Second,
	})
	if err != nil {
		panic(err) // of the configuration above
	}
	node.SetClients(clients{p})
	ctx, cancel := context.WithCancel(context.Background())
	p.joining = cancel
	go func() {
		defer close(p.joined)
		if err := node.Join(ctx); err != nil {
			if ctx.Err() == nil && !p.dead.Load() {
				w.problem("%s does not join: %v", name, err)
			}
			return
		}
		p.ready.Store(true)
		p.serve()
	}()
	return p
}

func (p *process) config(logger *slog.Logger) cluster.Config {
	static := map[string]string{}
	for _, name := range p.w.names {
		static[name] = name
	}
	memory, err := alarm.Part(0.5)
	if err != nil {
		panic(err) // a constant
	}
	m, began := p.m, time.Now()
	return cluster.Config{
		Name: m.name, ClusterName: "sim", DataDir: dataDir, FS: errorfs.Wrap(m.getDisk(), p), Nodes: static,
		Listener: p.w.net.listen(p.host, m.name),
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return p.w.net.dial(ctx, p.host, address)
		},
		Clock:     func() time.Time { now := time.Now(); return now.Add(m.clock.offset(now)) },
		Monotonic: func() time.Duration { return m.clock.monotonic(began) },
		Exit:      p.exit, Logger: logger, Properties: v091.Properties{},
		DefaultVHost: "/", DefaultUser: "guest", DefaultPassword: "guest",
		DiskGate: m.gate, MemTableBytes: 256 << 10, GroupSize: 3, LeaderlessGrace: 5 * time.Second, IdleAfter: p.w.idle,
		Defaults:    catalog.Defaults{DisconnectedTimeout: fsm.Millis(time.Minute.Milliseconds())},
		Probe:       plenty{},
		MemoryLimit: memory,
	}
}

// plenty is a machine that has enough of everything.
type plenty struct{}

func (plenty) MemoryTotal() int64       { return 1 << 40 }
func (plenty) MemoryUsed() int64        { return 0 }
func (plenty) DiskFree() (int64, error) { return 1 << 40, nil }
func (plenty) Release()                 {}
func (plenty) LimitHeap(int64)          {}

// serve accepts clients.
func (p *process) serve() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil || p.dead.Load() {
		return
	}
	l := p.w.net.listen(p.host, p.m.name+":5672")
	p.listener = l
	p.serving.Go(func() {
		_ = p.server.Serve(l)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.listener == l { // the server was suspended before
			p.listener = nil
		}
	})
}

func (p *process) shut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
}

// exit is how the node ends its process: it is as dead as if it had been killed, and
// goes on in the dark, on a disk that works, until it is cleaned up. What fails there,
// too, as it is damaged for good, ends its goroutine.
func (p *process) exit(code int) {
	m := p.m
	if p.exits.Add(1) > maxExits {
		runtime.Goexit()
	}
	f := m.failing.Load()
	hit := f != nil && f.hit.Load()
	m.mu.Lock()
	allowed := code == raftlog.ExitCode && (hit || m.damaged || m.stuck != nil)
	m.mu.Unlock()
	keep := 100
	if hit {
		keep = f.keep
	}
	if p.w.end(p, false, keep) && !allowed {
		p.w.problem("%s exits with %d", m.name, code)
	}
}

// maxExits is how often a process may end: many of its goroutines may meet an error,
// each several times.
const maxExits = 1000

// crash ends a process at once. dark: the machine goes with it, so that nobody
// tells the others, and what was written and not synced is kept with this
// probability, in percent. A process that is being stopped ends at once, too.
func (w *world) crash(name string, dark bool, keep int) {
	if !dark {
		keep = 100
	}
	if p := w.nodes[name].process(); p != nil {
		w.end(p, dark, keep)
	}
}

// end ends a process, if it has not ended. Nothing leaves it any more before its
// disk becomes that of its successor.
func (w *world) end(p *process, dark bool, keep int) bool {
	w.fates.Lock()
	defer w.fates.Unlock()
	stopping, uses := p.m.take(p)
	if !uses {
		return false
	}
	w.net.kill(p.host, dark)
	p.m.pass(vfs.CrashCloneCfg{UnsyncedDataPercent: keep, RNG: w.rng}, dark)
	p.dead.Store(true)
	if !stopping {
		w.ended.Go(func() { _ = p.clean() })
	}
	return true
}

// fates is held while a process ends at once.
type fates struct{ sync.Mutex }

// stop begins to end a process in order.
func (w *world) stop(name string) {
	m := w.nodes[name]
	p := m.stop()
	if p == nil {
		return
	}
	w.ended.Go(func() {
		if err := p.clean(); err != nil && !p.dead.Load() {
			w.problem("close %s: %v", name, err)
		}
		m.take(p)
		p.dead.Store(true)
		w.net.kill(p.host, false)
	})
}

// clean ends everything that runs in a process.
func (p *process) clean() error {
	<-p.opened
	if p.node == nil {
		return nil
	}
	p.joining()
	<-p.joined
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	p.shut()
	err := p.server.Shutdown(ctx)
	if p.dead.Load() {
		err = nil
	}
	p.serving.Wait()
	p.node.Leave(ctx)
	return errors.Join(err, p.node.Close())
}

// close ends what still runs.
func (w *world) close() {
	for _, name := range w.names {
		w.stop(name)
	}
	w.ended.Wait()
}

// awaitReady waits until all nodes serve clients.
func (w *world) awaitReady() bool {
	return w.await(time.Now().Add(patience), "all nodes serve clients", func() string {
		for _, name := range w.names {
			if p := w.nodes[name].running(); p == nil || !p.ready.Load() {
				return name
			}
		}
		return ""
	})
}

// leader is the node that leads a queue, or the catalog if that is empty; empty:
// none is known.
func (w *world) leader(queue string) string {
	if queue == "" {
		for _, name := range w.running() {
			if p := w.nodes[name].running(); p != nil {
				if leader := p.node.Management().Node.Status().CatalogLeader; leader != "" {
					return leader
				}
			}
		}
		return ""
	}
	for _, name := range w.names {
		if p := w.nodes[name].running(); p != nil {
			for _, r := range p.node.Management().Node.ReplicasOf(queue, false) { // with a hash it would wait for one that wakes
				if r.Leader {
					return name
				}
			}
		}
	}
	return ""
}

// disagreement says where replicas differ, or are missing or left over. Followers
// of an idle queue hear of its last commit only after a minute: they are told now.
func (w *world) disagreement() string {
	for _, name := range w.names {
		if p := w.nodes[name].running(); p != nil {
			_ = p.node.Management().Node.Barrier(context.Background()) // a change of leader meanwhile: the next look
		}
	}
	states := map[string]map[string][]string{} // queue → state → nodes
	for _, name := range w.names {
		p := w.nodes[name].running()
		if p == nil {
			return name + " does not run"
		}
		for _, r := range p.node.Replicas() {
			if states[r.Name] == nil {
				states[r.Name] = map[string][]string{}
			}
			s := fmt.Sprintf("%s term=%d index=%d ready=%d unacked=%d outbox=%d", r.StateHash[:8], r.Term, r.AppliedIndex, r.Ready, r.Unacknowledged, r.Outbox)
			who := name
			if r.Leader {
				who += " leads"
			}
			states[r.Name][s] = append(states[r.Name][s], who)
		}
	}
	for queue, of := range states {
		if len(of) != 1 {
			return fmt.Sprintf("%s: %v", queue, of)
		}
	}
	return ""
}

func nodeName(k int) string { return fmt.Sprintf("n%d", k+1) }
