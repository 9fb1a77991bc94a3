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
	"os/exec"
	"path/filepath"
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
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
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
		if err := dispatch(t.Context(), args); !errors.Is(err, errUsage) {
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
		{"ttl", "-from", "2s", "-to", "1s"},
		{"latency", "-size", "1"},
		{"latency", "-pid", "x"},
		{"pinned", "extra"},
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

func TestMedians(t *testing.T) {
	var c collection
	for _, v := range []float64{3, 1, 2} {
		r := result{Name: "a", Messages: int(v), PerSecond: 10 * v, Times: &quantiles{v, v, v, v}}
		r.note("disk", 5*v, "MiB")
		c.add(r)
	}
	c.add(result{Name: "b", Written: 1})
	c.add(result{Name: "b", Written: 4})
	m := c.medians()
	if len(m) != 2 || m[0].Messages != 2 || m[0].PerSecond != 20 || *m[0].Times != (quantiles{2, 2, 2, 2}) || m[0].Notes[0].Value != 10 {
		t.Errorf("medians of three: %+v", m)
	}
	if m[1].Written != 2.5 || m[1].Times != nil {
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

func TestRatios(t *testing.T) {
	var out strings.Builder
	ours := []result{{Name: "a", PerSecond: 30, ServerCPU: 5}, {Name: "only ours"}}
	theirs := []result{{Name: "a", PerSecond: 10, ServerCPU: 20}}
	if err := ratios(&out, ours, theirs); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"3.00", "0.25"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the ratios lack %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "only ours") {
		t.Errorf("a ratio with nothing:\n%s", out.String())
	}
}

func TestSelected(t *testing.T) {
	for _, c := range []struct {
		only string
		want bool
	}{{"", true}, {"rate", true}, {"ttl, rate", true}, {"ttl", false}} {
		if got := selected("the rate", c.only); got != c.want {
			t.Errorf("%q: %t", c.only, got)
		}
	}
}

func TestSettingsReachTheServer(t *testing.T) {
	program, err := withSettings("/bin/echo", t.TempDir(), []string{"a=b", "c=it's"})
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(program, "dev", "x y").Output()
	if want := "dev x y --set a=b --set c=it's\n"; err != nil || string(out) != want {
		t.Errorf("%q, %v, want %q", out, err, want)
	}
}

func TestPace(t *testing.T) {
	p := publisher{pace: 2 * time.Millisecond}
	if got := p.due(time.Second, 500); got != 2*time.Second {
		t.Errorf("message 500 is due at %v", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := pause(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("a pause after the end: %v", err)
	}
}
