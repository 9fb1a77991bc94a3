package group

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A move that has failed is not tried again at once, and each time later; one that succeeds makes up for all
// of them.
func TestMovesRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h handover
		if h.rests() > 0 {
			t.Error("a first attempt is refused")
		}
		for _, pause := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
			h.failed()
			if got := h.rests(); got != pause*time.Second {
				t.Errorf("the next attempt is refused for %v, want %v s", got, pause)
			}
			time.Sleep(pause * time.Second)
			if h.rests() > 0 {
				t.Errorf("it is still refused after %v s", pause)
			}
		}
		h.succeeded()
		h.failed()
		if got := h.rests(); got != firstMovePause {
			t.Errorf("after a success it begins with %v", got)
		}
	})
}

// Who asks for a move that cannot succeed, or that has just failed, stops nothing by that.
func TestMoveIsRefused(t *testing.T) {
	c := mustTrio(t, patientRaft)
	g := c.mustOpen(1)[0]
	to, term := c.other(g), g.Term()
	for _, nobody := range []string{"n9", g.node} {
		if err := g.Transfer(nobody); !errors.Is(err, ErrNotHandedOver) || g.handover.rests() > 0 {
			t.Errorf("a move to %s: %v", nobody, err)
		}
	}
	g.handover.failed()
	g.proposer.mu.Lock() // it would be needed to refuse commands
	err := g.Transfer(to.config.Node)
	g.proposer.mu.Unlock()
	if !errors.Is(err, ErrNotHandedOver) || g.Leading() != term {
		t.Errorf("a move after one that has failed: %v", err)
	}
	g.handover.succeeded()
	if err := g.Transfer(to.config.Node); err != nil {
		t.Error(err)
	}
	await(t, "the other one leads", func() bool { return to.Group(1).Leading() == term+1 })
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
	if err := g.Transfer(behind.config.Node); !errors.Is(err, ErrNotHandedOver) || g.Leading() != term || g.handover.rests() <= 0 {
		t.Errorf("a move to one that lacks an entry: %v; term %d leads, it was %d", err, g.Leading(), term)
	}
	c.mustServe(1, 2)
}
