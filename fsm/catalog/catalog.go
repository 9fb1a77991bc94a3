// Package catalog is the replicated table of definitions: nodes, vhosts, users,
// permissions, exchanges, bindings, and queues with their placement.
//
// A Catalog is a deterministic machine: equal logs produce equal states and
// equal answers on every node. Its state is a View, an immutable value.
// Applying an entry creates the next View, which shares everything that the
// entry did not touch. Routing, permission checks and listings use a View and
// need no lock.
//
// The rules of a client's request (permission, existence, equivalence) are
// functions of a View. The broker calls them before it proposes anything, so
// that a refusal or a repeated declare costs no log entry. Apply calls them
// again, because another client may have been faster.
//
// The package does not choose nodes for replicas, hash passwords, or know what
// a queue holds: conditions on messages and consumers belong to the queue
// machine.
package catalog

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	// snapshotVersion is the version of the encoding of snapshots as such. What
	// a later version of the machine adds are fields, see View.FSMVersion.
	snapshotVersion = 1
	// maxCommands is the number of commands of one entry that are performed;
	// see entry. It is also how many ids an entry has, as the position takes 16
	// bits of an id.
	maxCommands = 1 << 16
)

// Catalog is the machine of the catalog's log. One goroutine at a time uses
// it; Views may be used by all. The zero Catalog is empty.
type Catalog struct {
	// view: nil: the empty catalog. Replaced by Apply as a whole.
	view *View
	// repeated: the last entry was not performed, see Repeated.
	repeated bool
}

// Fork returns a catalog that begins as v. What is applied to it changes nothing
// else.
func (v *View) Fork() *Catalog { return &Catalog{view: v} }

// View returns the catalog as it is after the last entry. It must not run
// beside Apply; the View returned may be used beside it.
func (c *Catalog) View() *View {
	if c.view == nil {
		return &View{}
	}
	return c.view
}

// Apply performs the entry at index and returns one answer per command. A
// command that is refused changes nothing; the others of its entry go on.
// Parts of e stay in the catalog: nobody may change it from now on.
//
// It panics if the entry has a version that the cluster has not, as going on
// would make this replica differ, or if index does not grow.
//
// Requires: index > View().Index(), and 1 ≤ e.Version ≤ FSMVersion before the
// entry; the leader checks the version in admit, and each replica before it
// applies. Ensures: Index() = index, also if every command is refused; Clock()
// is the larger of what it was and e.Now; the View from before is unchanged.
//
// An entry whose proposal has been performed changes nothing else. It is answered as it was then;
// one that nobody waits for is refused.
//
// The commands see what those before them in the entry have done. The outcome
// depends on the View and e alone: no clock, no random number, no order of a
// map.
func (c *Catalog) Apply(index uint64, e *logpb.CatalogEntry) []*logpb.CatalogResult {
	d := draft{View: *c.View(), entry: entry{base: index << 16}}
	if v := e.GetVersion(); v == 0 || v > d.FSMVersion() {
		panic(fmt.Sprintf("catalog: entry %d has version %d, but the cluster has %d", index, v, d.FSMVersion()))
	}
	if last := d.index; index <= last {
		panic(fmt.Sprintf("catalog: entry %d after entry %d", index, last))
	}
	d.index = index
	d.clock = max(d.clock, fsm.Time(e.GetNow()))
	results, repeated := d.proposals.begin(e.GetProposal(), &d.nodes, len(e.GetCommands()))
	if c.repeated = repeated; !repeated {
		results = d.performAll(e)
	}
	v := d.View
	c.view = &v
	return results
}

// Repeated reports whether the last entry was a proposal that came once more, or too late, so that
// its answers say nothing of what has changed.
func (c *Catalog) Repeated() bool { return c.repeated }

// performAll does the commands of an entry.
func (d *draft) performAll(e *logpb.CatalogEntry) []*logpb.CatalogResult {
	results := make([]*logpb.CatalogResult, len(e.GetCommands()))
	for i, command := range e.GetCommands() {
		d.position = i
		r, err := d.perform(command)
		if err != nil {
			r = Refuse(err)
		}
		results[i] = r
	}
	d.proposals.performed(e.GetProposal(), &d.nodes, results)
	return results
}

// Refuse returns err, which is a refusal, as an answer. Requires: err is a
// *fsm.Refusal. Any other error here would be one that differs between
// replicas, hence the panic.
func Refuse(err error) *logpb.CatalogResult {
	r := err.(*fsm.Refusal)
	return &logpb.CatalogResult{Refusal: uint32(r.Kind), Text: r.Text}
}

// Refused is the inverse of Refuse: nil if the answer is no refusal.
func Refused(r *logpb.CatalogResult) error {
	if r.GetRefusal() == 0 {
		return nil
	}
	return &fsm.Refusal{Kind: fsm.Kind(r.GetRefusal()), Text: r.GetText()}
}

// Hash digests the state, see View.Hash.
func (c *Catalog) Hash() Hash { return c.View().Hash() }

// Snapshot returns the state in its log form. See View.Snapshot.
func (c *Catalog) Snapshot() *logpb.CatalogSnapshot { return c.View().Snapshot() }

// String returns the state as stable text.
func (c *Catalog) String() string { return c.View().String() }

// Check returns the first broken invariant it finds. It walks over the whole
// state.
func (c *Catalog) Check() error { return c.View().Check() }

// draft is the next View in the making. It calls what changes the parts; what
// one part can do alone is a method of that part.
//
// A draft starts as a copy of the View it replaces and lives for one entry. A
// command that is refused must not have changed it: there is no way back, so
// every check comes before the first change.
type draft struct {
	View
	entry
	// opened are the vhosts that are this draft's own, so that it may change
	// them in place. nil until the first. Invariant: opened[name] is the vhost
	// that vhosts has under name, and no View that was published has it.
	opened map[string]*vhost
}

// open returns a vhost, which must be there, for changing. The copy is shallow:
// its maps share their nodes with the View until they are replaced. Its records
// must still be replaced, not changed. Several calls in one entry return the
// same vhost, so pointers to it stay good.
func (d *draft) open(name string) *vhost {
	if vh := d.opened[name]; vh != nil {
		return vh
	}
	vh := *d.vhost(name)
	d.own(&vh)
	return &vh
}

// own puts a vhost into the draft. Requires: vh is in no View that was
// published. A vhost of the same name is replaced.
func (d *draft) own(vh *vhost) {
	if d.opened == nil {
		d.opened = map[string]*vhost{}
	}
	d.opened[vh.row.GetName()] = vh
	d.vhosts.put(vh)
}

// entry numbers what the commands of one entry create. Ids are unique and grow,
// as no index and no position in an entry comes twice.
//
// Invariant: position + stores ≤ maxCommands, so that the ids of stores, which
// count down from the end of what the entry has, meet no other.
type entry struct {
	base     uint64 // the first id: its index << 16
	within   bool   // the present command is one of several in the place of one
	position int    // of the command in its entry, set before each: 0 ≤ position < number of commands
	stores   int    // created in the entry beside the queues that were declared
}

// full reports whether the entry has no more numbers. What one command creates
// is bounded by checkStores.
func (e *entry) full() bool { return e.position+e.stores >= maxCommands }

// queueID returns the id of the queue that the present command declares. Requires: not full
// before the command, and that it is called once for a command: one command declares at most
// one queue, and of several in the place of one each has a number of its own.
func (e *entry) queueID() fsm.QueueID {
	if e.within {
		return e.storeID()
	}
	return fsm.QueueID(e.base | uint64(e.position))
}

// storeID returns an id as id does. One command may make many stores. They
// count down because the numbers of the positions behind the present one belong
// to later commands. Requires: stores < maxCommands.
func (e *entry) storeID() fsm.QueueID {
	e.stores++
	return fsm.QueueID(e.base | uint64(maxCommands-e.stores))
}

// perform does one command. err is always a *fsm.Refusal. A command of an
// unknown kind is refused.
func (d *draft) perform(c *logpb.CatalogCommand) (*logpb.CatalogResult, error) {
	if d.entry.full() {
		return nil, refuse(fsm.Internal, "more than %d commands in one entry", maxCommands)
	}
	switch m := c.GetBody().(type) {
	case *logpb.CatalogCommand_Initialize:
		return d.initialize(m.Initialize)
	case *logpb.CatalogCommand_PutVhost:
		return d.putVhost(m.PutVhost)
	case *logpb.CatalogCommand_DeleteVhost:
		return d.deleteVhost(m.DeleteVhost)
	case *logpb.CatalogCommand_PutUser:
		return d.users.put(m.PutUser)
	case *logpb.CatalogCommand_DeleteUser:
		return d.deleteUser(m.DeleteUser)
	case *logpb.CatalogCommand_ReplaceHash:
		return d.users.replaceHash(m.ReplaceHash)
	case *logpb.CatalogCommand_PutPermission:
		return d.putPermission(m.PutPermission)
	case *logpb.CatalogCommand_DeletePermission:
		return d.deletePermission(m.DeletePermission)
	case *logpb.CatalogCommand_PutTopicPermission:
		return d.putTopicPermission(m.PutTopicPermission)
	case *logpb.CatalogCommand_DeleteTopicPermission:
		return d.deleteTopicPermission(m.DeleteTopicPermission)
	case *logpb.CatalogCommand_DeclareExchange:
		return d.declareExchange(m.DeclareExchange)
	case *logpb.CatalogCommand_DeleteExchange:
		return d.deleteExchange(m.DeleteExchange)
	case *logpb.CatalogCommand_Bind:
		return d.bind(m.Bind)
	case *logpb.CatalogCommand_Unbind:
		return d.unbind(m.Unbind)
	case *logpb.CatalogCommand_DeclareQueue:
		return d.declareQueue(m.DeclareQueue)
	case *logpb.CatalogCommand_DeleteQueue:
		return d.deleteQueue(m.DeleteQueue)
	case *logpb.CatalogCommand_DeleteOwned:
		return d.deleteOwned(m.DeleteOwned)
	case *logpb.CatalogCommand_PutSetting:
		return d.clusterSettings.put(m.PutSetting, &d.nodes)
	case *logpb.CatalogCommand_PutPolicy:
		return d.putPolicy(m.PutPolicy)
	case *logpb.CatalogCommand_DeletePolicy:
		return d.deletePolicy(m.DeletePolicy)
	case *logpb.CatalogCommand_SetMembers:
		return d.setMembers(m.SetMembers)
	case *logpb.CatalogCommand_MembersLeft:
		return d.membersLeft(m.MembersLeft)
	case *logpb.CatalogCommand_TouchExchange:
		return d.touchExchange(m.TouchExchange)
	case *logpb.CatalogCommand_ExpireExchange:
		return d.expireExchange(m.ExpireExchange)
	case *logpb.CatalogCommand_PutLimit:
		return d.limits.put(m.PutLimit, d.there(m.PutLimit.GetUser(), m.PutLimit.GetOf()))
	}
	return d.performOnNodes(c)
}

// performOnNodes does one command about nodes.
func (d *draft) performOnNodes(c *logpb.CatalogCommand) (*logpb.CatalogResult, error) {
	switch m := c.GetBody().(type) {
	case *logpb.CatalogCommand_RegisterNode:
		return d.registerNode(m.RegisterNode)
	case *logpb.CatalogCommand_DeclareDead:
		return d.declareDead(m.DeclareDead)
	case *logpb.CatalogCommand_SetDraining:
		return d.nodes.setDraining(m.SetDraining)
	case *logpb.CatalogCommand_AdmitNode:
		return d.admitNode(m.AdmitNode)
	case *logpb.CatalogCommand_ForgetNode:
		return d.forgetNode(m.ForgetNode)
	case *logpb.CatalogCommand_RecoverCluster:
		return d.recoverCluster(m.RecoverCluster)
	case *logpb.CatalogCommand_PutJoinToken:
		return d.joinTokens.put(m.PutJoinToken, d.clock)
	case *logpb.CatalogCommand_DeleteJoinToken:
		return d.joinTokens.delete(m.DeleteJoinToken)
	case *logpb.CatalogCommand_PutLockKey:
		return d.lockKey.put(m.PutLockKey)
	case *logpb.CatalogCommand_PutGlobalParameter:
		return d.globals.put(m.PutGlobalParameter)
	case *logpb.CatalogCommand_NotAdmitted:
		return nil, d.notAdmitted(m.NotAdmitted)
	}
	return d.performOnDescribed(c)
}

// sameRow reports whether two rows are equal. Rows are compared in their
// canonical encoding, so nil and empty lists are the same, as they would be
// after a snapshot.
func sameRow(a, b proto.Message) bool {
	return slices.Equal(encoded(a), encoded(b))
}
