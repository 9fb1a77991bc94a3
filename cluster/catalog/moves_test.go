package catalog

import (
	"errors"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/proto/logpb"
)

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

// lacks reports whether a member was not told to stand because it lacks entries.
func lacks(err error) bool {
	return errors.Is(err, replica.ErrNotHandedOver) && strings.Contains(err.Error(), "lacks entries")
}
