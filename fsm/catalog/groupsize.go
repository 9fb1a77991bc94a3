package catalog

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Largest number of members of a group that anything asks for by itself.
const maxGroup = 7

// InitialSize is how many members a queue is to be declared with; base is the
// node's setting. At most maxGroup if an argument says so; base is taken as it
// is. Requires: args were checked, so the argument is at least 1.
func InitialSize(args *fsm.Table, base int) int {
	return groupSize(lookup(args, "x-quorum-initial-group-size"), base)
}

// groupSize reads a number of members; otherwise is for values that are none.
func groupSize(v *logpb.Value, otherwise int) int {
	if n, ok := integer(v); ok {
		return int(min(n, maxGroup))
	}
	return otherwise
}

// Locator is the rule by which the leader of a new queue is chosen.
type Locator string

// What a locator can be. All other names that are accepted mean Balanced.
const (
	ClientLocal Locator = "client-local"
	Balanced    Locator = "balanced"
)

// LeaderLocator returns the locator of a queue that does not exist yet;
// otherwise is the node's setting. It matches policies against a temporary
// queue, which has no id and no members. The proposer calls it; the log holds
// the outcome as the order of the members.
func (vs *vhosts) LeaderLocator(m *logpb.DeclareQueue, otherwise Locator) Locator {
	q := newQueue(m, 0, 0)
	var f policyMatch
	if vh := vs.vhost(q.VHost); vh != nil {
		f = vh.policies.matchQueue(q, 0)
	}
	name, given := text(effective{q.Arguments, f.definition()}.value("queue-leader-locator"))
	switch {
	case !given:
		return otherwise
	case name == string(ClientLocal):
		return ClientLocal
	}
	return Balanced
}
