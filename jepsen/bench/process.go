package main

import (
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// Ports are drawn from [portsFrom, portsTo): below those that the system uses for outgoing
// connections, so that a node gets its own again after a restart, and distinct from those of
// package cluster.
const portsFrom, portsTo = 22_800, 25_600

var errNoPorts = errors.New("too few free ports on loopback")

// freePorts finds ports on loopback that nobody listens on.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range 100 * n {
		port := portsFrom + rand.IntN(portsTo-portsFrom)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		defer l.Close() // after all have been found, so that they differ
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, errNoPorts
}

// launch starts a program in a process group of its own and adds its output to
// a file.
func launch(cmd *exec.Cmd, log string, env []string) error {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd.Stdout, cmd.Stderr, cmd.Env = f, f, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd.Start()
}

// end waits for a program and kills its process group if it takes too long.
func end(cmd *exec.Cmd, grace time.Duration) {
	kill := time.AfterFunc(grace, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer kill.Stop()
	_ = cmd.Wait() // how it ended is in its log
}
