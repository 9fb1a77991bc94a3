package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/quorate/quorate/jepsen/internal/await"
)

// drainPath is the path of a drain, the only request that may take longer than
// httpTimeout.
const drainPath = "/api/quorate/drain"

// drainTimeout bounds a drain for the caller of the API.
const drainTimeout = 90 * time.Second

// Drained is the result of a drain for the leaderships of a node.
type Drained struct {
	Moved int `json:"moved"`
	Left  int `json:"left"`
}

// Drain disconnects a node's clients and moves its leaderships to other nodes.
func (n *Node) Drain(ctx context.Context) (d Drained, err error) {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	return d, n.Call(ctx, http.MethodPost, drainPath, nil, &d)
}

// Revive ends a drain.
func (n *Node) Revive(ctx context.Context) error {
	return n.Call(ctx, http.MethodPost, "/api/quorate/revive", nil, nil)
}

// Critical reports whether a queue would lose its majority with the node.
func (n *Node) Critical(ctx context.Context) (bool, error) {
	status, body, err := n.Do(ctx, http.MethodGet, "/api/health/checks/node-is-quorum-critical", nil)
	switch {
	case err != nil:
		return false, err
	case status != http.StatusOK && status != http.StatusServiceUnavailable:
		return false, fmt.Errorf("node %d: node-is-quorum-critical: %d: %.200s", n.Number, status, body)
	}
	return status != http.StatusOK, nil
}

// AwaitQuorumPlusOne waits until every node can be stopped without a queue losing its
// majority.
func (c *Cluster) AwaitQuorumPlusOne(ctx context.Context) error {
	for _, n := range c.Nodes {
		err := await.Until(ctx, poll, fmt.Sprintf("queues not to need node %d", n.Number), func() (bool, error) {
			critical, err := n.Critical(ctx)
			return err == nil && !critical, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Roll restarts every node in turn, each when no queue needs it. A node is drained and
// stopped in order, or killed.
func (c *Cluster) Roll(ctx context.Context, kill bool) error {
	for _, n := range c.Nodes {
		if err := c.AwaitQuorumPlusOne(ctx); err != nil {
			return err
		}
		if err := n.Cycle(ctx, kill); err != nil {
			return fmt.Errorf("node %d: %w", n.Number, err)
		}
	}
	return c.AwaitQuorumPlusOne(ctx)
}

// Cycle drains and stops a node, or kills it, starts it again and waits until
// it is ready.
func (n *Node) Cycle(ctx context.Context, kill bool) error {
	if err := n.stopOrKill(ctx, kill); err != nil {
		return err
	}
	if err := n.Restart(); err != nil {
		return err
	}
	return n.AwaitReady(ctx)
}

// firstWord is the program in a Node's Command.
var firstWord = regexp.MustCompile(`^('[^']*'|\S+)`)

// Use makes the node's next start run another server program, with these arguments more
// than it was first started with.
func (n *Node) Use(binary string, more ...string) {
	if n.first == "" {
		n.first = n.Command
	}
	n.Command = firstWord.ReplaceAllLiteralString(n.first, "'"+binary+"'")
	for _, word := range more {
		n.Command += " '" + word + "'"
	}
}

// AwaitExit waits until a process that Restart started has ended by itself, and returns
// its exit code.
func (n *Node) AwaitExit(ctx context.Context) (code int, err error) {
	select {
	case <-n.ended:
		return n.child.ProcessState.ExitCode(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("waiting for process %d to end: %w", n.PID, ctx.Err())
	}
}

func (n *Node) stopOrKill(ctx context.Context, kill bool) error {
	if kill {
		return n.Kill(ctx)
	}
	if _, err := n.Drain(ctx); err != nil {
		return err
	}
	return n.Shutdown(ctx)
}

// DataDir is the node's data folder.
func (n *Node) DataDir() string {
	return filepath.Join(n.dir, "data", "n"+strconv.Itoa(n.Number))
}

// settingsFile is where quorate dev keeps the settings of a node: they are no data.
const settingsFile = "quorate.conf"

// LoseData removes all that is in the data folder of a node that has stopped, but for its settings.
func (n *Node) LoseData() error {
	parts, err := os.ReadDir(n.DataDir())
	if err != nil {
		return err
	}
	for _, p := range parts {
		if p.Name() != "lost+found" && p.Name() != settingsFile { // the former is the filesystem's own
			err = errors.Join(err, os.RemoveAll(filepath.Join(n.DataDir(), p.Name())))
		}
	}
	return err
}

// AwaitWhole waits until every replica on all nodes may vote, and no queue needs any node.
func (c *Cluster) AwaitWhole(ctx context.Context) error {
	for _, n := range c.Nodes {
		err := await.Until(ctx, poll, fmt.Sprintf("node %d to have what it acknowledged", n.Number), func() (bool, error) {
			doubts, err := n.Metric(ctx, "quorate_replicas_unproven")
			return err == nil && doubts == 0, err
		})
		if err != nil {
			return err
		}
	}
	return c.AwaitQuorumPlusOne(ctx)
}

// Recover turns the node, which has stopped, into the whole cluster, or, without the
// argument --yes, shows what would be lost. tool is quoratectl, in the same folder as
// the server's program. Recover returns its output.
func (n *Node) Recover(ctx context.Context, tool string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, tool, append([]string{"recover", "--data-dir", n.DataDir()}, args...)...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("recover: %w\n%s", err, out)
	}
	return string(out), nil
}

// Name is the node's name in the cluster.
func (n *Node) Name() string { return nodeName(n.Number) }

// Forget removes a node that has stopped from the cluster, as soon as the others have
// noticed that it has.
func (c *Cluster) Forget(ctx context.Context, n *Node) error {
	return await.Until(ctx, poll, "to forget "+n.Name(), func() (bool, error) {
		for _, other := range c.Nodes {
			if other == n || !other.Alive() {
				continue
			}
			err := other.Call(ctx, http.MethodDelete, "/api/nodes/"+n.Name(), nil, nil)
			return err == nil, err
		}
		return false, errors.New("no other node is up")
	})
}

// Regrow gives every queue a replica on a node, and waits until the cluster is whole.
func (c *Cluster) Regrow(ctx context.Context, n *Node) error {
	err := await.Until(ctx, poll, "replicas on "+n.Name(), func() (bool, error) {
		err := n.Call(ctx, http.MethodPost, "/api/queues/quorum/replicas/on/"+n.Name()+"/grow", map[string]string{"strategy": "all"}, nil)
		return err == nil, err
	})
	if err != nil {
		return err
	}
	return c.AwaitWhole(ctx)
}

// movedBy is how far the ports of a node are moved that gets another address.
const movedBy = 5

// Move gives a node that is stopped another loopback address and other ports, which it has from its
// next start on. The lists of the other nodes stay as they are.
func (c *Cluster) Move(n *Node, host string) {
	at := func(listener int) string {
		return net.JoinHostPort(host, strconv.Itoa(c.base+portOffsets[listener]+n.Number-1+movedBy))
	}
	n.AMQP, n.HTTP = at(0), at(1)
	n.Command += listenersAt(at(0), at(1), at(2), at(3)) + fmt.Sprintf("'--set=cluster_formation.classic_config.nodes.%d=%s@%s' ", n.Number, nodeName(n.Number), at(3))
}

func listenersAt(amqp, http, metrics, peers string) string {
	return fmt.Sprintf(" '--set=listeners.tcp.default=%s' '--set=management.tcp.listener=%s' '--set=prometheus.tcp.listener=%s' '--set=cluster.listener=%s' ", amqp, http, metrics, peers)
}

// Pretend starts a node that has the name, the command line and the address for other nodes of a
// stopped one, but an empty data folder and a certificate of another authority. Clients reach it at
// another loopback address. It is not among the cluster's nodes.
func (c *Cluster) Pretend(n *Node, host string) (*Node, error) {
	dir := filepath.Join(c.dir, "pretends")
	authority, err := NewAuthority(filepath.Join(dir, "data", certsFolder))
	if err != nil {
		return nil, err
	}
	name := nodeName(n.Number)
	if err := authority.CertifyNode(name); err != nil {
		return nil, err
	}
	other := &Cluster{dir: dir}
	at := func(listener int) string {
		return net.JoinHostPort(host, strconv.Itoa(c.base+portOffsets[listener]+n.Number-1))
	}
	p := &Node{Number: n.Number, AMQP: at(0), HTTP: at(1), dir: dir}
	p.Command = n.Command + listenersAt(at(0), at(1), at(2), c.at(3, n.Number)) +
		fmt.Sprintf("'--data-dir' '%s' '--set=log.file=%s' ", p.DataDir(), filepath.Join(p.DataDir(), "quorate.log"))
	for _, setting := range other.certificateOf(name) {
		p.Command += "'" + setting + "' "
	}
	return p, p.Restart()
}
