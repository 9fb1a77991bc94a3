package catalog

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// A durable queue is replicated whatever type it is declared with. The type
// decides what holds where nobody has said otherwise: a queue declared classic
// has no delivery limit, no consumer timeout, no priorities, and policies for
// classic queues match it.

// The types of queues.
const (
	ClassicType = "classic"
	QuorumType  = "quorum"
)

const typeArgument = "x-queue-type"

// declaredTypes is the version from which on the type of a queue has a meaning:
// before it, every replicated queue had the defaults of a quorum queue.
const declaredTypes = 3

// untyped are names of a type that name none: RabbitMQ's exports have them.
func untyped(kind string) bool { return kind == "" || kind == "undefined" }

// isUntyped reports whether a value of x-queue-type names no type. Versions
// before declaredTypes refuse such values.
func (s *clusterSettings) isUntyped(v *logpb.Value) bool {
	kind, ok := text(v)
	return ok && untyped(kind) && s.FSMVersion() >= declaredTypes
}

// checkQueueType accepts the types whose meaning a queue here can have.
func checkQueueType(v *logpb.Value) string {
	s, ok := text(v)
	switch {
	case !ok:
		return unacceptableType(v)
	case s != QuorumType && s != ClassicType:
		return `"unsupported queue type '` + s + `'"`
	}
	return ""
}

// DefaultQueueType is the type of durable queues in a vhost that are declared
// without one. A vhost from a version before declaredTypes, or one that is not
// there, has the type that all queues had then.
func (vs *vhosts) DefaultQueueType(vhost string) string {
	row, _ := vs.VHost(vhost)
	return DefaultTypeOf(row)
}

// DefaultTypeOf is DefaultQueueType of a vhost's row, which may be nil.
func DefaultTypeOf(row *logpb.PutVhost) string {
	if t := row.GetDefaultQueueType(); t != "" {
		return t
	}
	return QuorumType
}

// DecideType notes in d, which is to be proposed, the kind of queue that it
// declares: by the type that was decided where the definition is from, if it is
// given, else by the one that the arguments name, else by the vhost's. A queue
// that is not replicated is classic unless it is explicitly something else.
func (v *View) DecideType(d *logpb.DeclareQueue, decided string) {
	kind := decided
	if kind == "" {
		kind, _ = text(lookup(d.GetArguments(), typeArgument))
	}
	if untyped(kind) {
		if kind = v.DefaultQueueType(d.GetVhost()); d.GetLocal() {
			kind = ClassicType
		}
	}
	d.Classic = kind == ClassicType && v.FSMVersion() >= declaredTypes
}

// Untyped reports whether a declare names no type.
func Untyped(d *logpb.DeclareQueue) bool {
	kind, ok := text(lookup(d.GetArguments(), typeArgument))
	return !ok || untyped(kind)
}

// PutVhostOfType completes a change of a vhost that names no type, given the
// type of new vhosts. A vhost that is there keeps its own.
func (v *View) PutVhostOfType(m *logpb.PutVhost, fresh string) {
	row, exists := v.VHost(m.GetName())
	switch {
	case v.FSMVersion() < declaredTypes:
		m.DefaultQueueType = ""
	case !untyped(m.GetDefaultQueueType()):
	case exists:
		m.DefaultQueueType = row.GetDefaultQueueType()
	default:
		m.DefaultQueueType = fresh
	}
}

// classicKind reports whether q has the defaults of a classic queue as far as
// they need not be in its machine's settings: queues without replicas have,
// whatever version declared them.
func (q *Queue) classicKind() bool { return q.Local || q.Classic }

// Type is the name under which clients and operators know the queue's type:
// what its defaults are those of. It says nothing about replicas.
func (q *Queue) Type() string {
	if q.classicKind() {
		return ClassicType
	}
	return QuorumType
}

// DecideKeys notes in m, which is to be proposed, that keys without effect leave
// the others theirs.
func (v *View) DecideKeys(m *logpb.PutPolicy) { m.Lenient = v.FSMVersion() >= declaredTypes }

// KeysWithoutEffect returns which keys of a policy change nothing, in order.
func KeysWithoutEffect(definition *fsm.Table) (keys []string) {
	for _, f := range definition.GetFields() {
		if k := findPolicyKey(f.GetName()); k != nil && k.idle {
			keys = append(keys, k.name)
		}
	}
	return keys
}
