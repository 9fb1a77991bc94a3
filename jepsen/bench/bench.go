package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/report"
)

// bench measures a set of brokers. Its methods, and the functions that they call, end a measurement that fails
// by must; what runs in a goroutine of its own returns its error instead.
type bench struct {
	ctx context.Context
	*target
	on   faulty // whose nodes can be made to fail; nil: they cannot
	lab  *lab   // what starts clusters; nil: the brokers run anyway
	own  *nodes // of the lab, under load; nil: it is another cluster
	data string // folder of their data

	label, broker string // of what is measured
	results       []report.Result
}

// failed ends a measurement.
type failed struct{ error }

func must(err error) {
	if err != nil {
		panic(failed{err})
	}
}

func get[T any](v T, err error) T {
	must(err)
	return v
}

// try returns the error that has ended do.
func try(do func()) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failed:
			err = p.error
		default:
			panic(p)
		}
	}()
	do()
	return nil
}

// keep adds results and reports how far the command is.
func (b *bench) keep(results ...report.Result) {
	for _, r := range results {
		r.Broker = b.broker
		b.results = append(b.results, r)
		progress("%s%s: %.0f messages in %.1f s", b.label, r.Name, r.Messages, r.Seconds)
	}
}

// progress reports on standard error how far a command is.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// rounds measures several times, of which the medians are kept.
func (b *bench) rounds(n int, measure func()) {
	defer func() { b.results = report.Medians(b.results) }()
	for range n {
		measure()
	}
}

// step is one measurement of several: its name, as -only selects it, and what it does.
type step struct {
	name string
	run  func()
}

// steps runs those that were selected, each when the servers are idle, or after that time.
func (b *bench) steps(only string, bound time.Duration, all []step) {
	if !slices.ContainsFunc(all, func(s step) bool { return selected(s.name, only) }) {
		must(fmt.Errorf("-only %q: no measurement has such a name", only))
	}
	for _, s := range all {
		if !selected(s.name, only) {
			continue
		}
		b.calm(bound)
		if err := try(s.run); err != nil {
			must(fmt.Errorf("%s: %w", s.name, err))
		}
	}
}

// What counts as idle: of the processors, this part of a core over this long.
const (
	calmPart = 0.1
	calmOver = 500 * time.Millisecond
)

// warmTime is how long a cluster is warmed up, and calmTimeout how long it may take to become idle,
// unless time is short.
const (
	warmTime    = 2 * time.Second
	calmTimeout = 20 * time.Second
)

// calm waits, at most for bound, until the servers have finished the work left by the run before,
// such as deleting its messages from disk. It returns the part of a core that they last used.
func (b *bench) calm(bound time.Duration) (part float64) {
	if len(b.pids) == 0 {
		return 0
	}
	for end := clock() + bound; ; {
		before := get(cpuSeconds(b.pids))
		b.pause(calmOver)
		part = (get(cpuSeconds(b.pids)) - before) / calmOver.Seconds()
		if part < calmPart || clock() > end {
			return part
		}
	}
}

// warmUp runs all parts of a broker once before anything is measured.
func (b *bench) warmUp(duration time.Duration) {
	s := defaultShape
	s.duration = duration
	b.throughput(s)
}

// each calls do for every number below n, several at a time, until one fails.
func each(ctx context.Context, n, atOnce int, do func(k int) error) {
	all, until := errgroup.WithContext(ctx)
	all.SetLimit(atOnce)
	for k := 0; k < n && until.Err() == nil; k++ {
		all.Go(func() error { return do(k) })
	}
	must(errors.Join(all.Wait(), context.Cause(ctx)))
}

func (b *bench) pause(d time.Duration) { must(pause(b.ctx, d)) }

// pause waits, but only until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// epoch is the origin of the bench's clock, which never runs back.
var epoch = time.Now()

func clock() time.Duration { return time.Since(epoch) }

// samples collects times; it may be read while it is filled.
type samples struct {
	mu    sync.Mutex
	times []time.Duration
}

func (s *samples) add(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times = append(s.times, d)
}

// take returns the times since the last take, and quantiles those of them.
func (s *samples) take() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.times
	s.times = nil
	return t
}

func (s *samples) quantiles() *report.Quantiles { return report.QuantilesOf(s.take()) }

// faulty is a cluster of which a node, by its number from 0, can be made to fail.
type faulty interface {
	// leader is the node that leads a queue.
	leader(ctx context.Context, queue string) (int, error)
	kill(ctx context.Context, node int) error
	// rejoin starts a killed node and waits until it serves clients.
	rejoin(ctx context.Context, node int) error
}

// rejoinTimeout bounds the restart of a node, with however many queues.
const rejoinTimeout = 3 * time.Minute

// lab starts clusters on loopback.
type lab struct {
	binary string
	dir    string // parent of the clusters' folders
	nodes  int    // 0: three
	links  string // between nodes: tls or plain
	// settings are further ones of the nodes, NAME=VALUE.
	settings []string
}

// lab adds the flags of every verb that starts a cluster.
func (f flags) lab() *lab {
	l := &lab{links: "tls"}
	f.StringVar(&l.binary, "binary", "bin/quorate", "the server `binary`")
	f.StringVar(&l.dir, "dir", "", "`folder` for clusters' data and logs; empty: that for temporary files")
	f.Func("links", "links between the nodes: tls or plain (default tls)", func(s string) error {
		if l.links = s; s != "tls" && s != "plain" {
			return errors.New("it is tls or plain")
		}
		return nil
	})
	f.Func("setting", "a `NAME=VALUE` of the nodes' settings; may be given several times", func(s string) error {
		if name, _, ok := strings.Cut(s, "="); !ok || name == "" {
			return errors.New("it is NAME=VALUE")
		}
		l.settings = append(l.settings, s)
		return nil
	})
	return l
}

// nodes adds the flag for the number of nodes.
func (f flags) nodes(l *lab) {
	f.Var(bounded{&l.nodes, 3, 7}, "nodes", "`number` of nodes of the cluster, 3 to 7; queues have three replicas (default 3)")
}

// onLab starts a cluster, lets the bench measure it, and stops it.
func (b *bench) onLab(measure func()) error {
	return inFolder(b.lab.dir, func(dir string) error { return b.onNodes(cluster.Options{Dir: dir}, measure) })
}

// onNodes is onLab with options.
func (b *bench) onNodes(o cluster.Options, measure func()) (err error) {
	o.Binary, o.Nodes = b.lab.binary, b.lab.nodes
	if b.lab.links == "plain" {
		o.Args = append(o.Args, "--set=cluster.ssl=none")
	}
	for _, s := range b.lab.settings {
		o.Args = append(o.Args, "--set="+s)
	}
	c, err := cluster.Start(b.ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop(), c.CloseDisks()) }()
	b.own = &nodes{c, &target{uris: c.URIs(), queueType: "quorum"}}
	b.on, b.target, b.data = b.own, b.own.target, filepath.Join(o.Dir, "data")
	b.own.findProcesses()
	return try(measure)
}

// inFolder calls do with a new folder in parent, which is kept if anything goes wrong.
func inFolder(parent string, do func(dir string) error) error {
	dir, err := os.MkdirTemp(parent, "quorate-bench")
	if err != nil {
		return err
	}
	if err := do(dir); err != nil {
		return fmt.Errorf("%w\nthe cluster's data and logs are in %s", err, dir)
	}
	return os.RemoveAll(dir)
}

// nodes are those of a cluster of the lab.
type nodes struct {
	*cluster.Cluster
	*target
}

// findProcesses records the nodes' process ids, which change with a restart.
func (n *nodes) findProcesses() {
	n.pids = nil
	for _, node := range n.Nodes {
		n.pids = append(n.pids, node.PID)
	}
}

func (n *nodes) leader(ctx context.Context, queue string) (int, error) {
	node, err := n.Leader(ctx, queue)
	return slices.Index(n.Nodes, node), err
}

func (n *nodes) kill(ctx context.Context, node int) error { return n.Nodes[node].Kill(ctx) }

func (n *nodes) rejoin(ctx context.Context, node int) error {
	if err := n.Nodes[node].Restart(); err != nil {
		return err
	}
	defer n.findProcesses()
	ctx, cancel := context.WithTimeout(ctx, rejoinTimeout)
	defer cancel()
	return n.Nodes[node].AwaitReady(ctx)
}
