package catalog

import (
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Client is who asks: a user, and the connection that exclusive queues are
// compared with.
type Client struct {
	User  string
	Owner Owner
}

const (
	reserved = "amq."
	// GeneratedPrefix starts the names that brokers make for queues without
	// a name.
	GeneratedPrefix = "amq.gen-"
	maxName         = fsm.MaxShort
)

// locked is the refusal of a queue that belongs to another connection.
func (q *Queue) locked() error {
	return refuse(fsm.Locked, "cannot obtain exclusive access to locked %s. It could be originally declared on another "+
		"connection or the exclusive property value does not match that of the original declaration.", q)
}

// CheckOwner refuses the use of an exclusive queue by another connection than
// its own.
func (q *Queue) CheckOwner(o Owner) error {
	if q.Exclusive && q.Owner != o {
		return q.locked()
	}
	return nil
}

func noQueue(vhost, name string) error {
	return refuse(fsm.NotFoundKind, "no %s", resource(kindQueue, vhost, name))
}

func noVhost(name string) error { return refuse(fsm.NotAllowed, "vhost %s not found", name) }

// UseQueue finds a queue for a client that wants to purge it or to look into
// it (verb Read).
func (v *View) UseQueue(by Client, verb Verb, vhost, name string) (*Queue, error) {
	if err := v.access(by.User, vhost)(verb, kindQueue, name); err != nil {
		return nil, err
	}
	q, err := v.ownQueue(by, vhost, name)
	if err == nil {
		err = q.checkOpen()
	}
	return q, err
}

// CheckRead refuses a user who may not read a queue.
func (v *View) CheckRead(user string, q *Queue) error {
	return v.access(user, q.VHost)(Read, kindQueue, q.Name)
}

// TakeFrom is UseQueue for a client that wants to take messages out.
func (v *View) TakeFrom(by Client, vhost, name string) (*Queue, error) {
	q, err := v.UseQueue(by, Read, vhost, name)
	if err == nil && q.Hold {
		return nil, refuse(fsm.AccessRefused, "%s is a hold queue: nobody may take its messages", q)
	}
	return q, err
}

// PassiveQueue finds a queue for a client that asks whether it is there.
func (v *View) PassiveQueue(by Client, vhost, name string) (*Queue, error) {
	if err := v.mayAny(by.User, vhost, kindQueue, name); err != nil {
		return nil, err
	}
	return v.ownQueue(by, vhost, name)
}

func (v *View) ownQueue(by Client, vhost, name string) (*Queue, error) {
	q, ok := v.openTo(v.access(by.User, vhost), vhost, name)
	if !ok {
		return nil, noQueue(vhost, name)
	}
	return q, q.CheckOwner(by.Owner)
}

// mayAny refuses a user without any permission for a name.
func (v *View) mayAny(user, vhost, kind, name string) error {
	return anyOf(v.access(user, vhost), kind, name)
}

func anyOf(ask access, kind, name string) error {
	for _, verb := range []Verb{Write, Read} {
		if ask(verb, kind, name) == nil {
			return nil
		}
	}
	return ask(Configure, kind, name)
}

// maxNamePrefix is the longest prefix of a generated name, in bytes.
const maxNamePrefix = 64

// NamePrefix returns how the name of a queue begins that was declared without
// one. given is false if the arguments do not say so.
func NamePrefix(args *fsm.Table) (prefix string, given bool, err error) {
	v := lookup(args, "x-name-prefix")
	if v == nil {
		return GeneratedPrefix, false, nil
	}
	prefix, ok := text(v)
	switch {
	case !ok:
		return "", true, refuse(fsm.Precondition, "invalid arg 'x-name-prefix': %s", unacceptableType(v))
	case len(prefix) > maxNamePrefix:
		return "", true, refuse(fsm.Precondition, "Queue name prefix '%s' exceeds the %d-byte limit", prefix, maxNamePrefix)
	}
	return prefix, true, nil
}

// CheckDeclareQueue answers a declare as far as the view can: with the queue
// that is there already and is equivalent, with a refusal, or with neither,
// when the queue is to be created. generated says that the broker made the
// name. d.Owner must be by.Owner if d is exclusive.
func (v *View) CheckDeclareQueue(by Client, d *logpb.DeclareQueue, generated bool) (*Queue, error) {
	q, err := v.checkDeclareQueue(v.access(by.User, d.GetVhost()), d, generated)
	if q == nil && err == nil {
		where := resource(kindQueue, d.GetVhost(), d.GetName())
		if err = checkShort(where, d.GetArguments(), shortInQueues); err == nil {
			err = checkRetry(where, d.GetArguments())
		}
	}
	return q, err
}

func (v *View) checkDeclareQueue(ask access, d *logpb.DeclareQueue, generated bool) (*Queue, error) {
	vhost, name := d.GetVhost(), d.GetName()
	if _, ok := v.VHost(vhost); !ok {
		return nil, noVhost(vhost)
	}
	q, exists := v.openTo(ask, vhost, name)
	err := ask(Configure, kindQueue, name)
	if !generated && strings.HasPrefix(name, reserved) && (!exists || err != nil) {
		// Whether there is one is told to those only who might declare it.
		return nil, refuse(fsm.AccessRefused, "queue name '%s' contains reserved prefix 'amq.*'", name)
	}
	if err != nil {
		return nil, err
	}
	if exists {
		if err := q.checkOpen(); err != nil {
			return nil, err
		}
		return q, q.equivalent(d)
	}
	if err := checkName(kindQueue, name); err != nil {
		return nil, err
	}
	dlx, given, err := DeadLetterExchange(vhost, name, d.GetArguments())
	if err != nil {
		return nil, err
	}
	if given {
		if err := ask(Read, kindQueue, name); err != nil {
			return nil, err
		}
		if err := ask(Write, kindExchange, dlx); err != nil {
			return nil, err
		}
	}
	if err := v.ValidateQueueArguments(vhost, name, d.GetArguments()); err != nil {
		return nil, err
	}
	return nil, v.checkQueueLimit(vhost, name)
}

func checkName(kind, name string) error {
	if name == "" || len(name) > maxName {
		return refuse(fsm.Precondition, "%s names have 1 to %d bytes", kind, maxName)
	}
	return nil
}

// declareQueue creates a queue, or finds the one that is there.
func (d *draft) declareQueue(m *logpb.DeclareQueue) (*logpb.CatalogResult, error) {
	q, err := d.checkDeclareQueue(noAccess, m, strings.HasPrefix(m.GetName(), GeneratedPrefix))
	if err != nil {
		return nil, err
	}
	if q != nil {
		return &logpb.CatalogResult{Queue: uint64(q.ID), Group: uint32(q.Group)}, nil
	}
	if m.GetStoreOf() != "" {
		return nil, refuse(fsm.Internal, "%s would be a store without its exchange", resource(kindQueue, m.GetVhost(), m.GetName()))
	}
	if err := d.checkPlacement(m); err != nil {
		return nil, err
	}
	q = newQueue(m, fsm.QueueID(d.id()), d.nextFreeGroup())
	d.nextGroup = uint32(q.Group) + 1
	d.addQueue(q, 0)
	return &logpb.CatalogResult{Changed: true, Queue: uint64(q.ID), Group: uint32(q.Group)}, nil
}

// checkPlacement refuses a queue on nodes that are not there, and one of a
// connection whose node has restarted since: nobody would ever delete it.
func (d *draft) checkPlacement(m *logpb.DeclareQueue) error {
	where := resource(kindQueue, m.GetVhost(), m.GetName())
	members := m.GetMembers()
	if len(members) == 0 || m.GetLocal() && len(members) != 1 {
		return refuse(fsm.Internal, "%s cannot have %d members", where, len(members))
	}
	for i, number := range members {
		if _, ok := d.Node(fsm.NodeID(number)); !ok || slices.Contains(members[:i], number) {
			return refuse(fsm.Internal, "%s cannot have node %d as a member", where, number)
		}
	}
	if !m.GetExclusive() {
		return nil
	}
	node, ok := d.Node(fsm.NodeID(m.GetOwner().GetNode()))
	if !ok || node.GetBoot() != m.GetOwner().GetBoot() || node.GetDead() {
		return refuse(fsm.Forced, "the node that owns %s has restarted, or counts as dead", where)
	}
	return nil
}

// newQueue makes the record of a queue from a declare that has been checked.
func newQueue(m *logpb.DeclareQueue, id fsm.QueueID, group fsm.GroupID) *Queue {
	m = &logpb.DeclareQueue{
		Vhost: m.GetVhost(), Name: m.GetName(),
		Durable: m.GetDurable() && !m.GetExclusive(), Exclusive: m.GetExclusive(), AutoDelete: m.GetAutoDelete(),
		Arguments: m.GetArguments(), Owner: m.GetOwner(), Members: m.GetMembers(), Local: m.GetLocal(), StoreOf: m.GetStoreOf(),
	}
	if !m.Exclusive {
		m.Owner = nil
	}
	q := &Queue{
		ID: id, Group: group, VHost: m.Vhost, Name: m.Name,
		Durable: m.Durable, Exclusive: m.Exclusive, AutoDelete: m.AutoDelete, Local: m.Local,
		Hold:      lookup(m.Arguments, holdArgument).GetInt() != 0,
		Arguments: m.Arguments, Owner: ownerFrom(m.Owner), StoreOf: m.StoreOf,
		declared: m,
	}
	q.declaredMembers = nodeIDs(m.Members)
	return q
}

// nextFreeGroup returns the group number for the next queue. Numbers are used
// in turn; when all 2^32-1 have been, the search begins again at 1 and leaves
// out those in use.
func (d *draft) nextFreeGroup() fsm.GroupID {
	for g := fsm.GroupID(d.nextGroup); ; g++ {
		if _, used := d.byGroup.Get(g); g != 0 && !used {
			return g
		}
	}
}

// addQueue takes up a queue and puts the policies in force for it. revision is
// that of its settings.
func (d *draft) addQueue(q *Queue, revision uint64) {
	vh := d.open(q.VHost)
	vh.queues = vh.queues.With(q.Name, q)
	vh.setMatch(q, vh.matchQueue(q, revision))
	d.byID = d.byID.With(q.ID, q)
	d.byGroup = d.byGroup.With(q.Group, q)
	if q.Exclusive {
		d.owned = d.owned.With(q.Owner, d.owned.At(q.Owner).With(q.ID, q))
	}
	if x, ok := vh.exchanges.Get(q.StoreOf); ok && q.StoreOf != "" {
		next := *x
		next.Store = q
		vh.exchanges = vh.exchanges.With(x.Name, &next)
	}
}

// CheckDeleteQueue answers the delete of a queue as far as the view can. A
// nil queue without an error was not there, which is fine.
func (v *View) CheckDeleteQueue(by Client, vhost, name string) (*Queue, error) {
	if err := v.access(by.User, vhost)(Configure, kindQueue, name); err != nil {
		return nil, err
	}
	q, ok := v.openTo(v.access(by.User, vhost), vhost, name)
	if !ok {
		return nil, nil
	}
	if err := q.checkOpen(); err != nil {
		return nil, err
	}
	return q, q.CheckOwner(by.Owner)
}

// deleteQueue removes a queue. A queue that is gone, or has been declared
// again under another id, is left alone; so is one that was lost with its node
// if that has another boot by now.
func (d *draft) deleteQueue(m *logpb.DeleteQueue) (*logpb.CatalogResult, error) {
	q, ok := d.Queue(m.GetVhost(), m.GetName())
	if m.GetId() != 0 && m.GetName() == "" {
		q, ok = d.QueueByID(fsm.QueueID(m.GetId()))
	}
	if !ok || m.GetId() != 0 && q.ID != fsm.QueueID(m.GetId()) {
		return &logpb.CatalogResult{}, nil
	}
	if home, _ := d.Node(q.Home()); m.GetLostBoot() != 0 && home.GetBoot() != m.GetLostBoot() {
		return &logpb.CatalogResult{}, nil
	}
	if err := q.checkOpen(); err != nil {
		return nil, err
	}
	return d.removeQueues([]*Queue{q}), nil
}

// deleteOwned removes the exclusive queues of a connection.
func (d *draft) deleteOwned(m *logpb.DeleteOwned) (*logpb.CatalogResult, error) {
	return d.removeQueues(d.Owned(ownerFrom(m.GetOwner()))), nil
}

// removeQueues removes queues, which are ordered by id, and answers so.
func (d *draft) removeQueues(queues []*Queue) *logpb.CatalogResult {
	r := &logpb.CatalogResult{Changed: len(queues) > 0}
	for _, q := range queues {
		r.Deleted = append(r.Deleted, uint64(q.ID))
		d.removeQueue(q, r)
	}
	return r
}

func (d *draft) removeQueue(q *Queue, r *logpb.CatalogResult) {
	vh := d.open(q.VHost)
	vh.touchSources(q.Name, d.clock)
	d.removeExchanges(vh, vh.unbindAllTo(endpoint{name: q.Name}, destination{queue: q}), r)
	vh.queues = vh.queues.Without(q.Name)
	vh.matches = vh.matches.Without(q.ID)
	d.forgetQueue(q)
}

// forgetQueue removes a queue from what is kept beside the vhosts.
func (d *draft) forgetQueue(q *Queue) {
	d.byID = d.byID.Without(q.ID)
	d.byGroup = d.byGroup.Without(q.Group)
	d.placed = d.placed.Without(q.ID)
	if !q.Exclusive {
		return
	}
	if left := d.owned.At(q.Owner).Without(q.ID); left.Len() > 0 {
		d.owned = d.owned.With(q.Owner, left)
	} else {
		d.owned = d.owned.Without(q.Owner)
	}
}
