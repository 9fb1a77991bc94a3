package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// A port that somebody listens on is refused before anything is started: the
// answers of another cluster are not those of this one.
func TestDevRefusesPortsInUse(t *testing.T) {
	const base = 21672
	if err := devPortsFree(3, base); err != nil {
		t.Skipf("another program is there: %v", err)
	}
	for _, above := range []int{1, devHTTP, devMetrics + 2, devPeers} {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", base+above))
		if err != nil {
			t.Skipf("port %d is in use by another program: %v", base+above, err)
		}
		err = devPortsFree(3, base)
		l.Close()
		if err == nil || !strings.Contains(err.Error(), fmt.Sprint(base+above)) || !strings.Contains(err.Error(), "--base-port") {
			t.Errorf("port %d in use: %v", base+above, err)
		}
	}
}

// The end of a node is told, and dev goes on until it is stopped.
func TestDevTellsOfEnds(t *testing.T) {
	var nodes []*devNode
	for k := range 2 {
		n := &devNode{number: k + 1, args: []string{"sleep", "3600"}, ended: make(chan struct{})}
		if _, err := exec.LookPath("sleep"); err != nil {
			t.Skip("there is no program to start:", err)
		}
		if err := n.start(); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	r, w := io.Pipe()
	stop, done := make(chan os.Signal, 1), make(chan error, 1)
	go func() { done <- devWatch(nodes, stop, w) }()
	lines := bufio.NewScanner(r)
	for left := 1; left >= 0; left-- {
		if err := nodes[left].process.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if !lines.Scan() || !strings.Contains(lines.Text(), fmt.Sprintf("node %d has exited: signal: killed", left+1)) ||
			!strings.Contains(lines.Text(), fmt.Sprintf("%d of 2 are still running", left)) {
			t.Fatalf("told %q", lines.Text())
		}
	}
	stop <- syscall.SIGTERM
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// Words that mean nothing start nothing.
func TestLeftoverWords(t *testing.T) {
	for name, command := range map[string]func([]string, io.Writer) error{"dev": devCommand, "server": serverCommand} {
		if err := command([]string{"stop"}, io.Discard); err == nil || !strings.Contains(err.Error(), `unexpected argument "stop"`) {
			t.Errorf("%s stop: %v", name, err)
		}
	}
}
