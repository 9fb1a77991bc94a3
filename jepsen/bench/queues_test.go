package main

import (
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/report"
)

func TestTermGrowth(t *testing.T) {
	var r report.Result
	if grown := noteGrowth(&r, "queues", map[string]uint64{"a": 2, "b": 2, "c": 5}, map[string]uint64{"a": 3, "b": 2, "c": 6}); grown != 2 {
		t.Errorf("%d have grown", grown)
	}
	want := []report.Note{{Name: "raft terms grew by 0 in", Value: 1, Unit: "queues"}, {Name: "raft terms grew by 1 in", Value: 2, Unit: "queues"}}
	if !slices.Equal(r.Notes, want) {
		t.Errorf("%+v", r.Notes)
	}
}

// A queue's wait is that of the message that waited longest.
func TestWaits(t *testing.T) {
	s := sent{published: []time.Duration{1, 2, 10, 11}, confirmed: []time.Duration{4, 3, 11, 19}}
	if got := s.waits(2); !slices.Equal(got, []time.Duration{3, 8}) {
		t.Errorf("the queues waited %v", got)
	}
}

// Series of one name are summed up, whatever is in their labels.
func TestSeriesIn(t *testing.T) {
	page := "# HELP a what a is\n# TYPE a counter\na{peer=\"n 2\"} 3\na{peer=\"{n3\"} 4\n\nab 1.5e+06\nnothing +Inf\n"
	got, err := seriesIn(page)
	if err != nil || got["a"] != 7 || got["ab"] != 1.5e6 || len(got) != 3 {
		t.Errorf("%v: %v", got, err)
	}
	for _, wrong := range []string{"a many", "alone"} {
		if _, err := seriesIn(wrong); err == nil {
			t.Errorf("%q is accepted", wrong)
		}
	}
}

func TestMemstat(t *testing.T) {
	page := "heap profile: 1: 2 [3: 4] @ heap/1048576\n# runtime.MemStats\n# Alloc = 1\n# HeapAlloc = 2000\n# HeapObjects = 30\n# Stack = 400 / 500\n"
	for name, want := range map[string]float64{"HeapAlloc": 2000, "HeapObjects": 30, "Stack": 400} {
		if got, err := memstat(page, name); got != want || err != nil {
			t.Errorf("%s is %v: %v", name, got, err)
		}
	}
	if _, err := memstat(page, "Heap"); err == nil {
		t.Error("a number that is not there")
	}
}

// What queues hold is counted per queue and node, without what the nodes hold anyway.
func TestFootprint(t *testing.T) {
	var r report.Result
	now := footprint{resident: 100 + 30*2048, heap: 200 + 30*1024, objects: 7 + 30*5, stacks: 30 * 512, goroutines: 90 + 30*6}
	now.note(&r, footprint{resident: 100, heap: 200, objects: 7, goroutines: 90}, 10, 3)
	var got []float64
	for _, n := range r.Notes {
		got = append(got, n.Value)
	}
	if want := []float64{2, 1, 5, 0.5, 6, 90, 30}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Each round through the queues is accounted for, one that ends before the last queue, too.
func TestRounds(t *testing.T) {
	c := &crowd{ledger: newLedger(0)}
	for round, n := range []int{3, 2} {
		if got := c.round(n); got != round {
			t.Errorf("round %d, want %d", got, round)
		}
		for q := range n {
			c.ledger.take(keyOf(round, uint64(q)))
		}
	}
	if err := c.ledger.check(); err != nil {
		t.Error(err)
	}
	c.round(1)
	if err := c.ledger.check(); err == nil || !strings.Contains(err.Error(), "publisher 2 published 1 messages: 1 lost") {
		t.Errorf("a lost message: %v", err)
	}
}

// Some of the queues are spread over all; all of them are each once.
func TestSpaced(t *testing.T) {
	c := &crowd{crowdShape: crowdShape{queues: 10}}
	for of, want := range map[int][]int{10: {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 3: {0, 3, 6}, 7: {0, 1, 2, 4, 5, 7, 8}} {
		var got []int
		for k := range of {
			got = append(got, c.spaced(k, of))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d of 10 are %v", of, got)
		}
	}
}

func TestSettings(t *testing.T) {
	f := flags{flag.NewFlagSet("queues", flag.ContinueOnError)}
	l := f.lab()
	if err := f.Parse([]string{"-setting", "raft.idle_after=1s", "-setting", "log.level=debug"}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"raft.idle_after=1s", "log.level=debug"}; !slices.Equal(l.settings, want) {
		t.Errorf("%q", l.settings)
	}
}

var (
	manyQueues   = flag.Int("bench.queues", 60, "`number` of queues in TestManyQueues")
	manySettings = flag.String("bench.settings", "", "comma-separated `settings` of the nodes in TestManyQueues")
)

// Every run with many queues measures something, and no message is lost.
func TestManyQueues(t *testing.T) {
	s := defaultCrowd
	s.queues, s.used, s.single, s.lone, s.busy, s.rate = *manyQueues, *manyQueues*2/3, 6, 10, 9, 200
	s.calmFor, s.restFor, s.idleFor, s.paced, s.before, s.thaw = time.Second, 0, time.Second, 6*time.Second, time.Second, time.Second
	mustLab(t, func(b *bench) {
		b.manyQueues(s)
		notes := map[string]float64{}
		for _, r := range b.results {
			for _, n := range r.Notes {
				notes[n.Name] += n.Value
			}
		}
		for _, name := range []string{
			"fdatasync and fsync per node and declare", "messages between nodes per declare", "live heap per queue and node", "goroutines per node",
			"threads of a node wake up", "threads of a node wake up without queues", "queues that the node led", "raft terms grew by 0 in", "raft terms grew by 1 in",
			"all queues waited at most", "all queues confirm after", "serves again after", "has all entries of the others after", "overview: median",
		} {
			if notes[name] <= 0 {
				t.Errorf("%s: %v", name, notes[name])
			}
		}
	}, strings.FieldsFunc(*manySettings, func(r rune) bool { return r == ',' })...)
}
