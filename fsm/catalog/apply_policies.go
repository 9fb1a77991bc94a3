package catalog

import (
	"slices"

	"github.com/quorate/quorate/proto/logpb"
)

// putPolicy creates or replaces a policy.
func (d *draft) putPolicy(m *logpb.PutPolicy) (*logpb.CatalogResult, error) {
	if err := d.checkPolicy(m); err != nil {
		return nil, err
	}
	old, known := d.Policy(m.GetVhost(), m.GetName(), m.GetOperator())
	if known && sameRow(old.row, m) {
		return &logpb.CatalogResult{}, nil
	}
	vh := d.open(m.GetVhost())
	vh.policies.put(newPolicy(m))
	return d.policiesChanged(vh), nil
}

// deletePolicy removes a policy. One that is not there is fine.
func (d *draft) deletePolicy(m *logpb.DeletePolicy) (*logpb.CatalogResult, error) {
	if _, known := d.Policy(m.GetVhost(), m.GetName(), m.GetOperator()); !known {
		return &logpb.CatalogResult{}, nil
	}
	vh := d.open(m.GetVhost())
	vh.policies.remove(m.GetName(), m.GetOperator())
	return d.policiesChanged(vh), nil
}

// policiesChanged brings all that is in a vhost in line with its policies. It
// answers which queues have new settings.
func (d *draft) policiesChanged(vh *vhost) *logpb.CatalogResult {
	r := &logpb.CatalogResult{Changed: true}
	for q := range vh.queues.Values() {
		old := vh.policies.of(q)
		next := vh.policies.matchQueue(q, old.revision)
		if next == old {
			continue
		}
		if !sameRow(q.settings(old, Defaults{}), q.settings(next, Defaults{})) {
			next.revision = d.index
			r.Configured = append(r.Configured, uint64(q.ID))
			vh.exchanges.touchSources(q.Name, d.clock)
		}
		vh.policies.note(q, next)
	}
	for _, x := range vh.exchanges.list() {
		next := vh.policies.applyTo(x)
		if next == x {
			continue
		}
		vh.exchanges.put(next)
		vh.exchanges.retime(next, d.clock)
		if x.Store != nil && !sameRow(x.storeSettings(0), next.storeSettings(0)) {
			vh.policies.note(x.Store, policyMatch{revision: d.index})
			r.Configured = append(r.Configured, uint64(x.Store.ID))
		}
		d.addStore(vh, x.Name, nil, r)
	}
	slices.Sort(r.Configured)
	slices.Sort(r.Added)
	return r
}
