// Command bench, built as quorate-bench, loads an AMQP 0-9-1 broker and measures it: the throughput of
// confirmed messages, how long a confirm takes, how late messages expire, what a backlog costs, and how much
// processor time and memory the servers used meanwhile. Every run checks that no confirmed message was lost
// and none arrived twice.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/jepsen/report"
)

// verb is one command of the program.
type verb struct {
	name, help string
	// prepare adds the verb's flags, and returns what it does when they are parsed.
	prepare func(f flags) func(ctx context.Context) error
}

// verbs are a row each. Those on brokers use running ones; the others start clusters on loopback. What the
// suite runs of them, and how it is called there, is in the table of its steps.
var verbs = []verb{
	{"throughput", "publish with confirms and consume with acks at the same time", onBrokers(func(f flags) func(*bench) {
		s := f.shape()
		return func(b *bench) { b.keep(b.throughput(*s)) }
	})},
	{"latency", "publish one message at a time and wait for its confirm", onBrokers(func(f flags) func(*bench) {
		n, size := f.number("messages", 5000, 1, unbounded, "`messages` to publish"), f.size(1024)
		return func(b *bench) { b.keep(b.latency(upTo(*n), *size)) }
	})},
	{"rate", "publish at a fixed rate and see how long messages take to their consumer", onBrokers(func(f flags) func(*bench) {
		n, size := f.number("messages", 20_000, 1, unbounded, "`messages` to publish"), f.size(1024)
		rate := f.number("rate", 2000, 1, 1_000_000, "`messages` a second")
		return func(b *bench) { b.keep(b.fixedRate(upTo(*n), *size, *rate)) }
	})},
	{"ttl", "let messages expire into a dead-letter queue and see how late they are", onBrokers(func(f flags) func(*bench) {
		n := f.number("messages", 20_000, 1, unbounded, "`messages` to publish")
		from := f.Duration("from", 200*time.Millisecond, "shortest `life` of a message")
		to := f.Duration("to", 5*time.Second, "longest `life` of a message")
		return func(b *bench) { b.keep(b.lateness(*n, *from, *to)) }
	})},
	{"expiry", "let a million messages die at once and see how long that takes", onBrokers(func(f flags) func(*bench) {
		n := f.number("messages", 1_000_000, 1, unbounded, "`messages` to publish")
		dead := f.Bool("dead-letter", false, "the messages go to another queue when they die")
		return func(b *bench) { b.keep(b.expireAll(*n, *dead)) }
	})},
	{"timeouts", "let the consumers of a node time out at once and see when their messages are with others", onBrokers(func(f flags) func(*bench) {
		n := f.number("consumers", 10_000, 1, maxSlow, "`consumers` on the first node, each with one message")
		return func(b *bench) { b.keep(b.timeouts(*n)) }
	})},
	{"scheduled", "leave a million messages scheduled and see how late others are, and what one costs", onBrokers(func(f flags) func(*bench) {
		n := f.number("messages", 1_000_000, 1, unbounded, "`messages` that wait until much later")
		soon := f.number("soon", soonMessages, 1, unbounded, "`messages` that are due soon, and measured")
		return func(b *bench) { b.keep(b.scheduled(*n, *soon)) }
	})},
	{"locks", "hold 100,000 messages by locks, renew them, and see what that costs", onBrokers(func(f flags) func(*bench) {
		n := f.number("locks", 100_000, lockQueues, unbounded, "`locks` held at the same time")
		rounds := f.number("rounds", 3, 1, unbounded, "how often each is renewed, 10 s after another")
		return func(b *bench) { b.renewedLocks(*n, *rounds) }
	})},
	{"forward", "publish to a queue that forwards, and see how fast messages come where it forwards to", onBrokers(func(f flags) func(*bench) {
		n := f.number("messages", 100_000, 1, unbounded, "`messages` to publish in each run")
		return func(b *bench) { b.forwarded(*n) }
	})},
	{"topic", "publish one message at a time to a topic with many subscriptions, and wait for its confirm", onBrokers(func(f flags) func(*bench) {
		subscriptions := f.number("subscriptions", 2000, 1, unbounded, "`subscriptions` with a filter each")
		n, size := f.number("messages", 2000, 1, unbounded, "`messages` to publish"), f.size(1024)
		return func(b *bench) { b.keep(topic{b, "bench-topic", *subscriptions}.confirms(upTo(*n), *size)) }
	})},
	{"groups", "fill a queue with 100,000 groups, and see what one costs and how fast they are handed out", onBrokers(func(f flags) func(*bench) {
		n := f.number("groups", 100_000, 1, unbounded, "`groups` of one message each")
		return func(b *bench) { b.keep(b.groups(*n)) }
	})},
	{"backlog", "fill a queue and see what a waiting message costs in memory", onBrokers(func(f flags) func(*bench) {
		n, size := f.number("messages", 1_000_000, 1, unbounded, "`messages` to leave waiting"), f.size(1024)
		return func(b *bench) { b.backlog(*n, *size, nil) }
	})},
	{"pinned", "leave one message unsettled and pass many through behind it", onBrokers(func(f flags) func(*bench) {
		n, size := f.number("messages", 1_000_000, 1, unbounded, "`messages` to pass through"), f.size(1024)
		dir := f.String("data-dir", "", "`folder` of the servers' data, to measure its size")
		return func(b *bench) { b.keep(b.pinned(*n, *size, *dir)) }
	})},
	{"connections", "open thousands of connections and channels that do nothing, and see what they cost in memory", onCluster(func(f flags, _ *lab) func(*bench) {
		connections := f.number("connections", 5000, 1, 15_000, "idle `connections` to the first node")
		channels := f.number("channels", 20_000, 1, unbounded, "`channels` that they open together, at least one each")
		return func(b *bench) { b.keep(b.idle(*connections, max(*channels, *connections))) }
	})},
	{"suite", "start a cluster on loopback and measure all of it", onCluster(suiteFlags)},
	{"queues", "the same with thousands of queues: declare, memory, idle, wake, lose a node, restart it", onCluster(crowdFlags)},
	{"redrive", "send a million dead letters back to where they died, and see what that does to the confirms of another queue", onCluster(redriveFlags)},
	{"growth", "what a message costs with many active queues and with a backlog", onCluster(growthFlags)},
	{"soak", "hold a mixed load for long, restart nodes meanwhile, and see whether it stays flat", soakVerb},
	{"peers", "the same loads on three nodes of RabbitMQ and of NATS, side by side", peersVerb},
	{"hops", "follow one message from goroutine to goroutine over three nodes", onCluster(hopsFlags)},
	{"limit", "what the machine alone needs for a message: one write and sync on two nodes beside a round trip", limitVerb},
	{"charts", "draw results that another command has written as JSON", chartsVerb},
}

// gcPercent trades memory for processor time: on a small machine the client
// must leave the processors to the servers.
const gcPercent = 800

func main() {
	debug.SetGCPercent(gcPercent)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := dispatch(ctx, os.Args[1:], os.Stdout)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "usage: quorate-bench COMMAND [flags]; COMMAND -h prints the flags, --version the version")
		for _, v := range verbs {
			fmt.Fprintf(os.Stderr, "  %-12s%s\n", v.name, v.help)
		}
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "quorate-bench:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage")

func dispatch(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	if slices.Contains([]string{"version", "-version", "--version"}, args[0]) {
		_, err := fmt.Fprintln(out, api.ProductVersion)
		return err
	}
	i := slices.IndexFunc(verbs, func(v verb) bool { return v.name == args[0] })
	if i < 0 {
		return errUsage
	}
	f := flags{flag.NewFlagSet(args[0], flag.ContinueOnError)}
	f.SetOutput(os.Stderr)
	do := verbs[i].prepare(f)
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return do(ctx)
}

// flags are those of a verb.
type flags struct{ *flag.FlagSet }

// unbounded is the upper bound of numbers that have none.
const unbounded = 1 << 40

// bounded is the value of a flag.
type bounded struct {
	n         *int
	low, high int
}

func (b bounded) String() string {
	if b.n == nil {
		return "0"
	}
	return strconv.Itoa(*b.n)
}

// Set refuses what is not within the bounds.
func (b bounded) Set(s string) (err error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < b.low || n > b.high {
		return fmt.Errorf("it must be between %d and %d", b.low, b.high)
	}
	*b.n = n
	return nil
}

// number adds a flag for a number within bounds.
func (f flags) number(name string, initial, low, high int, usage string) *int {
	f.Var(bounded{&initial, low, high}, name, usage)
	return &initial
}

// size adds the flag for the size of bodies.
func (f flags) size(initial int) *int {
	return f.number("size", initial, smallest, 128<<20, "`bytes` per body")
}

// numbers adds a flag for a comma-separated list of numbers within bounds.
func (f flags) numbers(name string, initial []int, low, high int, usage string) *[]int {
	to := &initial
	f.Func(name, fmt.Sprintf("%s (default %v)", usage, initial), func(s string) error {
		*to = nil
		for part := range strings.SplitSeq(s, ",") {
			n := 0
			if s == "" {
				return nil
			}
			if err := (bounded{&n, low, high}).Set(strings.TrimSpace(part)); err != nil {
				return err
			}
			*to = append(*to, n)
		}
		return nil
	})
	return to
}

// only adds the flag that selects measurements.
func (f flags) only() *string {
	return f.String("only", "", "run only the measurements whose names, without commas, hold one of these comma-separated `texts`")
}

func (f flags) rounds() *int {
	return f.number("runs", 1, 1, 100, "`rounds`, of which the table shows the medians")
}

func (f flags) json() *string {
	return f.String("json", "", "write the results to this `file` as JSON, too")
}

// onBrokers is a verb that measures running brokers.
func onBrokers(prepare func(f flags) func(*bench)) func(f flags) func(context.Context) error {
	return func(f flags) func(context.Context) error {
		t := &target{uris: []string{"amqp://guest:guest@127.0.0.1:5672/"}}
		f.Func("uri", "comma-separated `URIs` of the broker's nodes (default "+t.uris[0]+")", func(s string) error {
			t.uris = strings.Split(s, ",")
			return nil
		})
		pids := f.numbers("pid", nil, 1, 1<<30, "comma-separated process `ids` of the servers, for processor time and memory")
		f.StringVar(&t.queueType, "queue-type", "quorum", "x-queue-type of the queues; empty: none")
		file, measure := f.json(), prepare(f)
		return func(ctx context.Context) error {
			t.pids = *pids
			b := &bench{ctx: ctx, target: t}
			return b.publishAfter(try(func() { measure(b) }), *file)
		}
	}
}

// onCluster is a verb that starts a cluster and measures it.
func onCluster(prepare func(f flags, l *lab) func(*bench)) func(f flags) func(context.Context) error {
	return func(f flags) func(context.Context) error {
		l, file := f.lab(), f.json()
		measure := prepare(f, l)
		return func(ctx context.Context) error {
			b := &bench{ctx: ctx, lab: l}
			return b.publishAfter(b.onLab(func() { measure(b) }), *file)
		}
	}
}

// publishAfter prints what was measured before err.
func (b *bench) publishAfter(err error, file string) error {
	if err != nil && len(b.results) == 0 {
		return err
	}
	return errors.Join(err, report.Publish(os.Stdout, b.results, file))
}

// chartsVerb draws the results that another command has written as JSON.
func chartsVerb(f flags) func(context.Context) error {
	from := f.String("results", "", "`file` that -json of another command has written")
	dir := f.String("to", ".", "`folder` for the charts, one SVG file for each number")
	prefix, only := f.String("prefix", "", "how the files' `names` begin"), f.only()
	return func(context.Context) error {
		text, err := os.ReadFile(*from)
		if err != nil {
			return fmt.Errorf("-results: %w", err)
		}
		var all []report.Result
		if err := json.Unmarshal(text, &all); err != nil {
			return fmt.Errorf("%s: %w", *from, err)
		}
		return report.Charts(slices.DeleteFunc(all, func(r report.Result) bool { return !selected(r.Name, *only) }), *dir, *prefix)
	}
}

// selected reports whether a measurement was requested: its name without its commas contains one of the
// comma-separated texts; none given: all are.
func selected(name, only string) bool {
	name = strings.ReplaceAll(name, ",", "")
	for text := range strings.SplitSeq(only, ",") {
		if strings.Contains(name, strings.TrimSpace(text)) {
			return true
		}
	}
	return false
}
