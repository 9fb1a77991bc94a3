package catalog

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/quorate/quorate/proto/logpb"
)

// proposal is the mark of an entry of a script; nil: it has none.
func (s *script) proposal(d *datadriven.TestData) *logpb.Proposal {
	var mark string
	if d.MaybeScanArgs(s.t, "proposal", &mark); mark == "" {
		return nil
	}
	p := &logpb.Proposal{}
	node, rest, _ := strings.Cut(mark, "/")
	incarnation, numbers, _ := strings.Cut(rest, "/")
	p.Node, p.Incarnation = node, []byte(incarnation)
	if _, err := fmt.Sscanf(numbers, "%d/%d", &p.Number, &p.From); err != nil {
		s.t.Fatalf("%s: %q is no proposal: %v", d.Pos, mark, err)
	}
	return p
}

// The leader lets no node propose in another's name, nor under a number that nobody would keep.
func TestAdmitProposal(t *testing.T) {
	for _, x := range []struct {
		p    *logpb.Proposal
		may  bool
		what string
	}{
		{nil, true, "no mark"},
		{&logpb.Proposal{Node: "n1", Number: 1, From: 1}, true, "first"},
		{&logpb.Proposal{Node: "n1", Number: MaxProposals + 6, From: 7}, true, "as far as it goes"},
		{&logpb.Proposal{Node: "n1", Number: MaxProposals + 7, From: 7}, false, "too far"},
		{&logpb.Proposal{Node: "n1", Number: 1, From: 2}, false, "given up"},
		{&logpb.Proposal{Node: "n1", Number: 1}, false, "from nothing"},
		{&logpb.Proposal{Node: "n2", Number: 1, From: 1}, false, "of another node"},
	} {
		if err := AdmitProposal(x.p, "n1"); (err == nil) != x.may {
			t.Errorf("%s: %v", x.what, err)
		}
	}
}

// Replicas whose programs give the same answer in other words are in the same state; those that give other
// answers are not. Before version 3, programs compare the words as well.
func TestWordsOfAnswers(t *testing.T) {
	for _, version := range []int64{1, 2, 3} {
		c := &Catalog{}
		c.Apply(1, &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{
			{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{Name: "n", Incarnation: []byte("i"), OldestVersion: 1, NewestVersion: 3}}},
			{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: FSMVersion, Value: version}}},
		}})
		mark := &logpb.Proposal{Node: "n", Incarnation: []byte("i"), Number: 1, From: 1}
		given := c.Apply(2, &logpb.CatalogEntry{Version: 1, Proposal: mark, Commands: []*logpb.CatalogCommand{
			{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: "none"}}},
		}})
		if given[0].GetText() == "" {
			t.Fatalf("version %d: %v", version, given)
		}
		// changed is the hash of a replica with another answer.
		changed := func(change func(*logpb.CatalogResult)) Hash {
			s := mustReload(t, c).Snapshot()
			change(s.Proposers[0].Answered[0].Results[0])
			other, err := Restore(s)
			if err != nil {
				t.Fatal(err)
			}
			return other.Hash()
		}
		reworded := changed(func(r *logpb.CatalogResult) { r.Text = "there is none" })
		if same := reworded == c.Hash(); same != (version >= 3) {
			t.Errorf("version %d: in other words the same state: %v", version, same)
		}
		if changed(func(r *logpb.CatalogResult) { r.Refusal++ }) == c.Hash() {
			t.Errorf("version %d: another answer is the same state", version)
		}
		if again, ok := mustReload(t, c).View().Answered(mark); !ok || again[0].GetText() != given[0].GetText() {
			t.Errorf("version %d: who asks again is answered %v", version, again)
		}
	}
}
