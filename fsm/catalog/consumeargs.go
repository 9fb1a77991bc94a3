package catalog

import (
	"fmt"
	"math"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// ConsumeArguments are the arguments of basic.consume that have a meaning. The
// catalog keeps none of them: some go to the queue's machine with the consumer,
// some to the channel.
type ConsumeArguments struct {
	// Priority: 0 by default; the larger is served first
	Priority int32
	// Timeout is the consumer timeout; not given: the queue's.
	Timeout fsm.Optional[fsm.Millis]
	// TimeoutAction is what a consumer timeout does; empty: as the queue says.
	TimeoutAction TimeoutAction

	// Lock is how long the lock of a delivery lasts, MaxLock how long with all
	// renewals; 0: as the queue says.
	Lock, MaxLock fsm.Millis
	// LockAutoRenew is how long locks are renewed without being asked; 0: they
	// are not.
	LockAutoRenew fsm.Millis
	// LockHead: only the oldest unsettled delivery has a running lock.
	LockHead bool
	// LockDetachGrace is how long deliveries stay locked when the session ends.
	LockDetachGrace fsm.Millis
	// LateError: settling a delivery whose lock is lost is an error.
	LateError bool
	// DeliveryInfo: deliveries carry their deadlines and a lock token.
	DeliveryInfo bool
	// MinTTL: messages with less left of their TTL are not for this consumer.
	MinTTL fsm.Millis
	// MaxGroups is how many groups the consumer may hold; 0: one.
	MaxGroups uint32
	// GroupID is the only group that the consumer takes; empty: any.
	GroupID string
}

// TimeoutAction is what a consumer timeout does to the consumer.
type TimeoutAction string

// The actions. TimeoutSuspend stops deliveries until the late ones are settled.
const (
	TimeoutCancel  TimeoutAction = "cancel"
	TimeoutSuspend TimeoutAction = "suspend"
)

var timeoutActions = []string{string(TimeoutCancel), string(TimeoutSuspend)}

// maxHeldGroups is the largest x-max-groups.
const maxHeldGroups = 65_535

// consumeArguments are checked like queueArguments.
var consumeArguments = []argument{
	{"x-priority", false, between(math.MinInt64, math.MaxInt64)},
	{"x-consumer-timeout", false, between(0, math.MaxInt64-1)},
	{"x-consumer-timeout-action", false, oneOf("invalid_consumer_timeout_action", timeoutActions...)},
	{"x-lock-duration", false, between(leastLock, maxLock)},
	{"x-max-lock-duration", false, between(leastLock, MaxTTL)},
	{"x-lock-auto-renew", false, between(0, MaxTTL)},
	{"x-lock-mode", false, oneOf("invalid_lock_mode", "all", "head")},
	{"x-lock-detach-grace", false, between(0, maxLock)},
	{"x-late-settle", false, oneOf("invalid_late_settle", "ignore", "error")},
	{"x-delivery-info", false, boolean},
	{"x-min-ttl", false, between(0, MaxTTL)},
	{"x-max-groups", false, between(1, maxHeldGroups)},
	{"x-group-id", false, checkGroupID},
}

// checkGroupID accepts what a message's group can be.
func checkGroupID(v *logpb.Value) string {
	s, ok := text(v)
	switch {
	case !ok:
		return unacceptableType(v)
	case s == "":
		return "invalid_group_id"
	case len(s) > fsm.MaxShort:
		return fmt.Sprintf("{value_too_long,%d}", len(s))
	}
	return ""
}

// ParseConsumeArguments reads the arguments of a consumer of a queue.
// Priorities beyond 32 bits are clamped. Apply never calls it. Arguments of
// which nothing is known are ignored.
func ParseConsumeArguments(q *Queue, args *fsm.Table) (ConsumeArguments, error) {
	if err := checkConsumeArguments(q, args); err != nil {
		return ConsumeArguments{}, err
	}
	number := func(name string) int64 { return lookup(args, name).GetInt() }
	word := func(name string) string { s, _ := text(lookup(args, name)); return s }
	return ConsumeArguments{
		Priority:        int32(min(max(number("x-priority"), math.MinInt32), math.MaxInt32)),
		Timeout:         optional(lookup(args, "x-consumer-timeout")),
		TimeoutAction:   TimeoutAction(word("x-consumer-timeout-action")),
		Lock:            fsm.Millis(number("x-lock-duration")),
		MaxLock:         fsm.Millis(number("x-max-lock-duration")),
		LockAutoRenew:   fsm.Millis(number("x-lock-auto-renew")),
		LockHead:        word("x-lock-mode") == "head",
		LockDetachGrace: fsm.Millis(number("x-lock-detach-grace")),
		LateError:       word("x-late-settle") == "error",
		DeliveryInfo:    number("x-delivery-info") != 0,
		MinTTL:          fsm.Millis(number("x-min-ttl")),
		MaxGroups:       uint32(number("x-max-groups")),
		GroupID:         word("x-group-id"),
	}, nil
}

// checkConsumeArguments says why a consumer cannot have these arguments; nil:
// it can.
func checkConsumeArguments(q *Queue, args *fsm.Table) error {
	where := q.String()
	for _, f := range args.GetFields() {
		if strings.HasPrefix(f.GetName(), "x-stream-") {
			return foreignArgument(f.GetName(), where)
		}
	}
	for _, a := range consumeArguments {
		if v := lookup(args, a.name); v != nil {
			if reason := a.check(v); reason != "" {
				return invalidArgument(a.name, where, reason)
			}
		}
	}
	group, most := lookup(args, "x-group-id"), lookup(args, "x-max-groups")
	groups := lookup(q.Arguments, groupsArgument).GetInt() != 0
	switch {
	case group != nil && !groups:
		return missingArgument("x-group-id", where, groupsArgument)
	case most != nil && !groups:
		return missingArgument("x-max-groups", where, groupsArgument)
	case lookup(args, "x-min-ttl").GetInt() > 0 && !byDeadline(q.Arguments):
		return invalidArgument("x-min-ttl", where, "\"only together with '"+orderArgument+": "+orders[1]+"' of the queue\"")
	case group != nil && most.GetInt() > 1:
		return invalidArgument("x-max-groups", where, "\"not together with 'x-group-id'\"")
	}
	if err := checkLocks(where, args); err != nil {
		return err
	}
	return consume.checkNames(where, args, nil)
}
