package group

import (
	"errors"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/proto/logpb"
)

// Who asks for a move that cannot succeed, or that has just failed, stops nothing by that.
func TestMoveIsRefused(t *testing.T) {
	c := mustTrio(t, patientRaft)
	g := c.mustOpen(1)[0]
	to, term := c.other(g), g.Term()
	for _, nobody := range []string{"n9", g.Node()} {
		if err := g.Transfer(nobody); !errors.Is(err, replica.ErrNotHandedOver) || !g.MayMove() {
			t.Errorf("a move to %s: %v", nobody, err)
		}
	}
	g.MoveEnded(replica.ErrNotHandedOver)
	g.proposer.mu.Lock() // it would be needed to refuse commands
	err := g.Transfer(to.config.Node)
	g.proposer.mu.Unlock()
	if !errors.Is(err, replica.ErrNotHandedOver) || g.Leading() != term {
		t.Errorf("a move after one that has failed: %v", err)
	}
	g.MoveEnded(nil)
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
	end, err := from.BeginMove()
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range []*Catalog{from, to} {
		if _, _, err := of.attempt(t.Context(), entry, true); err == nil || !strings.Contains(err.Error(), replica.ErrTransferring.Error()) {
			t.Errorf("%s, while the leadership moves: %v", of.Node(), err)
		}
	}
	if err := from.Transfer(to.Node()); !errors.Is(err, replica.ErrNotHandedOver) || !strings.Contains(err.Error(), "under way") {
		t.Errorf("a second move: %v", err)
	}
	end()
	from.MoveEnded(nil)
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
	if err := from.Transfer(to.Node()); !errors.Is(err, replica.ErrNotLeading) {
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
	c.hosts[behind].mesh.Transport(replica.CatalogGroup) // of which nothing is taken
	mustDefine(t, from, "second")
	if err := from.Transfer(trioNames[behind]); !lacks(err) || from.MayMove() {
		t.Errorf("a move to one that lacks an entry: %v", err)
	}
	if now, leads := from.LeadsIn(); !leads || now != term {
		t.Errorf("it leads: %v, in term %d, which was %d", leads, now, term)
	}
	mustDefine(t, from, "third")
}
