package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// idleDialers is how many goroutines open connections.
	idleDialers = 16
	// idleHeartbeat is longer than the run, so that idle connections send nothing.
	idleHeartbeat = 10 * time.Minute
	// idleCalm is how long memory may take to settle.
	idleCalm = 3 * time.Second
	maxIdle  = 15_000
)

// idle is a number of connections to one node that do nothing.
type idle struct {
	connections, channels int
}

func runIdle(ctx context.Context, fs *flag.FlagSet, args []string) error {
	var i idle
	l := labFlags(fs)
	fs.IntVar(&i.connections, "connections", 5000, "idle `connections` to the first node")
	fs.IntVar(&i.channels, "channels", 20_000, "`channels` that they open together")
	if err := parse(fs, args); err != nil {
		return err
	}
	if i.connections < 1 || i.connections > maxIdle || i.channels < i.connections {
		return fmt.Errorf("-connections must be between 1 and %d, and -channels at least as many", maxIdle)
	}
	var r result
	err := l.with(ctx, func() (err error) {
		r, err = i.run(ctx, l.target)
		return err
	})
	if err != nil {
		return err
	}
	return publishResults([]result{r}, l.json)
}

// run opens the connections and then the channels, and measures after each how much more memory the
// node has resident. The node must be newly started: one that has worked has spare memory, which
// would hide the growth.
func (i *idle) run(ctx context.Context, t *target) (r result, err error) {
	r.Name = fmt.Sprintf("%d idle connections with %d channels", i.connections, i.channels)
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", r.Name, err)
		}
	}()
	node := t.pids[:1]
	resident := func() (int64, error) {
		if err := pause(ctx, idleCalm); err != nil {
			return 0, err
		}
		return residentBytes(node)
	}
	all := make([]*amqp.Connection, i.connections)
	defer func() {
		for _, c := range all {
			if c != nil {
				_ = c.CloseDeadline(time.Now().Add(dialTimeout)) // the node may be gone
			}
		}
	}()
	before, err := resident()
	if err != nil {
		return r, err
	}
	m, err := startMeter(t.pids)
	if err != nil {
		return r, err
	}
	began := clock()
	err = each(ctx, i.connections, func(k int) (err error) {
		all[k], err = amqp.DialConfig(t.uri(0), amqp.Config{Heartbeat: idleHeartbeat, Dial: amqp.DefaultDial(dialTimeout)})
		return err
	})
	if err != nil {
		return r, err
	}
	opened := clock() - began
	connected, err := resident()
	if err != nil {
		return r, err
	}
	err = each(ctx, i.channels, func(k int) error {
		_, err := all[k%i.connections].Channel()
		return err
	})
	if err != nil {
		return r, err
	}
	with, err := resident()
	if err = errors.Join(err, m.end(&r, i.connections)); err != nil {
		return r, err
	}
	r.note("connections opened", float64(i.connections)/opened.Seconds(), "/s")
	r.note("resident memory of the node per connection", float64(connected-before)/float64(i.connections)/1024, "KiB")
	r.note("resident memory of the node per channel", float64(with-connected)/float64(i.channels)/1024, "KiB")
	return r, nil
}

// each calls do for every number below n, several at a time.
func each(ctx context.Context, n int, do func(k int) error) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var next atomic.Int64
	var work sync.WaitGroup
	for range idleDialers {
		work.Go(func() {
			for k := next.Add(1) - 1; k < int64(n) && ctx.Err() == nil; k = next.Add(1) - 1 {
				if err := do(int(k)); err != nil {
					fail(err)
				}
			}
		})
	}
	work.Wait()
	return context.Cause(ctx)
}
