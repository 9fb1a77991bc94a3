package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestLedger(t *testing.T) {
	const size = 64
	cases := []struct {
		name string
		come []uint64 // messages of publisher 1, of which 3 were published
		want string   // part of the error; empty: none
	}{
		{"each once", []uint64{2, 0, 1}, ""},
		{"one lost", []uint64{0, 2}, "publisher 1 published 3 messages: 1 lost, 0 came twice"},
		{"one twice", []uint64{0, 1, 2, 1}, "0 lost, 1 came twice"},
		{"one too many", []uint64{0, 1, 2, 3}, "4 distinct ones came"},
		{"one far off", []uint64{0, 1, 2, 1000}, "4 distinct ones came"},
	}
	for _, c := range cases {
		l := newLedger(2, size)
		for _, n := range c.come {
			body := make([]byte, size)
			stamp(body, 1, n, 5, 7)
			if due, ok := l.take(body); !ok || due != 7 {
				t.Fatalf("%s: take: due %v, %t", c.name, due, ok)
			}
		}
		err := l.check([]uint64{0, 3})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	l := newLedger(1, size)
	foreign := make([]byte, size)
	stamp(foreign, 1, 0, 0, 0)
	for _, body := range [][]byte{nil, make([]byte, size-1), foreign} {
		if _, ok := l.take(body); ok {
			t.Errorf("a foreign body of %d bytes was taken", len(body))
		}
	}
}

// mustPipe returns the two ends of a TCP connection on loopback.
func mustPipe(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near, far
}

func TestGatheredKeepsBytesAndOrder(t *testing.T) {
	near, far := mustPipe(t)
	g := newGathered(near)
	var want bytes.Buffer
	for i := range 2000 {
		want.Write(bytes.Repeat([]byte{byte(i)}, i))
	}
	var all sync.WaitGroup
	var got []byte
	var readErr error
	all.Go(func() { got, readErr = io.ReadAll(far) })
	for rest := want.Bytes(); len(rest) > 0; {
		n, err := g.Write(rest[:min(777, len(rest))])
		if err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	if readErr != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%d of %d bytes came, or others: %v", len(got), want.Len(), readErr)
	}
	if _, err := g.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write after close: %v", err)
	}
}

func TestGatheredReportsBrokenConnection(t *testing.T) {
	near, far := mustPipe(t)
	if err := far.Close(); err != nil {
		t.Fatal(err)
	}
	g := newGathered(near)
	defer g.Close()
	block := make([]byte, 64<<10)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if _, err := g.Write(block); err != nil {
			return
		}
	}
	t.Error("writes to a closed connection go on without an error")
}

func TestQuantiles(t *testing.T) {
	var times []time.Duration
	for i := range 101 {
		times = append(times, time.Duration(100-i)*time.Millisecond)
	}
	if q := *quantilesOf(times); q != (quantiles{0, 50, 99, 100}) {
		t.Errorf("%+v", q)
	}
	if quantilesOf(nil) != nil {
		t.Error("quantiles of nothing")
	}
}

func TestMeterSeesThisProcess(t *testing.T) {
	m, err := startMeter([]int{os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	for began := ownSeconds(); ownSeconds() < began+0.1; { // use some processor time
	}
	var r result
	if err := m.end(&r, 1000); err != nil {
		t.Fatal(err)
	}
	if r.ServerCPU < 50 || r.ClientCPU < 100 || r.PeakRSS < 1<<20 || r.PerSecond <= 0 {
		t.Errorf("%+v", r)
	}
	if _, err := startMeter([]int{1 << 30}); err == nil {
		t.Error("a process that is not there is measured")
	}
}

func TestReport(t *testing.T) {
	r := result{Name: "a run", Messages: 1000, Seconds: 2, PerSecond: 500, Times: &quantiles{1, 2, 3, 4}, PeakRSS: 3 << 20}
	r.note("disk", 1.5, "MiB")
	var out strings.Builder
	if err := table(&out, []result{r}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a run", "1000", "500", "2.00", "4.00", "a run: disk 1.5 MiB"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
	file := filepath.Join(t.TempDir(), "r.json")
	if err := publishResults([]result{r}, file); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var back []result
	if err := json.Unmarshal(text, &back); err != nil || len(back) != 1 || back[0].Notes[0] != r.Notes[0] || *back[0].Times != *r.Times {
		t.Errorf("read back %+v: %v", back, err)
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
		{"growth", "-queues", "1,x"},
		{"growth", "-backlogs", "-1"},
		{"soak", "-duration", "1s"},
		{"suite", "-runs", "0"},
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
	} {
		fs := flag.NewFlagSet(args[0], flag.ContinueOnError)
		fs.SetOutput(io.Discard)
		i := 0
		for commands[i].name != args[0] {
			i++
		}
		if err := commands[i].run(t.Context(), fs, args[1:]); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}

func TestVoluntarySwitches(t *testing.T) {
	for _, c := range []struct {
		status string
		want   int64
		fails  bool
	}{
		{"Name:\tquorate\nvoluntary_ctxt_switches:\t217\nnonvoluntary_ctxt_switches:\t5\n", 217, false},
		{"Name:\tquorate\nnonvoluntary_ctxt_switches:\t5\n", 0, false},
		{"voluntary_ctxt_switches:\tmany\n", 0, true},
	} {
		if n, err := voluntarySwitches(c.status); n != c.want || (err != nil) != c.fails {
			t.Errorf("%q: %d, %v", c.status, n, err)
		}
	}
}

func TestMedians(t *testing.T) {
	var c collection
	for _, v := range []float64{3, 1, 2} {
		r := result{Name: "a", Messages: int(v), PerSecond: 10 * v, Times: &quantiles{v, v, v, v}}
		r.note("disk", 5*v, "MiB")
		c.add("", r)
	}
	c.add("", result{Name: "b", Written: 1, Switches: 7})
	c.add("", result{Name: "b", Written: 4, Switches: 8})
	m := c.medians()
	if len(m) != 2 || m[0].Messages != 2 || m[0].PerSecond != 20 || *m[0].Times != (quantiles{2, 2, 2, 2}) || m[0].Notes[0].Value != 10 {
		t.Errorf("medians of three: %+v", m)
	}
	if m[1].Written != 2.5 || m[1].Switches != 7.5 || m[1].Times != nil {
		t.Errorf("medians of two: %+v", m[1])
	}
	if c.runs["a"][0].Notes[0].Value != 15 {
		t.Error("a round was changed")
	}
}

func TestVerdict(t *testing.T) {
	flat := mark{p99: 10, rss: 500, disk: 1000}
	cases := []struct {
		name string
		last mark
		want string // part of the error; empty: none
	}{
		{"flat", flat, ""},
		{"slack", mark{p99: 14, rss: 560, disk: 1200}, ""},
		{"memory", mark{p99: 10, rss: 900, disk: 1000}, "RSS, MiB grows from 500.0 to 900.0"},
		{"disk", mark{p99: 10, rss: 500, disk: 3000}, "disk, MiB grows"},
		{"latency", mark{p99: 30, rss: 500, disk: 1000}, "confirm p99, ms grows"},
	}
	for _, c := range cases {
		err := verdict([]mark{flat, flat, flat, flat, c.last, c.last, c.last, c.last})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if verdict([]mark{flat}) == nil {
		t.Error("a verdict from one line")
	}
}

func TestComparison(t *testing.T) {
	var out strings.Builder
	err := comparison(&out, []string{"ours", "theirs", "others"}, []result{
		{Broker: "ours", Name: "a", PerSecond: 30, ServerCPU: 5, Times: &quantiles{P50: 3}},
		{Broker: "ours", Name: "b", PerSecond: 7},
		{Broker: "theirs", Name: "a", PerSecond: 10, ServerCPU: 20, Times: &quantiles{P50: 2}},
	})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	for i, want := range [][]string{
		{"run", "broker"},
		{"a", "ours", "30", "3.00", "–", "–", "5.0", "–", "–", "–", "|"},
		{"a", "theirs", "10", "2.00", "–", "–", "20.0", "–", "–", "–", "|", "3.00", "1.50", "–", "–", "0.25", "–", "–"},
		{"a", "others", "–", "–", "–", "–", "–", "–", "–", "–", "|", "–", "–", "–", "–", "–", "–", "–"},
		{"b", "ours", "7"},
		{"b", "theirs", "–"},
	} {
		got := strings.Fields(lines[i])
		if len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
			t.Errorf("line %d: %q, want %q", i, got, want)
		}
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
		p := &peers{}
		err := p.choose(c.names)
		if (err == nil) != (len(c.want) > 0) {
			t.Errorf("%q: %v", c.names, err)
		}
		for i, name := range c.want {
			if p.brokers[i].name != name {
				t.Errorf("%q: broker %d is %s", c.names, i, p.brokers[i].name)
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

func TestTermGrowth(t *testing.T) {
	var r result
	if grown := noteGrowth(&r, map[string]uint64{"a": 2, "b": 2, "c": 5}, map[string]uint64{"a": 3, "b": 2, "c": 6}); grown != 2 {
		t.Errorf("%d have grown", grown)
	}
	want := []note{{"raft terms grew by 0 in", 1, "queues"}, {"raft terms grew by 1 in", 2, "queues"}}
	if !slices.Equal(r.Notes, want) {
		t.Errorf("%+v", r.Notes)
	}
}

// A queue's wait is that of the message that waited longest.
func TestFlowWaits(t *testing.T) {
	f := flow{published: []time.Duration{1, 2, 10, 11}, confirmed: []time.Duration{4, 3, 11, 19}}
	if got := f.waits(2); !slices.Equal(got, []time.Duration{3, 8}) {
		t.Errorf("the queues waited %v", got)
	}
}

func TestFreePortsDiffer(t *testing.T) {
	ports, err := freePorts(9)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(ports)
	if n := len(slices.Compact(ports)); n != 9 || ports[0] < portsFrom || ports[n-1] >= portsTo {
		t.Errorf("%d different ports: %v", n, ports)
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

func TestInterval(t *testing.T) {
	p := publisher{interval: 2 * time.Millisecond}
	if got := p.due(time.Second, 500); got != 2*time.Second {
		t.Errorf("message 500 is due at %v", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := pause(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("a pause after the end: %v", err)
	}
}
