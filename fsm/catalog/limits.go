package catalog

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/route"
	"github.com/quorate/quorate/proto/logpb"
)

// Names of the limits that vhosts and users can have.
const (
	MaxConnections = "max-connections" // of a vhost or a user, on all nodes
	MaxQueues      = "max-queues"      // of a vhost
	MaxChannels    = "max-channels"    // of a user, on all nodes
)

var (
	vhostLimits = []string{MaxConnections, MaxQueues}
	userLimits  = []string{MaxConnections, MaxChannels}
)

// limited names a limit of a vhost or a user.
type limited struct {
	// user: true: of a user; false: of a vhost
	user bool
	// of: whose it is, and one of vhostLimits or userLimits
	of, name string
}

// limits are those of vhosts and users.
//
// Invariant: each row is of a vhost or a user that is there, names one of its
// limits, and stands under what it says of itself.
//
// A row whose value is negative says that there is no limit, and so overrides
// the default of the cluster's settings; without a row the default applies. All
// negative values mean the same.
type limits struct {
	// given: without rows of limits that were unset; what a snapshot holds
	given route.Map[limited, *logpb.PutLimit]
}

// of is a limit. ok is false if there is none. Defaults do not count: only the
// leader enforces them, see View.Fits.
func (ls *limits) of(l limited) (value int64, ok bool) {
	m, ok := ls.given.Get(l)
	return m.GetValue(), ok && m.GetValue() >= 0
}

// defaults are the settings that hold where there is no limit.
var defaults = map[limited]string{
	{false, "", MaxQueues}:      VHostMaxQueues,
	{false, "", MaxConnections}: VHostMaxConnections,
	{true, "", MaxConnections}:  UserMaxConnections,
	{true, "", MaxChannels}:     UserMaxChannels,
}

// Quota is how many a vhost or a user may have: as many as its limit says, of
// all nodes together, or else as a setting says, at each node. A limit that was
// given counts for the whole cluster, one from a setting at each node, except
// that of queues, whose number every node knows.
type Quota struct {
	Limit int64 // negative: any number
	Whole bool  // of all nodes together
}

// Exceeded reports whether n is too many. n includes the one that is asked
// about. With Limit 0 even the first is too many.
func (q Quota) Exceeded(n uint64) bool { return q.Limit >= 0 && n > uint64(q.Limit) }

// quota is what a limit says, or the setting that holds where there is none.
// Requires: l is a limit of its kind; otherwise there is no setting, which
// panics.
func (ls *limits) quota(l limited, s *clusterSettings) Quota {
	if m, ok := ls.given.Get(l); ok {
		return Quota{m.GetValue(), true}
	}
	l.of = ""
	return Quota{Limit: s.Setting(defaults[l])}
}

// Limits lists what was given to vhosts, or to users, by whom it is of and by
// name. A negative one is no limit. The list is new, the rows are shared.
func (ls *limits) Limits(user bool) []*logpb.PutLimit {
	all := sorted(ls.given, func(a, b *logpb.PutLimit) int {
		return cmp.Or(cmp.Compare(a.Of, b.Of), cmp.Compare(a.Name, b.Name))
	})
	return slices.DeleteFunc(all, func(m *logpb.PutLimit) bool { return m.User != user })
}

// put gives a vhost or a user, which is there or not, a limit, or takes it
// away. It performs PutLimit. What exceeds a new limit stays: limits are
// checked when something is added. m belongs to the catalog from then on.
func (ls *limits) put(m *logpb.PutLimit, there bool) (*logpb.CatalogResult, error) {
	if err := checkLimit(m, there); err != nil {
		return nil, err
	}
	key := limited{m.GetUser(), m.GetOf(), m.GetName()}
	old, given := ls.given.Get(key)
	switch {
	case m.GetUnset() && !given, given && !m.GetUnset() && old.Value == m.GetValue():
		return &logpb.CatalogResult{}, nil
	case m.GetUnset():
		ls.given = ls.given.Without(key)
	default:
		ls.given = ls.given.With(key, m)
	}
	return &logpb.CatalogResult{Changed: true}, nil
}

// checkLimit is what a row must meet when it is put, and ever after: forget
// comes with the end of its vhost or user. Any value is allowed.
func checkLimit(m *logpb.PutLimit, there bool) error {
	what, names := "vhost", vhostLimits
	if m.GetUser() {
		what, names = "user", userLimits
	}
	switch {
	case !there:
		return refuse(fsm.NotFoundKind, "no %s '%s'", what, m.GetOf())
	case !slices.Contains(names, m.GetName()):
		return refuse(fsm.Precondition, "unrecognised %s limit '%s'", what, m.GetName())
	}
	return nil
}

// forget removes all limits of a vhost or a user.
func (ls *limits) forget(user bool, of string) {
	names := vhostLimits
	if user {
		names = userLimits
	}
	for _, name := range names {
		ls.given = ls.given.Without(limited{user, of, name})
	}
}

// save is the section of the limits in a snapshot, and restore its inverse.
func (ls *limits) save(to *logpb.CatalogSnapshot) {
	to.Limits = append(ls.Limits(false), ls.Limits(true)...)
}

func (ls *limits) restore(from *logpb.CatalogSnapshot) {
	for _, m := range from.GetLimits() {
		ls.given = ls.given.With(limited{m.GetUser(), m.GetOf(), m.GetName()}, m)
	}
}

func (ls *limits) describe(b *strings.Builder) {
	for _, m := range append(ls.Limits(false), ls.Limits(true)...) {
		fmt.Fprintf(b, "limit %s=%d of %s%s\n", m.Name, m.Value, m.Of, flags([]string{"user"}, m.User))
	}
}

// check asks which vhosts and users there are.
func (ls *limits) check(there func(user bool, of string) bool) error {
	for key, m := range ls.given.All() {
		if err := checkLimit(m, there(m.GetUser(), m.GetOf())); err != nil {
			return err
		}
		if m.GetUnset() || key != (limited{m.GetUser(), m.GetOf(), m.GetName()}) {
			return fmt.Errorf("limit %q of %q stands under %v", m.GetName(), m.GetOf(), key)
		}
	}
	return nil
}
