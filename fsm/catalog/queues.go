package catalog

import (
	"strconv"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	reserved = "amq."
	// GeneratedPrefix starts the names that brokers make for queues without
	// a name.
	GeneratedPrefix = "amq.gen-"
	maxName         = fsm.MaxShort
)

// Owner is the connection that an exclusive queue belongs to. The zero Owner is
// that of a queue which is not exclusive.
type Owner struct {
	// Node: the node that the client is connected to
	Node fsm.NodeID
	// Boot is the node's boot in which the connection was opened; connections
	// are numbered anew in each
	Boot uint64
	// Connection: its number on the node, within the boot
	Connection uint64
}

func ownerFrom(p *logpb.Owner) Owner {
	return Owner{Node: fsm.NodeID(p.GetNode()), Boot: p.GetBoot(), Connection: p.GetConnection()}
}

// Proto returns o in its log form. The result is new.
func (o Owner) Proto() *logpb.Owner {
	return &logpb.Owner{Node: uint32(o.Node), Boot: o.Boot, Connection: o.Connection}
}

// Queue is the record of a queue.
//
// It never changes after it was created: policies, members and settings are
// kept beside it, under its ID, so that they can change without replacing the
// record in the tables of all exchanges bound to it. All fields are derived
// from declared, ID and Group, which are what a snapshot holds.
//
// Invariants: Exclusive ⇒ ¬Durable; Exclusive ⇔ Owner ≠ zero; ID and Group are
// unique among the queues there are, and Group ≥ 1; Local ⇒
// len(declaredMembers) = 1.
type Queue struct {
	// ID is the index of the entry that created it · 65536 + a number within
	// the entry. No other queue ever has it, not even a later one of the same
	// name.
	ID fsm.QueueID
	// Group is the number of its raft group; it may be used again after the
	// queue is gone
	Group     fsm.GroupID
	VHost     string
	Name      string
	Durable   bool // never for an exclusive queue
	Exclusive bool
	// AutoDelete: the queue machine acts on it; the catalog only keeps and
	// compares it
	AutoDelete bool
	Local      bool // one member, log in memory
	Classic    bool // has the defaults of a classic queue, see classicKind
	Hold       bool // nobody may take its messages
	Groups     logpb.QueueConfig_Groups
	// Arguments: as declared, those without a meaning included; nil: none
	Arguments *fsm.Table
	Owner     Owner // zero unless exclusive
	// StoreOf is the exchange whose delayed messages the queue holds; empty: it
	// is a client's.
	StoreOf string

	// declared: never nil
	declared *logpb.DeclareQueue
	// declaredMembers: not empty, except in the temporary queue of
	// LeaderLocator
	declaredMembers []fsm.NodeID // the preferred leader first; see View.Members
}

// String names the queue as texts for clients do.
func (q *Queue) String() string { return resource("queue", q.VHost, q.Name) }

// locked is the refusal of a queue that belongs to another connection.
func (q *Queue) locked() error {
	return refuse(fsm.Locked, "cannot obtain exclusive access to locked %s. It could be originally declared on another "+
		"connection or the exclusive property value does not match that of the original declaration.", q)
}

// CheckOwner refuses the use of an exclusive queue by another connection than
// its own. A queue that is not exclusive is open to every connection. Apply
// never calls it: the log does not record which connection a command is from.
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

// checkName refuses names that are empty or no short strings, in bytes.
func checkName(kind, name string) error {
	if name == "" || len(name) > maxName {
		return refuse(fsm.Precondition, "%s names must have 1 to %d bytes", kind, maxName)
	}
	return nil
}

// newQueue makes the record of a queue from a declare that has been checked.
//
// m is copied down to its arguments, which are shared, and completed: an
// exclusive queue is never durable, another one has no owner. It neither enters
// the queue anywhere nor takes an id. Requires: id and group are new to the
// catalog, or both 0 in a temporary queue.
func newQueue(m *logpb.DeclareQueue, id fsm.QueueID, group fsm.GroupID) *Queue {
	m = &logpb.DeclareQueue{
		Vhost: m.GetVhost(), Name: m.GetName(),
		Durable: m.GetDurable() && !m.GetExclusive(), Exclusive: m.GetExclusive(), AutoDelete: m.GetAutoDelete(),
		Arguments: m.GetArguments(), Owner: m.GetOwner(), Members: m.GetMembers(), Local: m.GetLocal(), StoreOf: m.GetStoreOf(),
		Classic: m.GetClassic(),
	}
	if !m.Exclusive {
		m.Owner = nil
	}
	q := &Queue{
		ID: id, Group: group, VHost: m.Vhost, Name: m.Name,
		Durable: m.Durable, Exclusive: m.Exclusive, AutoDelete: m.AutoDelete, Local: m.Local, Classic: m.Classic,
		Hold:      lookup(m.Arguments, holdArgument).GetInt() != 0,
		Groups:    groupsOf(m.Arguments),
		Arguments: m.Arguments, Owner: ownerFrom(m.Owner), StoreOf: m.StoreOf,
		declared: m,
	}
	q.declaredMembers = nodeIDs(m.Members)
	return q
}

// GroupOf returns the group of a message in q: a text, of which the first 255 bytes
// count, or a whole number; empty: it has none. headers and property read the
// properties of the message, and are called only if the queue has groups.
func (q *Queue) GroupOf(headers func() *fsm.Table, property func(name string) []byte) string {
	switch q.Groups {
	case logpb.QueueConfig_BY_APP_ID:
		return fsm.Short(string(property(PropertyAppID)))
	case logpb.QueueConfig_BY_HEADER:
		v := lookup(headers(), GroupHeader)
		if s, ok := text(v); ok {
			return fsm.Short(s)
		}
		if n, ok := integer(v); ok {
			return strconv.FormatInt(n, 10)
		}
	}
	return ""
}
