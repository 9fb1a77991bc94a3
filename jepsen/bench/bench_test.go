package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/report"
)

func TestLedger(t *testing.T) {
	for _, c := range []struct {
		name string
		come []uint64 // keys of what is delivered; 3 messages of publisher 1 are confirmed
		want string   // part of the error; empty: none
	}{
		{"each once", []uint64{keyOf(1, 2), keyOf(1, 0), keyOf(1, 1)}, ""},
		{"one lost", []uint64{keyOf(1, 0), keyOf(1, 2)}, "publisher 1 published 3 messages: 1 lost, 0 came twice"},
		{"one twice", []uint64{keyOf(1, 0), keyOf(1, 1), keyOf(1, 2), keyOf(1, 1)}, "0 lost, 1 came twice"},
		{"one too many", []uint64{keyOf(1, 0), keyOf(1, 1), keyOf(1, 2), keyOf(1, 3)}, "4 distinct ones came"},
		{"one far off", []uint64{keyOf(1, 0), keyOf(1, 1), keyOf(1, 2), keyOf(1, 1000)}, "4 distinct ones came"},
		{"damaged", []uint64{0}, "a body that is not of this run came 1 times"},
		{"of another publisher", []uint64{keyOf(2, 0)}, "a body that is not of this run came 1 times"},
	} {
		l := newLedger(2)
		for range 3 {
			l.entries[1].End(l.entries[1].Begin(history.Attempt{}), history.OK)
		}
		for _, key := range c.come {
			l.entries[0].Deliver(history.Delivery{Key: key})
		}
		err := l.check()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if confirmed, delivered := l.sums(); confirmed != 3 || c.want == "" && delivered != 3 {
			t.Errorf("%s: %d confirmed, %d delivered", c.name, confirmed, delivered)
		}
	}
}

// A message is late from when it was due, a confirm from when it was published; a refusal ends the publisher.
func TestLedgerTimes(t *testing.T) {
	l := newLedger(1)
	l.late = &samples{}
	e := l.entries[0]
	e.taken = &samples{}
	now := e.Begin(history.Attempt{})
	later := e.Begin(history.Attempt{TTL: time.Minute, Wait: time.Hour})
	e.End(now, history.OK)
	l.take(now)
	l.take(later)
	if late := l.late.take(); len(late) != 2 || late[0] < 0 || late[0] > time.Minute || late[1] > -time.Hour {
		t.Errorf("late: %v", late)
	}
	if taken := e.taken.take(); len(taken) != 1 || taken[0] < 0 || e.gap < taken[0] {
		t.Errorf("confirms took %v, the longest time without one was %v", taken, e.gap)
	}
	var failed error
	e.fail = func(err error) { failed = err }
	if e.End(later, history.No); !errors.Is(failed, errNacked) {
		t.Errorf("a refused message: %v", failed)
	}
}

func TestCostSeesThisProcess(t *testing.T) {
	b := &bench{ctx: t.Context(), target: &target{pids: []int{os.Getpid()}}}
	var r report.Result
	err := try(func() {
		b.cost(&r, func() int {
			for began := ownSeconds(); ownSeconds() < began+0.1; { // use some processor time
			}
			return 1000
		})
	})
	if err != nil || r.ServerCPU < 50 || r.ClientCPU < 100 || r.PeakRSS < 1<<20 || r.PerSecond <= 0 {
		t.Errorf("%+v: %v", r, err)
	}
	b.pids = []int{1 << 30}
	if try(func() { b.cost(&r, func() int { return 1 }) }) == nil {
		t.Error("a process that is not there is measured")
	}
}

func TestCommandLine(t *testing.T) {
	for _, args := range [][]string{nil, {"nothing"}} {
		if err := dispatch(t.Context(), args, io.Discard); !errors.Is(err, errUsage) {
			t.Errorf("%q: %v", args, err)
		}
	}
	for _, args := range [][]string{
		{"throughput", "-queues", "0"},
		{"throughput", "-size", "3"},
		{"throughput", "-prefetch", "10", "-ack-every", "11"},
		{"rate", "-rate", "0"},
		{"queues", "-queues", "0"},
		{"queues", "-in-flight", "0"},
		{"queues", "-setting", "raft.idle_after"},
		{"queues", "-setting", "=1s"},
		{"growth", "-queues", "1,x"},
		{"growth", "-backlogs", "-1"},
		{"soak", "-duration", "1s"},
		{"suite", "-runs", "0"},
		{"suite", "-links", "rope"},
		{"peers", "-runs", "0"},
		{"peers", "-brokers", "kafka"},
		{"ttl", "-from", "2s", "-to", "1s"},
		{"latency", "-size", "1"},
		{"latency", "-pid", "x"},
		{"pinned", "extra"},
		{"scheduled", "-soon", "0"},
		{"locks", "-locks", "3"},
		{"groups", "-groups", "0"},
		{"suite", "-nodes", "2"},
		{"charts"},
	} {
		if err := dispatch(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}

func TestNumberIn(t *testing.T) {
	for _, c := range []struct {
		status string
		want   float64
		fails  bool
	}{
		{"Name:\tquorate\nvoluntary_ctxt_switches:\t217\nnonvoluntary_ctxt_switches:\t5\n", 217, false},
		{"Name:\tquorate\nnonvoluntary_ctxt_switches:\t5\n", 0, false},
		{"voluntary_ctxt_switches:\tmany\n", 0, true},
	} {
		if n, err := numberIn([]byte(c.status), "voluntary_ctxt_switches"); n != c.want || (err != nil) != c.fails {
			t.Errorf("%q: %v, %v", c.status, n, err)
		}
	}
}

// What grows beyond the bounds is named; intervals with a restart do not count.
func TestFlat(t *testing.T) {
	rolled := make([]bool, soakMarks)
	for k := range soakMarks / 10 { // most of the last sixth
		rolled[soakMarks-1-k] = true
	}
	for _, c := range []struct {
		late, slack float64
		grows       bool
	}{{130, 0.1, false}, {134, 5, false}, {136, 5, true}, {1000, 0, false}} {
		grown := column{Series: report.Series{Name: "disk", Of: "n1", Unit: "MiB"}, slack: c.slack}
		for k := range soakMarks {
			switch {
			case rolled[k]:
				grown.Values = append(grown.Values, 1e9)
			case k >= soakMarks*5/6:
				grown.Values = append(grown.Values, c.late)
			case k >= soakMarks/6:
				grown.Values = append(grown.Values, 100)
			default:
				grown.Values = append(grown.Values, 1)
			}
		}
		if err := grown.flat(rolled); (err != nil) != c.grows {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if (&column{}).flat(nil) == nil {
		t.Error("a verdict from no interval")
	}
}

func TestBrokersAreChosenByName(t *testing.T) {
	for _, c := range []struct {
		names string
		want  []string // empty: refused
	}{
		{"nats, quorate", []string{"nats", "quorate"}},
		{"quorate,quorate", nil},
		{"kafka", nil},
		{"", nil},
	} {
		chosen, err := choose(peers(new("")), c.names)
		if (err == nil) != (len(c.want) > 0) || len(chosen) != len(c.want) {
			t.Fatalf("%q: %d, %v", c.names, len(chosen), err)
		}
		for i, name := range c.want {
			if chosen[i].name != name {
				t.Errorf("%q: broker %d is %s", c.names, i, chosen[i].name)
			}
		}
	}
}

func TestLeaderIn(t *testing.T) {
	r := &rabbit{}
	lines := "other\tbench1@localhost\nbench-1\tbench3@localhost\nbench-10\tbench2@localhost\nbench-2\t\n"
	if i, err := leaderIn(lines, "bench-1", r.name); i != 2 || err != nil {
		t.Errorf("node %d, %v", i, err)
	}
	for _, q := range []string{"bench-2", "bench-3"} {
		if i, err := leaderIn(lines, q, r.name); err == nil {
			t.Errorf("%s is led by node %d", q, i)
		}
	}
}

func TestWithoutANode(t *testing.T) {
	all := &target{uris: []string{"a", "b", "c"}, pids: []int{1, 2, 3}, queueType: "quorum"}
	rest := all.without(1)
	if !slices.Equal(rest.uris, []string{"a", "c"}) || !slices.Equal(rest.pids, []int{1, 3}) || rest.queueType != "quorum" {
		t.Errorf("%+v", rest)
	}
	if !slices.Equal(all.uris, []string{"a", "b", "c"}) || !slices.Equal(all.pids, []int{1, 2, 3}) {
		t.Errorf("the whole changed: %+v", all)
	}
}

func TestInFolder(t *testing.T) {
	parent, wrong := t.TempDir(), errors.New("wrong")
	var kept string
	for _, want := range []error{nil, wrong} {
		var in string
		err := inFolder(parent, func(dir string) error {
			in = dir
			return errors.Join(os.WriteFile(filepath.Join(dir, "f"), nil, 0o644), want)
		})
		_, gone := os.Stat(in)
		if !errors.Is(err, want) || (want == nil) != errors.Is(gone, os.ErrNotExist) {
			t.Errorf("with %v: %v, the folder: %v", want, err, gone)
		}
		kept = in
	}
	if err := inFolder(filepath.Join(kept, "f"), func(string) error { return nil }); err == nil {
		t.Error("a file is taken for a folder")
	}
}

// Steps are run in their order, those that are selected; one that fails is named and ends them.
func TestSteps(t *testing.T) {
	b := &bench{ctx: t.Context(), target: &target{}}
	var ran []string
	one := func(name string, err error) step {
		return step{name, func() { ran = append(ran, name); must(err) }}
	}
	err := try(func() { b.steps("a, c", 0, []step{one("a 1", nil), one("b", nil), one("c", io.EOF), one("a 2", nil)}) })
	if !errors.Is(err, io.EOF) || !strings.HasPrefix(err.Error(), "c: ") || !slices.Equal(ran, []string{"a 1", "c"}) {
		t.Errorf("%v: %v", ran, err)
	}
}

// Who misspells a measurement is not left with an empty table.
func TestNothingSelected(t *testing.T) {
	b := &bench{ctx: t.Context(), target: &target{}}
	if err := try(func() { b.steps("rolling", 0, []step{{"rate", func() {}}}) }); err == nil || !strings.Contains(err.Error(), `"rolling"`) {
		t.Errorf("%v", err)
	}
}

func TestSelected(t *testing.T) {
	for _, c := range []struct {
		only string
		want bool
	}{{"", true}, {"rate", true}, {"ttl, rate", true}, {"ttl", false}, {"rate 10 bytes", true}, {"rate 1", true}, {"rate 0", false}} {
		if got := selected("the rate, 10 bytes", c.only); got != c.want {
			t.Errorf("%q: %t", c.only, got)
		}
	}
}

func TestPause(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := pause(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("a pause after the end: %v", err)
	}
}

// What is known of a message of a publisher is in its key.
func TestKeys(t *testing.T) {
	if key := keyOf(3, 5); key>>keyBits != 4 || key&(1<<keyBits-1) != 5 {
		t.Errorf("%x", key)
	}
	if key, ok := client.Key(client.Brief(nil, keyOf(3, 5), smallest)); !ok || key != keyOf(3, 5) {
		t.Errorf("%x, %t", key, ok)
	}
}

// Each number is worked on, until one fails or the time is over.
func TestEach(t *testing.T) {
	var sum atomic.Int64
	if err := try(func() { each(t.Context(), 100, 7, func(k int) error { sum.Add(int64(k)); return nil }) }); err != nil || sum.Load() != 4950 {
		t.Errorf("%d: %v", sum.Load(), err)
	}
	if err := try(func() { each(t.Context(), 3, 1, func(int) error { return io.EOF }) }); !errors.Is(err, io.EOF) {
		t.Errorf("one that fails: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := try(func() { each(ctx, 3, 1, func(int) error { return nil }) }); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}

// The limit of the machine is measured with both machines: each message is answered.
func TestLimit(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "quorate-bench")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), binary, "limit", "-messages", "20").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "1024 bytes: 20 messages") {
		t.Errorf("%v\n%s", err, out)
	}
}
