package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/exp/trace"
)

// traceOf makes traces of a node by hand.
type traceOf struct {
	*testing.T
	tracing
}

// is changes a goroutine's state, with a stack: its own if it stops running, or that of who wakes it. The innermost function is first.
func (t *traceOf) is(id trace.GoID, from, to trace.GoState, micros int, stack ...string) {
	t.Helper()
	var frames []trace.StackFrame
	for i, name := range stack {
		frames = append(frames, trace.StackFrame{PC: uint64(i + 1), Func: name})
	}
	e, err := trace.MakeEvent(trace.EventConfig[trace.StateTransition]{
		Kind: trace.EventStateTransition, Time: trace.Time(1000 * micros), Stack: trace.MakeStack(frames),
		Details: trace.MakeGoStateTransition(id, from, to),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.add(e)
}

// runs has a goroutine woken, run, make a system call, and wait.
func (t *traceOf) runs(id trace.GoID, function string, ready, from, callFrom, callTo, to int, by string) {
	t.Helper()
	t.is(id, trace.GoWaiting, trace.GoRunnable, ready, "runtime.send", by, "main.main")
	t.is(id, trace.GoRunnable, trace.GoRunning, from)
	if callTo > 0 {
		t.is(id, trace.GoRunning, trace.GoSyscall, callFrom, "syscall.write", function)
		t.is(id, trace.GoSyscall, trace.GoRunning, callTo)
	}
	t.is(id, trace.GoRunning, trace.GoWaiting, to, "runtime.selectgo", function, "runtime.goexit")
}

// A message goes from the publisher's reader over a follower to the writer of its confirm; beside it run a reader and a
// writer of another connection. Clocks of traces differ.
func TestHops(t *testing.T) {
	const v091 = "github.com/quorate/quorate/amqp/v091."
	leader := traceOf{t, tracing{known: map[trace.GoID]*goroutine{}}}
	follower := traceOf{t, tracing{node: 1, ahead: 1000 * time.Microsecond, known: map[trace.GoID]*goroutine{}}}
	reader, writer := v091+"(*conn).Run", "github.com/quorate/quorate/amqp.(*Writer).run"
	net := "google.golang.org/grpc/internal/transport."
	for _, at := range []int{2000, 3000, 4000} {
		leader.runs(1, reader, at, at+1, at+2, at+3, at+20, "")
		leader.runs(5, net+"(*loopyWriter).run", at+30, at+31, at+40, at+50, at+60, "")
		follower.runs(2, net+"(*http2Server).HandleStreams", at-1000+65, at-1000+70, 0, 0, at-1000+80, "")
		follower.runs(3, net+"(*loopyWriter).run", at-1000+80, at-1000+90, at-1000+91, at-1000+95, at-1000+96, "")
		leader.runs(6, net+"(*http2Client).reader", at+120, at+121, 0, 0, at+130, "")
		leader.runs(7, writer, at+130, at+131, at+132, at+190, at+191, v091+"(*consumers).deliver")
		leader.runs(4, writer, at+130, at+200, at+210, at+220, at+230, v091+"outbox.queueConfirms")
	}
	leader.runs(8, reader, 3100, 3101, 3102, 3103, 3105, "")
	leader.runs(9, "main.other", 3100, 3101, 3102, 3103, 3105, "")
	passages := passagesOf(append(leader.bursts(), follower.bursts()...))
	if len(passages) != 2 {
		t.Fatalf("%d messages", len(passages))
	}
	for _, p := range passages {
		if p.lasted() != 220*time.Microsecond {
			t.Errorf("a message takes %v", p.lasted())
		}
	}
	table := hopTable(passages)
	at := 0
	for _, row := range []string{
		"| 1 | leader | reader | 1.0 | 1.0 | 1 µs | 1.0 µs | 19.0 µs |\n",
		"| 7 | leader | gRPC's writer | 1.0 | 1.0 | 31 µs | 1.0 µs | 29.0 µs |\n",
		"| 8 | follower | gRPC's reader | 0.5 | 0.0 | 70 µs | 30.0 µs | 10.0 µs |\n",
		"| 13 | follower | gRPC's writer | 0.5 | 0.5 | 90 µs | 10.0 µs | 6.0 µs |\n",
		"| 14 | leader | gRPC's reader | 1.0 | 0.0 | 121 µs | 30.0 µs | 9.0 µs |\n",
		"|  | leader | consumer's writer | 1.0 | 1.0 | 131 µs | 1.0 µs | 60.0 µs |\n",
		"| 19 | leader | writer | 1.0 | 1.0 | 200 µs | 70.0 µs | 30.0 µs |\n",
	} {
		i := strings.Index(table[at:], row)
		if i < 0 {
			t.Fatalf("no row %s behind the others in\n%s", row, table)
		}
		at += i
	}
	svg := string(typical(passages).draw())
	for _, want := range []string{"follower 1", "consumer&#39;s writer", `<title>210.0 to 220.0 µs</title>`, "200 µs"} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %s in\n%s", want, svg)
		}
	}
}

// A goroutine that is preempted, or whose processor is taken during a system call, has run twice, and has been woken once.
func TestPreempted(t *testing.T) {
	g := &goroutine{}
	for i, to := range []trace.GoState{trace.GoRunnable, trace.GoRunning, trace.GoRunnable, trace.GoRunning, trace.GoSyscall, trace.GoRunnable, trace.GoRunning, trace.GoNotExist} {
		from := trace.GoWaiting
		if i > 0 {
			from = []trace.GoState{trace.GoRunnable, trace.GoRunning, trace.GoRunnable, trace.GoRunning, trace.GoSyscall, trace.GoRunnable, trace.GoRunning}[i-1]
		}
		g.becomes(from, to, time.Duration(i+1))
	}
	var all []string
	for _, r := range g.bursts {
		all = append(all, fmt.Sprint(r.woken, r.ready, r.span, r.calls))
	}
	if got, want := strings.Join(all, "; "), "true 1ns {2 3} []; false 3ns {4 6} [{5 6}]; false 6ns {7 8} []"; got != want {
		t.Errorf("%s, not %s", got, want)
	}
}

// The traces of real nodes show messages from their arrival to their confirm, and the goroutines on the way.
func TestTraced(t *testing.T) {
	mustLab(t, func(b *bench) {
		svg := filepath.Join(t.TempDir(), "one.svg")
		hops{b, 1024, 300 * time.Millisecond, svg}.run(1)
		text, err := os.ReadFile(svg)
		must(err)
		for _, of := range hopNames {
			if of.number[0] != "" && !strings.Contains(string(text), ">"+strings.ReplaceAll(of.name, "'", "&#39;")+"<") {
				t.Errorf("no %s in the picture", of.name)
			}
		}
		if r := b.results[0]; len(b.results) != 1 || r.Switches == 0 || r.Times == nil {
			t.Errorf("%+v", b.results)
		}
	})
}
