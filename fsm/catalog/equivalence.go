package catalog

import (
	"fmt"
	"strconv"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// inequivalent is the refusal of a redeclare that differs. received and
// current are quoted values, described values, or none.
func inequivalent(arg, where, received, current string) error {
	return refuse(fsm.Precondition, "inequivalent arg '%s' for %s: received %s but current is %s", arg, where, received, current)
}

// sameFlag refuses a flag of a redeclare that differs.
func sameFlag(arg, where string, received, current bool) error {
	if received == current {
		return nil
	}
	return inequivalent(arg, where, quoted(strconv.FormatBool(received)), quoted(strconv.FormatBool(current)))
}

func quoted(s string) string { return "'" + s + "'" }

// described is how a value is called when the other side has none.
func described(v *logpb.Value) string {
	if v == nil {
		return "none"
	}
	return fmt.Sprintf("the value '%s' of type '%s'", render(v), typeName(v))
}

// sameKind says why d is not what q was declared as, arguments aside; nil: it is.
//
// The order of the comparisons decides which difference a client learns of:
// exclusive use first, then flags, type and, see checkRedeclare, arguments in the
// order of their table. It compares with what was declared; policies play no
// part. Members and placement may differ. s are the settings of q's catalog.
func (q *Queue) sameKind(d *logpb.DeclareQueue, s *clusterSettings) error {
	where := q.String()
	if q.Exclusive != d.GetExclusive() || q.Exclusive && q.Owner != ownerFrom(d.GetOwner()) {
		return q.locked()
	}
	if !q.Exclusive {
		if err := sameFlag("durable", where, d.GetDurable(), q.Durable); err != nil {
			return err
		}
	}
	if err := sameFlag("auto_delete", where, d.GetAutoDelete(), q.AutoDelete); err != nil {
		return err
	}
	return q.equivalentType(d.GetArguments(), s)
}

// equivalentType compares the queue type, as RabbitMQ does with its relaxed
// check: a declare that names no type, or classic, finds a queue of any type.
// Only one that asks for quorum must not get less, unless the queue is from a
// version in which both were the same.
func (q *Queue) equivalentType(args *fsm.Table, s *clusterSettings) error {
	v := lookup(args, typeArgument)
	switch kind, ok := text(v); {
	case v == nil, s.isUntyped(v), ok && kind == ClassicType, ok && kind == QuorumType && !q.Classic:
		return nil
	}
	return inequivalent(typeArgument, q.String(), quoted(render(v)), quoted(q.Type()))
}

// sameKind says why d is not what x was declared as, arguments aside; nil: it is.
//
// It compares with what was declared: the declared type, not the type it routes
// by. What names the type that is wrapped, or makes an exchange of any type
// delay, is of the type.
func (x *Exchange) sameKind(d *logpb.DeclareExchange) error {
	where := x.String()
	if d.GetType() != x.DeclaredType() {
		return inequivalent("type", where, quoted(d.GetType()), quoted(x.DeclaredType()))
	}
	for _, flag := range []struct {
		name              string
		received, current bool
	}{
		{"durable", d.GetDurable(), x.Durable},
		{"auto_delete", d.GetAutoDelete(), x.AutoDelete},
		{"internal", d.GetInternal(), x.Internal},
	} {
		if err := sameFlag(flag.name, where, flag.received, flag.current); err != nil {
			return err
		}
	}
	for _, argument := range [...]string{delayedType, delayedExchange} {
		if difference, differ := differs(argument, d.GetArguments(), x.Arguments); differ {
			return difference.refusal(where)
		}
	}
	return nil
}
