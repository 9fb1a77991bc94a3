package catalog

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/route"
	"github.com/quorate/quorate/proto/logpb"
)

// MaxProposals is how many numbers of a process lie between the oldest proposal whose answer it
// waits for and the newest.
const MaxProposals = 1024

// proposals are those that have been performed and may come once more: whoever proposes does not
// know whether an entry without an answer is lost, and proposes it again. The second time it is
// not performed, as others may have gone on from the first.
//
// Invariants: a proposer is a registered node; numbers ascend, from ≤ number < from + MaxProposals.
// A process that has gone, and a number below from, are no longer waited for: what still comes of
// them is not performed.
type proposals struct {
	// proposers: by the number of the node. Records are replaced, not changed.
	proposers route.Map[fsm.NodeID, *logpb.Proposer]
}

// AdmitProposal says why an entry of a node must not enter the log with its mark; nil: it may.
func AdmitProposal(p *logpb.Proposal, node string) error {
	switch {
	case p == nil:
		return nil
	case p.GetNode() != node:
		return refuse(fsm.Internal, "node '%s' proposes in the name of node '%s'", node, p.GetNode())
	case p.GetFrom() == 0 || p.GetNumber() < p.GetFrom() || p.GetNumber()-p.GetFrom() >= MaxProposals:
		return refuse(fsm.Internal, "no proposal has number %d from %d", p.GetNumber(), p.GetFrom())
	}
	return nil
}

// AdmittedApart is the version of the machines from which on a command that is not admitted keeps no other one
// of its entry out.
const AdmittedApart = 3

// NotAdmitted takes the place of a command in an entry that has others, which are admitted. It is answered with
// err, which says why, whoever leads when the answer is lost and the entry is proposed again.
func NotAdmitted(err error) *logpb.CatalogCommand {
	r := Refuse(err)
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_NotAdmitted{NotAdmitted: &logpb.NotAdmitted{Refusal: r.Refusal, Text: r.Text}}}
}

// notAdmitted performs NotAdmitted: it changes nothing. Of version 2 there is none.
func (s *clusterSettings) notAdmitted(m *logpb.NotAdmitted) error {
	if kind := fsm.Kind(m.GetRefusal()); s.FSMVersion() >= AdmittedApart && kind != 0 {
		return &fsm.Refusal{Kind: kind, Text: m.GetText()}
	}
	return refuse(fsm.Internal, "unknown catalog command")
}

// answered finds the answers to a proposal that has been performed.
func (ps *proposals) answered(p *logpb.Proposal, all *nodes) (results []*logpb.CatalogResult, ok bool) {
	node, ok := proposing(p, all)
	if !ok {
		return nil, false
	}
	performed := ps.proposers.At(node).GetAnswered()
	at, ok := slices.BinarySearchFunc(performed, p.GetNumber(), byNumber)
	if !ok {
		return nil, false
	}
	return performed[at].GetResults(), true
}

func byNumber(a *logpb.Answered, number uint64) int { return cmp.Compare(a.GetNumber(), number) }

// proposing finds the node whose present process has made a proposal.
func proposing(p *logpb.Proposal, all *nodes) (fsm.NodeID, bool) {
	node, known := all.NodeByName(p.GetNode())
	if !known || node.GetBoot() == 0 || !bytes.Equal(node.GetIncarnation(), p.GetIncarnation()) {
		return 0, false
	}
	return fsm.NodeID(node.GetNumber()), true
}

// begin reports whether the commands of an entry, of which there are so many, are not to be
// performed, and the answers to them.
func (ps *proposals) begin(p *logpb.Proposal, all *nodes, commands int) (results []*logpb.CatalogResult, repeated bool) {
	if p == nil {
		return nil, false
	}
	over := func(why string) ([]*logpb.CatalogResult, bool) {
		return slices.Repeat([]*logpb.CatalogResult{{Refusal: uint32(fsm.Internal), Text: why}}, commands), true
	}
	node, ok := proposing(p, all)
	if !ok {
		return over("the process that has proposed this is over")
	}
	if AdmitProposal(p, p.GetNode()) != nil || p.GetNumber() < ps.proposers.At(node).GetFrom() {
		return over("nobody waits for this proposal")
	}
	if results, repeated = ps.answered(p, all); repeated && len(results) != commands {
		return over("another proposal has this number")
	}
	return results, repeated
}

// performed notes the answers to a proposal that begin has let through. A process that its own
// entry has ended proposes nothing more.
func (ps *proposals) performed(p *logpb.Proposal, all *nodes, results []*logpb.CatalogResult) {
	node, ok := proposing(p, all)
	if p == nil || !ok {
		return
	}
	was := ps.proposers.At(node)
	next := &logpb.Proposer{Node: uint32(node), From: max(was.GetFrom(), p.GetFrom())}
	for _, a := range was.GetAnswered() {
		if a.GetNumber() >= next.From {
			next.Answered = append(next.Answered, a)
		}
	}
	at, _ := slices.BinarySearchFunc(next.Answered, p.GetNumber(), byNumber)
	next.Answered = slices.Insert(next.Answered, at, &logpb.Answered{Number: p.GetNumber(), Results: withoutLists(results)})
	ps.proposers = ps.proposers.With(node, next)
}

// withoutLists leaves out what is for those who apply an entry and not for the one who proposes it.
func withoutLists(results []*logpb.CatalogResult) []*logpb.CatalogResult {
	kept := make([]*logpb.CatalogResult, len(results))
	for i, r := range results {
		kept[i] = &logpb.CatalogResult{
			Refusal: r.Refusal, Text: r.Text, Changed: r.Changed, Queue: r.Queue, Group: r.Group, Node: r.Node, Boot: r.Boot, Adopted: r.Adopted,
		}
	}
	return kept
}

// forget forgets the process of a node, which is over.
func (ps *proposals) forget(node uint32) { ps.proposers = ps.proposers.Without(fsm.NodeID(node)) }

// list lists the proposers, ascending by node.
func (ps *proposals) list() []*logpb.Proposer {
	return sorted(ps.proposers, func(a, b *logpb.Proposer) int { return cmp.Compare(a.Node, b.Node) })
}

// textsApart is the version of the machines from which on View.Hash leaves the texts of answers out.
const textsApart = 3

// withoutTexts is a list of proposers whose answers say what they are, and not in which words: another
// release of the program may have others.
func withoutTexts(list []*logpb.Proposer) []*logpb.Proposer {
	bare := make([]*logpb.Proposer, len(list))
	for i, p := range list {
		bare[i] = &logpb.Proposer{Node: p.Node, From: p.From}
		for _, a := range p.Answered {
			results := withoutLists(a.Results)
			for _, r := range results {
				r.Text = ""
			}
			bare[i].Answered = append(bare[i].Answered, &logpb.Answered{Number: a.Number, Results: results})
		}
	}
	return bare
}

// save is the section of the proposals in a snapshot, and restore its inverse.
func (ps *proposals) save(to *logpb.CatalogSnapshot) {
	to.Proposers = ps.list()
}

func (ps *proposals) restore(from *logpb.CatalogSnapshot) {
	for _, p := range from.GetProposers() {
		ps.proposers = ps.proposers.With(fsm.NodeID(p.GetNode()), p)
	}
}

func (ps *proposals) describe(b *strings.Builder) {
	for _, p := range ps.list() {
		fmt.Fprintf(b, "proposals of node %d from %d:", p.Node, p.From)
		for _, a := range p.Answered {
			fmt.Fprintf(b, " %d", a.Number)
		}
		b.WriteString("\n")
	}
}

func (ps *proposals) check(all *nodes) error {
	for node, p := range ps.proposers.All() { // det: any broken one will do
		if n, known := all.Node(node); !known || n.GetBoot() == 0 || p.GetNode() != uint32(node) || p.GetFrom() == 0 {
			return fmt.Errorf("proposals of node %d, which stands under %d, from %d", p.GetNode(), node, p.GetFrom())
		}
		last := p.GetFrom() - 1
		for _, a := range p.GetAnswered() {
			if a.GetNumber() <= last || a.GetNumber()-p.GetFrom() >= MaxProposals {
				return fmt.Errorf("proposal %d of node %d after %d, from %d", a.GetNumber(), node, last, p.GetFrom())
			}
			last = a.GetNumber()
		}
	}
	return nil
}
