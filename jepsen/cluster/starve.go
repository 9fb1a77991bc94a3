package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

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

// Starve gives all nodes that run this share of a processor, together, until fed is called.
func (c *Cluster) Starve(share float64) (fed func() error, err error) {
	group := filepath.Join(processors, fmt.Sprintf("quorate-%d-%d", os.Getpid(), c.base))
	if err := os.Mkdir(group, 0o700); err != nil {
		return nil, err
	}
	write := func(file string, value int64) error {
		return os.WriteFile(filepath.Join(group, file), strconv.AppendInt(nil, value, 10), 0)
	}
	period := starvingPeriod.Microseconds()
	err = errors.Join(write("cpu.cfs_period_us", period), write("cpu.cfs_quota_us", int64(share*float64(period))))
	for _, n := range c.Nodes {
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
func (n *Node) Processor() (used time.Duration, err error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(n.PID) + "/stat")
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
