package catalog

import (
	"crypto/sha256"
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
	// see draft.id.
	maxCommands = 1 << 16
)

// Catalog is the machine of the catalog's log. One goroutine at a time uses
// it; Views may be used by all. The zero Catalog is empty.
type Catalog struct {
	view *View
}

// View returns the catalog as it is after the last entry.
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
func (c *Catalog) Apply(index uint64, e *logpb.CatalogEntry) []*logpb.CatalogResult {
	d := draft{View: *c.View()}
	if v := e.GetVersion(); v == 0 || v > d.FSMVersion() {
		panic(fmt.Sprintf("catalog: entry %d has version %d, the cluster has %d", index, v, d.FSMVersion()))
	}
	if index <= d.index {
		panic(fmt.Sprintf("catalog: entry %d after entry %d", index, d.index))
	}
	d.index = index
	d.clock = max(d.clock, fsm.Time(e.GetNow()))
	results := make([]*logpb.CatalogResult, len(e.GetCommands()))
	for i, command := range e.GetCommands() {
		d.position = i
		r, err := d.perform(command)
		if err != nil {
			r = Refuse(err)
		}
		results[i] = r
	}
	v := d.View
	c.view = &v
	return results
}

// perform does one command.
func (d *draft) perform(c *logpb.CatalogCommand) (*logpb.CatalogResult, error) {
	if d.position+d.stores >= maxCommands {
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
		return d.putUser(m.PutUser)
	case *logpb.CatalogCommand_DeleteUser:
		return d.deleteUser(m.DeleteUser)
	case *logpb.CatalogCommand_ReplaceHash:
		return d.replaceHash(m.ReplaceHash)
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
		return d.putSetting(m.PutSetting)
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
		return d.putLimit(m.PutLimit)
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
		return d.setDraining(m.SetDraining)
	case *logpb.CatalogCommand_AdmitNode:
		return d.admitNode(m.AdmitNode)
	case *logpb.CatalogCommand_ForgetNode:
		return d.forgetNode(m.ForgetNode)
	case *logpb.CatalogCommand_RecoverCluster:
		return d.recoverCluster(m.RecoverCluster)
	case *logpb.CatalogCommand_PutJoinToken:
		return d.putJoinToken(m.PutJoinToken)
	case *logpb.CatalogCommand_DeleteJoinToken:
		return d.deleteJoinToken(m.DeleteJoinToken)
	}
	return nil, refuse(fsm.Internal, "unknown catalog command")
}

// Refuse returns err, which is a refusal, as an answer.
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

// Hash digests the canonical encoding of the whole state.
func (c *Catalog) Hash() [sha256.Size]byte { return sha256.Sum256(encoded(c.Snapshot())) }

// Snapshot returns the state in its log form. See View.Snapshot.
func (c *Catalog) Snapshot() *logpb.CatalogSnapshot { return c.View().Snapshot() }

// String returns the state as stable text.
func (c *Catalog) String() string { return c.View().String() }

// Check returns the first broken invariant it finds. It walks over the whole
// state.
func (c *Catalog) Check() error { return c.View().Check() }

// draft is the next View in the making.
type draft struct {
	View
	position int // of the command in its entry
	stores   int // created in the entry beside the queues that were declared
	// opened are the vhosts that are this draft's own, so that it may change
	// them in place.
	opened map[string]*vhost
}

// open returns a vhost, which must be there, for changing.
func (d *draft) open(name string) *vhost {
	if vh := d.opened[name]; vh != nil {
		return vh
	}
	vh := *d.vhosts.At(name)
	d.own(name, &vh)
	return &vh
}

// own puts a vhost into the draft.
func (d *draft) own(name string, vh *vhost) {
	if d.opened == nil {
		d.opened = map[string]*vhost{}
	}
	d.opened[name] = vh
	d.vhosts = d.vhosts.With(name, vh)
}

// id returns the number of what the present command creates: unique, as no
// index and no position in an entry comes twice, and growing.
func (d *draft) id() uint64 { return d.index<<16 | uint64(d.position) }

// sameRow reports whether two rows are equal.
func sameRow(a, b proto.Message) bool {
	return slices.Equal(encoded(a), encoded(b))
}
