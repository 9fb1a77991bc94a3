package catalog

import (
	"cmp"
	"iter"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/route"
	"github.com/quorate/quorate/proto/logpb"
)

// View is the catalog after some entry. It never changes; nor do the records
// it gives out, which callers must not change either. The zero View is the
// empty catalog.
type View struct {
	index       uint64
	clock       fsm.Time
	initialized bool
	lastNode    uint32 // number given last
	nextGroup   uint32 // number to try next; 0: 1

	nodes     route.Map[fsm.NodeID, *logpb.NodeState]
	nodeNames route.Map[string, *logpb.NodeState]
	users     route.Map[string, *logpb.PutUser]
	vhosts    route.Map[string, *vhost]
	settings  []*logpb.PutSetting // that have a value, by name; replaced as a whole

	limits route.Map[limited, *logpb.PutLimit]
	tokens []*logpb.JoinToken // by hash; replaced as a whole

	// All queues, in three more orders than their vhosts know them.
	byID    route.Map[fsm.QueueID, *Queue]
	byGroup route.Map[fsm.GroupID, *Queue]
	owned   route.Map[Owner, route.Map[fsm.QueueID, *Queue]]
	placed  route.Map[fsm.QueueID, placement] // of queues whose members were changed
}

// vhost is what one vhost holds.
type vhost struct {
	row         *logpb.PutVhost
	permissions route.Map[string, *Permission] // by user
	topics      route.Map[topicPlace, *TopicPermission]
	exchanges   route.Map[string, *Exchange]
	queues      route.Map[string, *Queue]
	active      route.Map[string, fsm.Time] // last use of the exchanges that are deleted when idle
	// inbound holds the bindings that end at a queue or an exchange.
	inbound route.Map[endpoint, route.Map[*Binding, struct{}]]

	policies, operators policies
	matches             route.Map[fsm.QueueID, policyMatch] // of queues for which it is not zero
}

// endpoint names where a binding ends, within a vhost.
type endpoint struct {
	name       string
	isExchange bool
}

// Owner is the connection that an exclusive queue belongs to.
type Owner struct {
	Node       fsm.NodeID
	Boot       uint64
	Connection uint64
}

func ownerFrom(p *logpb.Owner) Owner {
	return Owner{Node: fsm.NodeID(p.GetNode()), Boot: p.GetBoot(), Connection: p.GetConnection()}
}

// Proto returns o in its log form.
func (o Owner) Proto() *logpb.Owner {
	return &logpb.Owner{Node: uint32(o.Node), Boot: o.Boot, Connection: o.Connection}
}

// Queue is the record of a queue.
type Queue struct {
	ID         fsm.QueueID
	Group      fsm.GroupID
	VHost      string
	Name       string
	Durable    bool // never for an exclusive queue
	Exclusive  bool
	AutoDelete bool
	Local      bool // one member, log in memory
	Hold       bool // nobody may take its messages
	Arguments  *fsm.Table
	Owner      Owner // zero unless exclusive
	// StoreOf is the exchange whose delayed messages the queue holds; empty: it
	// is a client's.
	StoreOf string

	declared        *logpb.DeclareQueue
	declaredMembers []fsm.NodeID // the preferred leader first; see View.Members
}

// String names the queue as texts for clients do.
func (q *Queue) String() string { return resource("queue", q.VHost, q.Name) }

// Exchange is the record of an exchange and its bindings as a source.
type Exchange struct {
	VHost      string
	Name       string
	Type       string // by which it routes; see DeclaredType
	Durable    bool
	AutoDelete bool
	Internal   bool
	Arguments  *fsm.Table
	// Delays: messages with a delay wait in Store and are routed when due.
	Delays bool
	// Store holds messages that wait, also when Delays is set no more; nil: it
	// was never set.
	Store *Queue
	// Alternate is the exchange that gets what has no destination here, by
	// argument or policy.
	Alternate    string
	HasAlternate bool

	declared *logpb.DeclareExchange
	match    policyMatch
	ttl      fsm.Optional[fsm.Millis]    // what passes the exchange lives no longer
	idle     fsm.Millis                  // deleted after so long without use; 0: never
	bindings route.Map[string, *Binding] // by Binding.key

	// The table of the exchange's type; headers exchanges walk over bindings.
	direct route.Direct[destination]
	topic  route.Topic[destination]
	fanout route.Set[destination]
	choice route.Rendezvous[destination]
	hash   hashInput // of a consistent hash exchange
}

// String names the exchange as texts for clients do.
func (x *Exchange) String() string { return resource("exchange", x.VHost, x.Name) }

// destination is where a binding leads: a queue, or the exchange of that name.
type destination struct {
	queue    *Queue
	exchange string
}

// Binding is the record of a binding.
type Binding struct {
	VHost       string
	Source      string
	Destination string
	ToExchange  bool
	RoutingKey  string
	Arguments   *fsm.Table

	bound   *logpb.Bind
	key     string        // unique within the source
	headers route.Headers // of a headers exchange
}

func (b *Binding) end() endpoint { return endpoint{b.Destination, b.ToExchange} }

// Index is the index of the last entry applied.
func (v *View) Index() uint64 { return v.index }

// Clock is the latest stamp of an entry.
func (v *View) Clock() fsm.Time { return v.clock }

// Initialized reports whether an Initialize has been applied.
func (v *View) Initialized() bool { return v.initialized }

// Queue finds a queue by name.
func (v *View) Queue(vhost, name string) (*Queue, bool) {
	vh := v.vhosts.At(vhost)
	if vh == nil {
		return nil, false
	}
	return vh.queues.Get(name)
}

// QueueByID finds a queue by its id.
func (v *View) QueueByID(id fsm.QueueID) (*Queue, bool) { return v.byID.Get(id) }

// QueueByGroup finds a queue by its group.
func (v *View) QueueByGroup(g fsm.GroupID) (*Queue, bool) { return v.byGroup.Get(g) }

// Exchange finds an exchange by name. The default exchange has no record.
func (v *View) Exchange(vhost, name string) (*Exchange, bool) {
	vh := v.vhosts.At(vhost)
	if vh == nil {
		return nil, false
	}
	return vh.exchanges.Get(name)
}

// VHost finds a vhost by name.
func (v *View) VHost(name string) (*logpb.PutVhost, bool) {
	vh := v.vhosts.At(name)
	if vh == nil {
		return nil, false
	}
	return vh.row, true
}

// User finds a user by name.
func (v *View) User(name string) (*logpb.PutUser, bool) { return v.users.Get(name) }

// Node finds a node by number.
func (v *View) Node(number fsm.NodeID) (*logpb.NodeState, bool) { return v.nodes.Get(number) }

// NodeByName finds a node by name.
func (v *View) NodeByName(name string) (*logpb.NodeState, bool) { return v.nodeNames.Get(name) }

// QueueCount is the number of queues of all vhosts.
func (v *View) QueueCount() int { return v.byID.Len() }

// EachQueue walks over all queues in no particular order.
func (v *View) EachQueue() iter.Seq[*Queue] { return v.byID.Values() }

// Queues returns all queues by id, that is, the oldest first.
func (v *View) Queues() []*Queue {
	return sorted(v.byID, func(a, b *Queue) int { return cmp.Compare(a.ID, b.ID) })
}

// QueuesOf returns the queues of a vhost by name.
func (v *View) QueuesOf(vhost string) []*Queue {
	vh := v.vhosts.At(vhost)
	if vh == nil {
		return nil
	}
	return sorted(vh.queues, func(a, b *Queue) int { return cmp.Compare(a.Name, b.Name) })
}

// Owned returns the exclusive queues of a connection by id.
func (v *View) Owned(o Owner) []*Queue {
	return sorted(v.owned.At(o), func(a, b *Queue) int { return cmp.Compare(a.ID, b.ID) })
}

// Exchanges returns the exchanges of a vhost by name, without the default one.
func (v *View) Exchanges(vhost string) []*Exchange {
	vh := v.vhosts.At(vhost)
	if vh == nil {
		return nil
	}
	return sorted(vh.exchanges, func(a, b *Exchange) int { return cmp.Compare(a.Name, b.Name) })
}

// BindingsFrom returns the bindings whose source is an exchange, by
// destination, routing key and arguments.
func (v *View) BindingsFrom(vhost, exchange string) []*Binding {
	x, ok := v.Exchange(vhost, exchange)
	if !ok {
		return nil
	}
	return sorted(x.bindings, compareBindings)
}

// BindingsTo returns the bindings that end at a queue or, if isExchange, at
// an exchange, by source, routing key and arguments. The implicit binding of
// a queue to the default exchange is not among them.
func (v *View) BindingsTo(vhost, name string, isExchange bool) []*Binding {
	vh := v.vhosts.At(vhost)
	if vh == nil {
		return nil
	}
	var list []*Binding
	for b := range vh.inbound.At(endpoint{name, isExchange}).All() {
		list = append(list, b)
	}
	slices.SortFunc(list, compareBindings)
	return list
}

// Bindings returns all bindings of a vhost, by source, destination, routing
// key and arguments.
func (v *View) Bindings(vhost string) []*Binding {
	vh := v.vhosts.At(vhost)
	if vh == nil {
		return nil
	}
	var list []*Binding
	for _, x := range v.Exchanges(vhost) {
		list = append(list, sorted(x.bindings, compareBindings)...)
	}
	return list
}

// compareBindings orders the bindings of one vhost. Two bindings of one source
// with equal keys are the same binding.
func compareBindings(a, b *Binding) int {
	if c := cmp.Compare(a.Source, b.Source); c != 0 {
		return c
	}
	if a.ToExchange != b.ToExchange {
		if b.ToExchange {
			return -1
		}
		return 1
	}
	if c := cmp.Compare(a.Destination, b.Destination); c != 0 {
		return c
	}
	if c := cmp.Compare(a.RoutingKey, b.RoutingKey); c != 0 {
		return c
	}
	return cmp.Compare(a.key, b.key)
}

// VHosts returns the vhosts by name.
func (v *View) VHosts() []*logpb.PutVhost {
	var list []*logpb.PutVhost
	for vh := range v.vhosts.Values() {
		list = append(list, vh.row)
	}
	slices.SortFunc(list, func(a, b *logpb.PutVhost) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// Users returns the users by name.
func (v *View) Users() []*logpb.PutUser {
	return sorted(v.users, func(a, b *logpb.PutUser) int { return cmp.Compare(a.Name, b.Name) })
}

// Nodes returns the nodes by number.
func (v *View) Nodes() []*logpb.NodeState {
	return sorted(v.nodes, func(a, b *logpb.NodeState) int { return cmp.Compare(a.Number, b.Number) })
}

// Permissions returns all permissions by user and vhost.
func (v *View) Permissions() []*Permission {
	var list []*Permission
	for vh := range v.vhosts.Values() {
		for p := range vh.permissions.Values() {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b *Permission) int {
		return cmp.Or(cmp.Compare(a.User, b.User), cmp.Compare(a.VHost, b.VHost))
	})
	return list
}

func sorted[K comparable, V any](m route.Map[K, V], compare func(a, b V) int) []V {
	list := make([]V, 0, m.Len())
	for value := range m.Values() {
		list = append(list, value)
	}
	slices.SortFunc(list, compare)
	return list
}
