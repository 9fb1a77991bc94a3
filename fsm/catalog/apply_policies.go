package catalog

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// putPolicy creates or replaces a policy. It performs PutPolicy. An equal
// policy changes nothing. m belongs to the catalog from then on.
func (d *draft) putPolicy(m *logpb.PutPolicy) (*logpb.CatalogResult, error) {
	if err := d.checkPolicy(m); err != nil {
		return nil, err
	}
	m.Lenient = m.GetLenient() && d.FSMVersion() >= declaredTypes
	old, known := d.Policy(m.GetVhost(), m.GetName(), m.GetOperator())
	if known && sameRow(old.row, m) {
		return &logpb.CatalogResult{}, nil
	}
	p := newPolicy(m)
	if err := d.checkStores(m.GetVhost(), func(ps *policies) { ps.put(p) }); err != nil {
		return nil, err
	}
	vh := d.open(m.GetVhost())
	vh.policies.put(p)
	return d.policiesChanged(vh, old, p), nil
}

// deletePolicy removes a policy. One that is not there is fine.
func (d *draft) deletePolicy(m *logpb.DeletePolicy) (*logpb.CatalogResult, error) {
	old, known := d.Policy(m.GetVhost(), m.GetName(), m.GetOperator())
	if !known {
		return &logpb.CatalogResult{}, nil
	}
	remove := func(ps *policies) { ps.remove(m.GetName(), m.GetOperator()) }
	if err := d.checkStores(m.GetVhost(), remove); err != nil {
		return nil, err
	}
	vh := d.open(m.GetVhost())
	remove(&vh.policies)
	return d.policiesChanged(vh, old, nil), nil
}

// checkStores refuses a change of a vhost's policies that would make more
// exchanges delay than the entry has numbers for their stores.
//
// Requires: the vhost exists. change replaces lists of policies and nothing
// else, so the trial leaves no trace. It walks over the exchanges, in no
// particular order, only if there are more of them than numbers.
func (d *draft) checkStores(vhost string, change func(*policies)) error {
	vh := d.vhost(vhost)
	left := maxCommands - d.entry.position - d.entry.stores
	if vh.exchanges.len() < left {
		return nil
	}
	next := vh.policies
	change(&next)
	stores := 0
	for x := range vh.exchanges.values() {
		if x.Store == nil && next.applyTo(x).Delays {
			stores++
		}
	}
	if stores >= left {
		return refuse(fsm.Precondition, "%d exchanges of vhost '%s' would begin to delay messages: fewer than %d can at a time", stores, vhost, maxCommands)
	}
	return nil
}

// policiesChanged brings all that is in a vhost in line with its policies after one is
// in the place of another; nil: there was none, or there is none. It answers which queues have new
// settings.
//
// Requires: vh is open. Ensures: the invariants of policies hold again; a queue
// is in Configured, with the index of the entry as its revision, exactly if its
// settings with zero Defaults differ from before; such a change is a use of the
// idle exchanges bound to the queue. Exchanges that begin to delay get a store,
// named in Added.
//
// It walks over all queues and exchanges of the vhost, and tries the policies that
// may be in force by now, see rematch. Queues come in no particular order, which is invisible:
// each is changed by itself and the answer is sorted. Exchanges come by name,
// as the stores made for them take group numbers and ids in turn.
func (d *draft) policiesChanged(vh *vhost, was, is *Policy) *logpb.CatalogResult {
	r := &logpb.CatalogResult{Changed: true}
	for q := range vh.queues.Values() {
		old := vh.policies.of(q)
		next := vh.policies.rematch(old, was, is, func(p *Policy) bool { return p.matchesQueue(q) })
		if next == old {
			continue
		}
		if !sameRow(d.queueSettings(q, old, Defaults{}), d.queueSettings(q, next, Defaults{})) {
			next.revision = d.index
			r.Configured = append(r.Configured, uint64(q.ID))
			vh.exchanges.touchSources(q.Name, d.clock)
		}
		vh.policies.setMatch(q, next)
	}
	for _, x := range vh.exchanges.list() {
		next := x.matched(vh.policies.rematch(x.match, was, is, func(p *Policy) bool { return p.matchesExchange(x) }))
		if next == x {
			continue
		}
		vh.exchanges.put(next)
		vh.exchanges.retime(next, d.clock)
		if x.Store != nil && !sameRow(x.storeSettings(0), next.storeSettings(0)) {
			vh.policies.setMatch(x.Store, policyMatch{revision: d.index})
			r.Configured = append(r.Configured, uint64(x.Store.ID))
		}
		d.addStore(vh, x.Name, nil, r)
	}
	slices.Sort(r.Configured)
	slices.Sort(r.Added)
	return r
}
