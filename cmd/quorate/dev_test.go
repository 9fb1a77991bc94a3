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
	"time"
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
		if err := n.start(false); err != nil {
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

// Who waits for the end of what dev writes, as a shell does for $(quorate dev --detach 2>&1), waits for dev and not
// for its nodes, and still sees why one has not started.
func TestDevDetached(t *testing.T) {
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("there is no program to start:", err)
	}
	n := &devNode{number: 1, home: t.TempDir(), args: []string{shell, "-c", "echo refused >&2; echo; echo told > told; exec sleep 3600"}, ended: make(chan struct{})}
	t.Chdir(n.home)
	if err := syscall.Mkfifo("told", 0o600); err != nil { // whoever reads it waits until the node has written
		t.Fatal(err)
	}
	output, caller, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr := os.Stdout, os.Stderr
	os.Stdout, os.Stderr = caller, caller
	defer func() { os.Stdout, os.Stderr = stdout, stderr }()
	if err := n.start(true); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = n.process.Process.Kill()
		<-n.ended
	}()
	if _, err := os.ReadFile("told"); err != nil {
		t.Fatal(err)
	}
	n.complain()
	caller.Close()
	_ = output.SetReadDeadline(time.Now().Add(10 * time.Second))
	if all, err := io.ReadAll(output); err != nil || string(all) != "refused\n" {
		t.Errorf("%q, %v", all, err)
	}
	select {
	case <-n.ended:
		t.Errorf("the node has exited: %s", n.process.ProcessState)
	default:
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
