package catalog

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

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
	position int    // of the command in its entry, set before each: 0 ≤ position < number of commands
	stores   int    // created in the entry beside the queues that were declared
}

// full reports whether the entry has no more numbers. What one command creates
// is bounded by checkStores.
func (e *entry) full() bool { return e.position+e.stores >= maxCommands }

// id returns the number of what the present command creates. Requires: not full
// before the command. The same number each time until the next command: one
// command declares at most one queue.
func (e *entry) id() uint64 { return e.base | uint64(e.position) }

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
	}
	return nil, refuse(fsm.Internal, "unknown catalog command")
}

// sameRow reports whether two rows are equal. Rows are compared in their
// canonical encoding, so nil and empty lists are the same, as they would be
// after a snapshot.
func sameRow(a, b proto.Message) bool {
	return slices.Equal(encoded(a), encoded(b))
}
