package catalog

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/quorate/quorate/fsm"
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
	user     bool
	of, name string
}

// VHostLimit is a limit of a vhost. ok is false if it has none.
func (v *View) VHostLimit(vhost, name string) (value int64, ok bool) {
	return v.limit(limited{false, vhost, name})
}

// UserLimit is a limit of a user. ok is false if there is none.
func (v *View) UserLimit(user, name string) (value int64, ok bool) {
	return v.limit(limited{true, user, name})
}

func (v *View) limit(l limited) (int64, bool) {
	m, ok := v.limits.Get(l)
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
// all nodes together, or else as a setting says, at each node.
type Quota struct {
	Limit int64 // negative: any number
	Whole bool  // of all nodes together
}

// Exceeded reports whether n is too many.
func (q Quota) Exceeded(n uint64) bool { return q.Limit >= 0 && n > uint64(q.Limit) }

// VHostQuota is what a vhost may have.
func (v *View) VHostQuota(vhost, name string) Quota { return v.quota(limited{false, vhost, name}) }

// UserQuota is what a user may have.
func (v *View) UserQuota(user, name string) Quota { return v.quota(limited{true, user, name}) }

func (v *View) quota(l limited) Quota {
	if m, ok := v.limits.Get(l); ok {
		return Quota{m.GetValue(), true}
	}
	l.of = ""
	return Quota{Limit: v.Setting(defaults[l])}
}

// Limits lists what was given to vhosts, or to users, by whom it is of and by
// name. A negative one is no limit.
func (v *View) Limits(user bool) []*logpb.PutLimit {
	all := sorted(v.limits, func(a, b *logpb.PutLimit) int {
		return cmp.Or(cmp.Compare(a.Of, b.Of), cmp.Compare(a.Name, b.Name))
	})
	return slices.DeleteFunc(all, func(m *logpb.PutLimit) bool { return m.User != user })
}

// checkQueueLimit refuses another queue in a vhost that is full. Stores of
// exchanges do not count.
func (v *View) checkQueueLimit(vhost, name string) error {
	most, ok := v.VHostLimit(vhost, MaxQueues)
	if !ok {
		return nil
	}
	return v.checkQueuesOf(vhost, name, most)
}

func (v *View) checkQueuesOf(vhost, name string, most int64) error {
	vh := v.vhosts.At(vhost)
	if int64(vh.queues.Len()) < most {
		return nil
	}
	count := int64(vh.queues.Len())
	for x := range vh.exchanges.Values() {
		if x.Store != nil {
			count--
		}
	}
	if count < most {
		return nil
	}
	return refuse(fsm.Precondition, "cannot declare queue '%s': queue limit in vhost '%s' (%d) is reached", name, vhost, most)
}

// putLimit gives a vhost or a user a limit, or takes it away.
func (d *draft) putLimit(m *logpb.PutLimit) (*logpb.CatalogResult, error) {
	if err := d.checkLimit(m); err != nil {
		return nil, err
	}
	key := limited{m.GetUser(), m.GetOf(), m.GetName()}
	old, given := d.limits.Get(key)
	switch {
	case m.GetUnset() && !given, given && !m.GetUnset() && old.Value == m.GetValue():
		return &logpb.CatalogResult{}, nil
	case m.GetUnset():
		d.limits = d.limits.Without(key)
	default:
		d.limits = d.limits.With(key, m)
	}
	return &logpb.CatalogResult{Changed: true}, nil
}

func (v *View) checkLimit(m *logpb.PutLimit) error {
	what, names := "vhost", vhostLimits
	_, there := v.VHost(m.GetOf())
	if m.GetUser() {
		what, names = "user", userLimits
		_, there = v.User(m.GetOf())
	}
	switch {
	case !there:
		return refuse(fsm.NotFoundKind, "no %s '%s'", what, m.GetOf())
	case !slices.Contains(names, m.GetName()):
		return refuse(fsm.Precondition, "unrecognised %s limit '%s'", what, m.GetName())
	}
	return nil
}

// forgetLimits takes a vhost or a user all limits.
func (d *draft) forgetLimits(user bool, of string) {
	names := vhostLimits
	if user {
		names = userLimits
	}
	for _, name := range names {
		d.limits = d.limits.Without(limited{user, of, name})
	}
}

// checkLimits: each limit is one that may be given, and stands under its name.
func (v *View) checkLimits() error {
	for key, m := range v.limits.All() {
		if err := v.checkLimit(m); err != nil {
			return err
		}
		if m.GetUnset() || key != (limited{m.GetUser(), m.GetOf(), m.GetName()}) {
			return fmt.Errorf("limit %q of %q stands under %v", m.GetName(), m.GetOf(), key)
		}
	}
	return nil
}
