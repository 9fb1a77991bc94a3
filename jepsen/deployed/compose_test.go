package deployed

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/internal/await"
)

var composed = flag.Bool("deployed.compose", false, "run TestCompose: docker and docker-compose, or docker compose, are there, and the image is loaded")

const (
	password = "of a test"
	// messages are published, and a node is killed when half of them are confirmed.
	messages = 4000
	limit    = 5 * time.Minute
)

// ports are those of AMQP over TLS on the host, by node.
var ports = []int{5671, 5673, 5675}

// stack is what compose.yaml starts.
type stack struct {
	*testing.T
	ctx   context.Context
	words []string // of docker-compose
	tls   *tls.Config
}

func (s *stack) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *stack) run(name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(s.ctx, name, args...)
	cmd.Env = append(os.Environ(), "QUORATE_PASSWORD="+password)
	out, err := cmd.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, failed.Stderr)
	}
	return out, err
}

func (s *stack) compose(args ...string) ([]byte, error) {
	return s.run(s.words[0], append(s.words[1:], args...)...)
}

// words begin a command of a project, whose file is below deploy.
func words(project string, file ...string) []string {
	words := []string{"docker-compose"}
	if _, err := exec.LookPath(words[0]); err != nil {
		words = []string{"docker", "compose"}
	}
	return append(words, "-p", project, "-f", filepath.Join(append([]string{"..", "..", "deploy"}, file...)...))
}

// down ends all containers, and their volumes. If the test has failed it shows their logs.
func (s *stack) down() {
	if s.Failed() {
		logs, _ := s.compose("logs", "--tail", "50")
		s.Logf("%s", logs)
	}
	if _, err := s.compose("down", "-v", "-t", "30"); err != nil {
		s.Error(err)
	}
}

func mustCompose(t *testing.T) *stack {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	s := &stack{T: t, ctx: ctx, words: words("quorate-test", "compose.yaml")}
	t.Cleanup(cancel)
	t.Cleanup(s.down)
	_, err := s.compose("up", "-d")
	s.must(err)
	for n := range ports {
		s.awaitHealth(n)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(s.file(0, "/etc/quorate/certs/ca.pem")) {
		t.Fatal("no authority in the volume")
	}
	s.tls = &tls.Config{RootCAs: roots}
	return s
}

// container is that of a node.
func (s *stack) container(n int) string {
	s.Helper()
	id, err := s.compose("ps", "-q", fmt.Sprint("n", n+1))
	s.must(err)
	return strings.TrimSpace(string(id))
}

// awaitHealth waits until the image's own health check says that a node is well.
func (s *stack) awaitHealth(n int) {
	s.Helper()
	id := s.container(n)
	s.must(await.Until(s.ctx, 200*time.Millisecond, fmt.Sprintf("node %d to be healthy", n+1), func() (bool, error) {
		status, err := s.run("docker", "inspect", "-f", "{{.State.Health.Status}}", id)
		return strings.TrimSpace(string(status)) == "healthy", err
	}))
}

// file reads a file of a node's container.
func (s *stack) file(n int, path string) []byte {
	s.Helper()
	packed, err := s.run("docker", "cp", s.container(n)+":"+path, "-")
	s.must(err)
	r := tar.NewReader(bytes.NewReader(packed))
	_, err = r.Next()
	s.must(err)
	text, err := io.ReadAll(r)
	s.must(err)
	return text
}

// dial connects to a node, whose certificate must have its name.
func (s *stack) dial(n int) (*amqp.Connection, error) {
	config := s.tls.Clone()
	config.ServerName = fmt.Sprint("n", n+1)
	return amqp.DialConfig(fmt.Sprintf("amqps://127.0.0.1:%d/", ports[n]), amqp.Config{
		SASL: []amqp.Authentication{&amqp.PlainAuth{Username: "operator", Password: password}}, TLSClientConfig: config, Heartbeat: 5 * time.Second,
	})
}

// publish publishes until all are confirmed, at the next node after each failure, and
// reports each confirm.
func (s *stack) publish(queue string, confirmed func(n int)) error {
	next, ends := 0, 0
	for {
		err := s.publishAt(ends%len(ports), queue, &next, confirmed)
		if err == nil || s.ctx.Err() != nil {
			return errors.Join(err, s.ctx.Err())
		}
		ends++
		select {
		case <-s.ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (s *stack) publishAt(node int, queue string, next *int, confirmed func(n int)) error {
	conn, err := s.dial(node)
	if err != nil {
		return err
	}
	defer conn.CloseDeadline(time.Now().Add(time.Second))
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := ch.Confirm(false); err != nil {
		return err
	}
	for ; *next < messages; *next++ {
		c, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: fmt.Append(nil, *next)})
		if err != nil {
			return err
		}
		if ok, err := c.WaitContext(s.ctx); err != nil || !ok {
			return errors.Join(err, errors.New("no confirm"))
		}
		confirmed(*next)
	}
	return nil
}

// Three containers on one host: AMQP over TLS works, and `docker kill` of the node that
// the publisher uses loses nothing that was confirmed.
func TestCompose(t *testing.T) {
	if !*composed {
		t.Skip("needs -deployed.compose")
	}
	s := mustCompose(t)
	conn, err := s.dial(1)
	s.must(err)
	defer conn.Close()
	ch, err := conn.Channel()
	s.must(err)
	const queue = "orders"
	_, err = ch.QueueDeclare(queue, true, false, false, false, nil)
	s.must(err)
	half, published := make(chan struct{}), make(chan error, 1)
	go func() {
		published <- s.publish(queue, func(n int) {
			if n == messages/2 {
				close(half)
			}
		})
	}()
	select {
	case <-half:
	case err := <-published:
		t.Fatalf("publishing ends: %v", err)
	}
	_, err = s.run("docker", "kill", s.container(0))
	s.must(err)
	s.must(<-published)
	deliveries, err := ch.Consume(queue, "", true, false, false, false, nil)
	s.must(err)
	seen := map[string]int{}
	for len(seen) < messages {
		select {
		case d, ok := <-deliveries:
			if !ok {
				t.Fatal("the consumer has ended")
			}
			seen[string(d.Body)]++
		case <-s.ctx.Done():
			t.Fatalf("%d of %d confirmed messages come", len(seen), messages)
		}
	}
	_, err = s.run("docker", "start", s.container(0))
	s.must(err)
	s.awaitHealth(0)
	twice := 0
	for _, n := range seen {
		twice += n - 1
	}
	t.Logf("%d messages confirmed, a node killed with SIGKILL: 0 lost, %d came twice after their publisher had no confirm", messages, twice)
}
