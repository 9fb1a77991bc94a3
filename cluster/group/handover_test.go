package group

import (
	"errors"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/replica"
)

// Who asks for a move that cannot succeed, or that has just failed, stops nothing by that.
func TestMoveIsRefused(t *testing.T) {
	c := mustTrio(t, patientRaft)
	g := c.mustOpen(1)[0]
	to, term := c.other(g), g.Term()
	for _, nobody := range []string{"n9", g.in().Node()} {
		if err := g.Transfer(nobody); !errors.Is(err, replica.ErrNotHandedOver) || !g.MayMove() {
			t.Errorf("a move to %s: %v", nobody, err)
		}
	}
	g.in().MoveEnded(replica.ErrNotHandedOver)
	g.in().proposer.mu.Lock() // it would be needed to refuse commands
	err := g.Transfer(to.config.Node)
	g.in().proposer.mu.Unlock()
	if !errors.Is(err, replica.ErrNotHandedOver) || g.Leading() != term {
		t.Errorf("a move after one that has failed: %v", err)
	}
	g.in().MoveEnded(nil)
	if err := g.Transfer(to.config.Node); err != nil {
		t.Error(err)
	}
	await(t, "the other one leads", func() bool { return to.Group(1).Leading() == term+1 })
}

// lacks reports whether a member was not told to stand because it lacks entries.
func lacks(err error) bool {
	return errors.Is(err, replica.ErrNotHandedOver) && strings.Contains(err.Error(), "lacks entries")
}

// A member that lacks entries gets them before it is told to stand: it would lose, and cost a term.
func TestMoveWaitsForTheLog(t *testing.T) {
	c := mustTrio(t, patientRaft)
	g := c.mustOpen(1)[0]
	term := g.Term()
	behind := c.other(g)
	behind.mesh.DropGroup(1)
	behind.mesh.Transport(1) // of which nothing is taken
	mustSubmit(t, g, enqueues(1, -1, "m"))
	await(t, "the message", func() bool { return ready(g) == 1 })
	if err := g.Transfer(behind.config.Node); !lacks(err) || g.Leading() != term || g.MayMove() {
		t.Errorf("a move to one that lacks an entry: %v; term %d leads, it was %d", err, g.Leading(), term)
	}
	c.mustServe(1, 2)
}
