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

// registerNode gives a node its number, which it keeps, and its boot number,
// which is new for each process, and for a process whose boot was declared
// dead. What only an earlier boot could keep alive goes: the exclusive queues of
// its connections, and after another process the local queues, whose messages
// were in its memory.
//
// It performs RegisterNode. Refused: another identity than the one known; a
// program whose versions leave out the present one; a second process of a node
// in one entry, which would get the same boot number. A repeat with the same
// incarnation changes nothing, as its answer may have been lost, unless the
// boot was declared dead: then the process gets a new boot, and stays draining
// if it was. A node that the catalog does not know is taken in: whether it may
// join is the business of AdmitNode, and of those who let it speak.
//
// On return the record's boot is the index of the entry, and no exclusive queue
// is owned by an earlier boot of the node.
func (d *draft) registerNode(m *logpb.RegisterNode) (*logpb.CatalogResult, error) {
	if m.GetName() == "" || len(m.GetIncarnation()) == 0 {
		return nil, refuse(fsm.Internal, "a node needs a name and an incarnation")
	}
	node, known := d.NodeByName(m.GetName())
	switch {
	case known && len(node.Identity) > 0 && len(m.GetIdentity()) > 0 && !bytes.Equal(node.Identity, m.GetIdentity()):
		return nil, refuse(fsm.Internal, "node %s is already registered with another data folder", m.GetName())
	case known && bytes.Equal(node.Incarnation, m.GetIncarnation()) && !node.GetDead():
		return &logpb.CatalogResult{Node: node.Number, Boot: node.Boot}, nil
	case known && node.Boot == d.index:
		return nil, refuse(fsm.Internal, "node %s started twice in one entry", m.GetName())
	}
	if err := d.CheckVersions(m.GetName(), fsm.Announced(m)); err != nil {
		return nil, err
	}
	next := &logpb.NodeState{
		Name: m.GetName(), PeerAddress: m.GetPeerAddress(), Incarnation: m.GetIncarnation(), Boot: d.index, Identity: m.GetIdentity(),
		OldestVersion: m.GetOldestVersion(), NewestVersion: m.GetNewestVersion(),
	}
	if known {
		next.Number = node.Number
		if len(next.Identity) == 0 {
			next.Identity = node.Identity
		}
	} else {
		next.Number = d.newNumber()
	}
	again := known && bytes.Equal(node.Incarnation, m.GetIncarnation())
	next.Draining = again && node.GetDraining()
	d.nodes.put(next)
	if !again {
		d.proposals.forget(next.Number)
	}
	r := d.removeQueues(d.orphans(next.Number, next.Boot-1, !again))
	r.Changed, r.Node, r.Boot = true, next.Number, next.Boot
	return r, nil
}

// declareDead ends the present boot of a node, and with it all that only that
// boot could keep alive: its connections' exclusive queues and its local
// queues. It performs DeclareDead, and changes nothing unless m names the
// present boot: one that has ended twice, or was followed by another, is over
// already. Exclusive queues of earlier boots went when this one registered.
func (d *draft) declareDead(m *logpb.DeclareDead) (*logpb.CatalogResult, error) {
	node, known := d.NodeByName(m.GetName())
	if !known || node.GetBoot() == 0 || node.GetBoot() != m.GetBoot() || node.GetDead() {
		return &logpb.CatalogResult{}, nil
	}
	next := copyNode(node)
	next.Dead = true
	d.nodes.put(next)
	r := d.removeQueues(d.orphans(node.GetNumber(), node.GetBoot(), true))
	r.Changed = true
	return r, nil
}

// orphans returns the queues that end with the boots of a node up to boot: the
// exclusive ones of its connections, and if its memory is gone the local ones.
// They are ordered by id, as removeQueues requires. boot is included.
func (d *draft) orphans(number uint32, boot uint64, memory bool) []*Queue {
	return slices.DeleteFunc(d.EndingWith(fsm.NodeID(number)), func(q *Queue) bool {
		owned := q.Exclusive && q.Owner.Node == fsm.NodeID(number) && q.Owner.Boot <= boot
		return !owned && !(memory && q.Local && q.Home() == fsm.NodeID(number))
	})
}

// admitNode makes a node a member of the cluster, or gives a node that has
// lost its disk a new number.
//
// It performs AdmitNode. The node has boot 0 until it registers. A node that is
// known with the same identity keeps its number, and a token that it brings is
// used up all the same. One with another identity is removed first, which
// CheckRemoval may refuse: then the token is not used up.
func (d *draft) admitNode(m *logpb.AdmitNode) (*logpb.CatalogResult, error) {
	if m.GetName() == "" || len(m.GetIdentity()) == 0 {
		return nil, refuse(fsm.Internal, "a node needs a name and an identity")
	}
	r := &logpb.CatalogResult{Changed: true}
	old, known := d.NodeByName(m.GetName())
	tokens, err := d.joinTokens.after(m, d.clock, &d.nodes)
	if err != nil {
		return nil, err
	}
	if known && slices.Equal(old.GetIdentity(), m.GetIdentity()) {
		used := !tokens.equal(&d.joinTokens)
		d.joinTokens = tokens
		return &logpb.CatalogResult{Changed: used, Node: old.GetNumber(), Boot: old.GetBoot()}, nil
	}
	if known {
		if r, err = d.removeNode(old); err != nil {
			return nil, err
		}
	}
	d.joinTokens = tokens
	r.Node = d.newNumber()
	d.nodes.put(&logpb.NodeState{Number: r.Node, Name: m.GetName(), PeerAddress: m.GetPeerAddress(), Identity: m.GetIdentity()})
	return r, nil
}

// forgetNode removes a node; one that is not there is fine.
func (d *draft) forgetNode(m *logpb.ForgetNode) (*logpb.CatalogResult, error) {
	n, ok := d.NodeByName(m.GetName())
	if !ok {
		return &logpb.CatalogResult{}, nil
	}
	return d.removeNode(n)
}

// removeNode removes a node's record, its replicas, and the queues that lived
// on it alone because they are local or belong to one of its connections.
//
// Replicas move to leaving: their raft groups still count the node. The moved
// of the answer ascend by id, as Queues does. It is the one place where members
// can run out, so CheckRemoval comes first.
func (d *draft) removeNode(n *logpb.NodeState) (*logpb.CatalogResult, error) {
	number := fsm.NodeID(n.GetNumber())
	if err := d.CheckRemoval(n.GetName()); err != nil {
		return nil, err
	}
	ended := d.EndingWith(number)
	var moved []*Queue
	for q := range d.EachQueue() {
		if ends := q.ends(); ends[0] != number && ends[1] != number && slices.Contains(d.Members(q), number) {
			moved = append(moved, q)
		}
	}
	slices.SortFunc(moved, byAge)
	d.nodes.remove(n)
	d.proposals.forget(n.GetNumber())
	r := d.removeQueues(ended)
	r.Changed = true
	for _, q := range moved {
		if _, still := d.QueueByID(q.ID); !still {
			continue // it has gone with an exchange that only queues which ended were bound to
		}
		d.placements.leave(q, number)
		r.Moved = append(r.Moved, uint64(q.ID))
	}
	return r, nil
}

// NeedsOther reports whether a queue ends when one node is all that is left: it
// belongs to a connection to another one, or lives there alone.
func (q *Queue) NeedsOther(node fsm.NodeID) bool {
	return q.Exclusive && q.Owner.Node != node || q.Local && q.Home() != node
}

// recoverCluster makes one node the whole cluster. The other nodes go, and
// with them the queues that are on them alone because they are local, or belong
// to one of their connections. Every replicated queue has one member then, and
// grows again when nodes join: nobody is leaving, since no raft group holds any
// of them.
//
// It is never proposed, see Admit. The survivor keeps its number, its boot and
// its record; queues of its own connections stay, until it registers again.
func (d *draft) recoverCluster(m *logpb.RecoverCluster) (*logpb.CatalogResult, error) {
	survivor, known := d.NodeByName(m.GetName())
	if !known {
		return nil, refuse(fsm.NotFoundKind, "no node '%s'", m.GetName())
	}
	self := fsm.NodeID(survivor.GetNumber())
	var ended []*Queue
	for _, q := range d.Queues() {
		if q.NeedsOther(self) {
			ended = append(ended, q)
		}
	}
	for _, n := range d.Nodes() {
		if n.GetNumber() != survivor.GetNumber() {
			d.nodes.remove(n)
			d.proposals.forget(n.GetNumber())
		}
	}
	r := d.removeQueues(ended)
	r.Changed = true
	for _, q := range d.Queues() {
		if q.Local {
			continue
		}
		d.placements.recoverOn(q, self, slices.Contains(m.GetEmpty(), uint64(q.ID)))
		r.Moved = append(r.Moved, uint64(q.ID))
	}
	return r, nil
}

// setMembers changes where the replicas of a queue are to be.
func (d *draft) setMembers(m *logpb.SetMembers) (*logpb.CatalogResult, error) {
	q, ok := d.QueueByID(fsm.QueueID(m.GetQueue()))
	if !ok {
		return nil, refuse(fsm.NotFoundKind, "no queue with id %d", m.GetQueue())
	}
	return d.placements.change(q, m, &d.nodes)
}

// membersLeft notes that the raft group of a queue does without some nodes. A
// queue that is gone needs no note.
func (d *draft) membersLeft(m *logpb.MembersLeft) (*logpb.CatalogResult, error) {
	q, ok := d.QueueByID(fsm.QueueID(m.GetQueue()))
	if !ok {
		return &logpb.CatalogResult{}, nil
	}
	return d.placements.membersLeft(q, m), nil
}

// FSMVersion is the version of all machines: this one is of it, and the leaders
// of queues stamp it on their entries. It is 1 at first and only rises. It
// takes effect within the entry that raises it, for the commands behind. It
// does not change what Apply compares with the entry's own version, which was
// before.
func (s *clusterSettings) FSMVersion() uint32 { return uint32(s.Setting(FSMVersion)) }

// SnapshotVersion is the version of the catalog that s was taken from. It needs
// no Restore, so a program that is too old can tell before it fails.
func SnapshotVersion(s *logpb.CatalogSnapshot) uint32 {
	for _, row := range s.GetSettings() {
		if row.GetName() == FSMVersion {
			return uint32(row.GetValue())
		}
	}
	return 1
}

// CheckVersions refuses a node whose program cannot be of the present version.
func (s *clusterSettings) CheckVersions(node string, supported fsm.Versions) error {
	if now := s.FSMVersion(); !supported.Include(now) {
		return refuse(fsm.Precondition, "the cluster's fsm_version is %d, and node %s supports %s", now, node, supported)
	}
	return nil
}

// CommonVersion is the newest version that all nodes have announced, and the
// name of a node that announces no later one. Without a node it is 1. Nodes
// that are admitted and have not registered announce nothing and count as 1;
// dead ones count as they last were. least is the one with the smallest number
// if several announce the same.
func (ns *nodes) CommonVersion() (version uint32, least string) {
	version = 1
	for i, n := range ns.Nodes() {
		if newest := fsm.Announced(n).Newest; i == 0 || newest < version {
			version, least = newest, n.GetName()
		}
	}
	return version, least
}

// checkRaise refuses to set a version that is not above the present one, or
// that not all nodes support. The present version itself is allowed, and
// changes nothing.
func (s *clusterSettings) checkRaise(m *logpb.PutSetting, all *nodes) error {
	now := s.FSMVersion()
	common, least := all.CommonVersion()
	switch value := m.GetValue(); {
	case m.GetUnset() || value < int64(now):
		return refuse(fsm.Precondition, "cluster setting '%s' is %d and cannot be lowered", FSMVersion, now)
	case value > int64(now) && value > int64(common):
		return refuse(fsm.Precondition, "cluster setting '%s' cannot be %d: node '%s' supports no more than %d", FSMVersion, value, least, common)
	}
	return nil
}

// checkVersions: the processes that have registered support the present
// version.
func (ns *nodes) checkVersions(s *clusterSettings) error {
	for _, n := range ns.Nodes() {
		if n.GetBoot() == 0 {
			continue // it is admitted, and has to register
		}
		if err := s.CheckVersions(n.GetName(), fsm.Announced(n)); err != nil {
			return fmt.Errorf("node %d: %w", n.GetNumber(), err)
		}
	}
	return nil
}
