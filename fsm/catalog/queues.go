package catalog

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/route"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	reserved = "amq."
	// GeneratedPrefix starts the names that brokers make for queues without
	// a name.
	GeneratedPrefix = "amq.gen-"
	maxName         = fsm.MaxShort
)

// Owner is the connection that an exclusive queue belongs to. The zero Owner is
// that of a queue which is not exclusive.
type Owner struct {
	// Node: the node that the client is connected to
	Node fsm.NodeID
	// Boot is the node's boot in which the connection was opened; connections
	// are numbered anew in each
	Boot uint64
	// Connection: its number on the node, within the boot
	Connection uint64
}

func ownerFrom(p *logpb.Owner) Owner {
	return Owner{Node: fsm.NodeID(p.GetNode()), Boot: p.GetBoot(), Connection: p.GetConnection()}
}

// Proto returns o in its log form. The result is new.
func (o Owner) Proto() *logpb.Owner {
	return &logpb.Owner{Node: uint32(o.Node), Boot: o.Boot, Connection: o.Connection}
}

// Queue is the record of a queue.
//
// It never changes after it was created: policies, members and settings are
// kept beside it, under its ID, so that they can change without replacing the
// record in the tables of all exchanges bound to it. All fields are derived
// from the declaration, ID and Group, which are what a snapshot holds.
//
// Invariants: Exclusive ⇒ ¬Durable; Exclusive ⇔ Owner ≠ zero; ID and Group are
// unique among the queues there are, and Group ≥ 1; Local ⇒
// len(declaredMembers) = 1.
type Queue struct {
	// ID is the index of the entry that created it · 65536 + a number within
	// the entry. No other queue ever has it, not even a later one of the same
	// name.
	ID fsm.QueueID
	// Group is the number of its raft group; it may be used again after the
	// queue is gone
	Group     fsm.GroupID
	VHost     string
	Name      string
	Durable   bool // never for an exclusive queue
	Exclusive bool
	// AutoDelete: the queue machine acts on it; the catalog only keeps and
	// compares it
	AutoDelete bool
	Local      bool // one member, log in memory
	Classic    bool // has the defaults of a classic queue, see classicKind
	Hold       bool // nobody may take its messages
	Groups     logpb.QueueConfig_Groups
	// Arguments: as declared, those without a meaning included; nil: none
	Arguments *fsm.Table
	Owner     Owner // zero unless exclusive
	// PartOf is what the queue is deleted with, besides by itself; zero: nothing.
	PartOf endpoint
	// StoreOf is the exchange whose delayed messages the queue holds; empty: it
	// is a client's.
	StoreOf string

	// declaredMembers: not empty, except in the temporary queue of
	// LeaderLocator
	declaredMembers []fsm.NodeID // the preferred leader first; see View.Members
}

// MemberNames are the names of the nodes that hold the queue's replicas.
func (q *Queue) MemberNames(v *View) []string {
	var names []string
	for _, m := range v.Members(q) {
		if n, ok := v.Node(m); ok {
			names = append(names, n.Name)
		}
	}
	return names
}

// String names the queue as texts for clients do.
func (q *Queue) String() string { return resource("queue", q.VHost, q.Name) }

// locked is the refusal of a queue that belongs to another connection.
func (q *Queue) locked() error {
	return refuse(fsm.Locked, "cannot obtain exclusive access to locked %s. It could be originally declared on another "+
		"connection or the exclusive property value does not match that of the original declaration.", q)
}

// CheckOwner refuses the use of an exclusive queue by another connection than
// its own. A queue that is not exclusive is open to every connection. Apply
// never calls it: the log does not record which connection a command is from.
func (q *Queue) CheckOwner(o Owner) error {
	if q.Exclusive && q.Owner != o {
		return q.locked()
	}
	return nil
}

func noQueue(vhost, name string) error {
	return refuse(fsm.NotFoundKind, "no %s", resource(kindQueue, vhost, name))
}

func noVhost(name string) error { return refuse(fsm.NotAllowed, "vhost %s not found", name) }

// maxNamePrefix is the longest prefix of a generated name, in bytes.
const maxNamePrefix = 64

// NamePrefix returns how the name of a queue begins that was declared without
// one. given is false if the arguments do not say so.
func NamePrefix(args *fsm.Table) (prefix string, given bool, err error) {
	v := lookup(args, "x-name-prefix")
	if v == nil {
		return GeneratedPrefix, false, nil
	}
	prefix, ok := text(v)
	switch {
	case !ok:
		return "", true, refuse(fsm.Precondition, "invalid arg 'x-name-prefix': %s", unacceptableType(v))
	case len(prefix) > maxNamePrefix:
		return "", true, refuse(fsm.Precondition, "Queue name prefix '%s' exceeds the %d-byte limit", prefix, maxNamePrefix)
	}
	return prefix, true, nil
}

// mayBeGenerated reports whether a broker may have made the name of a queue.
func (cs *clusterSettings) mayBeGenerated(name string) bool {
	return strings.HasPrefix(name, GeneratedPrefix) || strings.HasPrefix(name, fsm.DynamicPrefix) && cs.FSMVersion() >= 3
}

// checkName refuses names that are empty or no short strings, in bytes.
func checkName(kind, name string) error {
	if name == "" || len(name) > maxName {
		return refuse(fsm.Precondition, "%s names must have 1 to %d bytes", kind, maxName)
	}
	return nil
}

// newQueue makes the record of a queue from a declare that has been checked.
//
// m is completed: an exclusive queue is never durable, another one has no owner.
// Its arguments stay in the record. It neither enters the queue anywhere nor
// takes an id. Requires: id and group are new to the catalog, or both 0 in a
// temporary queue.
func newQueue(m *logpb.DeclareQueue, id fsm.QueueID, group fsm.GroupID) *Queue {
	q := &Queue{
		ID: id, Group: group, VHost: m.GetVhost(), Name: m.GetName(),
		Durable: m.GetDurable() && !m.GetExclusive(), Exclusive: m.GetExclusive(), AutoDelete: m.GetAutoDelete(),
		Local: m.GetLocal(), Classic: m.GetClassic(),
		Hold:      lookup(m.GetArguments(), holdArgument).GetInt() != 0,
		Groups:    groupsOf(m.GetArguments()),
		Arguments: m.GetArguments(), StoreOf: m.GetStoreOf(), PartOf: partOf(m),
		declaredMembers: nodeIDs(m.GetMembers()),
	}
	if q.Exclusive {
		q.Owner = ownerFrom(m.GetOwner())
	}
	return q
}

// declaration is what newQueue makes q from. The result is new, but for the
// arguments.
func (q *Queue) declaration() *logpb.DeclareQueue {
	m := &logpb.DeclareQueue{
		Vhost: q.VHost, Name: q.Name, Durable: q.Durable, Exclusive: q.Exclusive, AutoDelete: q.AutoDelete,
		Arguments: q.Arguments, Local: q.Local, StoreOf: q.StoreOf, Classic: q.Classic,
		PartOf: q.PartOf.name, PartOfExchange: q.PartOf.isExchange,
	}
	for _, n := range q.declaredMembers {
		m.Members = append(m.Members, uint32(n))
	}
	if q.Exclusive {
		m.Owner = q.Owner.Proto()
	}
	return m
}

// alike is what most queues have in common.
type alike struct {
	vhost     string
	arguments *fsm.Table
	members   []fsm.NodeID
}

// maxAlike bounds how many kinds of queues share what they have in common. Then
// all are forgotten.
const maxAlike = 1024

// share has a new queue share what one before it has as well. It is no part of
// the state: a catalog that was restored shares other things.
func (qs *queueIndex) share(q *Queue) {
	kind := string(encoded(&logpb.DeclareQueue{Vhost: q.VHost, Arguments: q.Arguments, Members: q.declaration().Members}))
	have, known := qs.alike.Get(kind)
	if !known {
		if qs.alike.Len() >= maxAlike {
			qs.alike = route.Map[string, alike]{}
		}
		qs.alike = qs.alike.With(kind, alike{q.VHost, q.Arguments, q.declaredMembers})
		return
	}
	q.VHost, q.Arguments, q.declaredMembers = have.vhost, have.arguments, have.members
}

// RequiresGroup reports whether q takes only messages that have a group.
func (q *Queue) RequiresGroup() bool {
	return q.Groups != logpb.QueueConfig_NO_GROUPS && lookup(q.Arguments, "x-group-required").GetInt() != 0
}

// GroupOf returns the group of a message in q, of whose name the first 255 bytes
// count; empty: it has none. property reads the properties of the message, and is
// called only if the queue has groups.
func (q *Queue) GroupOf(property func(name string) []byte) string {
	switch q.Groups {
	case logpb.QueueConfig_BY_APP_ID:
		return fsm.Cut(string(property(PropertyAppID)), fsm.MaxGroup)
	case logpb.QueueConfig_BY_HEADER:
		return fsm.Cut(string(property(PropertyGroup)), fsm.MaxGroup)
	}
	return ""
}

// declareQueue creates a queue, or finds the one that is there.
//
// It performs DeclareQueue. The answer names the queue even if it existed and
// is equivalent, or the vhost tolerates that it is not; then it may adopt the
// arguments of m. An exclusive queue of another owner is refused as locked.
// Permissions are not checked: the log does not record the user.
func (d *draft) declareQueue(m *logpb.DeclareQueue) (*logpb.CatalogResult, error) {
	q, err := d.checkDeclareQueue(noAccess, m, d.mayBeGenerated(m.GetName()))
	if err != nil {
		return nil, err
	}
	if q != nil {
		r := &logpb.CatalogResult{Queue: uint64(q.ID), Group: uint32(q.Group)}
		d.adopt(q, m, r)
		return r, nil
	}
	if m.GetStoreOf() != "" {
		return nil, refuse(fsm.Internal, "%s would be a store without its exchange", resource(kindQueue, m.GetVhost(), m.GetName()))
	}
	if err := d.checkPlacement(m); err != nil {
		return nil, err
	}
	if d.FSMVersion() < descriptionsSince {
		m.PartOf, m.PartOfExchange = "", false
	}
	if err := d.checkPart(m); err != nil {
		return nil, err
	}
	if q = newQueue(m, d.queueID(), d.newGroup()); d.FSMVersion() < declaredTypes {
		q.Classic = false
	}
	d.addQueue(q, 0)
	return &logpb.CatalogResult{Changed: true, Queue: uint64(q.ID), Group: uint32(q.Group)}, nil
}

// checkPlacement refuses a queue on nodes that are not there, and one of a
// connection whose node has restarted since: nobody would ever delete it. Any
// members are accepted if they are nodes, each once, and for a local queue
// exactly one: Apply does not choose.
func (d *draft) checkPlacement(m *logpb.DeclareQueue) error {
	where := resource(kindQueue, m.GetVhost(), m.GetName())
	members := m.GetMembers()
	if len(members) == 0 || m.GetLocal() && len(members) != 1 {
		return refuse(fsm.Internal, "%s cannot have %d members", where, len(members))
	}
	for i, number := range members {
		if _, ok := d.Node(fsm.NodeID(number)); !ok || slices.Contains(members[:i], number) {
			return refuse(fsm.Internal, "%s cannot have node %d as a member", where, number)
		}
	}
	if !m.GetExclusive() {
		return nil
	}
	node, ok := d.Node(fsm.NodeID(m.GetOwner().GetNode()))
	if !ok || node.GetBoot() != m.GetOwner().GetBoot() || node.GetDead() {
		return refuse(fsm.Forced, "the node that owns %s has restarted, or was declared dead", where)
	}
	return nil
}

// addQueue takes up a queue and notes the policies that match it. revision is
// that of its settings.
func (d *draft) addQueue(q *Queue, revision uint64) {
	d.share(q)
	d.open(q.VHost).addQueue(q, revision)
	d.queueIndex.add(q)
	d.placements.add(q)
}

// deleteQueue removes a queue. A queue that is gone, or has been declared
// again under another id, is left alone; so is one that was lost with its node
// if that has another boot by now.
//
// It performs DeleteQueue. With m.Id 0 the name alone identifies the queue,
// with an empty name the id alone; if both are given, they must agree.
// Conditions on messages and consumers were checked by the queue's machine, and
// the owner by the broker.
func (d *draft) deleteQueue(m *logpb.DeleteQueue) (*logpb.CatalogResult, error) {
	q, ok := d.Queue(m.GetVhost(), m.GetName())
	if m.GetId() != 0 && m.GetName() == "" {
		q, ok = d.QueueByID(fsm.QueueID(m.GetId()))
	}
	if !ok || m.GetId() != 0 && q.ID != fsm.QueueID(m.GetId()) {
		return &logpb.CatalogResult{}, nil
	}
	if home, _ := d.Node(q.Home()); m.GetLostBoot() != 0 && home.GetBoot() != m.GetLostBoot() {
		return &logpb.CatalogResult{}, nil
	}
	if err := q.checkOpen(); err != nil {
		return nil, err
	}
	return d.removeQueues([]*Queue{q}), nil
}

// deleteOwned removes the exclusive queues of a connection. It performs
// DeleteOwned, when a connection has ended. Without any, nothing changes.
func (d *draft) deleteOwned(m *logpb.DeleteOwned) (*logpb.CatalogResult, error) {
	return d.removeQueues(d.Owned(ownerFrom(m.GetOwner()))), nil
}

// removeQueues removes queues, which are ordered by id, and answers so.
// Requires: each is in the catalog, none is a store. r.Deleted ascends, the
// stores that went included.
func (d *draft) removeQueues(queues []*Queue) *logpb.CatalogResult {
	r := &logpb.CatalogResult{Changed: len(queues) > 0}
	for _, q := range queues {
		if _, there := d.QueueByID(q.ID); there { // it has not gone as a part of another one
			r.Deleted = append(r.Deleted, uint64(q.ID))
			d.removeQueue(q, r)
		}
	}
	slices.Sort(r.Deleted)
	return r
}

// removeQueue removes a queue with its bindings and parts, and the exchanges that end
// with these. r names the stores and parts that went. The removal is a last use of the
// exchanges bound to it, noted before its bindings go.
func (d *draft) removeQueue(q *Queue, r *logpb.CatalogResult) {
	vh := d.open(q.VHost)
	vh.exchanges.touchSources(q.Name, d.clock)
	d.removeExchanges(vh, vh.exchanges.unbindAllTo(endpoint{name: q.Name}, destination{queue: q}), r)
	d.forgetQueue(vh, q)
	d.forgetObject(vh, endpoint{name: q.Name}, r)
}

// forgetQueue removes a queue that nothing is bound to. Requires: vh is open.
// All four that know the queue forget it: the vhost and its policies, the
// index, the placements.
func (d *draft) forgetQueue(vh *vhost, q *Queue) {
	vh.removeQueue(q)
	d.queueIndex.remove(q)
	d.placements.forget(q)
}

// queueIndex finds the queues of all vhosts, in four more orders than their
// vhosts know them.
//
// Invariants:
//
//	byID and byGroup have all queues; no two have the same id or group
//	byOwner[o] has exactly the exclusive queues of o, and is not empty
//	byNode[n] has exactly the queues that end with n, and is not empty
//	1 ≤ group of every queue
//
// It is derived from the queues of the vhosts, but for nextGroup, which is all
// that its section of a snapshot holds: it has also counted the queues that are
// gone.
type queueIndex struct {
	byID    route.Map[fsm.QueueID, *Queue]
	byGroup route.Map[fsm.GroupID, *Queue]
	// byOwner: only of exclusive queues
	byOwner route.Map[Owner, route.Map[fsm.QueueID, *Queue]]
	// byNode: only of exclusive and of local queues, see Queue.ends
	byNode    route.Map[fsm.NodeID, route.Map[fsm.QueueID, *Queue]]
	nextGroup uint32 // number to try next; 0: 1
	// alike: by an encoding of it
	alike route.Map[string, alike]
}

// QueueByID finds a queue by its id.
func (qs *queueIndex) QueueByID(id fsm.QueueID) (*Queue, bool) { return qs.byID.Get(id) }

// QueueByGroup finds a queue by its group. A message that names only a group
// may be from an earlier owner of the number.
func (qs *queueIndex) QueueByGroup(g fsm.GroupID) (*Queue, bool) { return qs.byGroup.Get(g) }

// QueueCount is the number of queues of all vhosts.
func (qs *queueIndex) QueueCount() int { return qs.byID.Len() }

// EachQueue walks over all queues in no particular order.
func (qs *queueIndex) EachQueue() iter.Seq[*Queue] { return qs.byID.Values() }

// Queues returns all queues by id, that is, the oldest first. It sorts: O(n log
// n). What Apply does to several queues follows this order, so that it and the
// answer are the same on every replica.
func (qs *queueIndex) Queues() []*Queue { return sorted(qs.byID, byAge) }

// byAge compares queues by their ids.
func byAge(a, b *Queue) int { return cmp.Compare(a.ID, b.ID) }

// Owned returns the exclusive queues of a connection by id. It costs only what
// the connection has.
func (qs *queueIndex) Owned(o Owner) []*Queue { return sorted(qs.byOwner.At(o), byAge) }

// EndingWith returns the queues that end with a node or with one of its connections, by id. It costs only what
// there are of these.
func (qs *queueIndex) EndingWith(n fsm.NodeID) []*Queue { return sorted(qs.byNode.At(n), byAge) }

// ends returns the nodes without which a queue cannot be: the one whose client has it for itself, and the one
// whose memory it is in. 0: there is none.
func (q *Queue) ends() (nodes [2]fsm.NodeID) {
	if q.Exclusive {
		nodes[0] = q.Owner.Node
	}
	if q.Local && len(q.declaredMembers) > 0 { // a damaged snapshot may have it on none; Check says so
		nodes[1] = q.Home()
	}
	return nodes
}

// firstGroup is the number to try next for a group.
func (qs *queueIndex) firstGroup() uint32 { return max(qs.nextGroup, 1) }

// newGroup takes the group number for the next queue. Numbers are used in turn;
// when all 2^32-1 have been, the search begins again at 1 and leaves out those
// in use. Requires: fewer than 2^32-1 queues, or it would never end. A number
// that is given back is not reused before all others were, so that late
// messages for a deleted group seldom meet another one.
func (qs *queueIndex) newGroup() fsm.GroupID {
	for g := fsm.GroupID(qs.nextGroup); ; g++ {
		if _, used := qs.byGroup.Get(g); g != 0 && !used {
			qs.nextGroup = uint32(g) + 1
			return g
		}
	}
}

// add adds a queue. Requires: neither its id nor its group is in the index. Its
// vhost must get the same record.
func (qs *queueIndex) add(q *Queue) {
	qs.byID = qs.byID.With(q.ID, q)
	qs.byGroup = qs.byGroup.With(q.Group, q)
	qs.addEnds(q)
}

// addAll adds queues to an index that has none.
func (qs *queueIndex) addAll(all []*Queue) {
	qs.byID = route.MapOf(all, func(q *Queue) fsm.QueueID { return q.ID })
	qs.byGroup = route.MapOf(all, func(q *Queue) fsm.GroupID { return q.Group })
	for _, q := range all {
		qs.addEnds(q)
	}
}

// addEnds notes with what a queue ends.
func (qs *queueIndex) addEnds(q *Queue) {
	if q.Exclusive {
		qs.byOwner = qs.byOwner.With(q.Owner, qs.byOwner.At(q.Owner).With(q.ID, q))
	}
	for _, n := range q.ends() {
		if n != 0 {
			qs.byNode = qs.byNode.With(n, qs.byNode.At(n).With(q.ID, q))
		}
	}
}

// remove removes a queue. Requires: q is the record in the index. Its id is
// never used again, its group may be.
func (qs *queueIndex) remove(q *Queue) {
	qs.byID = qs.byID.Without(q.ID)
	qs.byGroup = qs.byGroup.Without(q.Group)
	if q.Exclusive {
		qs.byOwner = without(qs.byOwner, q.Owner, q)
	}
	for _, n := range q.ends() {
		qs.byNode = without(qs.byNode, n, q)
	}
}

// without removes a queue from one of several lists, and a list with its last queue.
func without[K comparable](lists route.Map[K, route.Map[fsm.QueueID, *Queue]], of K, q *Queue) route.Map[K, route.Map[fsm.QueueID, *Queue]] {
	if left := lists.At(of).Without(q.ID); left.Len() > 0 {
		return lists.With(of, left)
	}
	return lists.Without(of)
}

// save is the section of the index in a snapshot, and restore its inverse. The
// queues follow one by one, see add.
func (qs *queueIndex) save(to *logpb.CatalogSnapshot)      { to.NextGroup = qs.firstGroup() }
func (qs *queueIndex) restore(from *logpb.CatalogSnapshot) { qs.nextGroup = from.GetNextGroup() }

// checkQueue looks at one queue, at the index of the last entry.
func (qs *queueIndex) checkQueue(q *Queue, index uint64) error {
	byID, _ := qs.QueueByID(q.ID)
	byGroup, _ := qs.QueueByGroup(q.Group)
	switch {
	case byID != q || byGroup != q:
		return fmt.Errorf("%s is not found by id %d or by group %d", q, q.ID, q.Group)
	case q.Group == 0 || uint64(q.ID)>>16 > index:
		return fmt.Errorf("%s has id %d and group %d at index %d", q, q.ID, q.Group, index)
	case q.Exclusive && (qs.byOwner.At(q.Owner).At(q.ID) != q || q.Durable):
		return fmt.Errorf("exclusive %s is durable, or not found by its owner", q)
	case !q.Exclusive && q.Owner != Owner{}:
		return fmt.Errorf("%s is not exclusive and has an owner", q)
	}
	for _, n := range q.ends() {
		if n != 0 && qs.byNode.At(n).At(q.ID) != q {
			return fmt.Errorf("%s ends with node %d and is not found there", q, n)
		}
	}
	return nil
}

// check gets how many queues the vhosts have, and how many of them are exclusive.
func (qs *queueIndex) check(queues, exclusive int) error {
	for _, list := range qs.byOwner.All() {
		exclusive -= list.Len()
		if list.Len() == 0 {
			return fmt.Errorf("an owner without queues")
		}
	}
	for n, list := range qs.byNode.All() {
		if list.Len() == 0 {
			return fmt.Errorf("no queue ends with node %d", n)
		}
		for q := range list.Values() {
			if ends := q.ends(); qs.byID.At(q.ID) != q || ends[0] != n && ends[1] != n {
				return fmt.Errorf("%s does not end with node %d", q, n)
			}
		}
	}
	if queues != qs.byID.Len() || queues != qs.byGroup.Len() || exclusive != 0 {
		return fmt.Errorf("%d queues, %d by id, %d by group, %d exclusive ones not with their owner", queues, qs.byID.Len(), qs.byGroup.Len(), exclusive)
	}
	return nil
}

// groupsOf returns where a queue with these arguments finds the group of a message.
func groupsOf(arguments *fsm.Table) logpb.QueueConfig_Groups {
	if lookup(arguments, groupsArgument).GetInt() == 0 {
		return logpb.QueueConfig_NO_GROUPS
	}
	if source, _ := text(lookup(arguments, "x-group-source")); source == groupSources[1] {
		return logpb.QueueConfig_BY_APP_ID
	}
	return logpb.QueueConfig_BY_HEADER
}
