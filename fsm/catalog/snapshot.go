package catalog

import (
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Snapshot returns the view in its log form. Equal views have equal
// snapshots, byte for byte. It may run beside Apply. Records are shared with
// the view: nobody may change them.
func (v *View) Snapshot() *logpb.CatalogSnapshot {
	s := &logpb.CatalogSnapshot{
		Version: snapshotVersion, Index: v.index, Clock: int64(v.clock),
		Nodes: v.Nodes(), Vhosts: v.VHosts(), Users: v.Users(),
		NextNode: v.lastNode + 1, NextGroup: max(v.nextGroup, 1), Initialized: v.initialized,
		Settings: v.settings, Tokens: v.tokens,
	}
	s.Limits = append(v.Limits(false), v.Limits(true)...)
	s.Policies, s.Idle = v.policyRows(s.Vhosts), v.idleRows(s.Vhosts)
	for _, p := range v.Permissions() {
		s.Permissions = append(s.Permissions, p.row())
	}
	for _, p := range v.TopicPermissions() {
		s.TopicPermissions = append(s.TopicPermissions, p.row)
	}
	for _, vh := range s.Vhosts {
		for _, x := range v.Exchanges(vh.GetName()) {
			s.Exchanges = append(s.Exchanges, x.declared)
		}
		for _, b := range v.Bindings(vh.GetName()) {
			s.Bindings = append(s.Bindings, b.bound)
		}
	}
	for _, q := range v.Queues() {
		row := &logpb.QueueState{Declared: q.declared, Id: uint64(q.ID), Group: uint32(q.Group), Revision: v.match(q).revision}
		v.storePlacement(q, row)
		s.Queues = append(s.Queues, row)
	}
	return s
}

// policyRows lists the policies of vhosts, each list in its order.
func (v *View) policyRows(vhosts []*logpb.PutVhost) (rows []*logpb.PutPolicy) {
	for _, vh := range vhosts {
		for _, operator := range []bool{false, true} {
			for _, p := range v.Policies(vh.GetName(), operator) {
				rows = append(rows, p.row)
			}
		}
	}
	return rows
}

// Restore returns the catalog that s was taken from. Parts of s stay in it:
// nobody may change it from now on. An error means that s is damaged.
func Restore(s *logpb.CatalogSnapshot) (*Catalog, error) {
	if s.GetVersion() != snapshotVersion {
		return nil, fmt.Errorf("catalog snapshot of version %d, known is %d", s.GetVersion(), snapshotVersion)
	}
	d := draft{View: View{
		index: s.GetIndex(), clock: fsm.Time(s.GetClock()), initialized: s.GetInitialized(),
		lastNode: max(s.GetNextNode(), 1) - 1, nextGroup: s.GetNextGroup(),
		settings: s.GetSettings(), tokens: s.GetTokens(),
	}}
	if err := d.restore(s); err != nil {
		return nil, fmt.Errorf("catalog snapshot at %d: %w", s.GetIndex(), err)
	}
	v := d.View
	if err := v.Check(); err != nil {
		return nil, fmt.Errorf("catalog snapshot at %d: %w", s.GetIndex(), err)
	}
	return &Catalog{view: &v}, nil
}

func (d *draft) restore(s *logpb.CatalogSnapshot) error {
	for _, n := range s.GetNodes() {
		d.addNode(n)
	}
	for _, row := range s.GetVhosts() {
		d.own(row.GetName(), &vhost{row: row})
	}
	for _, u := range s.GetUsers() {
		d.users = d.users.With(u.GetName(), u)
	}
	for _, m := range s.GetLimits() {
		d.limits = d.limits.With(limited{m.GetUser(), m.GetOf(), m.GetName()}, m)
	}
	for _, p := range s.GetPermissions() {
		vh, err := d.restored(p.GetVhost())
		if err != nil {
			return err
		}
		vh.permissions = vh.permissions.With(p.GetUser(), newPermission(p))
	}
	for _, p := range s.GetTopicPermissions() {
		vh, err := d.restored(p.GetVhost())
		if err != nil {
			return err
		}
		vh.topics = vh.topics.With(topicPlace{p.GetUser(), p.GetExchange()}, newTopicPermission(p))
	}
	for _, p := range s.GetPolicies() {
		vh, err := d.restored(p.GetVhost())
		if err != nil {
			return err
		}
		list := vh.policyList(p.GetOperator())
		*list = list.with(newPolicy(p))
	}
	for _, x := range s.GetExchanges() {
		vh, err := d.restored(x.GetVhost())
		if err != nil {
			return err
		}
		vh.addExchange(x)
	}
	for _, q := range s.GetQueues() {
		vh, err := d.restored(q.GetDeclared().GetVhost())
		if err != nil {
			return err
		}
		if _, twice := vh.queues.Get(q.GetDeclared().GetName()); twice {
			return fmt.Errorf("queue %q comes twice", q.GetDeclared().GetName())
		}
		d.addQueue(newQueue(q.GetDeclared(), fsm.QueueID(q.GetId()), fsm.GroupID(q.GetGroup())), q.GetRevision())
		d.restorePlacement(q)
	}
	for _, b := range s.GetBindings() {
		if exists, err := d.checkBind(b); err != nil || exists {
			return fmt.Errorf("binding of %q to %q in %q: %v", b.GetSource(), b.GetDestination(), b.GetVhost(), err)
		}
		d.open(b.GetVhost()).addBinding(b)
	}
	return d.restoreIdle(s.GetIdle())
}

func (d *draft) restored(vhost string) (*vhost, error) {
	if vh := d.opened[vhost]; vh != nil {
		return vh, nil
	}
	return nil, fmt.Errorf("no vhost %q", vhost)
}
