package main

import (
	"bufio"
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
	"github.com/quorate/quorate/jepsen/report"
)

// sampleEvery is how often memory is sampled.
const sampleEvery = 100 * time.Millisecond

// cpuSeconds returns the processor time that the processes have used so far.
func cpuSeconds(pids []int) (sum float64, err error) {
	for _, pid := range pids {
		used, err := cluster.Processor(pid)
		if err != nil {
			return 0, err
		}
		sum += used.Seconds()
	}
	return sum, nil
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
func residentBytes(pids []int) (sum float64, err error) {
	for _, pid := range pids {
		n, err := cluster.RSSBytes(pid)
		if err != nil {
			return 0, fmt.Errorf("process %d: %w", pid, err)
		}
		sum += float64(n)
	}
	return sum, nil
}

// counted returns the number that a file of /proc has behind a word; 0 if it has none, the process or thread has
// ended, or the system does not show it to this user.
func counted(file, word string) (float64, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return numberIn(text, word)
}

func numberIn(text []byte, word string) (float64, error) {
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if v, ok := strings.CutPrefix(lines.Text(), word+":"); ok {
			return strconv.ParseFloat(strings.TrimSpace(v), 64)
		}
	}
	return 0, nil
}

// writtenBytes returns how many bytes the processes have caused to be written to disk so far.
func writtenBytes(pids []int) (sum float64, err error) {
	for _, pid := range pids {
		n, err := counted(fmt.Sprintf("/proc/%d/io", pid), "write_bytes")
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// contextSwitches returns how often threads of the processes have waited so far: for one another, for
// a socket, for the disk. Threads that have ended are not counted.
func contextSwitches(pids []int) (sum float64, err error) {
	for _, pid := range pids {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		if err != nil {
			return 0, err
		}
		for _, thread := range threads {
			n, err := counted(thread, "voluntary_ctxt_switches")
			if err != nil {
				return 0, fmt.Errorf("%s: %w", thread, err)
			}
			sum += n
		}
	}
	return sum, nil
}

// cost measures what n messages, which is what work returns, cost the servers and this process, and adds it to
// r, unless that is nil.
func (b *bench) cost(r *report.Result, work func() (n int)) {
	if r == nil {
		work()
		return
	}
	pids := b.pids
	server, disk, waits := get(cpuSeconds(pids)), get(writtenBytes(pids)), get(contextSwitches(pids))
	own, began := ownSeconds(), clock()
	ctx, stop := context.WithCancel(b.ctx)
	var sampler sync.WaitGroup
	defer sampler.Wait()
	defer stop()
	sampler.Go(func() {
		for ctx.Err() == nil {
			if now, err := residentBytes(pids); err == nil {
				r.PeakRSS = max(r.PeakRSS, now)
			}
			_ = pause(ctx, sampleEvery) // its end is seen above
		}
	})
	n := work()
	r.Messages, r.Seconds = float64(n), (clock() - began).Seconds()
	each := func(v float64) float64 {
		if n == 0 {
			return 0
		}
		return v / float64(n)
	}
	r.PerSecond = r.Messages / r.Seconds
	r.ClientCPU = each(ownSeconds()-own) * 1e6
	now, err := cpuSeconds(pids)
	if err != nil {
		must(fmt.Errorf("a server has ended: %w", err))
	}
	r.ServerCPU = each(now-server) * 1e6
	r.Written, r.Switches = each(get(writtenBytes(pids))-disk), each(get(contextSwitches(pids))-waits)
}
