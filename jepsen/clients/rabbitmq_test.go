package clients

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
)

var (
	rabbitScripts = flag.String("clients.rabbitmq", "/usr/lib/rabbitmq/bin", "`folder` of the programs of a RabbitMQ, without which tests that need one are skipped")
	rabbitURI     = flag.String("clients.rabbitmq-uri", "", "`URI` of a RabbitMQ that runs already")
	rabbitControl = flag.String("clients.rabbitmq-control", "", "shell `command` that is its rabbitmqctl")
)

// rabbit is a RabbitMQ to move things from.
type rabbit struct {
	uri     string
	control []string // rabbitmqctl
	env     []string
	// instead is a node of quorate that stands in for it; nil: none does.
	instead *cluster.Node
}

// mustRabbit starts a RabbitMQ with folders, ports and a port mapper of its own, unless one is given.
// It ends with the test.
func mustRabbit(t *testing.T, ctx context.Context) *rabbit {
	t.Helper()
	if *rabbitURI != "" {
		return &rabbit{uri: *rabbitURI, control: []string{"sh", "-c", *rabbitControl + ` "$@"`, "sh"}}
	}
	server := filepath.Join(*rabbitScripts, "rabbitmq-server")
	for _, program := range []string{server, "epmd", "erl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("RabbitMQ is not installed: ", err)
		}
	}
	dir := t.TempDir()
	var ports []string
	var held []net.Listener
	for range 3 { // AMQP, distribution, port mapper
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, l) // so that they differ
		ports = append(ports, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	for _, l := range held {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for file, text := range map[string]string{
		"rabbitmq.conf": "listeners.tcp.1 = 127.0.0.1:" + ports[0] + "\nlog.file.level = warning\n", "enabled_plugins": "[].\n", "env.conf": "", ".erlang.cookie": fmt.Sprintf("CLIENTS%d", os.Getpid()),
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o400); err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	r := &rabbit{
		uri: "amqp://guest:guest@127.0.0.1:" + ports[0], control: []string{filepath.Join(*rabbitScripts, "rabbitmqctl")},
		env: append(os.Environ(), "HOME="+dir, "LANG=C.UTF-8", "ERL_EPMD_PORT="+ports[2], "ERL_EPMD_ADDRESS=127.0.0.1", "RABBITMQ_NODENAME=clients@localhost",
			"RABBITMQ_DIST_PORT="+ports[1], "RABBITMQ_MNESIA_BASE="+in("data"), "RABBITMQ_LOG_BASE="+in("log"), "RABBITMQ_PID_FILE="+in("pid"),
			"RABBITMQ_CONFIG_FILE="+in("rabbitmq.conf"), "RABBITMQ_CONF_ENV_FILE="+in("env.conf"), "RABBITMQ_ENABLED_PLUGINS_FILE="+in("enabled_plugins"),
			"RABBITMQ_GENERATED_CONFIG_DIR="+in("generated"), "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+sbwt none +sbwtdcpu none +sbwtdio none"),
	}
	r.launch(t, in("epmd.log"), "epmd", "-port", ports[2], "-address", "127.0.0.1")
	r.launch(t, in("node.log"), server)
	starting, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := await.Until(starting, 100*time.Millisecond, "RabbitMQ", func() (bool, error) {
		conn, err := amqp.Dial(r.uri)
		if err == nil {
			err = conn.Close()
		}
		return err == nil, err
	}); err != nil {
		log, _ := os.ReadFile(in("node.log"))
		t.Skipf("RabbitMQ does not start: %v\n%s", err, log)
	}
	return r
}

// launch starts a program in a process group of its own, all of which ends with the test.
func (r *rabbit) launch(t *testing.T, log, name string, args ...string) {
	t.Helper()
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(name, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = r.env, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Skip("RabbitMQ cannot be started: ", err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		ended := make(chan struct{})
		go func() {
			_ = cmd.Wait()
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(30 * time.Second):
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
	})
}

// definitions are what rabbitmqctl exports, as a file.
func (r *rabbit) definitions(t *testing.T, ctx context.Context) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "definitions.json")
	if r.instead != nil {
		_, text, err := r.instead.Do(ctx, "GET", "/api/definitions", nil)
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	cmd := exec.CommandContext(ctx, r.control[0], append(r.control[1:], "--quiet", "export_definitions", "-")...)
	if cmd.Env = r.env; r.env == nil {
		cmd.Env = os.Environ()
	}
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("rabbitmqctl: %v\n%s", err, &log)
	}
	text := out.Bytes()
	if i := bytes.IndexByte(text, '{'); i > 0 {
		text = text[i:]
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// awaitReturned waits until nobody holds messages any more.
func (r *rabbit) awaitReturned(t *testing.T, ctx context.Context) {
	t.Helper()
	if err := await.Until(ctx, 100*time.Millisecond, "messages to return", func() (bool, error) {
		if r.instead != nil {
			var queues []struct {
				Held *int `json:"messages_unacknowledged"`
			}
			err := r.instead.Call(ctx, "GET", "/api/queues", nil, &queues)
			for _, q := range queues {
				if q.Held == nil || *q.Held > 0 {
					return false, err
				}
			}
			return len(queues) > 0, err
		}
		cmd := exec.CommandContext(ctx, r.control[0], append(r.control[1:], "--quiet", "list_queues", "--no-table-headers", "messages_unacknowledged")...)
		if cmd.Env = r.env; r.env == nil {
			cmd.Env = os.Environ()
		}
		out, err := cmd.Output()
		return err == nil && len(out) > 0 && !bytes.ContainsAny(out, "123456789"), err
	}); err != nil {
		t.Fatal(err)
	}
}
