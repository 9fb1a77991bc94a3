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
	"testing"
	"time"
)

var suite = flag.Bool("clients.suite", false, "run the tests that ship with amqp091-go, which take minutes")

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

// mustForward forwards connections for the time of the test.
func mustForward(t *testing.T, from, to string) {
	t.Helper()
	l, err := net.Listen("tcp", from)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { l.Close() })
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
				go func() {
					_, _ = io.Copy(out, in)
					_ = out.(*net.TCPConn).CloseWrite()
				}()
				_, _ = io.Copy(in, out)
			}()
		}
	}()
}
