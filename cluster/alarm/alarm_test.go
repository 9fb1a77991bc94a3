package alarm

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"
)

// pretended is a machine with 1000 bytes of memory. Freed memory counts as used
// until Release is called.
type pretended struct {
	used, freed, disk int64
	broken            error
	releases          int
	heap              int64
}

func (p *pretended) MemoryTotal() int64       { return 1000 }
func (p *pretended) MemoryUsed() int64        { return p.used }
func (p *pretended) DiskFree() (int64, error) { return p.disk, p.broken }
func (p *pretended) LimitHeap(limit int64)    { p.heap = limit }
func (p *pretended) Release() {
	p.releases++
	p.used, p.freed = p.used-p.freed, 0
}

func mustPart(t *testing.T, p float64) Limit {
	t.Helper()
	l, err := Part(p)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustSize(t *testing.T, s string) Limit {
	t.Helper()
	l, err := ParseSize(s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestWatch(t *testing.T) {
	p := &pretended{used: 100, disk: 500}
	var log bytes.Buffer
	now := time.Unix(0, 0)
	w := New(Config{
		Memory: mustPart(t, 0.6), Disk: mustSize(t, "50"), Probe: p,
		Logger: slog.New(slog.NewTextHandler(&log, nil)), Now: func() time.Time { return now },
	})
	check := func(want ...string) {
		t.Helper()
		if got := w.Check(); !slices.Equal(got.Alarms(), want) || got != w.Resources() {
			t.Fatalf("short of %q, want %q; %+v", got.Alarms(), want, got)
		}
	}
	check()
	if f := w.Resources(); f != (Resources{MemoryUsed: 100, MemoryLimit: 600, DiskFree: 500, DiskLimit: 50}) || p.heap != leastHeap {
		t.Errorf("%+v, heap %d", f, p.heap)
	}

	// Freed memory that has not been returned to the system causes no alarm.
	p.used, p.freed = 700, 400
	if check(); p.releases != 1 || w.Resources().MemoryUsed != 300 {
		t.Errorf("%d releases, %+v", p.releases, w.Resources())
	}
	// Releases are not too frequent.
	p.used, p.freed = 600, 400
	now = now.Add(releaseEvery - 1)
	if check(Memory); p.releases != 1 {
		t.Errorf("%d releases", p.releases)
	}
	now = now.Add(1)
	check()

	// A disk that cannot be measured changes nothing.
	p.disk = 50
	check()
	p.disk = 49
	check(Disk)
	p.disk, p.broken = 500, errors.New("gone")
	check(Disk)
	check(Disk)
	now = now.Add(unknownAfter - 1)
	if check(Disk); w.Resources().DiskUnknown {
		t.Error("one that could not be measured for a moment is an alarm")
	}
	now = now.Add(1)
	if check(Disk); !w.Resources().DiskUnknown {
		t.Error("the last value is taken for the present one")
	}
	p.broken = nil
	if check(); w.Resources().DiskUnknown {
		t.Error("it has been measured")
	}
	for line, want := range map[string]int{"free disk space is unknown": 1, "free disk space has been unknown": 1, "free disk space is known again": 1} {
		if n := strings.Count(log.String(), line); n != want {
			t.Errorf("%q is said %d times", line, n)
		}
	}

	// Limits can be changed.
	if f := w.SetMemory(mustSize(t, "200")); !f.MemoryAlarm || f.MemoryLimit != 200 {
		t.Errorf("%+v", f)
	}
	if f := w.SetDisk(mustPart(t, 1)); !f.DiskAlarm || f.DiskLimit != 1000 {
		t.Errorf("%+v", f)
	}
	check(Disk, Memory)
	w.SetMemory(mustSize(t, "1GiB"))
	w.SetDisk(mustSize(t, "0"))
	if check(); p.heap != 1<<30 {
		t.Errorf("heap %d", p.heap)
	}
	for _, line := range []string{"memory alarm: publishers", "memory alarm is over", "disk alarm: publishers", "disk alarm is over"} {
		if n := strings.Count(log.String(), line); n != 2 {
			t.Errorf("%q is said %d times", line, n)
		}
	}
}

// hanging is a machine whose disk answers when the test does.
type hanging struct {
	*pretended
	measured *atomic.Int32
	answers  chan int64
}

func (p hanging) DiskFree() (int64, error) {
	p.measured.Add(1)
	return <-p.answers, nil
}

// A file system that does not answer delays a check for half a second, the memory is watched meanwhile, and the
// disk is told to be unknown. Its first answer counts again.
func TestHangingDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hanging{&pretended{used: 700}, new(atomic.Int32), make(chan int64, 1)}
		w := New(Config{Memory: mustPart(t, 0.6), Disk: mustSize(t, "50"), Probe: p, Logger: slog.New(slog.DiscardHandler), Now: time.Now})
		p.answers <- 500
		w.Check()
		begun := time.Now()
		check := func(want Resources) {
			t.Helper()
			measured := time.Now()
			if got := w.Check(); got != want || time.Since(measured) > diskWait {
				t.Errorf("after %v: %+v in %v", time.Since(begun), got, time.Since(measured))
			}
			time.Sleep(time.Until(measured.Add(Interval)))
		}
		known := Resources{MemoryUsed: 700, MemoryLimit: 600, MemoryAlarm: true, DiskFree: 500, DiskLimit: 50}
		unknown := known
		unknown.DiskUnknown = true
		for time.Since(begun) < unknownAfter {
			check(known)
		}
		for range 3 {
			check(unknown)
		}
		if measured := p.measured.Load(); measured != 2 {
			t.Errorf("the disk is measured %d times", measured)
		}
		p.answers <- 400
		known.DiskFree = 400
		check(known)
	})
}

func TestLimits(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1000000000": 1e9, "50MB": 50e6, "50mb": 50e6, "64MiB": 64 << 20, "2 GiB": 2 << 30, "1k": 1024, "1kB": 1000, "3G": 3 << 30, "1TB": 1e12,
		"": -1, "MB": -1, "-1": -1, "1.5GB": -1, "5XB": -1, "9999999999GB": -1, "99999999999999999999": -1,
	} {
		l, err := ParseSize(text)
		if (err == nil) != (want >= 0) || err == nil && l.of(7) != want {
			t.Errorf("%q: %v, %v", text, l, err)
		}
	}
	for text, want := range map[string]int64{"0": 0, "0.4": 400, "1.0": 1000, "2": 2000, "": -1, "-0.1": -1, "x": -1, "NaN": -1, "101": -1, "50%": -1} {
		l, err := ParsePart(text)
		if (err == nil) != (want >= 0) || err == nil && l.of(1000) != want {
			t.Errorf("%q: %v, %v", text, l, err)
		}
	}
	if a, b := mustPart(t, 0.6).String(), mustSize(t, "1kB").String(); a != "0.6" || b != "1000 bytes" {
		t.Errorf("%s, %s", a, b)
	}
}

func TestMemoryTotal(t *testing.T) {
	const info = "MemFree:  1 kB\nMemTotal:       1000 kB\n"
	for _, test := range []struct {
		name  string
		files map[string]string
		want  int64
	}{
		{"nothing is told", nil, 0},
		{"no control group", map[string]string{"proc/meminfo": info}, 1000 << 10},
		{"version 2", map[string]string{"proc/meminfo": info, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "5000\n"}, 5000},
		{"of the group around it", map[string]string{
			"proc/meminfo": info, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "6000\n",
		}, 6000},
		{"of the container", map[string]string{"proc/meminfo": info, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "7000\n"}, 7000},
		{"version 1", map[string]string{
			"proc/meminfo": info, "proc/self/cgroup": "9:cpu:/x\n5:memory:/docker/1\n", "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": "8000\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 8000},
		{"more than there is", map[string]string{"proc/meminfo": info, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "7000000\n"}, 1000 << 10},
	} {
		files := fstest.MapFS{}
		for name, text := range test.files {
			files[name] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := memoryTotal(files); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
}

// The real machine reports plausible values.
func TestSystem(t *testing.T) {
	s := System{DataDir: t.TempDir()}
	free, err := s.DiskFree()
	if total, used := s.MemoryTotal(), s.MemoryUsed(); err != nil || free <= 0 || used < 1<<20 || used >= total {
		t.Errorf("memory %d of %d, disk %d, %v", used, total, free, err)
	}
	if _, err := (System{DataDir: s.DataDir + "/none"}).DiskFree(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
	if bytes, ok := resident(fstest.MapFS{"proc/self/statm": {Data: []byte("10 3 1\n")}}); !ok || bytes != 3*int64(os.Getpagesize()) {
		t.Errorf("resident %d, %v", bytes, ok)
	}
}
