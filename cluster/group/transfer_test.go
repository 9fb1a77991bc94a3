package group

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm/queue"
)

// A leader that goes on after a transfer that came to nothing goes on with all
// of it: what was due meanwhile expires, and settings that have changed
// meanwhile are taken up.
func TestGoesOnAfterFailedTransfer(t *testing.T) {
	c := mustTrio(t, patientRaft)
	g := c.mustOpen(1)[0]
	n, deaf := c.host(g), c.other(g)
	mustSubmit(t, g, enqueues(1, 1, "short", "lives"))
	n.outside.await(t, "answers", func() bool { return answered(n.outside.outcomes) == 2 })
	expire(t, g)

	mustSubmit(t, g, enqueues(3, 500, "longer", "lives"))
	n.outside.await(t, "answers", func() bool { return answered(n.outside.outcomes) == 4 })
	g.in().proposer.transfer(true) // as Transfer does at its beginning
	awaitAnswer(t, "the ticker has woken the group", func() bool { return !g.node.Ticker.Has(&g.in().timer) })
	if ready(g) != 2 {
		t.Fatal("a leader that yields has proposed a tick")
	}
	g.spec.Config.DeliveryLimit, g.spec.Config.Revision = 7, 2
	n.Reconfigure(nil)
	deaf.mesh.DropGroup(1)
	deaf.mesh.Transport(1) // of which nothing is taken
	if err := g.Transfer(deaf.config.Node); !errors.Is(err, replica.ErrNotHandedOver) || g.in().leadership.transferring.Load() {
		t.Fatalf("a transfer to one whose raft hangs: %v", err)
	}
	expire(t, g)
	awaitAnswer(t, "the settings are those of the catalog", func() (yes bool) {
		g.View(func(m *queue.Machine) { yes = m.Config().DeliveryLimit == 7 && m.Config().Revision == 2 })
		return yes
	})
}

// awaitAnswer waits until it is yes.
func awaitAnswer(t *testing.T, what string, yes func() bool) {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for !yes() {
		select {
		case <-limit.C:
			t.Fatalf("not in time: %s", what)
		default:
			runtime.Gosched()
		}
	}
}
