package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/report"
)

// hungDisk is the prefix of the names of the runs in which a disk hangs.
const hungDisk = "failover, disk of the leader hung"

const (
	// failAfter is how long messages flow before a node fails.
	failAfter = 2 * time.Second
	// frozen is how long a node that is not killed is suspended.
	frozen = 10 * time.Second
	// flowAfter is how long messages flow on afterwards.
	flowAfter = 3 * time.Second
	// failTimeout bounds the run up to the last confirm.
	failTimeout = 2 * time.Minute
	// failRate is how many messages a second flow through all queues together.
	failRate = 2000
)

var errNoFailover = errors.New("not everything is confirmed " + failTimeout.String() + " after the start")

// failover is a run in which the node that leads a queue fails.
type failover struct {
	queues int
	freeze bool // with SIGSTOP, for a time; otherwise it is killed
	// disks, by numbers of nodes: that of the leader hangs for a time, instead. nil: none does.
	disks map[int]*cluster.Disk
}

// lives says that the node continues by itself.
func (f failover) lives() bool { return f.freeze || f.disks != nil }

func (f failover) name() string {
	what := "failover, leader killed"
	if f.disks != nil {
		what = hungDisk
	} else if f.freeze {
		what = "failover, leader frozen"
	}
	return fmt.Sprintf("%s, %d queues", what, f.queues)
}

// failover measures the longest time that a publisher connected to another node waits for a confirm. What was
// confirmed is consumed when all nodes are back.
func (b *bench) failover(f failover) report.Result {
	r := report.Result{Name: f.name()}
	queues := numbered("bench-failover-", f.queues)
	b.declare(queues...)
	node := get(b.on.leader(b.ctx, queues[0].name))
	l, others := &load{ledger: newLedger(f.queues)}, b.without(node)
	length := failAfter + flowAfter
	if f.lives() {
		length += frozen
	}
	for i, q := range queues {
		l.publishers = append(l.publishers, &publisher{
			id: i, uri: others.uri(i), queues: []string{q.name}, size: 1024,
			window: failRate * 20, more: during(length), rate: failRate / f.queues,
		})
	}
	l.meanwhile = func(ctx context.Context) error { return errors.Join(pause(ctx, failAfter), b.fail(ctx, f, node)) }
	within := *b
	ctx, stop := context.WithTimeoutCause(b.ctx, failTimeout, errNoFailover)
	defer stop()
	within.ctx = ctx
	began := clock()
	err := try(func() { within.fill(l, nil) })
	r.Seconds = (clock() - began).Seconds()
	if !f.lives() {
		err = errors.Join(err, b.on.rejoin(b.ctx, node))
	}
	must(err)
	b.drain(l.ledger, queues...)
	var gaps []time.Duration
	for _, e := range l.ledger.entries {
		gaps = append(gaps, e.gap)
		r.Messages += float64(e.confirmed)
	}
	r.Times = report.QuantilesOf(gaps)
	r.Note("longest confirm gap of any queue", r.Times.Max/1e3, "s")
	b.remove(queues...)
	return r
}

// fail makes a node fail as the run has it.
func (b *bench) fail(ctx context.Context, f failover, node int) error {
	if f.disks != nil {
		disk := f.disks[node+1]
		return errors.Join(disk.Hang(), pause(ctx, frozen), disk.Go())
	}
	if !f.freeze {
		return b.on.kill(ctx, node)
	}
	pid := b.pids[node]
	return errors.Join(syscall.Kill(pid, syscall.SIGSTOP), pause(ctx, frozen), syscall.Kill(pid, syscall.SIGCONT))
}

// hang is the run in which the leader's disk hangs, on a cluster of its own whose nodes have disks
// of their own. It is skipped where such disks cannot be created.
func (b *bench) hang(queues int) {
	own := &bench{ctx: b.ctx, lab: b.lab}
	must(inFolder(b.lab.dir, func(dir string) error {
		return own.onNodes(cluster.Options{Dir: dir, Disks: true}, func() {
			if err := own.own.NoDisks(); err != nil {
				progress("%s: left out: %v", hungDisk, err)
				return
			}
			b.keep(own.failover(failover{queues: queues, disks: own.own.Disks}))
		})
	}))
}

// How a hold queue's leader is killed: when, and for how long arriving messages count as during the
// kill.
const (
	holdBefore = 8 * time.Second
	holdDuring = 5 * time.Second
)

// heldThroughKill measures how late messages leave a hold queue before, during
// and after its leader is killed.
func (b *bench) heldThroughKill(n int, from, to time.Duration) {
	dead := queue{name: "bench-held"}
	source := lettersTo(dead.name, "bench-hold")
	b.declare(dead, source)
	node := get(b.on.leader(b.ctx, source.name))
	others := &bench{ctx: b.ctx, target: b.without(node)}
	l, late := others.one(expiring(source.name, n, from, to), dead.name, 1000, 1)
	var phases [3][]time.Duration
	l.meanwhile = func(ctx context.Context) error {
		if err := pause(ctx, holdBefore); err != nil {
			return err
		}
		phases[0] = late.take()
		err := errors.Join(b.on.kill(ctx, node), pause(ctx, holdDuring))
		phases[1] = late.take()
		return err
	}
	err := try(func() { others.run(l, nil) })
	must(errors.Join(err, b.on.rejoin(b.ctx, node)))
	phases[2] = late.take()
	for i, phase := range []string{"before", "during", "after"} {
		b.keep(report.Result{
			Name:     fmt.Sprintf("hold queue, lateness %s its leader's kill", phase),
			Messages: float64(len(phases[i])), Times: report.QuantilesOf(phases[i]),
		})
	}
	b.remove(source, dead)
}

const (
	// awaySize is the size of each message of the run follower away, awayBefore how long the load
	// is measured before the follower goes, and awayLimit how long it may take to catch up.
	awaySize   = 1024
	awayBefore = 10 * time.Second
	awayLimit  = 5 * time.Minute
	// closeBy is the maximum lag, in entries, of a caught-up replica under load.
	closeBy = 200
	// restartLimit bounds the time until all queues confirm again.
	restartLimit = 2 * time.Minute
)

// followerAway leaves messages waiting in a queue, keeps up a full load on it, takes a follower
// away for a while, and measures how long it takes to catch up, and the load meanwhile.
func (b *bench) followerAway(waiting int, away time.Duration) report.Result {
	r := report.Result{Name: fmt.Sprintf("follower away for %v, %d MB waiting", away, waiting*awaySize>>20)}
	q := queue{name: "bench-away"}
	b.declare(q)
	follower := (get(b.on.leader(b.ctx, q.name)) + 1) % len(b.own.Nodes)
	clients, book := b.without(follower), newLedger(2)
	one := publisher{uri: clients.uri(0), queues: []string{q.name}, size: awaySize, window: 500, more: upTo(waiting)}
	b.fill(&load{ledger: book, publishers: []*publisher{&one}}, nil)
	var sent atomic.Uint64
	var over atomic.Bool
	live := one
	live.id, live.more = 1, func(n uint64) bool {
		sent.Store(n)
		return !over.Load()
	}
	b.fill(&load{
		ledger: book, publishers: []*publisher{&live},
		consumers: []*consumer{{uri: clients.uri(1), queue: q.name, prefetch: 500, ackEvery: 50}},
		meanwhile: func(ctx context.Context) error {
			defer over.Store(true)
			return try(func() { b.awayAndBack(ctx, q.name, follower, away, &sent, &r) })
		},
	}, nil)
	r.Messages = float64(sent.Load())
	b.remove(q)
	return r
}

// awayAndBack kills a follower for a while and records rates and times.
func (b *bench) awayAndBack(ctx context.Context, queue string, follower int, away time.Duration, sent *atomic.Uint64, r *report.Result) {
	rate := func(during func() error) float64 {
		began, from := clock(), sent.Load()
		must(during())
		return float64(sent.Load()-from) / (clock() - began).Seconds()
	}
	before := rate(func() error { return pause(ctx, awayBefore) })
	must(b.on.kill(ctx, follower))
	without := rate(func() error { return pause(ctx, away) })
	began := clock()
	during := rate(func() error {
		return errors.Join(b.on.rejoin(ctx, follower), b.awaitCaughtUp(ctx, queue, b.own.Nodes[follower]))
	})
	r.Note("caught up after", (clock() - began).Seconds(), "s")
	r.Note("rate before", before, "msg/s")
	r.Note("rate while the follower is away", without, "msg/s")
	r.Note("rate while it catches up", during, "msg/s")
	r.Note("part of the rate before", 100*during/before, "%")
}

// awaitCaughtUp waits until a node's replica of a queue is as far as its leader's, which keeps
// advancing.
func (b *bench) awaitCaughtUp(ctx context.Context, queue string, n *cluster.Node) error {
	ctx, cancel := context.WithTimeout(ctx, awayLimit)
	defer cancel()
	return await.Until(ctx, 50*time.Millisecond, "the follower to catch up", func() (bool, error) {
		leader, err := b.own.Leader(ctx, queue)
		if err != nil {
			return false, err
		}
		goal, err := leader.ReplicasOf(ctx, queue)
		got, err2 := n.ReplicasOf(ctx, queue)
		return len(got) == 1 && len(goal) == 1 && got[0].AppliedIndex+closeBy >= goal[0].AppliedIndex, errors.Join(err, err2)
	})
}

// restartOfAll kills all nodes while messages go to many queues, starts them
// again, and measures when each queue confirms again.
func (b *bench) restartOfAll(queues int) report.Result {
	r := report.Result{Name: fmt.Sprintf("restart of all after power loss, %d queues", queues)}
	all := numbered("bench-restart-", queues)
	b.declare(all...)
	confirm := func(ctx context.Context, i int) error {
		p := publisher{uri: b.uri(i), queues: []string{all[i].name}, size: awaySize, window: 10, more: upTo(10)}
		return p.run(ctx, newLedger(1))
	}
	each(b.ctx, queues, queues, func(i int) error { return confirm(b.ctx, i) })
	for i := range b.own.Nodes {
		must(b.on.kill(b.ctx, i))
	}
	began := clock()
	for _, n := range b.own.Nodes {
		must(n.Restart())
	}
	defer b.own.findProcesses()
	ctx, cancel := context.WithTimeout(b.ctx, restartLimit)
	defer cancel()
	taken := make([]time.Duration, queues)
	each(b.ctx, queues, queues, func(i int) error {
		return await.Until(ctx, 20*time.Millisecond, all[i].name+" to confirm", func() (bool, error) {
			conn, err := client.Connect(ctx, b.uri(i)) // a publisher would wait for longer to try again
			if err == nil {
				_ = conn.Close()
				err = confirm(ctx, i)
			}
			taken[i] = clock() - began
			return err == nil, err
		})
	})
	r.Messages, r.Times = float64(queues), report.QuantilesOf(taken)
	r.Note("last queue confirms after", r.Times.Max/1e3, "s")
	b.own.findProcesses()
	b.remove(all...)
	return r
}

// wrongRate is how many wrong logins a second are tried, and wrongPending how many of them may wait
// for their answers.
const (
	wrongRate    = 40
	wrongPending = 400
)

// wrongLogins measures how long confirms take while others try passwords over HTTP, each from an
// address of its own, so that none is throttled, compared with a time without.
func (b *bench) wrongLogins(duration time.Duration) report.Result {
	before := b.latency(during(duration), 1024)
	guessing, stop := context.WithCancel(b.ctx)
	defer stop()
	var refused, otherwise atomic.Int64
	var all errgroup.Group
	all.SetLimit(wrongPending)
	all.Go(func() error {
		began := clock()
		for i := 1; pause(guessing, began+time.Duration(i)*time.Second/wrongRate-clock()) == nil && guessing.Err() == nil; i++ {
			all.TryGo(func() error { // unless too many wait
				status, err := guess(guessing, b.own.Nodes[0], i)
				if status == http.StatusUnauthorized {
					refused.Add(1)
				} else if guessing.Err() == nil {
					otherwise.Add(1)
					return err
				}
				return nil
			})
		}
		return nil
	})
	r := b.latency(during(duration), 1024)
	stop()
	if err := all.Wait(); refused.Load() == 0 {
		must(fmt.Errorf("no login was refused, %d failed otherwise: %w", otherwise.Load(), err))
	}
	r.Name = fmt.Sprintf("wrong logins, %d/s", wrongRate)
	r.Note("confirm p50 before", before.Times.P50, "ms")
	r.Note("confirm p99 before", before.Times.P99, "ms")
	r.Note("p99 against before", r.Times.P99/before.Times.P99, "x")
	r.Note("logins refused", float64(refused.Load())/duration.Seconds(), "1/s")
	r.Note("logins not answered or busy", float64(otherwise.Load()), "")
	return r
}

// guess tries one password of guest's, from an address that the number stands for.
func guess(ctx context.Context, n *cluster.Node, number int) (status int, err error) {
	from := net.IPv4(127, 78, byte(number>>8), byte(number))
	transport := &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}).DialContext, DisableKeepAlives: true}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.HTTP+"/api/whoami", nil)
	if err != nil {
		return 0, err
	}
	r.SetBasicAuth("guest", fmt.Sprint("wrong", number))
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return 0, err
	}
	answer.Body.Close()
	return answer.StatusCode, nil
}
