package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
)

// ticksPerSecond is the unit of /proc/PID/stat on every Linux that Go runs on.
const ticksPerSecond = 100

// sampleEvery is how often memory is sampled.
const sampleEvery = 100 * time.Millisecond

func parsePIDs(s string) ([]int, error) {
	var pids []int
	for _, f := range strings.Split(s, ",") {
		pid, err := strconv.Atoi(strings.TrimSpace(f))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// cpuSeconds returns the processor time that the processes have used so far.
func cpuSeconds(pids []int) (float64, error) {
	var ticks int64
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		// Fields are counted after the command's name, which may contain blanks.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 13 {
			return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
		}
		for _, f := range fields[11:13] { // user and system time
			n, err := strconv.ParseInt(f, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
			}
			ticks += n
		}
	}
	return float64(ticks) / ticksPerSecond, nil
}

// ownSeconds returns the processor time that this process has used so far.
func ownSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// residentBytes returns the total resident memory of the processes.
func residentBytes(pids []int) (int64, error) {
	var total int64
	for _, pid := range pids {
		n, err := cluster.RSSBytes(pid)
		if err != nil {
			return 0, fmt.Errorf("process %d: %w", pid, err)
		}
		total += n
	}
	return total, nil
}

// writtenBytes returns how many bytes the processes have caused to be written to disk so far; 0 if
// the system does not show it to this user.
func writtenBytes(pids []int) (int64, error) {
	var total int64
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
		if errors.Is(err, fs.ErrPermission) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(text)) {
			if v, ok := strings.CutPrefix(line, "write_bytes: "); ok {
				n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
				if err != nil {
					return 0, fmt.Errorf("/proc/%d/io: %w", pid, err)
				}
				total += n
			}
		}
	}
	return total, nil
}

// contextSwitches returns how often threads of the processes have waited so far: for one another, for
// a socket, for the disk. Threads that have ended are not counted, and none is where the system does
// not count.
func contextSwitches(pids []int) (int64, error) {
	var total int64
	for _, pid := range pids {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		if err != nil {
			return 0, err
		}
		for _, name := range threads {
			text, err := os.ReadFile(name)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
				continue // it has just ended
			}
			if err != nil {
				return 0, err
			}
			n, err := voluntarySwitches(string(text))
			if err != nil {
				return 0, fmt.Errorf("%s: %w", name, err)
			}
			total += n
		}
	}
	return total, nil
}

// voluntarySwitches reads the number from the status of a thread.
func voluntarySwitches(status string) (int64, error) {
	for line := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(line, "voluntary_ctxt_switches:"); ok {
			return strconv.ParseInt(strings.TrimSpace(v), 10, 64)
		}
	}
	return 0, nil
}

// loadAverage returns the system's line about its load.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}

// pause waits, but only until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// meter measures what a run costs.
type meter struct {
	pids   []int
	began  time.Time
	server float64
	own    float64
	disk   int64 // bytes written
	waits  int64 // context switches

	stop    context.CancelFunc
	sampler sync.WaitGroup
	peak    int64
}

// startMeter starts measuring the servers and this process.
func startMeter(pids []int) (*meter, error) {
	server, err := cpuSeconds(pids)
	if err != nil {
		return nil, err
	}
	disk, err := writtenBytes(pids)
	if err != nil {
		return nil, err
	}
	waits, err := contextSwitches(pids)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	m := &meter{pids: pids, began: time.Now(), server: server, own: ownSeconds(), disk: disk, waits: waits, stop: stop}
	m.sampler.Go(func() { m.sample(ctx) })
	return m, nil
}

func (m *meter) sample(ctx context.Context) {
	every := time.NewTicker(sampleEvery)
	defer every.Stop()
	for {
		if now, err := residentBytes(m.pids); err == nil {
			m.peak = max(m.peak, now)
		}
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

// end stops measuring and adds the cost of n messages to r.
func (m *meter) end(r *result, n int) error {
	took := time.Since(m.began)
	m.stop()
	m.sampler.Wait()
	r.Messages, r.Seconds = n, took.Seconds()
	r.PerSecond = float64(n) / took.Seconds()
	r.ClientCPU = perMillion(ownSeconds()-m.own, n)
	if len(m.pids) == 0 {
		return nil
	}
	server, err := cpuSeconds(m.pids)
	if err != nil {
		return fmt.Errorf("a server has ended: %w", err)
	}
	disk, err := writtenBytes(m.pids)
	if err != nil {
		return err
	}
	waits, err := contextSwitches(m.pids)
	if err != nil {
		return err
	}
	r.ServerCPU = perMillion(server-m.server, n)
	r.Switches = perMillion(float64(waits-m.waits), n) / 1e6
	r.Written = perMillion(float64(disk-m.disk), n) / 1e6
	r.PeakRSS = m.peak
	return nil
}

func perMillion(seconds float64, n int) float64 {
	if n == 0 {
		return 0
	}
	return seconds * 1e6 / float64(n)
}
