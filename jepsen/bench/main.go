// Command quorate-bench loads an AMQP 0-9-1 broker and measures it: the throughput of confirmed
// messages, how long a confirm takes, how late messages expire, what a backlog costs, and how much
// processor time and memory the servers used meanwhile. Every run checks that no confirmed message
// was lost and none arrived twice.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// command is one verb of the program.
type command struct {
	name string
	help string
	// run adds its flags to fs, parses args and measures.
	run func(ctx context.Context, fs *flag.FlagSet, args []string) error
}

var commands = []command{
	{"throughput", "publish with confirms and consume with acks at the same time", runThroughput},
	{"latency", "publish one message at a time and wait for its confirm", runLatency},
	{"rate", "publish at a fixed rate and see how long messages take to their consumer", runRate},
	{"ttl", "let messages expire into a dead-letter queue and see how late they are", runTTL},
	{"expiry", "let a million messages die at once and see how long that takes", runExpiry},
	{"timeouts", "let the consumers of a node time out at once and see when their messages are with others", runTimeouts},
	{"scheduled", "leave a million messages scheduled and see how late others are, and what one costs", runScheduled},
	{"locks", "hold 100,000 messages by locks, renew them, and see what that costs", runLocks},
	{"forward", "publish to a queue that forwards, and see how fast messages come where it forwards to", runForward},
	{"groups", "fill a queue with 100,000 groups, and see what one costs and how fast they are handed out", runGroups},
	{"connections", "open thousands of connections and channels that do nothing, and see what they cost in memory", runIdle},
	{"backlog", "fill a queue and see what a waiting message costs in memory", runBacklog},
	{"pinned", "leave one message unsettled and pass many through behind it", runPinned},
	{"suite", "start a cluster on loopback and measure all of it", runSuite},
	{"queues", "the same with thousands of queues: declare, idle, lose a node, restart it", runQueues},
	{"rolling", "restart every node in turn, with drains and by SIGKILL, and see how long publishers wait", runRolling},
	{"backup", "make backups while messages are published, bring one back, and see what is there", runBackup},
	{"growth", "what a message costs with many active queues and with a backlog", runGrowth},
	{"soak", "hold 70 % of the highest rate for long and see whether it stays flat", runSoak},
	{"peers", "the same loads on three nodes of RabbitMQ and of NATS, side by side", runPeers},
	{"charts", "draw results that another command has written as JSON", runCharts},
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
		usage(os.Stderr)
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
	i := slices.IndexFunc(commands, func(c command) bool { return c.name == args[0] })
	if i < 0 {
		return errUsage
	}
	return commands[i].run(ctx, flag.NewFlagSet(args[0], flag.ContinueOnError), args[1:])
}

func usage(w io.Writer) {
	fmt.Fprintln(w, "usage: quorate-bench COMMAND [flags]; COMMAND -h prints the flags, --version the version")
	for _, c := range commands {
		fmt.Fprintf(w, "  %-12s%s\n", c.name, c.help)
	}
}

// target is the broker under load and the destination of the report.
type target struct {
	uris      []string
	pids      []int
	queueType string
	json      string
}

// targetFlags adds the flags of every command that uses a running broker.
func targetFlags(fs *flag.FlagSet) *target {
	t := &target{uris: []string{"amqp://guest:guest@127.0.0.1:5672/"}}
	fs.Func("uri", "comma-separated `URIs` of the broker's nodes (default "+t.uris[0]+")", func(s string) error {
		t.uris = strings.Split(s, ",")
		return nil
	})
	fs.Func("pid", "comma-separated process `ids` of the servers, for processor time and memory", func(s string) error {
		var err error
		t.pids, err = parsePIDs(s)
		return err
	})
	fs.StringVar(&t.queueType, "queue-type", "quorum", "x-queue-type of the queues; empty: none")
	fs.StringVar(&t.json, "json", "", "write the results to this `file` as JSON, too")
	return t
}

// parse parses the flags and refuses further arguments.
func parse(fs *flag.FlagSet, args []string) error {
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	return nil
}
