package catalog

import (
	"crypto/sha256"
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Snapshot returns the view in its log form. Equal views have equal
// snapshots, byte for byte. It may run beside Apply. Records are shared with
// the view: nobody may change them.
//
// Every list is in a total order. What is derived is left out: tables, inbound
// bindings, indexes, matches but for their revision, effective settings,
// compiled patterns. It costs O(n log n), and does not encode: that can wait
// until the snapshot is written.
func (v *View) Snapshot() *logpb.CatalogSnapshot {
	s := &logpb.CatalogSnapshot{
		Version: snapshotVersion, Index: v.index, Clock: int64(v.clock), Initialized: v.initialized,
		Vhosts: v.VHosts(),
	}
	v.clusterSettings.save(s)
	v.nodes.save(s)
	v.joinTokens.save(s)
	v.lockKey.save(s)
	v.globals.save(s)
	v.users.save(s)
	v.limits.save(s)
	v.queueIndex.save(s)
	v.proposals.save(s)
	for _, p := range v.Permissions() {
		s.Permissions = append(s.Permissions, p.row())
	}
	for _, p := range v.TopicPermissions() {
		s.TopicPermissions = append(s.TopicPermissions, p.row)
	}
	for _, row := range s.Vhosts {
		v.vhost(row.GetName()).save(s)
	}
	for _, q := range v.Queues() {
		row := &logpb.QueueState{Declared: q.declared, Id: uint64(q.ID), Group: uint32(q.Group), Revision: v.match(q).revision}
		v.placements.save(q, row)
		s.Queues = append(s.Queues, row)
	}
	return s
}

// Hash is a digest of a state.
type Hash [sha256.Size]byte

// Hash digests the canonical encoding of the whole state. Replicas at the same
// index have the same Hash, whatever order their maps have. It costs as much as
// a snapshot that is written.
func (v *View) Hash() Hash { return sha256.Sum256(encoded(v.Snapshot())) }

// save is the section of a vhost in a snapshot: its policies, exchanges and
// bindings. Permissions and queues are in the order of the whole catalog.
func (vh *vhost) save(to *logpb.CatalogSnapshot) {
	for _, operator := range []bool{false, true} {
		for _, p := range vh.policies.list(operator) {
			to.Policies = append(to.Policies, p.row)
		}
	}
	for _, x := range vh.exchanges.list() {
		to.Exchanges = append(to.Exchanges, x.declared)
		for _, b := range sorted(x.bindings, compareBindings) {
			to.Bindings = append(to.Bindings, b.bound)
		}
	}
	vh.exchanges.saveUse(to)
}

// Restore returns the catalog that s was taken from. Parts of s stay in it:
// nobody may change it from now on. An error means that s is damaged.
//
// Restore(v.Snapshot()) is a catalog with the same Snapshot, that gives the
// same answers to all further entries. It checks all invariants before it
// returns, so that a damaged snapshot is not taken over. Names and values are
// not validated again: records may be from a log of older rules.
func Restore(s *logpb.CatalogSnapshot) (*Catalog, error) {
	if s.GetVersion() != snapshotVersion {
		return nil, fmt.Errorf("catalog snapshot has version %d, but this program supports only version %d", s.GetVersion(), snapshotVersion)
	}
	d := draft{View: View{index: s.GetIndex(), clock: fsm.Time(s.GetClock()), initialized: s.GetInitialized()}}
	if err := d.restore(s); err != nil {
		return nil, fmt.Errorf("catalog snapshot at %d: %w", s.GetIndex(), err)
	}
	v := d.View
	if err := v.Check(); err != nil {
		return nil, fmt.Errorf("catalog snapshot at %d: %w", s.GetIndex(), err)
	}
	return &Catalog{view: &v}, nil
}

// restore takes up the sections of a snapshot, each after those that it needs:
// policies come before what they match, queues before the bindings to them.
//
// Exchanges match policies when they are added, queues too, and a store finds
// its exchange; last uses come at the end, when it is known which exchanges are
// idle. The draft is not bound to an entry, so no ids and no groups are given
// here.
func (d *draft) restore(s *logpb.CatalogSnapshot) error {
	d.clusterSettings.restore(s)
	d.nodes.restore(s)
	d.joinTokens.restore(s)
	d.lockKey.restore(s)
	d.globals.restore(s)
	d.users.restore(s)
	d.limits.restore(s)
	d.queueIndex.restore(s)
	d.proposals.restore(s)
	for _, row := range s.GetVhosts() {
		d.own(&vhost{row: row})
	}
	for _, restore := range []func() error{
		func() error {
			return restoreRows(d, s.GetPermissions(), func(vh *vhost, p *logpb.PutPermission) error { vh.rights.put(newPermission(p)); return nil })
		},
		func() error {
			return restoreRows(d, s.GetTopicPermissions(), func(vh *vhost, p *logpb.PutTopicPermission) error {
				vh.rights.putTopic(newTopicPermission(p))
				return nil
			})
		},
		func() error {
			return restoreRows(d, s.GetPolicies(), func(vh *vhost, p *logpb.PutPolicy) error { vh.policies.put(newPolicy(p)); return nil })
		},
		func() error {
			return restoreRows(d, s.GetExchanges(), func(vh *vhost, x *logpb.DeclareExchange) error { vh.addExchange(x); return nil })
		},
		func() error { return d.restoreQueues(s.GetQueues()) },
		func() error { return restoreRows(d, s.GetBindings(), d.restoreBinding) },
		func() error { return d.restoreUse(s.GetIdle()) },
	} {
		if err := restore(); err != nil {
			return err
		}
	}
	return nil
}

// restoreRows gives each row to its vhost, which must be there.
func restoreRows[T interface{ GetVhost() string }](d *draft, rows []T, add func(vh *vhost, row T) error) error {
	for _, row := range rows {
		vh := d.opened[row.GetVhost()]
		if vh == nil {
			return fmt.Errorf("no vhost %q", row.GetVhost())
		}
		if err := add(vh, row); err != nil {
			return err
		}
	}
	return nil
}

// restoreQueues adds queues with the ids, groups, revisions and members they
// had. Ids or groups that come twice are left for Check to find.
func (d *draft) restoreQueues(rows []*logpb.QueueState) error {
	for _, row := range rows {
		declared := row.GetDeclared()
		if _, ok := d.VHost(declared.GetVhost()); !ok {
			return fmt.Errorf("no vhost %q", declared.GetVhost())
		}
		if _, twice := d.Queue(declared.GetVhost(), declared.GetName()); twice {
			return fmt.Errorf("queue %q comes twice", declared.GetName())
		}
		q := newQueue(declared, fsm.QueueID(row.GetId()), fsm.GroupID(row.GetGroup()))
		d.addQueue(q, row.GetRevision())
		d.placements.restore(q, row)
	}
	return nil
}

// restoreBinding adds a binding, whose ends must be there. One that comes twice
// is an error; so is one that checkBinding refuses.
func (d *draft) restoreBinding(vh *vhost, b *logpb.Bind) error {
	if exists, err := d.checkBind(b); err != nil || exists {
		return fmt.Errorf("binding of %q to %q in %q: %v", b.GetSource(), b.GetDestination(), b.GetVhost(), err)
	}
	vh.addBinding(b)
	return nil
}

// restoreUse gives idle exchanges their last use. One without a row gets the
// clock of the snapshot.
func (d *draft) restoreUse(rows []*logpb.ExchangeActivity) error {
	for _, vh := range d.opened { // det: vhosts have nothing to do with each other
		for x := range vh.exchanges.values() {
			vh.exchanges.retime(x, d.clock)
		}
	}
	return restoreRows(d, rows, func(vh *vhost, row *logpb.ExchangeActivity) error { return vh.exchanges.restoreUse(row) })
}
