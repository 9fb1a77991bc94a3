package catalog

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/route"
	"github.com/quorate/quorate/proto/logpb"
)

// vhosts are all vhosts, with methods that find their contents.
//
// Invariant: each vhost is stored under its name.
type vhosts struct {
	// vhostRows: by name. A draft replaces a value once, see draft.open
	vhostRows route.Map[string, *vhost]
}

// vhost returns a vhost; nil: there is none of this name.
func (vs *vhosts) vhost(name string) *vhost { return vs.vhostRows.At(name) }

// all iterates over the vhosts in no particular order.
func (vs *vhosts) all() iter.Seq[*vhost] { return vs.vhostRows.Values() }

// byName iterates over the vhosts and their keys in no particular order.
func (vs *vhosts) byName() iter.Seq2[string, *vhost] { return vs.vhostRows.All() }

// vhostCount is the number of vhosts.
func (vs *vhosts) vhostCount() int { return vs.vhostRows.Len() }

// exchangeCount is the number of exchanges of all vhosts. It costs O(number of
// vhosts).
func (vs *vhosts) exchangeCount() (n int) {
	for vh := range vs.all() {
		n += vh.exchanges.len()
	}
	return n
}

// put adds a vhost, or replaces its record. remove removes one.
func (vs *vhosts) put(vh *vhost)      { vs.vhostRows = vs.vhostRows.With(vh.row.GetName(), vh) }
func (vs *vhosts) remove(name string) { vs.vhostRows = vs.vhostRows.Without(name) }

// VHost finds a vhost by name. The row is shared and must not be changed.
func (vs *vhosts) VHost(name string) (*logpb.PutVhost, bool) {
	vh := vs.vhost(name)
	if vh == nil {
		return nil, false
	}
	return vh.row, true
}

// VHosts returns the vhosts by name.
func (vs *vhosts) VHosts() []*logpb.PutVhost {
	var list []*logpb.PutVhost
	for vh := range vs.all() {
		list = append(list, vh.row)
	}
	slices.SortFunc(list, func(a, b *logpb.PutVhost) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// Queue finds a queue by name. ok is false as well if there is no such vhost.
// Stores of exchanges are found, too.
func (vs *vhosts) Queue(vhost, name string) (*Queue, bool) {
	vh := vs.vhost(vhost)
	if vh == nil {
		return nil, false
	}
	return vh.queues.Get(name)
}

// QueuesOf returns the queues of a vhost by name. It sorts: O(n log n). Stores
// of exchanges are among them.
func (vs *vhosts) QueuesOf(vhost string) []*Queue {
	vh := vs.vhost(vhost)
	if vh == nil {
		return nil
	}
	return sorted(vh.queues, func(a, b *Queue) int { return cmp.Compare(a.Name, b.Name) })
}

// EachQueueOf walks over the queues of a vhost, stores included, in no particular order.
func (vs *vhosts) EachQueueOf(vhost string) iter.Seq[*Queue] {
	vh := vs.vhost(vhost)
	if vh == nil {
		return func(func(*Queue) bool) {}
	}
	return vh.queues.Values()
}

// Exchange finds an exchange by name. The default exchange has no record.
func (vs *vhosts) Exchange(vhost, name string) (*Exchange, bool) {
	vh := vs.vhost(vhost)
	if vh == nil {
		return nil, false
	}
	x := vh.exchanges.at(name)
	return x, x != nil
}

// Exchanges returns the exchanges of a vhost by name, without the default one.
func (vs *vhosts) Exchanges(vhost string) []*Exchange {
	vh := vs.vhost(vhost)
	if vh == nil {
		return nil
	}
	return vh.exchanges.list()
}

// binding finds the binding that m describes. Only source, destination and its
// kind, routing key and arguments of m count.
func (vs *vhosts) binding(m *logpb.Bind) (*Binding, bool) {
	x, ok := vs.Exchange(m.GetVhost(), m.GetSource())
	if !ok {
		return nil, false
	}
	return x.bindings.Get(bindingKey(m))
}

// BindingsFrom returns the bindings whose source is an exchange, by
// destination, routing key and arguments.
func (vs *vhosts) BindingsFrom(vhost, exchange string) []*Binding {
	x, ok := vs.Exchange(vhost, exchange)
	if !ok {
		return nil
	}
	return sorted(x.bindings, compareBindings)
}

// BindingsTo returns the bindings that end at a queue or, if isExchange, at an
// exchange, by source, routing key and arguments. It does not include the
// implicit binding of a queue to the default exchange. It costs only what it
// returns: the bindings are also kept by destination.
func (vs *vhosts) BindingsTo(vhost, name string, isExchange bool) []*Binding {
	vh := vs.vhost(vhost)
	if vh == nil {
		return nil
	}
	var list []*Binding
	for b := range vh.exchanges.inboundAt(endpoint{name, isExchange}).All() {
		list = append(list, b)
	}
	slices.SortFunc(list, compareBindings)
	return list
}

// Bindings returns all bindings of a vhost, by source, destination, routing
// key and arguments.
func (vs *vhosts) Bindings(vhost string) []*Binding {
	var list []*Binding
	for _, x := range vs.Exchanges(vhost) {
		list = append(list, sorted(x.bindings, compareBindings)...)
	}
	return list
}

// Policy finds a policy, or an operator policy, by name.
func (vs *vhosts) Policy(vhost, name string, operator bool) (*Policy, bool) {
	vh := vs.vhost(vhost)
	if vh == nil {
		return nil, false
	}
	return vh.policies.find(name, operator)
}

// Policies returns the policies, or the operator policies, of a vhost. The
// winning one comes first.
func (vs *vhosts) Policies(vhost string, operator bool) []*Policy {
	if vh := vs.vhost(vhost); vh != nil {
		return slices.Clone(vh.policies.list(operator))
	}
	return nil
}

// match returns which policies match a queue. A queue that is not there matches
// nothing. It does not match patterns: the result is kept with the vhost.
func (vs *vhosts) match(q *Queue) policyMatch {
	if vh := vs.vhost(q.VHost); vh != nil {
		return vh.policies.of(q)
	}
	return policyMatch{}
}

// EffectivePolicy returns the result of policies for a queue. Of a store it is
// always empty: policies of its exchange apply.
func (vs *vhosts) EffectivePolicy(q *Queue) EffectivePolicy { return vs.match(q).effective() }

// TryPolicy returns what the result of policies would be for queues of the vhost
// of m if m were put: a function that also says whether m matches the queue, even
// if another policy wins. Requires: the vhost exists, and m is valid.
func (vs *vhosts) TryPolicy(m *logpb.PutPolicy) func(*Queue) (would EffectivePolicy, matches bool) {
	p := newPolicy(m)
	next := vs.vhost(m.GetVhost()).policies.with(p)
	return func(q *Queue) (EffectivePolicy, bool) {
		return next.matchQueue(q, policyMatch{}).effective(), p.matchesQueue(q)
	}
}

// Permission finds the permission of a user in a vhost. A user without one
// may not open the vhost.
func (vs *vhosts) Permission(user, vhost string) (*Permission, bool) {
	vh := vs.vhost(vhost)
	switch {
	case vh == nil:
		return nil, false
	case user == Broker:
		return &unlimited, true
	}
	return vh.rights.permission(user)
}

// May reports whether a user may do verb to the resource of this name. The
// default exchange is named amq.default here. Patterns are compiled when the
// permission is set, not here.
func (vs *vhosts) May(user, vhost string, verb Verb, name string) bool {
	p, ok := vs.Permission(user, vhost)
	return ok && p.May(verb, name)
}

// TopicRule returns the topic permission that applies to a user at an exchange:
// nil if there is none, or if the exchange is not a topic exchange. A vhost
// without topic permissions is answered without a look-up. The result stays
// valid for the View only.
func (vs *vhosts) TopicRule(user, vhost, exchange string) *TopicPermission {
	vh := vs.vhost(vhost)
	if vh == nil || !vh.rights.anyTopics() {
		return nil
	}
	if x := vh.exchanges.at(exchange); x == nil || x.Type != Topic {
		return nil
	}
	return vh.rights.topic(topicPlace{user, exchange})
}

// Permissions returns all permissions by user and vhost.
func (vs *vhosts) Permissions() []*Permission {
	var list []*Permission
	for vh := range vs.all() {
		permissions, _ := vh.rights.list()
		list = append(list, permissions...)
	}
	slices.SortFunc(list, func(a, b *Permission) int {
		return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(a.VHost, b.VHost))
	})
	return list
}

// TopicPermissions returns all topic permissions by user, vhost and exchange.
func (vs *vhosts) TopicPermissions() []*TopicPermission {
	var list []*TopicPermission
	for vh := range vs.all() {
		_, topics := vh.rights.list()
		list = append(list, topics...)
	}
	slices.SortFunc(list, func(a, b *TopicPermission) int {
		return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(a.VHost, b.VHost), cmp.Compare(a.Exchange, b.Exchange))
	})
	return list
}

// sorted returns the values of m in order. Requires: compare never says that
// two of them are equal, as m's order would show through otherwise.
func sorted[K comparable, V any](m route.Map[K, V], compare func(a, b V) int) []V {
	list := make([]V, 0, m.Len())
	for value := range m.Values() {
		list = append(list, value)
	}
	slices.SortFunc(list, compare)
	return list
}

// vhost is what one vhost holds. It joins its parts: an exchange is matched by
// policies, a binding leads to the record of a queue.
//
// A published vhost never changes: a draft copies it, see draft.open. The
// methods with a verb of change require such a copy.
type vhost struct {
	// row: its description; replaced as a whole by PutVhost, never nil
	row *logpb.PutVhost
	// rights: who may do what here
	rights rights
	// policies: and which of them match the queues below
	policies policies
	// exchanges: without the default exchange, which has no record
	exchanges exchanges
	// queues: by name, stores included. The same records as in queueIndex, and
	// as in the tables of the exchanges bound to them: a record that is
	// replaced must be replaced in all three.
	queues route.Map[string, *Queue]
	// descriptions of queues and exchanges, and accessKeys to them or to all
	descriptions descriptions
	accessKeys   accessKeys
	// wholes: those of the queues and exchanges that other queues are parts of
	wholes wholes
}

// addExchange makes an exchange from a declare that has been checked.
//
// Requires: no exchange has the name. It serves DeclareExchange, the
// predeclared exchanges and Restore, so the record is derived from m and the
// policies alone. m is copied down to its arguments, which are shared; only
// what a client declared is kept, not where a store was to be. The last use is
// the caller's, see retime.
func (vh *vhost) addExchange(m *logpb.DeclareExchange) {
	m = &logpb.DeclareExchange{
		Vhost: vh.row.GetName(), Name: m.GetName(), Type: m.GetType(),
		Durable: m.GetDurable(), AutoDelete: m.GetAutoDelete(), Internal: m.GetInternal(), Arguments: m.GetArguments(),
	}
	x := &Exchange{
		VHost: m.Vhost, Name: m.Name, Type: m.Type,
		Durable: m.Durable, AutoDelete: m.AutoDelete, Internal: m.Internal, Arguments: m.Arguments,
		declared: m,
	}
	x.Type = routingType(m)
	x.hash, _ = hashOf(m)
	x.setEffective()
	vh.exchanges.put(vh.policies.applyTo(x))
}

// addBinding makes a binding that has been checked and is new. Requires: source
// and destination are there.
func (vh *vhost) addBinding(m *logpb.Bind) {
	b := newBinding(vh.row.GetName(), m)
	to, _ := vh.lead(b)
	vh.exchanges.bind(b, to)
}

// lead returns where a binding leads. there false: to nothing.
func (vh *vhost) lead(b *Binding) (to destination, there bool) {
	if b.ToExchange {
		return destination{exchange: b.Destination}, vh.exchanges.at(b.Destination) != nil
	}
	q := vh.queues.At(b.Destination)
	return destination{queue: q}, q != nil
}

// addQueue takes up a queue and notes the policies that match it, and what it
// is the store of. Requires: neither its name nor its id is taken. If q is a
// store, its exchange is replaced by a copy that has it: other exchanges refer
// to that by name.
func (vh *vhost) addQueue(q *Queue, revision uint64) {
	vh.queues = vh.queues.With(q.Name, q)
	vh.noteQueue(q, policyMatch{revision: revision})
}

// noteQueue is addQueue but for the queue's name. had is its match but for the policies.
func (vh *vhost) noteQueue(q *Queue, had policyMatch) {
	vh.policies.setMatch(q, vh.policies.matchQueue(q, had))
	vh.wholes.add(q)
	if x := vh.exchanges.at(q.StoreOf); x != nil && q.StoreOf != "" {
		next := *x
		next.Store = q
		vh.exchanges.put(&next)
	}
}

// removeQueue removes a queue that nothing is bound to. The exchange of a store
// must be removed, too: its record keeps pointing to it.
func (vh *vhost) removeQueue(q *Queue) {
	vh.queues = vh.queues.Without(q.Name)
	vh.policies.forget(q)
	vh.wholes.remove(q)
}

// checkQueueCount refuses another queue if there are as many as a limit says.
// Stores of exchanges do not count. It is exact, as Apply calls it. Counting
// stores walks over all exchanges, and happens only when the limit seems
// reached.
func (vh *vhost) checkQueueCount(name string, limit int64) error {
	if int64(vh.queues.Len()) < limit {
		return nil
	}
	count := int64(vh.queues.Len())
	for x := range vh.exchanges.values() {
		if x.Store != nil {
			count--
		}
	}
	if count < limit {
		return nil
	}
	return refuse(fsm.Precondition, "cannot declare queue '%s': queue limit in vhost '%s' (%d) is reached", name, vh.row.GetName(), limit)
}

// checkStore: an exchange that delays has a store, which is its own.
func (vh *vhost) checkStore(x *Exchange) error {
	switch q := x.Store; {
	case q == nil && x.Delays:
		return fmt.Errorf("%s delays and has no store", x)
	case q != nil && (q.StoreOf != x.Name || vh.queues.At(q.Name) != q || q.Exclusive || q.Local || !q.Durable):
		return fmt.Errorf("%s is no store of %s", q, x)
	}
	return nil
}

// check gets the present time and the users.
func (vh *vhost) check(clock fsm.Time, all *users) error {
	name := vh.row.GetName()
	if err := vh.rights.check(name, all); err != nil {
		return err
	}
	for key, q := range vh.queues.All() {
		if q.Name != key || q.VHost != name {
			return fmt.Errorf("%s stands under %q in %q", q, key, name)
		}
		if x := vh.exchanges.at(q.StoreOf); q.StoreOf != "" && (x == nil || x.Store != q) {
			return fmt.Errorf("%s is not the store of exchange %q", q, q.StoreOf)
		}
	}
	if err := vh.exchanges.checkUse(clock); err != nil {
		return err
	}
	if err := vh.exchanges.check(name, vh.lead); err != nil {
		return err
	}
	for x := range vh.exchanges.values() {
		if err := vh.checkStore(x); err != nil {
			return err
		}
	}
	if err := vh.checkDescribed(); err != nil {
		return err
	}
	return vh.policies.check(name, vh.queues, &vh.exchanges)
}
