package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/exp/trace"
	"golang.org/x/sync/errgroup"

	"github.com/quorate/quorate/jepsen/report"
)

// Names of goroutines that a message is recognised by.
const (
	theReader, theWriter   = "reader", "writer"
	linkReader, linkWriter = "gRPC's reader", "gRPC's writer"
	mainLoop               = "main loop"
)

// commit is the number of the hop to the leader's main loop that is not the message's first.
const commit = "16"

// hopNames are what a message wakes: by the outermost function of a stack that is among these, named as in
// cluster/DESIGN.md, "From a publish to its confirm", with the hop's number there at the leader and at followers.
var hopNames = map[string]struct {
	name   string
	number [2]string
}{
	"v091.(*conn).Run":                        {theReader, [2]string{"1"}},
	"stream.(*Route).run":                     {"route", [2]string{"2"}},
	"group.(*proposer).run":                   {"proposer", [2]string{"3"}},
	"group.(*proposer).await":                 {"await", [2]string{}},
	"raft.(*Raft).run":                        {mainLoop, [2]string{"4", "10"}},
	"record.(*LogWriter).flushLoop":           {"log writer", [2]string{"", "11"}},
	"raftlog.(*syncer).run":                   {"syncer", [2]string{"", "12"}},
	"raft.(*Raft).startStopReplication.func1": {"replication loop", [2]string{"5"}},
	"peer.(*outbox).run":                      {"sender", [2]string{"6", "13"}},
	"transport.(*loopyWriter).run":            {linkWriter, [2]string{"7", "13"}},
	"transport.(*http2Client).reader":         {linkReader, [2]string{"14", "8"}},
	"transport.(*http2Server).HandleStreams":  {linkReader, [2]string{"14", "8"}},
	"peer.(*link).receive":                    {"receiver", [2]string{"14", "9"}},
	"peer.(*inbound).receive":                 {"receiver", [2]string{"14", "9"}},
	"peer.(*inbox).run":                       {"inbox", [2]string{}},
	"raft.(*Raft).pipelineReplicate.func2":    {"decoder", [2]string{"15"}},
	"raft.(*Raft).runFSM":                     {"applying", [2]string{"17"}},
	"group.(*outgoing).run":                   {"effects", [2]string{"18"}},
	"amqp.(*Writer).run":                      {theWriter, [2]string{"19"}},
}

// confirming wakes the writer of the connection that gets a confirm.
const confirming = "v091.outbox.queueConfirms"

// settled is how long messages are published before nodes are traced.
const settled = time.Second

// hops has nodes trace what they do for one message at a time.
type hops struct {
	*bench
	size   int
	traced time.Duration
	svg    string
}

func hopsFlags(f flags, l *lab) func(*bench) {
	size, rounds := f.size(1024), f.number("runs", 3, 1, 100, "`rounds`, of which the quietest counts")
	traced := f.Duration("traced", time.Second, "how `long` the nodes are traced")
	svg := f.String("svg", "", "write a picture of the message of median duration to this `file`")
	return func(b *bench) {
		b.warmUp(warmTime)
		hops{b, *size, *traced, *svg}.run(*rounds)
	}
}

func (b hops) run(rounds int) {
	q := queue{name: "bench-hops"}
	b.declare(q)
	var best []*passage
	var of report.Result
	for range rounds {
		r, all := b.round(q)
		if best == nil || typical(all).lasted() < typical(best).lasted() {
			best, of = all, r
		}
	}
	b.remove(q)
	b.keep(of)
	fmt.Println(hopTable(best))
	if b.svg != "" {
		must(os.WriteFile(b.svg, typical(best).draw(), 0o644))
	}
}

// round measures messages without traces, and then what they do with them.
func (b hops) round(q queue) (report.Result, []*passage) {
	lead := get(b.on.leader(b.ctx, q.name))
	publish := func(r *report.Result, taken *samples, more func(uint64) bool, meanwhile func(context.Context) error) {
		b.bench.run(&load{
			ledger: newLedger(1), meanwhile: meanwhile,
			publishers: []*publisher{{uri: b.uri(lead), queues: []string{q.name}, size: b.size, window: 1, more: more, taken: taken}},
			consumers:  []*consumer{{uri: b.uri(lead), queue: q.name, prefetch: 500, ackEvery: 50}},
		}, r)
	}
	r := report.Result{Name: fmt.Sprintf("one message at a time beside a consumer, %d bytes", b.size)}
	var taken samples
	publish(&r, &taken, during(2*settled), nil)
	r.Times = taken.quantiles()

	texts := make([][]byte, len(b.own.Nodes)) // the leader's first
	var over atomic.Bool
	publish(nil, nil, func(uint64) bool { return !over.Load() }, func(ctx context.Context) error {
		defer over.Store(true)
		if err := pause(ctx, settled); err != nil {
			return err
		}
		nodes, ctx := errgroup.WithContext(ctx)
		for i := range texts {
			nodes.Go(func() (err error) {
				n := b.own.Nodes[(lead+i)%len(texts)]
				texts[i], err = fetch(ctx, http.MethodGet, fmt.Sprintf("http://%s/api/quorate/pprof/trace?seconds=%g", n.HTTP, b.traced.Seconds()))
				return err
			})
		}
		return nodes.Wait()
	})
	var all []*burst
	for i, text := range texts {
		t := tracing{node: i, known: map[trace.GoID]*goroutine{}}
		must(t.read(text))
		all = append(all, t.bursts()...)
		r.Note(place(i)+": processors", float64(t.processors), "")
	}
	passages := passagesOf(all)
	if len(passages) == 0 {
		must(errors.New("the traces show no message from its arrival to its confirm"))
	}
	for i := range texts {
		bursts, calls := 0, 0
		for _, p := range passages {
			for _, t := range p.bursts {
				if t.node == i {
					bursts, calls = bursts+1, calls+len(t.calls)
				}
			}
		}
		r.Note(place(i)+": goroutines run", float64(bursts)/float64(len(passages)), "times a message")
		r.Note("system calls", float64(calls)/float64(len(passages)), "a message")
	}
	r.Note("while traced, from arrival to confirm", micros(typical(passages).lasted()), "µs")
	return r, passages
}

func place(node int) string {
	if node == 0 {
		return "leader"
	}
	return fmt.Sprint("follower ", node)
}
