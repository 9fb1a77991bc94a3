package jepsen

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/workload"
)

// before is the program before this one.
var before = flag.String("jepsen.before", "", "commit or tag of the version before, for TestUpgrade, which builds it; empty: the server under test is both versions")

// upgradeQueues is the number of queues that are in use during an upgrade.
const upgradeQueues = 20

// program is a server, and arguments that it gets besides those of the node.
type program struct {
	name, binary string
	more         []string
}

// The fsm_versions of the program before, and of this one.
const (
	versionBefore = 1
	versionNow    = 3
)

// supporting makes a server built with the options for tests say that it supports no
// fsm_version behind one; 0: that it supports what it does.
func supporting(version int) []string {
	return []string{"--unsafe-test-options", fmt.Sprint("--set=unsafe.test_fsm_version=", version)}
}

// The nodes of a cluster get another program one by one while messages flow, and the one
// before again: nothing confirmed is lost, and at no time is nothing confirmed for more than
// a second. Queues that are declared on the way are there for whoever uses them first, two
// exchanges later or at the end. With the last node that supports the next fsm_version it rises, and then a
// program that does not support it is refused and leaves its data as it was.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	old := mustBuildBefore(t)
	held, this := program{"this one, held back", binary, supporting(versionBefore)}, program{"this one", binary, supporting(0)}
	r := mustStartWith(t, 5*time.Minute, cluster.Options{Binary: old.binary, Args: old.more, Awake: true})
	u := &upgrading{run: r}
	r.mustKeepWhile("upgraded", upgradeQueues, rollRate, false, func() error { return u.upgrade(old, held, this) })
}

// upgrading is a run whose nodes get other programs.
type upgrading struct {
	*run
	declared int      // queues, one after the other
	unused   []string // those that nobody has used yet
}

// mustBuildBefore returns the version before.
func mustBuildBefore(t *testing.T) program {
	t.Helper()
	if *before == "" {
		return program{"this one, held back as if it were the one before", binary, supporting(versionBefore)}
	}
	built, err := cluster.BuildRevision(t.Context(), t.TempDir(), *before)
	if errors.Is(err, cluster.ErrNoRevision) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return program{*before, built, nil}
}

// upgrade takes a cluster of nodes with the old program up, down, and up to the fsm_version
// of this program, which is held back before it goes down. Between programs that are the same
// it takes only one node down again.
func (r *upgrading) upgrade(old, held, this program) error {
	down := r.Nodes[1:2]
	if old.binary != held.binary {
		if err := r.exchange(held, versionBefore, r.Nodes...); err != nil {
			return err
		}
		down = r.Nodes
	} else if err := r.exchange(this, versionBefore, r.Nodes[:2]...); err != nil {
		return err
	}
	if err := r.exchange(old, versionBefore, down...); err != nil {
		return err
	}
	last := len(r.Nodes) - 1
	if err := r.exchange(this, versionBefore, r.Nodes[:last]...); err != nil {
		return err
	}
	if err := r.exchange(this, versionNow, r.Nodes[last]); err != nil {
		return err
	}
	if err := r.awaitConfirms(r.ctx, rollRate); err != nil { // of that version
		return err
	}
	if err := r.refuse(old, this); err != nil {
		return err
	}
	return workload.Use(r.ctx, r.Nodes[1].URI(), r.unused...)
}

// declareUnused declares one more queue through each node, and uses the oldest ones.
func (r *upgrading) declareUnused() error {
	const exchanges = 2
	for _, n := range r.Nodes {
		name := fmt.Sprint("unused-", r.declared)
		if err := workload.Declare(r.ctx, n.URI(), workload.Queue{Name: name}); err != nil {
			return err
		}
		r.declared++
		if r.unused = append(r.unused, name); len(r.unused) > exchanges*len(r.Nodes) {
			if err := workload.Use(r.ctx, n.URI(), r.unused[0]); err != nil {
				return err
			}
			r.unused = r.unused[1:]
		}
	}
	return nil
}

// exchange gives nodes another program, one by one, each when no queue needs it. After
// each, the cluster is at a version.
func (r *upgrading) exchange(to program, version int, nodes ...*cluster.Node) error {
	for _, n := range nodes {
		if err := r.AwaitQuorumPlusOne(r.ctx); err != nil {
			return err
		}
		n.Use(to.binary, to.more...)
		healed := r.Fault("drain", n.Number)
		if err := n.Cycle(r.ctx, false); err != nil {
			return fmt.Errorf("node %d, %s: %w", n.Number, to.name, err)
		}
		healed()
		if err := r.awaitConfirms(r.ctx, rollRate); err != nil {
			return err
		}
		if err := r.awaitVersion(version); err != nil {
			return fmt.Errorf("node %d, %s: %w", n.Number, to.name, err)
		}
		if err := r.speak(version); err != nil {
			return fmt.Errorf("after node %d got %s: %w", n.Number, to.name, err)
		}
		if err := r.declareUnused(); err != nil {
			return fmt.Errorf("after node %d got %s: %w", n.Number, to.name, err)
		}
	}
	return nil
}

// The headers of AMQP 1.0, as a login begins with it, and of 0-9-1.
const (
	header10  = "AMQP\x03\x01\x00\x00"
	header091 = "AMQP\x00\x00\x09\x01"
)

// speaksSince is the fsm_version from which on nodes speak AMQP 1.0: then all of them can read its messages.
const speaksSince = 3

// speak checks that all nodes, whenever they were started, speak AMQP 1.0 if the version allows it, and only then.
func (r *run) speak(version int) error {
	want := header091
	if version >= speaksSince {
		want = header10
	}
	for _, n := range r.Nodes {
		if got, err := answer(r.ctx, n.AMQP, header10); err != nil || got != want {
			return fmt.Errorf("node %d answers the header of AMQP 1.0 with %q, want %q; %v", n.Number, got, want, err)
		}
	}
	return nil
}

// answer sends a protocol header and returns the node's.
func answer(ctx context.Context, addr, header string) (string, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if by, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(by); err != nil {
			return "", err
		}
	}
	if _, err := io.WriteString(conn, header); err != nil {
		return "", err
	}
	got := make([]byte, len(header))
	n, err := io.ReadFull(conn, got)
	return string(got[:n]), err
}

// awaitVersion waits until all nodes know the cluster to be of a version, which must not
// be lower than the one that it is of.
func (r *run) awaitVersion(want int) error {
	return await.Until(r.ctx, 20*time.Millisecond, fmt.Sprint("fsm_version ", want), func() (bool, error) {
		for _, n := range r.Nodes {
			var s struct {
				Version int `json:"fsm_version"`
			}
			if err := n.Call(r.ctx, "GET", "/api/quorate/status", nil, &s); err != nil || s.Version != want {
				return false, errors.Join(err, fmt.Errorf("node %d knows fsm_version %d", n.Number, s.Version))
			}
		}
		return true, nil
	})
}

// tooOld is the exit code of a program that does not support the cluster's fsm_version.
const tooOld = 76

// refuse starts a node with a program that is too old, and then with its own again.
func (r *run) refuse(old, this program) error {
	if err := r.AwaitQuorumPlusOne(r.ctx); err != nil {
		return err
	}
	n := r.Nodes[0]
	defer r.Fault("drain", n.Number)()
	if _, err := n.Drain(r.ctx); err != nil {
		return err
	}
	if err := n.Shutdown(r.ctx); err != nil {
		return err
	}
	n.Use(old.binary, old.more...)
	if err := n.Restart(); err != nil {
		return err
	}
	code, err := n.AwaitExit(r.ctx)
	if err != nil {
		return err
	}
	if code != tooOld || !n.SaidLine(fmt.Sprintf("the cluster's fsm_version is %d, ", versionNow), "supports") {
		r.Errorf("%s in a cluster of version %d: exit code %d, want %d with a sentence in its log", old.name, versionNow, code, tooOld)
	}
	n.Use(this.binary, this.more...)
	if err := n.Restart(); err != nil {
		return err
	}
	if err := n.AwaitReady(r.ctx); err != nil {
		return err
	}
	if n.SaidLine("a replica is damaged") || n.SaidLine("cannot prove what") {
		r.Errorf("%s has changed the data of node %d", old.name, n.Number)
	}
	return r.awaitVersion(versionNow)
}
