package catalog

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/route"
	"github.com/quorate/quorate/proto/logpb"
)

// nodes are the members of the cluster.
//
// Invariants:
//
//	both maps hold the same records, each under its own number, or name
//	1 ≤ number ≤ lastNumber: no number is given twice
//	boot ≤ index of the last entry; 0: the node is admitted and has not registered
//
// A node is in three states: admitted (boot = 0), registered (boot > 0), dead
// (registered, and its boot was declared dead). A snapshot holds the records by
// number, and the next number; the maps are built from them.
type nodes struct {
	// numbered: by number
	numbered route.Map[fsm.NodeID, *logpb.NodeState]
	// named: by name; a name has one record, though it may have had several
	// numbers
	named route.Map[string, *logpb.NodeState]
	// lastNumber: 0: none was
	lastNumber uint32 // given last
}

// Node finds a node by number.
func (ns *nodes) Node(number fsm.NodeID) (*logpb.NodeState, bool) { return ns.numbered.Get(number) }

// NodeByName finds a node by name.
func (ns *nodes) NodeByName(name string) (*logpb.NodeState, bool) { return ns.named.Get(name) }

// Nodes returns the nodes by number. It sorts, so that what is chosen among
// them is the same on every replica.
func (ns *nodes) Nodes() []*logpb.NodeState {
	return sorted(ns.numbered, func(a, b *logpb.NodeState) int { return cmp.Compare(a.Number, b.Number) })
}

// IsNew reports whether a node's number is not given yet, as far as the view
// goes. A number that is neither new nor a node's is that of a node that has
// gone. A view that is behind may call a number new that has been given since.
func (ns *nodes) IsNew(n fsm.NodeID) bool { return uint32(n) > ns.lastNumber }

// nextNumber is the number that another node will get, and newNumber gives it.
func (ns *nodes) nextNumber() uint32 { return ns.lastNumber + 1 }

func (ns *nodes) newNumber() uint32 {
	ns.lastNumber++
	return ns.lastNumber
}

// put adds a node, or replaces its record. Requires: 1 ≤ n.Number ≤ lastNumber.
// A record of the same name must have the same number, or it stays in numbered:
// remove it first, as admitNode does. n belongs to the catalog from then on.
func (ns *nodes) put(n *logpb.NodeState) {
	ns.numbered = ns.numbered.With(fsm.NodeID(n.Number), n)
	ns.named = ns.named.With(n.Name, n)
}

// remove removes a node. Its number is not given again. Requires: n is the
// record in the catalog. What its node held is the caller's.
func (ns *nodes) remove(n *logpb.NodeState) {
	ns.numbered = ns.numbered.Without(fsm.NodeID(n.GetNumber()))
	ns.named = ns.named.Without(n.GetName())
}

// setDraining marks a node that is about to stop, or takes the mark away. A new
// process of the node begins without it. It performs SetDraining, for nodes
// that have not registered, too.
func (ns *nodes) setDraining(m *logpb.SetDraining) (*logpb.CatalogResult, error) {
	node, known := ns.NodeByName(m.GetName())
	switch {
	case !known:
		return nil, refuse(fsm.NotFoundKind, "no node '%s'", m.GetName())
	case node.GetDraining() == m.GetDraining():
		return &logpb.CatalogResult{}, nil
	}
	next := copyNode(node)
	next.Draining = m.GetDraining()
	ns.put(next)
	return &logpb.CatalogResult{Changed: true}, nil
}

// save is the section of the nodes in a snapshot, and restore its inverse.
func (ns *nodes) save(to *logpb.CatalogSnapshot) {
	to.Nodes, to.NextNode = ns.Nodes(), ns.nextNumber()
}

func (ns *nodes) restore(from *logpb.CatalogSnapshot) {
	ns.lastNumber = max(from.GetNextNode(), 1) - 1
	for _, n := range from.GetNodes() {
		ns.put(n)
	}
}

func (ns *nodes) describe(b *strings.Builder) {
	for _, n := range ns.Nodes() {
		fmt.Fprintf(b, "node %d %s peer=%s boot=%d incarnation=%q%s%s\n", n.Number, n.Name, n.PeerAddress, n.Boot, n.Incarnation,
			identityText(n)+versionsText(n), flags([]string{"draining", "dead"}, n.Draining, n.Dead))
	}
}

// check gets the index of the last entry.
func (ns *nodes) check(index uint64) error {
	if ns.numbered.Len() != ns.named.Len() {
		return fmt.Errorf("%d nodes, %d by name", ns.numbered.Len(), ns.named.Len())
	}
	for number, n := range ns.numbered.All() {
		if fsm.NodeID(n.GetNumber()) != number || number == 0 || n.GetNumber() > ns.lastNumber || n.GetBoot() > index || ns.named.At(n.GetName()) != n {
			return fmt.Errorf("node %q has number %d under %d, boot %d", n.GetName(), n.GetNumber(), number, n.GetBoot())
		}
	}
	return nil
}

// copyNode returns a record that may be changed: the one in the catalog is
// shared with its views. Its byte slices are shared with n: they must be
// replaced, not written to.
func copyNode(n *logpb.NodeState) *logpb.NodeState {
	return &logpb.NodeState{
		Number: n.Number, Name: n.Name, PeerAddress: n.PeerAddress, Incarnation: n.Incarnation, Boot: n.Boot,
		Draining: n.Draining, Identity: n.Identity, OldestVersion: n.OldestVersion, NewestVersion: n.NewestVersion, Dead: n.Dead,
	}
}
