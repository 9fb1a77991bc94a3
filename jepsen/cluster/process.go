package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quorate/quorate/jepsen/internal/await"
)

// starts passes functions of launch to the only goroutine that starts processes.
var starts = sync.OnceValue(func() chan func() {
	work := make(chan func())
	go func() {
		// The system sends a child its death signal when the *thread* that started it
		// ends. This thread is kept for the life of the process.
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// launch starts cmd so that it gets the signal when this process ends in any way: no
// test leaves servers behind. in is its network; nil: that of this process.
func launch(cmd *exec.Cmd, death syscall.Signal, in *namespace) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: death, Setpgid: true}
	done := make(chan error)
	starts() <- func() {
		leave, err := in.enter()
		if err == nil {
			err = cmd.Start()
			leave()
		}
		done <- err
	}
	return <-done
}

// Launch starts a program in a process group of its own, which does not outlive this process, and adds its
// output to a file.
func Launch(cmd *exec.Cmd, log string) error {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd.Stdout, cmd.Stderr = f, f
	return launch(cmd, syscall.SIGKILL, nil)
}

// End waits for a program that Launch has started, and kills its process group if that takes longer than grace.
func End(cmd *exec.Cmd, grace time.Duration) {
	kill := time.AfterFunc(grace, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer kill.Stop()
	_ = cmd.Wait() // how it ended is in its log
}

// alive reports whether any thread of a process runs. A zombie does not. But while the
// first thread is already a zombie, others may still be in system calls, and the
// process still holds its files and ports.
func alive(pid int) bool {
	proc := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(proc + "/stat")
	if err != nil {
		return false
	}
	// The state follows the command's name, which is in parentheses.
	if i := bytes.LastIndexByte(stat, ')'); i < 0 || i+2 >= len(stat) || stat[i+2] != 'Z' && stat[i+2] != 'X' {
		return true
	}
	threads, err := os.ReadDir(proc + "/task")
	return err == nil && len(threads) > 1
}

// Signal sends a signal to a node's process.
func (n *Node) Signal(s syscall.Signal) error {
	if err := syscall.Kill(n.PID, s); err != nil {
		return fmt.Errorf("node %d, process %d: %v: %w", n.Number, n.PID, s, err)
	}
	return nil
}

// Alive reports whether the node's process runs.
func (n *Node) Alive() bool { return alive(n.PID) }

// Freeze stops a node's process with SIGSTOP, and returns when none of its threads runs
// any more.
func (n *Node) Freeze(ctx context.Context) error {
	if err := n.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return await.Until(ctx, poll/4, fmt.Sprintf("process %d to stop", n.PID), func() (bool, error) {
		return frozen(n.PID)
	})
}

// frozen reports whether all threads of a process are stopped.
func frozen(pid int) (bool, error) {
	tasks := "/proc/" + strconv.Itoa(pid) + "/task"
	threads, err := os.ReadDir(tasks)
	if err != nil {
		return false, err
	}
	for _, t := range threads {
		stat, err := os.ReadFile(tasks + "/" + t.Name() + "/stat")
		if err != nil {
			return false, err
		}
		if i := bytes.LastIndexByte(stat, ')'); i < 0 || i+2 >= len(stat) || stat[i+2] != 'T' {
			return false, nil
		}
	}
	return true, nil
}

// processors is the folder of the control groups that share processors out, and starvingPeriod the time in
// which a group may use its share.
const (
	processors     = "/sys/fs/cgroup/cpu"
	starvingPeriod = 100 * time.Millisecond
)

// NoStarving returns why nodes cannot be given a share of a processor on this machine; nil: they can.
func NoStarving() error {
	if _, err := os.Stat(filepath.Join(processors, "cpu.cfs_quota_us")); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return fmt.Errorf("%s: no control groups of version 1 that share processors out", processors)
}

// Starve gives those of the nodes that run this share of a processor, together, until fed is called.
func Starve(share float64, nodes ...*Node) (fed func() error, err error) {
	group := filepath.Join(processors, fmt.Sprintf("quorate-%d-%d", os.Getpid(), nodes[0].PID))
	if err := os.Mkdir(group, 0o700); err != nil {
		return nil, err
	}
	write := func(file string, value int64) error {
		return os.WriteFile(filepath.Join(group, file), strconv.AppendInt(nil, value, 10), 0)
	}
	period := starvingPeriod.Microseconds()
	err = errors.Join(write("cpu.cfs_period_us", period), write("cpu.cfs_quota_us", int64(share*float64(period))))
	for _, n := range nodes {
		if n.Alive() {
			err = errors.Join(err, write("cgroup.procs", int64(n.PID)))
		}
	}
	fed = func() error { return leaveGroup(group) }
	if err != nil {
		return nil, errors.Join(err, fed())
	}
	return fed, nil
}

// leaveGroup takes all processes out of a control group of version 1, and removes it.
func leaveGroup(group string) error {
	pids, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	for _, pid := range strings.Fields(string(pids)) {
		if err := os.WriteFile(filepath.Join(filepath.Dir(group), "cgroup.procs"), []byte(pid), 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return errors.Join(err, os.Remove(group))
}

// Processor returns how much time of processors the node's process has used.
func (n *Node) Processor() (used time.Duration, err error) { return Processor(n.PID) }

// Processor returns how much time of processors a process has used.
func Processor(pid int) (used time.Duration, err error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	const ticks = 100 // a second, on every architecture
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	for _, field := range fields[11:13] { // in its own code, and in the kernel
		n, err := strconv.Atoi(string(field))
		if err != nil {
			return 0, err
		}
		used += time.Duration(n) * time.Second / ticks
	}
	return used, nil
}

// clockFile is where a node that SetClock can set reads how wrong its clock is.
const clockFile = "clock"

// WrongClocks are the arguments of "quorate dev" that SetClock needs.
var WrongClocks = []string{"--unsafe-test-options", "--set", "unsafe.test_clock_file=" + clockFile}

// Clock is a node's report about its clock.
type Clock struct {
	OffsetMS int64 `json:"offset_ms"`
	Skewed   bool  `json:"skewed"`
	Agreed   bool  `json:"agreed"`
}

// Clock asks a node about its clock.
func (n *Node) Clock(ctx context.Context) (c Clock, err error) {
	return c, n.Call(ctx, http.MethodGet, "/api/quorate/clock", nil, &c)
}

// SetClock sets a node's wall clock wrong, now or for its next start, and waits until
// the node, if it runs, has detected it.
func (n *Node) SetClock(ctx context.Context, ahead time.Duration) error {
	if err := n.writeClock(fmt.Sprint(ahead.Milliseconds())); err != nil || !n.Alive() {
		return err
	}
	return n.AwaitOffset(ctx, ahead-clockNoise, ahead+clockNoise)
}

// clockNoise is how far from its offset a node may believe its clock to be.
const clockNoise = 300 * time.Millisecond

// SetDrift makes a node's wall clock right, and advance so many seconds in each second from
// now on, or from its next start. It does not wait.
func (n *Node) SetDrift(rate float64) error { return n.writeClock(fmt.Sprint("0 ", rate)) }

// writeClock replaces the file, which is no data: no loss of power brings back what it was before.
func (n *Node) writeClock(text string) error {
	path := filepath.Join(n.DataDir(), clockFile)
	next := path + ".next"
	if err := errors.Join(os.WriteFile(next, []byte(text), 0o644), syncPath(next), os.Rename(next, path)); err != nil {
		return err
	}
	return syncPath(n.DataDir())
}

// syncPath makes the disk keep a file or folder.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// AwaitOffset waits until a node believes that its clock is ahead by an amount in a range.
func (n *Node) AwaitOffset(ctx context.Context, least, most time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, httpTimeout)
	defer cancel()
	return await.Until(ctx, poll, fmt.Sprintf("node %d to be %v to %v ahead", n.Number, least, most), func() (bool, error) {
		c, err := n.Clock(ctx)
		off := time.Duration(c.OffsetMS) * time.Millisecond
		return err == nil && least < off && off < most, err
	})
}
