package group

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/proto/logpb"
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
			h.ended(errUnderWay)
			if got := h.rests(); got != pause*time.Second {
				t.Errorf("the next attempt is refused for %v, want %v s", got, pause)
			}
			time.Sleep(pause * time.Second)
			if h.rests() > 0 {
				t.Errorf("it is still refused after %v s", pause)
			}
		}
		h.ended(nil)
		h.ended(errUnderWay)
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
	for _, nobody := range []string{"n9", g.Node()} {
		if err := g.Transfer(nobody); !errors.Is(err, ErrNotHandedOver) || g.handover.rests() > 0 {
			t.Errorf("a move to %s: %v", nobody, err)
		}
	}
	g.handover.ended(errUnderWay)
	g.proposer.mu.Lock() // it would be needed to refuse commands
	err := g.Transfer(to.config.Node)
	g.proposer.mu.Unlock()
	if !errors.Is(err, ErrNotHandedOver) || g.Leading() != term {
		t.Errorf("a move after one that has failed: %v", err)
	}
	g.handover.ended(nil)
	if err := g.Transfer(to.config.Node); err != nil {
		t.Error(err)
	}
	await(t, "the other one leads", func() bool { return to.Group(1).Leading() == term+1 })
}

// lacks reports whether a member was not told to stand because it lacks entries.
func lacks(err error) bool {
	return errors.Is(err, ErrNotHandedOver) && strings.Contains(err.Error(), "lacks entries")
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
	if err := g.Transfer(behind.config.Node); !lacks(err) || g.Leading() != term || g.handover.rests() <= 0 {
		t.Errorf("a move to one that lacks an entry: %v; term %d leads, it was %d", err, g.Leading(), term)
	}
	c.mustServe(1, 2)
}

// The leadership of the catalog moves in one term while definitions are made: what is proposed meanwhile waits.
func TestCatalogMoves(t *testing.T) {
	t.Parallel()
	c := mustCatalogs(t)
	mustDefine(t, c.all[0], "first")
	lead := c.mustLead()
	from, to := c.all[lead], c.all[(lead+1)%3]
	term, _ := from.LeadsIn()
	entry, err := logpb.Marshal(&logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: "v"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	from.handover.moving.Store(true)
	for _, of := range []*Catalog{from, to} {
		if _, _, err := of.attempt(t.Context(), entry, true); err == nil || !strings.Contains(err.Error(), ErrTransferring.Error()) {
			t.Errorf("%s, while the leadership moves: %v", of.Node(), err)
		}
	}
	if err := from.Transfer(to.Node()); !errors.Is(err, errUnderWay) {
		t.Errorf("a second move: %v", err)
	}
	from.handover.moving.Store(false)
	from.handover.ended(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, name := range []string{"second", "third", "fourth"} {
			mustDefine(t, c.all[(lead+2)%3], name)
		}
	}()
	if err := from.Transfer(to.Node()); err != nil {
		t.Error(err)
	}
	<-done
	await(t, "the other one leads", func() bool { now, leads := to.LeadsIn(); return leads && now == term+1 })
	if err := from.Transfer(to.Node()); !errors.Is(err, ErrNotLeading) {
		t.Errorf("who does not lead hands over: %v", err)
	}
}

// A member of the catalog that does not get what it lacks is not told to stand, and the leader goes on.
func TestCatalogMoveWaitsForTheLog(t *testing.T) {
	t.Parallel()
	c := mustCatalogs(t)
	mustDefine(t, c.all[0], "first")
	lead := c.mustLead()
	from, behind := c.all[lead], (lead+1)%3
	term, _ := from.LeadsIn()
	c.ends[behind]()
	c.hosts[behind].mesh.Transport(CatalogGroup) // of which nothing is taken
	mustDefine(t, from, "second")
	if err := from.Transfer(trioNames[behind]); !lacks(err) || from.MayMove() {
		t.Errorf("a move to one that lacks an entry: %v", err)
	}
	if now, leads := from.LeadsIn(); !leads || now != term {
		t.Errorf("it leads: %v, in term %d, which was %d", leads, now, term)
	}
	mustDefine(t, from, "third")
}
