package catalog

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
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
type Policy struct {
	VHost, Name string
	Operator    bool
	// Pattern is a regular expression that may match anywhere in a name.
	Pattern    string
	ApplyTo    string
	Priority   int64      // the largest one wins, then the smallest name
	Definition *fsm.Table // by key

	row     *logpb.PutPolicy
	pattern pattern
	foreign bool // has a key that keeps it off replicated queues
}

// String names the policy as log lines do.
func (p *Policy) String() string {
	kind := "policy"
	if p.Operator {
		kind = "operator policy"
	}
	return resource(kind, p.VHost, p.Name)
}

func newPolicy(m *logpb.PutPolicy) *Policy {
	return &Policy{
		VHost: m.GetVhost(), Name: m.GetName(), Operator: m.GetOperator(), Pattern: m.GetPattern(), ApplyTo: m.GetApplyTo(),
		Priority: m.GetPriority(), Definition: m.GetDefinition(), row: m, pattern: newPolicyPattern(m.GetPattern()),
		foreign: slices.ContainsFunc(m.GetDefinition().GetFields(), func(f *logpb.Field) bool {
			k := findPolicyKey(f.GetName())
			return k != nil && k.foreign
		}),
	}
}

// newPolicyPattern is newPattern, but the empty text matches every name.
func newPolicyPattern(text string) pattern {
	if text == "" {
		return pattern{all: true}
	}
	return newPattern(text)
}

// matchesQueue reports whether the policy could be in force for a queue.
func (p *Policy) matchesQueue(q *Queue) bool {
	if q.StoreOf != "" {
		return false // those of its exchange count
	}
	switch p.ApplyTo {
	case applyAll, applyQueues:
	case applyQuorum:
		if q.Local {
			return false
		}
	case applyClassic:
		if !q.Local {
			return false
		}
	default:
		return false
	}
	return (q.Local || !p.foreign) && p.pattern.match(q.Name)
}

func (p *Policy) matchesExchange(x *Exchange) bool {
	return (p.ApplyTo == applyAll || p.ApplyTo == applyExchanges) && p.pattern.match(x.Name)
}

// policies are those of a vhost, the one that wins first. They are replaced as
// a whole.
type policies []*Policy

// find returns the position of a policy, or -1.
func (l policies) find(name string) int {
	return slices.IndexFunc(l, func(p *Policy) bool { return p.Name == name })
}

// with returns the list with p in its place, and without its namesake.
func (l policies) with(p *Policy) policies {
	next := append(l.without(p.Name), p)
	slices.SortFunc(next, comparePolicies)
	return next
}

func (l policies) without(name string) policies {
	next := make(policies, 0, len(l)+1)
	for _, p := range l {
		if p.Name != name {
			next = append(next, p)
		}
	}
	return next
}

// first returns the policy that wins among those that match, or nil.
func (l policies) first(matches func(*Policy) bool) *Policy {
	if i := slices.IndexFunc(l, matches); i >= 0 {
		return l[i]
	}
	return nil
}

func comparePolicies(a, b *Policy) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Name, b.Name))
}

// policyMatch is what policies make of a queue.
type policyMatch struct {
	policy, operator *Policy // nil: none
	// revision is the index of the entry that last changed the queue's
	// effective settings; 0: none has.
	revision uint64
}

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

// matchQueue finds the policies of a queue.
func (vh *vhost) matchQueue(q *Queue, revision uint64) policyMatch {
	return policyMatch{vh.policies.first(func(p *Policy) bool { return p.matchesQueue(q) }),
		vh.operators.first(func(p *Policy) bool { return p.matchesQueue(q) }), revision}
}

// setMatch notes what policies make of a queue.
func (vh *vhost) setMatch(q *Queue, f policyMatch) {
	if f == (policyMatch{}) {
		vh.matches = vh.matches.Without(q.ID)
	} else {
		vh.matches = vh.matches.With(q.ID, f)
	}
}

// matchExchange returns x, or a copy of it, with what policies make of it.
func (vh *vhost) matchExchange(x *Exchange) *Exchange {
	f := policyMatch{policy: vh.policies.first(func(p *Policy) bool { return p.matchesExchange(x) }),
		operator: vh.operators.first(func(p *Policy) bool { return p.matchesExchange(x) })}
	if x.match == f {
		return x
	}
	next := *x
	next.match = f
	next.setEffective()
	return &next
}

// setEffective computes the effective settings of an exchange. The argument wins,
// except for the TTL: the smallest counts. A policy limits the TTL on an
// exchange only if it is for nothing but exchanges: one for queues that is not
// told what it applies to must not shorten what merely passes an exchange of a
// similar name.
func (x *Exchange) setEffective() {
	x.Alternate, x.HasAlternate = text(lookup(x.Arguments, alternateExchange))
	if !x.HasAlternate {
		x.Alternate, x.HasAlternate = text(lookup(x.match.definition(), alternateExchange))
	}
	x.Delays = x.declared.GetType() == Delayed || lookup(x.Arguments, delayedExchange).GetInt() != 0 ||
		lookup(x.match.definition(), "delayed-message").GetInt() != 0
	x.ttl = optional(lookup(x.Arguments, exchangeTTL))
	for _, p := range []*Policy{x.match.policy, x.match.operator} {
		if p != nil && p.ApplyTo == applyExchanges {
			x.ttl = x.ttl.Least(optional(lookup(p.Definition, "message-ttl")))
		}
	}
	x.idle = x.idleTime()
}

// ValidatePolicy says why a policy cannot be set; nil: it can. Proposers ask
// it; Apply asks all of it but the pattern, for the reason given at
// ValidatePattern, and the bounds of names, for the one given at Admit.
func (v *View) ValidatePolicy(m *logpb.PutPolicy) error {
	if err := v.checkPolicy(m); err != nil {
		return err
	}
	if err := checkShortKeys(m.GetDefinition()); err != nil {
		return err
	}
	if _, err := regexp.Compile(m.GetPattern()); err != nil {
		return refuse(fsm.Precondition, "pattern should be regular expression but is invalid: %s (the syntax is RE2: neither look-around nor back-references)",
			strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	return nil
}

func (v *View) checkPolicy(m *logpb.PutPolicy) error {
	if _, ok := v.VHost(m.GetVhost()); !ok {
		return refuse(fsm.NotFoundKind, "no vhost '%s'", m.GetVhost())
	}
	if err := checkName("policy", m.GetName()); err != nil {
		return err
	}
	if len(m.GetPattern()) > maxPattern {
		return refuse(fsm.Precondition, "pattern should be regular expression but is invalid: it is longer than %d bytes", maxPattern)
	}
	if !slices.Contains(applyTo, m.GetApplyTo()) {
		return refuse(fsm.Precondition, "apply-to '%s' unrecognised; should be one of: '%s'", m.GetApplyTo(), strings.Join(applyTo, "', '"))
	}
	if err := checkDefinition(m.GetDefinition(), m.GetOperator()); err != nil {
		return err
	}
	idle := lookup(m.GetDefinition(), "auto-delete-on-idle")
	if idle != nil && tooShort(idle.GetInt(), v.Setting(AutoDeleteOnIdleMin)) {
		return refuse(fsm.Precondition, "%d is not a valid idle time", idle.GetInt())
	}
	return checkRetries(m.GetDefinition())
}

// checkRetries refuses delayed retries whose wait is not said.
func checkRetries(definition *fsm.Table) error {
	s, given := text(lookup(definition, "delayed-retry-type"))
	if given && s != retries[0] && lookup(definition, "delayed-retry-min") == nil {
		return refuse(fsm.Precondition, "delayed-retry-type %s requires a delayed-retry-min", s)
	}
	return nil
}

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
	list := vh.policyList(m.GetOperator())
	*list = list.with(newPolicy(m))
	return d.policiesChanged(vh), nil
}

// deletePolicy removes a policy. One that is not there is fine.
func (d *draft) deletePolicy(m *logpb.DeletePolicy) (*logpb.CatalogResult, error) {
	if _, known := d.Policy(m.GetVhost(), m.GetName(), m.GetOperator()); !known {
		return &logpb.CatalogResult{}, nil
	}
	vh := d.open(m.GetVhost())
	list := vh.policyList(m.GetOperator())
	*list = list.without(m.GetName())
	return d.policiesChanged(vh), nil
}

// policiesChanged brings all that is in a vhost in line with its policies. It
// answers which queues have new settings.
func (d *draft) policiesChanged(vh *vhost) *logpb.CatalogResult {
	r := &logpb.CatalogResult{Changed: true}
	for q := range vh.queues.Values() {
		old := vh.matches.At(q.ID)
		next := vh.matchQueue(q, old.revision)
		if next == old {
			continue
		}
		if !sameRow(q.settings(old, Defaults{}), q.settings(next, Defaults{})) {
			next.revision = d.index
			r.Configured = append(r.Configured, uint64(q.ID))
			vh.touchSources(q.Name, d.clock)
		}
		vh.setMatch(q, next)
	}
	for _, x := range d.Exchanges(vh.row.GetName()) {
		next := vh.matchExchange(x)
		if next == x {
			continue
		}
		vh.exchanges = vh.exchanges.With(x.Name, next)
		vh.retime(next, d.clock)
		if x.Store != nil && !sameRow(x.storeSettings(0), next.storeSettings(0)) {
			vh.setMatch(x.Store, policyMatch{revision: d.index})
			r.Configured = append(r.Configured, uint64(x.Store.ID))
		}
		d.addStore(vh, x.Name, nil, r)
	}
	slices.Sort(r.Configured)
	slices.Sort(r.Added)
	return r
}

// policyList returns where the policies of one kind are kept.
func (vh *vhost) policyList(operator bool) *policies {
	if operator {
		return &vh.operators
	}
	return &vh.policies
}

// Policy finds a policy, or an operator policy, by name.
func (v *View) Policy(vhost, name string, operator bool) (*Policy, bool) {
	vh := v.vhosts.At(vhost)
	if vh == nil {
		return nil, false
	}
	list := *vh.policyList(operator)
	if i := list.find(name); i >= 0 {
		return list[i], true
	}
	return nil, false
}

// Policies returns the policies, or the operator policies, of a vhost. The one
// that wins comes first.
func (v *View) Policies(vhost string, operator bool) []*Policy {
	if vh := v.vhosts.At(vhost); vh != nil {
		return slices.Clone(*vh.policyList(operator))
	}
	return nil
}

// EffectivePolicy is what policies make of a queue or an exchange.
type EffectivePolicy struct {
	// Policy and Operator are the names of those in force; empty: none.
	Policy, Operator string
	// Definition is what both say together, by key.
	Definition *fsm.Table
}

func (f policyMatch) effective() EffectivePolicy {
	r := EffectivePolicy{Definition: f.definition()}
	if f.policy != nil {
		r.Policy = f.policy.Name
	}
	if f.operator != nil {
		r.Operator = f.operator.Name
	}
	return r
}

// EffectivePolicy returns what policies make of a queue.
func (v *View) EffectivePolicy(q *Queue) EffectivePolicy { return v.match(q).effective() }

// EffectivePolicy returns what policies make of the exchange.
func (x *Exchange) EffectivePolicy() EffectivePolicy { return x.match.effective() }

func (v *View) match(q *Queue) policyMatch {
	if vh := v.vhosts.At(q.VHost); vh != nil {
		return vh.matches.At(q.ID)
	}
	return policyMatch{}
}

// checkPolicies: the lists are in order, and what is noted of queues and
// exchanges is what the policies say.
func (vh *vhost) checkPolicies() error {
	for _, list := range []policies{vh.policies, vh.operators} {
		for i, p := range list {
			if p.VHost != vh.row.GetName() || list.find(p.Name) != i || i > 0 && comparePolicies(list[i-1], p) >= 0 {
				return fmt.Errorf("%s is out of place", p)
			}
		}
	}
	noted := vh.matches.Len()
	for q := range vh.queues.Values() {
		f := vh.matches.At(q.ID)
		if vh.matchQueue(q, f.revision) != f {
			return fmt.Errorf("policies of %s are not as noted", q)
		}
		if f != (policyMatch{}) {
			noted--
		}
	}
	if noted != 0 {
		return fmt.Errorf("policies of %d queues that are not there", noted)
	}
	for x := range vh.exchanges.Values() {
		if vh.matchExchange(x) != x {
			return fmt.Errorf("policies of %s are not as noted", x)
		}
	}
	return nil
}
