package peer

import (
	"errors"
	"syscall"
	"testing"
	"time"
)

// A node that withdraws is down for the others at once, and they for it,
// however long it would take to suspect it. It stays so, although the
// others dial, until it returns.
func TestWithdraw(t *testing.T) {
	onBoth(t, func(t *testing.T, tcp bool) {
		c := newCluster(t, tcp, 3, func(cfg *Config) { cfg.SuspectAfter = time.Hour })
		c.startAll(nil)
		n1, n2, n3 := c.members["n1"], c.members["n2"], c.members["n3"]
		first := mustEvent(t, n1, isUp("n2"), "up")
		for range 2 {
			n2.Withdraw()
			n2.Withdraw()
			for _, other := range []*member{n1, n3} {
				if ev := mustEvent(t, other, isDown("n2"), "down"); ev.Reason != Withdrawn || ev.Epoch < first.Epoch {
					t.Errorf("%+v", ev)
				}
				mustWait(t, func() bool { return !n2.Alive(other.name) }, "%s is up", other.name)
			}
			if n2.HasMajority([]string{"n1", "n2", "n3"}) || !n1.HasMajority([]string{"n1", "n2", "n3"}) {
				t.Error("the majority is with the node that has withdrawn")
			}
			// The others dial it again and again, and it dials nobody.
			p := n1.peer("n2")
			for range 3 {
				if _, err := p.dial(p.address()); !hasWithdrawn(err) {
					t.Errorf("a node that has withdrawn answers: %v", err)
				}
			}
			if n1.Alive("n2") || n2.Alive("n1") || n3.peer("n2").streamFrom() != nil {
				t.Error("it is alive again")
			}
			n2.Return()
			n2.Return()
			if up := mustEvent(t, n1, isUp("n2"), "up again"); up.Epoch <= first.Epoch {
				t.Errorf("after %+v came %+v", first, up)
			}
			mustEvent(t, n3, isUp("n2"), "up again")
			mustWait(t, func() bool { return n2.Alive("n1") && n2.Alive("n3") }, "the others are not up again")
		}
	})
}

// A node that is about to end refuses whoever dials.
func TestRefuse(t *testing.T) {
	c := newCluster(t, true, 2, nil)
	c.startAll(nil)
	n1 := c.members["n1"]
	mustEvent(t, n1, isUp("n2"), "up")
	c.members["n2"].Withdraw()
	c.members["n2"].Refuse()
	mustWait(t, func() bool {
		_, err := n1.peer("n2").dial(&address{name: c.addrs["n2"]}, 0)
		return errors.Is(err, syscall.ECONNREFUSED)
	}, "the node is not refused")
	mustWait(t, func() bool { return n1.RefusedFor("n2") > 0 }, "no evidence that it has ended")
}
