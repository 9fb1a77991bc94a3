package catalog

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/route"
	"github.com/quorate/quorate/proto/logpb"
)

// What a policy may apply to.
const (
	applyAll       = "all"
	applyQueues    = "queues"
	applyExchanges = "exchanges"
	applyClassic   = "classic_queues"
	applyQuorum    = "quorum_queues"
	applyStreams   = "streams"
)

var applyTo = []string{applyQueues, applyClassic, applyQuorum, applyStreams, applyExchanges, applyAll}

// Policy is a policy or an operator policy.
//
// It never changes; a policy that is put again is another record. Policies and
// operator policies are apart: the same name may occur once in each.
type Policy struct {
	VHost, Name string
	// Operator: true: set by operators. At most one policy of each sort applies
	// to a queue or an exchange, and both are merged, see mergeDefinitions.
	Operator bool
	// Pattern is a regular expression that may match anywhere in a name.
	Pattern string
	// ApplyTo: one of applyTo
	ApplyTo    string
	Priority   int64      // the highest wins, then the smallest name
	Definition *fsm.Table // by key

	// row: what a snapshot holds; all other fields are derived from it
	row     *logpb.PutPolicy
	names   names
	foreign bool // keeps off replicated queues, see key.foreign
}

// String names the policy as log lines do.
func (p *Policy) String() string {
	kind := "policy"
	if p.Operator {
		kind = "operator policy"
	}
	return resource(kind, p.VHost, p.Name)
}

// newPolicy makes the record of a policy that has been checked. It compiles the
// pattern; one that does not compile matches nothing. The definition is shared
// with m.
func newPolicy(m *logpb.PutPolicy) *Policy {
	return &Policy{
		VHost: m.GetVhost(), Name: m.GetName(), Operator: m.GetOperator(), Pattern: m.GetPattern(), ApplyTo: m.GetApplyTo(),
		Priority: m.GetPriority(), Definition: m.GetDefinition(), row: m, names: newPolicyNames(m.GetPattern(), m.GetDialect()),
		foreign: !m.GetLenient() && slices.ContainsFunc(m.GetDefinition().GetFields(), func(f *logpb.Field) bool {
			k := findPolicyKey(f.GetName())
			return k != nil && k.foreign
		}),
	}
}

// newPolicyNames is newNames, but the empty text matches every name.
func newPolicyNames(text string, dialect uint32) names {
	if text == "" {
		return names{all: true}
	}
	return newNames(text, dialect)
}

// matchesQueue reports whether the policy may apply to a queue. It depends on
// what is fixed when the queue is declared, so a queue need be matched again
// only when a policy changes.
func (p *Policy) matchesQueue(q *Queue) bool {
	if q.StoreOf != "" {
		return false // the policies of its exchange apply
	}
	switch p.ApplyTo {
	case applyAll, applyQueues:
	case applyQuorum:
		if q.classicKind() {
			return false
		}
	case applyClassic:
		if !q.classicKind() {
			return false
		}
	default:
		return false
	}
	return (q.Local || !p.foreign) && p.names.match(q.Name)
}

// matchesExchange reports whether the policy could apply to an exchange.
// foreign does not count here: the keys that make a policy foreign say nothing
// of exchanges.
func (p *Policy) matchesExchange(x *Exchange) bool {
	return (p.ApplyTo == applyAll || p.ApplyTo == applyExchanges) && p.names.match(x.Name)
}

// policyList is a list of policies, the winning one first. It is replaced as a
// whole. Views share it and its policies.
type policyList []*Policy

// find returns the position of a policy, or -1.
func (l policyList) find(name string) int {
	return slices.IndexFunc(l, func(p *Policy) bool { return p.Name == name })
}

// with returns the list with p in its position, without the one of the same
// name. It costs O(n log n), which only a change of policies pays.
func (l policyList) with(p *Policy) policyList {
	next := append(l.without(p.Name), p)
	slices.SortFunc(next, comparePolicies)
	return next
}

// without returns a new list without the policy of this name, if it has one.
// The order stays, and there is space for one more.
func (l policyList) without(name string) policyList {
	next := make(policyList, 0, len(l)+1)
	for _, p := range l {
		if p.Name != name {
			next = append(next, p)
		}
	}
	return next
}

// first returns the policy that wins among those that match, or nil.
func (l policyList) first(matches func(*Policy) bool) *Policy {
	if i := slices.IndexFunc(l, matches); i >= 0 {
		return l[i]
	}
	return nil
}

// comparePolicies orders the policies of one list: the one that wins first. The
// order is total, as names are unique in a list.
func comparePolicies(a, b *Policy) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Name, b.Name))
}

// policyMatch is what decides the settings of a queue beside its record: the
// policies that match it, and what it has adopted.
//
// It is comparable with ==, as records are replaced whenever a policy changes.
// A policy that was put again is thus another match, though the settings may be
// equal.
type policyMatch struct {
	policy, operator *Policy // nil: none
	// revision is the index of the entry that last changed the queue's
	// effective settings; 0: none has. It only grows. It and adopted are the only
	// fields in a snapshot: Restore matches the policies again.
	revision uint64
	adopted  *adopted // nil: its arguments are those of its record
}

// definition is what the policies say together, by key. It is not nil, and has
// no fields without policies; its values are shared with them.
func (f policyMatch) definition() *fsm.Table {
	var a, b *fsm.Table
	if f.policy != nil {
		a = f.policy.Definition
	}
	if f.operator != nil {
		b = f.operator.Definition
	}
	return mergeDefinitions(a, b)
}

// checkRetries refuses delayed retries without a wait.
func checkRetries(definition *fsm.Table) error {
	strategy, _ := text(lookup(definition, "delayed-retry-strategy"))
	byList := strategy == retryStrategies[2]
	if byList && lookup(definition, "delayed-retry-steps") == nil {
		return refuse(fsm.Precondition, "delayed-retry-strategy %s requires delayed-retry-steps", strategy)
	}
	s, given := text(lookup(definition, "delayed-retry-type"))
	if given && s != retries[0] && !byList && lookup(definition, "delayed-retry-min") == nil {
		return refuse(fsm.Precondition, "delayed-retry-type %s requires a delayed-retry-min", s)
	}
	return nil
}

// EffectivePolicy is the result of policies for a queue or an exchange.
type EffectivePolicy struct {
	// Policy and Operator are the names of the effective ones; empty: none.
	Policy, Operator string
	// Definition is the merged definition, by key.
	Definition *fsm.Table

	policy, operator *fsm.Table // of which it is made; nil: none
}

func (f policyMatch) effective() EffectivePolicy {
	r := EffectivePolicy{Definition: f.definition()}
	if f.policy != nil {
		r.Policy, r.policy = f.policy.Name, f.policy.Definition
	}
	if f.operator != nil {
		r.Operator, r.operator = f.operator.Name, f.operator.Definition
	}
	return r
}

// EffectivePolicy returns the result of policies for the exchange.
func (x *Exchange) EffectivePolicy() EffectivePolicy { return x.match.effective() }

// policies are those of one vhost, and which of them match its queues. Their
// result for an exchange is stored in its record.
//
// Invariants:
//
//	both lists are in the order of comparePolicies, each name once
//	matches[q] = matchQueue(q, matches[q]) for every queue of the vhost; zero
//	matches are left out
//
// It knows queues by their ids only. For an exchange, Exchange.match is in step
// with both lists once applyTo was called for it, which is policiesChanged's
// task.
type policies struct {
	// ordinary: replaced, never changed
	ordinary, operators policyList
	matches             route.Map[fsm.QueueID, policyMatch]
}

// list returns the policies, or the operator policies. It must not be changed.
func (ps *policies) list(operator bool) policyList {
	if operator {
		return ps.operators
	}
	return ps.ordinary
}

// replace replaces the list of one kind.
func (ps *policies) replace(operator bool, l policyList) {
	if operator {
		ps.operators = l
	} else {
		ps.ordinary = l
	}
}

// put adds a policy, or replaces the one of the same name, and remove removes
// one. The caller must then note the matches again.
func (ps *policies) put(p *Policy) { ps.replace(p.Operator, ps.list(p.Operator).with(p)) }

func (ps *policies) remove(name string, operator bool) {
	ps.replace(operator, ps.list(operator).without(name))
}

// find finds a policy, or an operator policy, by name.
func (ps *policies) find(name string, operator bool) (*Policy, bool) {
	l := ps.list(operator)
	if i := l.find(name); i >= 0 {
		return l[i], true
	}
	return nil, false
}

// matchQueue finds the policies of a queue. It tries patterns until one of each
// list matches: O(policies). Of had, all else is passed on.
func (ps *policies) matchQueue(q *Queue, had policyMatch) policyMatch {
	had.policy = ps.ordinary.first(func(p *Policy) bool { return p.matchesQueue(q) })
	had.operator = ps.operators.first(func(p *Policy) bool { return p.matchesQueue(q) })
	return had
}

// rematch returns the match of a queue or an exchange, which was m, after next has
// come for old; either may be nil. What ranks above old and is not next did not
// match before, so only next and what ranks below old are tried, and the latter
// only if old was in force.
func (ps *policies) rematch(m policyMatch, old, next *Policy, matches func(*Policy) bool) policyMatch {
	operator, at := cmp.Or(next, old).Operator, &m.policy
	if operator {
		at = &m.operator
	}
	switch {
	case old != nil && *at == old:
		*at = ps.list(operator).first(func(p *Policy) bool {
			return (p == next || comparePolicies(old, p) < 0) && matches(p)
		})
	case next != nil && (*at == nil || comparePolicies(next, *at) < 0) && matches(next):
		*at = next
	}
	return m
}

// with returns what the policies would be with one more, or another in its place.
func (ps *policies) with(p *Policy) *policies {
	next := &policies{ordinary: ps.ordinary, operators: ps.operators}
	next.put(p)
	return next
}

// of is the noted match of a queue. It is the zero match, too, of a queue that
// is not of the vhost.
func (ps *policies) of(q *Queue) policyMatch { return ps.matches.At(q.ID) }

// setMatch records the match of a queue. Requires: q is in the vhost, and m is
// matchQueue of itself.
func (ps *policies) setMatch(q *Queue, m policyMatch) {
	if m == (policyMatch{}) {
		ps.forget(q)
	} else {
		ps.matches = ps.matches.With(q.ID, m)
	}
}

// forget removes a queue.
func (ps *policies) forget(q *Queue) { ps.matches = ps.matches.Without(q.ID) }

// applyTo returns x, or a copy of it with the result of the policies. x itself
// is returned if its match is the same, so callers compare pointers to see a
// change. A copy is not put into the vhost: that is the caller's, with retime.
func (ps *policies) applyTo(x *Exchange) *Exchange {
	return x.matched(policyMatch{policy: ps.ordinary.first(func(p *Policy) bool { return p.matchesExchange(x) }),
		operator: ps.operators.first(func(p *Policy) bool { return p.matchesExchange(x) })})
}

// matched returns x, or a copy of it with another match.
func (x *Exchange) matched(m policyMatch) *Exchange {
	if x.match == m {
		return x
	}
	next := *x
	next.match = m
	next.setEffective()
	return &next
}

// check is given the name of the vhost and its contents.
func (ps *policies) check(vhost string, queues route.Map[string, *Queue], all *exchanges) error {
	for _, list := range []policyList{ps.ordinary, ps.operators} {
		for i, p := range list {
			if p.VHost != vhost || list.find(p.Name) != i || i > 0 && comparePolicies(list[i-1], p) >= 0 {
				return fmt.Errorf("%s is out of place", p)
			}
		}
	}
	noted := ps.matches.Len()
	for q := range queues.Values() {
		m := ps.of(q)
		if ps.matchQueue(q, m) != m {
			return fmt.Errorf("policies of %s are not as noted", q)
		}
		if a := m.adopted; a != nil && (a.arguments == nil || a.times == 0 || q.StoreOf != "") {
			return fmt.Errorf("%s cannot have adopted arguments %d times", q, a.times)
		}
		if m != (policyMatch{}) {
			noted--
		}
	}
	if noted != 0 {
		return fmt.Errorf("policies of %d queues that are not there", noted)
	}
	for x := range all.values() {
		if ps.applyTo(x) != x {
			return fmt.Errorf("policies of %s are not as noted", x)
		}
	}
	return nil
}

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
		if next != old {
			d.rematched(vh, q, old, next, r)
		}
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

// rematched notes the match of a queue that had another one. If its settings with
// zero Defaults differ from before, they have the entry's revision, and r says so;
// that is a use of the idle exchanges bound to the queue. Requires: vh is open.
func (d *draft) rematched(vh *vhost, q *Queue, old, next policyMatch, r *logpb.CatalogResult) {
	if !sameRow(d.queueSettings(q, old, Defaults{}), d.queueSettings(q, next, Defaults{})) {
		next.revision = d.index
		r.Configured = append(r.Configured, uint64(q.ID))
		vh.exchanges.touchSources(q.Name, d.clock)
	}
	vh.policies.setMatch(q, next)
}
