package catalog

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/pattern"
	"github.com/quorate/quorate/proto/logpb"
)

// View is the catalog after some entry. It never changes; nor do the records
// that it returns, which callers must not change either. The zero View is the
// empty catalog.
//
// A View embeds its parts, and so has all of their methods. Each part owns its
// state, maintains and checks its invariants, and has its section of the
// snapshot; only a draft calls methods that change one. View's own methods need
// more than one part.
//
// What is shared: records (Queue, Exchange, Binding, Policy, Permission, rows
// of the log) and the nodes of the maps are shared by all Views that have not
// changed them, and with the entries and the snapshot they came from. What a
// draft copies: the View itself with the roots of its maps, and each vhost that
// it opens. So a View that is kept costs only what later entries have replaced.
//
// Lists that methods return are new and the caller's, unless they say
// otherwise; the records in them are not.
type View struct {
	// index is that of the last entry applied; 0: none
	index uint64
	// clock: the largest stamp of an entry so far, ms; it never falls,
	// whichever node stamps. Apply takes nothing later for the present time.
	clock fsm.Time
	// initialized: an Initialize was applied; it stays true when all vhosts and
	// users are deleted later, so that a restart does not bring the default
	// user back
	initialized bool

	clusterSettings
	nodes
	joinTokens
	lockKey
	globals
	users
	limits
	vhosts
	queueIndex
	placements
	proposals
}

// Index is the index of the last entry applied.
func (v *View) Index() uint64 { return v.index }

// Clock is the latest stamp of an entry.
func (v *View) Clock() fsm.Time { return v.clock }

// Initialized reports whether an Initialize has been applied.
func (v *View) Initialized() bool { return v.initialized }

// GroupSize is how many members a queue should have: the larger of its target
// group sizes by policy and by argument. Without either, it is the number of
// members after the last change on request, otherwise its initial size. base is
// the node's setting. Local queues have one member. Target sizes are at most
// maxGroup; the size of a request is taken as it is. The result may be more
// than there are nodes.
func (v *View) GroupSize(q *Queue, base int) int {
	if q.Local {
		return 1
	}
	wanted := max(groupSize(lookup(v.match(q).definition(), "target-group-size"), 0),
		groupSize(lookup(q.Arguments, "x-quorum-target-group-size"), 0))
	switch size := v.placements.size(q); {
	case wanted > 0:
		return wanted
	case size > 0:
		return int(size)
	}
	return InitialSize(q.Arguments, base)
}

// CheckRemoval refuses the removal of a node that has the only replica of a
// queue. Local and exclusive queues do not count: they end with the node
// (brokers make every exclusive queue local). A node that is not there may be
// removed. It walks over all queues, and names the oldest, so the refusal
// has the same text on every replica.
func (v *View) CheckRemoval(node string) error {
	n, ok := v.NodeByName(node)
	if !ok {
		return nil
	}
	var alone []*Queue
	for q := range v.EachQueue() {
		if !q.Local && slices.Equal(v.Members(q), []fsm.NodeID{fsm.NodeID(n.GetNumber())}) && !q.Exclusive {
			alone = append(alone, q)
		}
	}
	if len(alone) == 0 {
		return nil
	}
	slices.SortFunc(alone, byAge)
	var names []string
	for _, q := range alone[:min(len(alone), 5)] {
		names = append(names, q.String())
	}
	return refuse(fsm.Precondition, "last_node: node %s has the only replica of %d queues: %s", node, len(alone), strings.Join(names, ", "))
}

// CheckJoinToken returns why a node would not be admitted by its token at a
// time. now is the proposer's clock: the log's stands still while nothing is
// proposed, so that by it alone an expired token would seem good. Nothing is
// used up.
func (v *View) CheckJoinToken(m *logpb.AdmitNode, now fsm.Time) error {
	_, err := v.joinTokens.after(m, max(v.clock, now), &v.nodes)
	return err
}

// VHostQuota returns the limits of a vhost. Requires: name is one of
// vhostLimits. The vhost need not be there.
func (v *View) VHostQuota(vhost, name string) Quota {
	return v.limits.quota(limited{false, vhost, name}, &v.clusterSettings)
}

// UserQuota returns the limits of a user. Requires: name is one of userLimits.
// The user need not be there.
func (v *View) UserQuota(user, name string) Quota {
	return v.limits.quota(limited{true, user, name}, &v.clusterSettings)
}

// Answered returns the answers to a proposal that has been performed; ok false: it has not been, or
// nobody waits for it.
func (v *View) Answered(p *logpb.Proposal) (results []*logpb.CatalogResult, ok bool) {
	return v.proposals.answered(p, &v.nodes)
}

// there reports whether a vhost, or a user, exists.
func (v *View) there(user bool, name string) (ok bool) {
	if user {
		_, ok = v.User(name)
	} else {
		_, ok = v.VHost(name)
	}
	return ok
}

// ValidatePolicy returns why a policy cannot be set; nil: it can. It decides the
// dialect of m. Proposers call it; Apply checks everything except the bounds of
// names, for the reason given at Admit, and the work that the pattern makes.
func (v *View) ValidatePolicy(m *logpb.PutPolicy) (err error) {
	if len(m.GetPattern()) <= maxPattern {
		if m.Dialect, err = v.dialectOf(m.GetPattern()); err != nil {
			return badPattern(err.Error())
		}
	}
	if err := v.checkPolicy(m); err != nil {
		return err
	}
	if err := checkShortKeys(m.GetDefinition()); err != nil {
		return err
	}
	_, err = v.policyWork(m)
	return err
}

func badPattern(why string) error {
	return refuse(fsm.Precondition, "pattern should be regular expression but is invalid: %s", why)
}

// maxPolicyWork is how many steps a pattern may take for all names of a vhost: about
// half a second, in which the catalog's log stands.
const maxPolicyWork = 1 << 26

// policyWork returns the steps that the pattern of a policy takes for the names that
// are there, and refuses too many.
func (v *View) policyWork(m *logpb.PutPolicy) (steps int, err error) {
	own := newPolicyNames(m.GetPattern(), m.GetDialect()).own
	if own == nil {
		return 0, nil
	}
	vh := v.vhost(m.GetVhost())
	try := func(name string) bool {
		_, n := own.Find(name)
		steps += n
		if n > pattern.MaxSteps {
			err = badPattern(fmt.Sprintf("it takes more than %d steps for the name %q", pattern.MaxSteps, name))
		} else if steps > maxPolicyWork {
			err = badPattern(fmt.Sprintf("it takes more than %d steps for the names in vhost '%s'", maxPolicyWork, m.GetVhost()))
		}
		return err == nil
	}
	for q := range vh.queues.Values() {
		if !try(q.Name) {
			return steps, err
		}
	}
	for x := range vh.exchanges.values() {
		if !try(x.Name) {
			return steps, err
		}
	}
	return steps, nil
}

// checkPolicy is what Apply checks of a policy. It depends on the vhosts and
// the settings of v and on nothing else: no library compiles the pattern here.
func (v *View) checkPolicy(m *logpb.PutPolicy) error {
	if _, ok := v.VHost(m.GetVhost()); !ok {
		return refuse(fsm.NotFoundKind, "no vhost '%s'", m.GetVhost())
	}
	if err := checkName("policy", m.GetName()); err != nil {
		return err
	}
	if len(m.GetPattern()) > maxPattern {
		return badPattern(fmt.Sprintf("it is longer than %d bytes", maxPattern))
	}
	if err := v.checkDialect(m); err != nil {
		return err
	}
	if !slices.Contains(applyTo, m.GetApplyTo()) {
		return refuse(fsm.Precondition, "apply-to '%s' unrecognised; should be one of: '%s'", m.GetApplyTo(), strings.Join(applyTo, "', '"))
	}
	if err := checkDefinition(m.GetDefinition(), m.GetOperator(), v.FSMVersion()); err != nil {
		return err
	}
	idle := lookup(m.GetDefinition(), "auto-delete-on-idle")
	if idle != nil && tooShort(idle.GetInt(), v.Setting(AutoDeleteOnIdleMin)) {
		return refuse(fsm.Precondition, "%d is not a valid idle time", idle.GetInt())
	}
	return checkRetries(m.GetDefinition())
}

// checkDialect refuses a pattern that the machine of the present version does not
// read as the proposer has decided.
func (v *View) checkDialect(m *logpb.PutPolicy) error {
	switch m.GetDialect() {
	case dialectRE2:
		return nil
	case dialectOwn:
		if v.FSMVersion() < patternsSince {
			return badPattern(fmt.Sprintf("its dialect comes with fsm_version %d", patternsSince))
		}
		if _, err := pattern.Compile(m.GetPattern()); err != nil {
			return badPattern(err.Error())
		}
		return nil
	}
	return badPattern(fmt.Sprintf("its dialect %d is not known", m.GetDialect()))
}
