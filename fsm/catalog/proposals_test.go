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
