package jepsen

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/nemesis"
)

var (
	powerLosses  = flag.Int("jepsen.powerlosses", 2, "how often TestPowerLoss takes the power from all nodes at once, and how often from one")
	unsynced     = flag.Bool("jepsen.unsynced", false, "the nodes confirm entries that are not synced; TestPowerLoss must fail")
	powerControl = flag.Bool("jepsen.powercontrol", false, "TestPowerLossControl: it is not run otherwise")
)

// withoutSync is the fault of the control experiment: entries are confirmed that are in
// the log's buffers alone.
var withoutSync = cluster.Change{
	File: "cluster/raftlog/group.go",
	Old:  "g.s.syncer.sync(&w)\n\tg.awaitDurable()\n\tend := g.appended", New: "g.awaitDurable()\n\tend := g.appended",
}

// Power is taken from all nodes at once, and from single ones, in the middle of the
// traffic: what was not synced is gone. Everything that was confirmed is there, and
// nodes recover without a hand.
func TestPowerLoss(t *testing.T) {
	t.Parallel()
	limit := 2*time.Minute + time.Duration(*powerLosses)*20*time.Second
	if *unsynced {
		limit = 30 * time.Second // nodes that know what they lack wait for ever
	}
	r := mustStartWith(t, limit, cluster.Options{Disks: true})
	if err := r.NoDisks(); err != nil {
		t.Skip(err)
	}
	all := nemesis.PowerLoss()
	turn := 0
	one := nemesis.PowerLossOf("power loss of one", func(ctx context.Context, c *cluster.Cluster) ([]*cluster.Node, error) {
		if turn++; turn%2 == 0 {
			return c.Nodes[turn/2%3 : turn/2%3+1], nil
		}
		n, err := nemesis.AwaitLeader(ctx, c, "orders", nil)
		return []*cluster.Node{n}, err
	})

	r.mustFlowWhile(1000, 512, func(ctx context.Context) error {
		for i := range *powerLosses {
			for _, f := range []nemesis.Fault{all, one} {
				if err := r.awaitConfirms(ctx, 150+37*i%300); err != nil {
					return err
				}
				if err := f.Run(ctx, r.Cluster, r.History); err != nil {
					return fmt.Errorf("%s: %w", f.Name, err)
				}
			}
		}
		return r.awaitConfirms(ctx, 100)
	})
	if n := len(r.Faults); n < 4**powerLosses {
		t.Errorf("%d losses of power", n)
	}
}

// TestPowerLossControl takes the power from nodes that confirm before they sync: the
// disks must forget. Either a confirmed message is lost, or the nodes know themselves
// that they lack what they have acknowledged, and serve nobody.
func TestPowerLossControl(t *testing.T) {
	if !*powerControl {
		t.Skip("builds nodes of its own: -jepsen.powercontrol")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	report := t.TempDir()
	out, err := exec.CommandContext(ctx, os.Args[0], "-test.run", "^TestPowerLoss$", "-test.v", "-jepsen.unsynced", "-jepsen.filesystem", *onDisks, "-jepsen.report", report).CombinedOutput()
	lost, known := strings.Count(string(out), " lost: "), 0
	logs, globErr := filepath.Glob(filepath.Join(report, "*", "*.log"))
	for _, name := range logs {
		text, readErr := os.ReadFile(name)
		known += strings.Count(string(text), "cannot prove what it acknowledged")
		globErr = errors.Join(globErr, readErr)
	}
	t.Logf("%d problems with lost messages, %d replicas that lack what they acknowledged", lost, known)
	if err == nil || globErr != nil || lost+known == 0 {
		t.Errorf("%v, %v: nothing is lost without syncing:\n%s", err, globErr, out)
	}
}

// TestWithoutSyncFits finds what the control experiment changes.
func TestWithoutSyncFits(t *testing.T) {
	if _, _, err := withoutSync.Apply(); err != nil {
		t.Error(err)
	}
}
