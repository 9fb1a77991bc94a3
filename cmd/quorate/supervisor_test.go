package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// patient is a node whose health the test decides on.
type patient struct {
	mu             sync.Mutex
	notReady, dead string
	stuck          chan struct{} // if not nil, a check does not return before it is closed
}

func (p *patient) NotReady() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.notReady
}

func (p *patient) Dead() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stuck != nil {
		<-p.stuck
	}
	return p.dead
}

func (p *patient) set(notReady, dead string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notReady, p.dead = notReady, dead
}

// manager is a service manager's side of the socket.
type manager struct {
	t      *testing.T
	socket *net.UnixConn
}

func mustManage(t *testing.T, limit time.Duration) *manager {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", strconv.FormatInt(limit.Microseconds(), 10))
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	return &manager{t, socket}
}

// await reads notifications until one line of them is want.
func (m *manager) await(want string) {
	m.t.Helper()
	if err := m.socket.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		m.t.Fatal(err)
	}
	for buf := make([]byte, 4096); ; {
		n, err := m.socket.Read(buf)
		if err != nil {
			m.t.Fatalf("%q is not sent: %v", want, err)
		}
		for line := range strings.SplitSeq(string(buf[:n]), "\n") {
			if line == want {
				return
			}
		}
	}
}

// quiet checks that there is no sign of life within some time.
func (m *manager) quiet(d time.Duration) {
	m.t.Helper()
	if err := m.socket.SetReadDeadline(time.Now().Add(d)); err != nil {
		m.t.Fatal(err)
	}
	for buf := make([]byte, 4096); ; {
		n, err := m.socket.Read(buf)
		if err != nil {
			return
		}
		if strings.Contains(string(buf[:n]), "WATCHDOG=1") {
			m.t.Error("there is a sign of life")
		}
	}
}

// The service manager is told what the node does, when it is ready and when it stops; and it gets
// signs of life as long as the process makes progress, whether or not clients are served.
func TestSupervisor(t *testing.T) {
	m := mustManage(t, 60*time.Millisecond)
	p := &patient{notReady: "the node does not serve clients yet"}
	s := supervise(slog.New(slog.NewTextHandler(io.Discard, nil)), p)
	m.await("STATUS=the node does not serve clients yet")
	m.await("WATCHDOG=1")
	p.set("", "")
	s.ready()
	m.await("READY=1")
	m.await("STATUS=the node serves clients")
	p.set("the disk hangs", "")
	m.await("STATUS=the disk hangs")
	m.await("WATCHDOG=1")
	p.set("the node is dead", "the watchdog has not run")
	m.await("STATUS=the node is dead")
	m.quiet(200 * time.Millisecond)
	p.set("", "")
	m.await("WATCHDOG=1")
	if err := s.stop(context.Background()); err != nil {
		t.Error(err)
	}
	m.await("STOPPING=1")
}

// A node that is stuck gives no sign of life, and that does not keep it from being stopped.
func TestSupervisorOfStuckNode(t *testing.T) {
	m := mustManage(t, 60*time.Millisecond)
	p := &patient{stuck: make(chan struct{})}
	s := supervise(slog.New(slog.NewTextHandler(io.Discard, nil)), p)
	m.quiet(200 * time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.stop(ctx); err != nil {
		t.Error(err)
	}
	m.await("STOPPING=1")
	close(p.stuck)
	s.running.Wait()
}
