package clients

import (
	"context"
	"flag"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

var suite = flag.Bool("clients.suite", false, "run the tests that ship with client libraries, which take minutes")

// httpPort is where those tests look for the HTTP API.
const httpPort = "127.0.0.1:15672"

var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: .*$`)

// TestSuite runs the integration tests of amqp091-go from a copy of the module.
// They stop where the server is not named RabbitMQ.
func TestSuite(t *testing.T) {
	if !*suite {
		t.Skip("-clients.suite is not given")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute)
	defer cancel()
	c := mustStart(t, ctx, "--set=server_properties.product=RabbitMQ")
	mustForward(t, httpPort, c.Nodes[0].HTTP)
	found, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/rabbitmq/amqp091-go").Output()
	if err != nil {
		t.Fatal(err)
	}
	module := filepath.Join(t.TempDir(), "module")
	if err := os.CopyFS(module, os.DirFS(strings.TrimSpace(string(found)))); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-tags", "integration", "-count", "1", "-v", ".")
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "AMQP_URL=amqp://guest:guest@"+c.Nodes[0].AMQP+"/")
	out, err := cmd.CombinedOutput()
	passed := strings.Count(string(out), "\n--- PASS: ")
	skipped := regexp.MustCompile(`(?m)^--- SKIP: (\S+)`).FindAllString(string(out), -1)
	t.Logf("%d tests have passed; skipped: %q", passed, skipped)
	if bad := failed.FindAllString(string(out), -1); len(bad) > 0 || passed == 0 {
		t.Errorf("%q\n%s", bad, out)
	} else if err != nil {
		t.Errorf("%v\n%s", err, out[max(0, len(out)-4000):])
	}
}

// forwarded knows the connections that are forwarded.
type forwarded struct {
	mu      sync.Mutex
	clients map[int]int // port of a client, by the one that its server sees
}

// clientOf returns a client's own port; 0: it has not come this way.
func (f *forwarded) clientOf(port int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.clients[port]
}

func (f *forwarded) note(in, out net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clients[out.LocalAddr().(*net.TCPAddr).Port] = in.RemoteAddr().(*net.TCPAddr).Port
}

// mustForward forwards connections for the time of the test.
func mustForward(t *testing.T, from, to string) *forwarded {
	t.Helper()
	l, err := net.Listen("tcp", from)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { l.Close() })
	f := &forwarded{clients: map[int]int{}}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				out, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer out.Close()
				f.note(in, out)
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					_, _ = io.Copy(out, in)
					_ = out.(*net.TCPConn).CloseWrite()
					// What a server that has closed does not read is still taken:
					// else the client is reset before it has read the reason.
					_, _ = io.Copy(io.Discard, in)
				}()
				_, _ = io.Copy(in, out)
				_ = in.(*net.TCPConn).CloseWrite()
				<-ended
			}()
		}
	}()
	return f
}
