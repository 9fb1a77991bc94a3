package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"

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
