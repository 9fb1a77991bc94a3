package catalog

import (
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/route"
	"github.com/quorate/quorate/proto/logpb"
)

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
	vh.policies.setMatch(q, vh.policies.matchQueue(q, revision))
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
	return vh.policies.check(name, vh.queues, &vh.exchanges)
}
