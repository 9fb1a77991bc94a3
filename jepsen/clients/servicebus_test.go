package clients

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/long"
)

// The rule of the namespace of "quorate dev --service-bus".
const busRule, busKey = "RootManageSharedAccessKey", "SAS_KEY_VALUE"

// busConnection returns the connection string for an address.
func busConnection(address string) string {
	return "Endpoint=sb://" + address + ";SharedAccessKeyName=" + busRule + ";SharedAccessKey=" + busKey + ";UseDevelopmentEmulator=true;"
}

// busToken makes a token for a resource, good for an hour.
func busToken(resource string) string {
	return tokenOf(busRule, busKey, resource, time.Now().Add(time.Hour))
}

// tokenOf makes a token of a rule, by its key.
func tokenOf(rule, key, resource string, end time.Time) string {
	resource, until := url.QueryEscape(resource), strconv.FormatInt(end.Unix(), 10)
	sum := hmac.New(sha256.New, []byte(key))
	sum.Write([]byte(resource + "\n" + until))
	signature := base64.StdEncoding.EncodeToString(sum.Sum(nil))
	return "SharedAccessSignature sr=" + resource + "&sig=" + url.QueryEscape(signature) + "&se=" + until + "&skn=" + rule
}

// busStep is a step of the programs over the SDKs of Azure Service Bus.
type busStep struct {
	name  string
	queue string // that it uses, without the prefix; empty: it creates what it needs
	more  string // elements of the queue's description
	kills bool   // of nodes
}

// session is the element of queues with sessions.
const session = "<RequiresSession>true</RequiresSession>"

var busPrograms = []struct {
	library
	steps []busStep
}{
	{library{"go", azureGo}, []busStep{
		{name: "connects", queue: "connects"}, {name: "sends", queue: "sends"}, {name: "settles", queue: "settles"}, {name: "dead-letters", queue: "dead-letters"},
		{name: "batches", queue: "batches"}, {name: "deletes", queue: "deletes"}, {name: "refusals", queue: "refusals"},
		{name: "peeks", queue: "peeks"}, {name: "renews", queue: "renews"}, {name: "defers", queue: "defers"},
		{name: "schedules", queue: "schedules"}, {name: "later", queue: "later"},
		{name: "sessions", queue: "sessions", more: session}, {name: "states", queue: "states-sessions", more: session},
		{name: "queues"}, {name: "topics"}, {name: "subscriptions"}, {name: "rules"}, {name: "strangers"},
		{name: "publishes"}, {name: "filters"}, {name: "lives"}, {name: "forwards"}, {name: "duplicates"}, {name: "statuses"},
		{name: "killed-settles", queue: "killed-settles", kills: true},
		{name: "killed-sessions", queue: "killed-sessions", more: "<LockDuration>PT15S</LockDuration>" + session, kills: true},
		{name: "killed-schedules", queue: "killed-schedules", kills: true},
		{name: "killed-publishes", kills: true},
	}},
	{library{"js", script(node, "@azure/service-bus", "servicebus.js")}, []busStep{
		{name: "settles", queue: "settles"}, {name: "deadLetters", queue: "deadLetters"}, {name: "batches", queue: "batches"},
		{name: "subscribes", queue: "subscribes"}, {name: "refusals", queue: "refusals"}, {name: "manages", queue: "manages"},
		{name: "sessions", queue: "sessions", more: session}, {name: "defers", queue: "defers"}, {name: "administers"}, {name: "rules"},
		{name: "killedSettles", queue: "killedSettles", kills: true},
		{name: "killedSessions", queue: "killedSessions", more: "<LockDuration>PT15S</LockDuration>" + session, kills: true},
		{name: "killedSchedules", queue: "killedSchedules", kills: true},
	}},
}

// azureGo builds the program over the SDK of Go, which is a module of its own.
func azureGo(ctx context.Context, dir string) (*exec.Cmd, error) {
	program := filepath.Join(dir, "azservicebus")
	build := exec.CommandContext(ctx, "go", "build", "-C", filepath.Join("testdata", "azservicebus"), "-o", program, ".")
	build.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, missing(fmt.Sprintf("azservicebus: %v %.500s", err, out))
	}
	return exec.CommandContext(ctx, program), nil
}

// TestServiceBus takes unmodified SDKs of Azure Service Bus through their steps on three nodes, each connected to a node that
// does not lead the queue. Some steps kill the queue's leader and the node of the program.
func TestServiceBus(t *testing.T) {
	b := mustStartBus(t, 2*limit)
	ctx := b.ctx
	for _, p := range busPrograms {
		t.Run(p.name, func(t *testing.T) {
			cmd, err := p.prepare(ctx, t.TempDir())
			if errors.As(err, new(missing)) {
				t.Skip(err)
			} else if err != nil {
				t.Fatal(err)
			}
			t.Run("steps", func(t *testing.T) {
				for _, s := range p.steps {
					if !s.kills {
						t.Run(s.name, func(t *testing.T) {
							t.Parallel()
							b.take(t, again(ctx, cmd), p.name+"-", s)
						})
					}
				}
			})
			for _, s := range p.steps {
				if s.kills {
					t.Run(s.name, func(t *testing.T) { b.take(t, again(ctx, cmd), p.name+"-", s) })
				}
			}
		})
	}
}

// bus is a cluster that serves programs of Azure Service Bus.
type bus struct {
	*cluster.Cluster
	ctx     context.Context
	killed  *cluster.Node // nil: all nodes run
	audited string        // file of the audit log of all nodes; empty: there is none
}

// mustStartBus starts three nodes for a test that runs beside others, and takes a time at most.
func mustStartBus(t *testing.T, limit time.Duration, args ...string) *bus {
	t.Helper()
	long.Test(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return &bus{Cluster: mustStart(t, ctx, append(args, "--service-bus")...), ctx: ctx}
}

// take runs a program for a step.
func (b *bus) take(t *testing.T, cmd *exec.Cmd, prefix string, s busStep) {
	at := b.Nodes[1]
	if s.queue != "" {
		b.mustCreate(t, prefix+s.queue, s.more)
		leader, err := b.Leader(b.ctx, prefix+s.queue)
		if err != nil {
			t.Fatal(err)
		}
		at = b.other(leader)
	}
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	var management []string
	for _, n := range b.Nodes {
		management = append(management, busConnection(n.Manage))
	}
	cert := filepath.Join(filepath.Dir(at.DataDir()), "certs", "servicebus.pem")
	cmd.Env = append(cmd.Environ(), "MANAGEMENT="+strings.Join(management, " "), "SSL_CERT_FILE="+cert, "NODE_EXTRA_CA_CERTS="+cert)
	cmd.Args = append(cmd.Args, busConnection(at.Bus), prefix, s.name)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		what, asked := strings.CutPrefix(lines.Text(), "do ")
		if !asked {
			said = append(said, lines.Text())
			continue
		}
		if err := b.do(at, what); err != nil {
			t.Errorf("%s: %v", what, err)
			_ = cmd.Process.Kill()
		}
		_, _ = io.WriteString(in, "\n")
	}
	if err := cmd.Wait(); err != nil || !slices.Equal(said, []string{"done " + s.name, "ok"}) {
		t.Errorf("%v: %q\n%s", err, said, complaints.String())
	}
	if s.kills {
		if err := b.restart(); err != nil {
			t.Fatal(err)
		}
	}
}

// other returns a node besides one.
func (b *bus) other(than *cluster.Node) *cluster.Node { return b.Nodes[than.Number%len(b.Nodes)] }

// do does what a program asks for that is connected to a node: kill QUEUE, the leader of the queue, which is made another
// node if it is that one; restart, the node that was killed; bounce, kill the program's own node and restart it.
func (b *bus) do(at *cluster.Node, what string) (err error) {
	switch what, queue, _ := strings.Cut(what, " "); what {
	case "kill":
		if b.killed, err = b.Leader(b.ctx, queue); err == nil && b.killed == at {
			b.killed = b.other(at)
			err = lead(b.ctx, b.Cluster, b.killed, queue)
		}
		if err == nil {
			err = b.killed.Kill(b.ctx)
		}
		return err
	case "restart":
		return b.restart()
	case "bounce":
		b.killed = at
		if err = at.Kill(b.ctx); err == nil {
			err = b.restart()
		}
		return err
	}
	return fmt.Errorf("unknown: %q", what)
}

// restart restarts the node that was killed, if there is one.
func (b *bus) restart() error {
	n := b.killed
	b.killed = nil
	if n == nil || n.Alive() {
		return nil
	}
	return errors.Join(n.Restart(), n.AwaitReady(b.ctx))
}

// mustCreate creates a queue over HTTP.
func (b *bus) mustCreate(t *testing.T, name, more string) {
	t.Helper()
	b.mustPut(t, name, "QueueDescription", more)
}

// mustPut creates something over HTTP: what an element says.
func (b *bus) mustPut(t *testing.T, name, element, inner string) {
	t.Helper()
	b.mustManage(t, b.Nodes[2], http.MethodPut, name, entry(element, inner), http.StatusCreated)
}

// mustChange changes something over HTTP, and mustDelete deletes it.
func (b *bus) mustChange(t *testing.T, name, element, inner string) {
	t.Helper()
	b.mustManage(t, b.Nodes[2], http.MethodPut, name, entry(element, inner), http.StatusOK)
}

func (b *bus) mustDelete(t *testing.T, name string) {
	t.Helper()
	b.mustManage(t, b.Nodes[2], http.MethodDelete, name, "", http.StatusOK)
}

func entry(element, inner string) string {
	const connect = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
	return `<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><` + element + ` xmlns="` + connect + `">` + inner + `</` + element + `></content></entry>`
}

// mustManage sends a request for administration to a node; status is that of its answer.
func (b *bus) mustManage(t *testing.T, at *cluster.Node, method, name, body string, status int) {
	t.Helper()
	address := "http://" + at.Manage + "/" + name
	r, err := http.NewRequestWithContext(b.ctx, method, address+"?api-version=2021-05", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", busToken(address))
	if method == http.MethodPut && status == http.StatusOK {
		r.Header.Set("If-Match", "*")
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != status {
		t.Fatalf("%s %s: %v, %s %s", method, name, err, answer.Status, text)
	}
}
