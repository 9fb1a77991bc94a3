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

// What clients and operators put into the catalog lies in the memory of every
// node. So it has limits, which are settings of the whole cluster. The leader
// asks for every command before it enters the log; Apply does not, as the log
// may hold what an earlier value of a setting has allowed, and what exists stays.

// Fits says why a command asks for more than the cluster allows; nil: it does
// not. What exists may be declared again.
//
// It depends on the settings of v, and may be wrong by the commands that are in
// the log but not yet applied: limits here protect memory and are not exact.
// Kinds that are not named have no limit; what they add is bounded otherwise,
// or made by operators.
func (v *View) Fits(c *logpb.CatalogCommand) error {
	switch m := c.GetBody().(type) {
	case *logpb.CatalogCommand_DeclareQueue:
		return v.fitsQueue(m.DeclareQueue)
	case *logpb.CatalogCommand_DeclareExchange:
		return v.fitsExchange(m.DeclareExchange)
	case *logpb.CatalogCommand_Bind:
		return v.fitsBinding(m.Bind)
	case *logpb.CatalogCommand_Together:
		for _, c := range m.Together.GetCommands() {
			if err := v.Fits(c); err != nil {
				return err
			}
		}
	case *logpb.CatalogCommand_ChangeArguments:
		return v.FitsArguments("arguments of", m.ChangeArguments.GetName(), m.ChangeArguments.GetArguments())
	case *logpb.CatalogCommand_PutPolicy:
		return v.FitsArguments("definition of policy", m.PutPolicy.GetName(), m.PutPolicy.GetDefinition())
	case *logpb.CatalogCommand_PutUser:
		return v.fitsText("tags of user", m.PutUser.GetName(), m.PutUser.GetTags()...)
	case *logpb.CatalogCommand_PutVhost:
		if _, exists := v.VHost(m.PutVhost.GetName()); !exists && int64(v.vhostCount()) >= v.Setting(VHostMax) {
			return refuse(fsm.Precondition, "cannot create vhost '%s': vhost limit of %d is reached", m.PutVhost.GetName(), v.Setting(VHostMax))
		}
		return v.fitsText("description and tags of vhost", m.PutVhost.GetName(), append(m.PutVhost.GetTags(), m.PutVhost.GetDescription())...)
	}
	return nil
}

// fitsQueue checks the cluster's limit, the default limit of the vhost, and the
// size of the arguments. A limit given to the vhost is for Apply to check. A
// missing vhost is no matter of size: Apply refuses it.
func (v *View) fitsQueue(m *logpb.DeclareQueue) error {
	vh := v.vhost(m.GetVhost())
	if vh == nil {
		return nil
	}
	if q := vh.queues.At(m.GetName()); q != nil {
		if len(q.Drift(v, m)) == 0 {
			return nil
		}
		return v.FitsArguments("arguments of queue", m.GetName(), m.GetArguments())
	}
	if limit := v.Setting(ClusterQueueLimit); int64(v.QueueCount()) >= limit {
		return refuse(fsm.Precondition, "cannot declare queue '%s': queue limit in cluster (%d) is reached", m.GetName(), limit)
	}
	if q := v.VHostQuota(m.GetVhost(), MaxQueues); !q.Whole {
		if err := vh.checkQueueCount(m.GetName(), q.Limit); err != nil {
			return err
		}
	}
	return v.FitsArguments("arguments of queue", m.GetName(), m.GetArguments())
}

// fitsExchange counts the predeclared exchanges, too.
func (v *View) fitsExchange(m *logpb.DeclareExchange) error {
	vh := v.vhost(m.GetVhost())
	if vh == nil || vh.exchanges.at(m.GetName()) != nil {
		return nil
	}
	if limit := v.Setting(ClusterExchangeLimit); int64(v.exchangeCount()) >= limit {
		return refuse(fsm.Precondition, "cannot declare exchange '%s' in vhost '%s': exchange limit of %d is reached", m.GetName(), m.GetVhost(), limit)
	}
	return v.FitsArguments("arguments of exchange", m.GetName(), m.GetArguments())
}

// fitsBinding bounds the bindings of the source and those to the destination.
// Unlike the others it refuses at the limit what exists, too; the broker does
// not propose that.
func (v *View) fitsBinding(m *logpb.Bind) error {
	vh := v.vhost(m.GetVhost())
	if vh == nil {
		return nil
	}
	limit := v.Setting(MaxBindings)
	if x := vh.exchanges.at(m.GetSource()); x != nil && int64(x.bindings.Len()) >= limit {
		return refuse(fsm.Precondition, "cannot bind to exchange '%s' in vhost '%s': binding limit of %d is reached", m.GetSource(), m.GetVhost(), limit)
	}
	if to := vh.exchanges.inboundAt(endpoint{m.GetDestination(), m.GetToExchange()}); int64(to.Len()) >= limit {
		return refuse(fsm.Precondition, "cannot bind '%s' in vhost '%s': binding limit of %d is reached", m.GetDestination(), m.GetVhost(), limit)
	}
	return v.FitsArguments("arguments of binding to", m.GetDestination(), m.GetArguments())
}

// FitsArguments refuses a table that is too large. what and name say whose. nil
// takes no bytes and no values. Exactly the limit is allowed.
func (cs *clusterSettings) FitsArguments(what, name string, t *fsm.Table) error {
	var s size
	s.table(t)
	return cs.fitsSize(what, name, s)
}

// fitsText is FitsArguments for texts.
func (cs *clusterSettings) fitsText(what, name string, texts ...string) error {
	s := size{values: len(texts)}
	for _, t := range texts {
		s.octets += len(t)
	}
	return cs.fitsSize(what, name, s)
}

func (cs *clusterSettings) fitsSize(what, name string, s size) error {
	if limit := cs.Setting(MaxArgumentBytes); int64(s.octets) > limit {
		return refuse(fsm.Precondition, "%s '%s' have %d bytes, at most %d are allowed", what, fsm.Short(name), s.octets, limit)
	}
	if limit := cs.Setting(MaxArgumentValues); int64(s.values) > limit {
		return refuse(fsm.Precondition, "%s '%s' have %d values, at most %d are allowed", what, fsm.Short(name), s.values, limit)
	}
	return nil
}

// size is what a table takes as AMQP encodes it, its own length left out, and
// how many values are in it, those that hold others included.
type size struct{ octets, values int }

func (s *size) table(t *fsm.Table) {
	for _, f := range t.GetFields() {
		s.octets += 1 + len(f.GetName())
		s.value(f.GetValue())
	}
}

func (s *size) value(v *logpb.Value) {
	s.values++
	s.octets++ // its tag
	switch v.GetTag() {
	case 't', 'b', 'B':
		s.octets++
	case 's', 'u':
		s.octets += 2
	case 'I', 'i', 'f':
		s.octets += 4
	case 'l', 'L', 'T', 'd':
		s.octets += 8
	default: // a text, a decimal, or what holds others
		s.octets += 4 + len(v.GetStr())
		s.table(v.GetTable())
		for _, one := range v.GetArray() {
			s.value(one)
		}
	}
}

// Values that name an exchange or a message's property, or are a routing key,
// cannot be longer than a short string. Proposers refuse such values, see Admit.
// Apply does not: the log may hold declares and policies that never were checked
// so, and what they made must still be there after a replay. Whoever uses the
// value of a record takes fsm.Short of it.

// The arguments of queues and of exchanges that are short strings, and the keys
// of policies.
var (
	shortInQueues    = []string{deadLetterExchange, deadLetterRoutingKey, forwardArgument, "x-forward-to-routing-key", sentRefusedArgument}
	shortInExchanges = []string{alternateExchange, deadLetterExchange, deadLetterRoutingKey, hashHeader}
	shortInPolicies  = []string{"dead-letter-exchange", "dead-letter-routing-key", "alternate-exchange", "forward-to-exchange", "forward-to-routing-key"}
)

// Admit says why a command must not enter the log, although Apply might perform
// it; nil: it may. The leader asks for every command, whoever proposes it. It
// depends on the command alone. Records from the log may still hold longer
// names.
func Admit(c *logpb.CatalogCommand) error {
	switch m := c.GetBody().(type) {
	case nil:
		return refuse(fsm.Internal, "unknown catalog command")
	case *logpb.CatalogCommand_NotAdmitted:
		return refuse(fsm.Internal, "only the leader says what is not admitted")
	case *logpb.CatalogCommand_RecoverCluster:
		return refuse(fsm.Internal, "a cluster is recovered from the log of one node, not by a proposal")
	case *logpb.CatalogCommand_DeclareQueue:
		return checkShort(resource(kindQueue, m.DeclareQueue.GetVhost(), m.DeclareQueue.GetName()), m.DeclareQueue.GetArguments(), shortInQueues)
	case *logpb.CatalogCommand_DeclareExchange:
		return checkShort(resource(kindExchange, m.DeclareExchange.GetVhost(), m.DeclareExchange.GetName()), m.DeclareExchange.GetArguments(), shortInExchanges)
	case *logpb.CatalogCommand_PutPolicy:
		return checkShortKeys(m.PutPolicy.GetDefinition())
	case *logpb.CatalogCommand_ChangeArguments:
		c := m.ChangeArguments
		if c.GetExchange() {
			return checkShort(resource(kindExchange, c.GetVhost(), c.GetName()), c.GetArguments(), shortInExchanges)
		}
		return checkShort(resource(kindQueue, c.GetVhost(), c.GetName()), c.GetArguments(), shortInQueues)
	case *logpb.CatalogCommand_Together:
		for _, c := range m.Together.GetCommands() {
			if err := Admit(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkShort refuses the named arguments if they are no short strings.
func checkShort(where string, args *fsm.Table, names []string) error {
	for _, name := range names {
		if s, _ := text(lookup(args, name)); len(s) > fsm.MaxShort {
			return invalidArgument(name, where, fmt.Sprintf("{value_too_long,%d}", len(s)))
		}
	}
	return nil
}

// checkShortKeys is checkShort for a policy.
func checkShortKeys(definition *fsm.Table) error {
	for _, name := range shortInPolicies {
		if s, _ := text(lookup(definition, name)); len(s) > fsm.MaxShort {
			return refuse(fsm.Precondition, "%s may have at most %d bytes, not %d", name, fsm.MaxShort, len(s))
		}
	}
	return nil
}
