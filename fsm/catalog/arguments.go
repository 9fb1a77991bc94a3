package catalog

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// MaxTTL is the longest time-to-live and the longest lease, in ms: ten years.
const MaxTTL = 315_360_000_000

// DefaultDeliveryLimit is how many failed deliveries a message in a replicated
// queue survives by default. Local queues have no limit by default.
const DefaultDeliveryLimit = 20

// argument is a row of an argument table. Rows are fixed; check is a function
// of the value alone.
type argument struct {
	name string
	// compared: a redeclare must have the same value.
	compared bool
	// check returns the reason why v is not a valid value; empty: it is.
	check func(v *logpb.Value) string
}

// queueArguments are the arguments of queue.declare that have a meaning, in the order of keys, in which they are
// checked. The dead-letter exchange is checked before all of them. Arguments that are not listed there are stored and
// ignored.
var queueArguments = func() (rows []argument) {
	for _, k := range keys {
		check := k.reason
		if k.asArgument != nil {
			check = k.asArgument
		}
		if k.declared != byPolicyOnly {
			rows = append(rows, argument{"x-" + k.name, k.declared == compared, check})
		}
	}
	return rows
}()

// Bounds of arguments and policy keys. Locks and windows are as long as in
// Azure Service Bus, and locks also as long as in Amazon SQS.
const (
	leastLock, maxLock             = fsm.MinLock, fsm.MaxLock // ms
	leastMultiplier, maxMultiplier = 100, 10_000              // percent
	leastWindow, maxWindow         = 20_000, 604_800_000      // ms
	maxAudit                       = 100_000
	maxSteps                       = 32
)

// foreignArguments belong to queue types that do not exist here.
var foreignArguments = []string{"x-max-age", "x-initial-cluster-size", "x-stream-max-segment-size-bytes", "x-stream-filter-size-bytes"}

// classicArguments are refused with an explicit type quorum. Otherwise they are
// stored, and only x-max-priority has an effect.
var classicArguments = []string{"x-max-priority", "x-queue-mode", "x-queue-version", "x-queue-master-locator"}

// expectedInteger and unacceptableType are reasons as clients know them from
// RabbitMQ.
func expectedInteger(v *logpb.Value) string {
	return `"expected integer, got ` + typeName(v) + `"`
}

func unacceptableType(v *logpb.Value) string { return "{unacceptable_type," + typeName(v) + "}" }

// between accepts integers from low to high. The text for values below it
// depends on whether low is above 1.
func between(low, high int64) func(*logpb.Value) string {
	return func(v *logpb.Value) string {
		n, ok := integer(v)
		switch {
		case !ok:
			return expectedInteger(v)
		case n >= low && n <= high:
			return ""
		case n > high:
			return fmt.Sprintf("{value_too_large,%d}", n)
		case low > 1 && n >= 0:
			return fmt.Sprintf("{value_too_small,%d}", n)
		case n == 0:
			return "{value_zero,0}"
		}
		return fmt.Sprintf("{value_negative,%d}", n)
	}
}

// checkMaxPriority accepts 0 to 255, with a reason of its own above.
func checkMaxPriority(v *logpb.Value) string {
	if n, ok := integer(v); ok && n > 255 {
		return fmt.Sprintf("{max_value_exceeded,%d}", n)
	}
	return between(0, 255)(v)
}

// oneOf accepts texts that are one of values, and has one reason for all
// others.
func oneOf(reason string, values ...string) func(*logpb.Value) string {
	return func(v *logpb.Value) string {
		s, ok := text(v)
		switch {
		case !ok:
			return unacceptableType(v)
		case !slices.Contains(values, s):
			return reason
		}
		return ""
	}
}

// longstr accepts texts of any length. checkShort bounds those that must be
// short strings.
func longstr(v *logpb.Value) string {
	if _, ok := text(v); !ok {
		return unacceptableType(v)
	}
	return ""
}

// checkSteps accepts lists of waits, see retrySteps.
func checkSteps(v *logpb.Value) string {
	s, ok := text(v)
	if !ok {
		return unacceptableType(v)
	}
	if _, ok := retrySteps(s); !ok {
		return "invalid_delayed_retry_steps"
	}
	return ""
}

// retrySteps reads waits in ms, separated by commas. false: there is none, one
// is not from 1 to MaxTTL, or there are more than maxSteps.
func retrySteps(s string) (steps []uint64, ok bool) {
	for part := range strings.SplitSeq(s, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(part), 10, 64)
		if err != nil || n < 1 || n > MaxTTL || len(steps) == maxSteps {
			return nil, false
		}
		steps = append(steps, n)
	}
	return steps, true
}

// boolean accepts truth values only, and no integers.
func boolean(v *logpb.Value) string {
	if v.GetTag() != 't' {
		return unacceptableType(v)
	}
	return ""
}

// ValidateQueueArguments returns why a queue cannot be created with these
// arguments; nil: it can.
//
// It depends on args and on the cluster's minimum idle time. Apply calls it,
// but not checkShort and checkRetry: see Admit. The first value under a name
// counts. Unknown names are fine.
func (s *clusterSettings) ValidateQueueArguments(vhost, name string, args *fsm.Table) error {
	where := resource(kindQueue, vhost, name)
	if _, _, err := DeadLetterExchange(vhost, name, args); err != nil {
		return err
	}
	if err := checkForeign(where, args); err != nil {
		return err
	}
	for _, a := range queueArguments {
		value := lookup(args, a.name)
		if value == nil || a.name == typeArgument && s.isUntyped(value) {
			continue
		}
		if reason := a.check(value); reason != "" {
			return invalidArgument(a.name, where, reason)
		}
		if a.name == "x-dead-letter-routing-key" && lookup(args, "x-dead-letter-exchange") == nil {
			return invalidArgument(a.name, where, "routing_key_but_no_dlx_defined")
		}
	}
	if err := checkTogether(where, args); err != nil {
		return err
	}
	return s.checkIdle(where, args)
}

const (
	groupsArgument  = "x-message-groups"
	orderArgument   = "x-queue-order"
	forwardArgument = "x-forward-to-exchange"
)

// checkTogether refuses arguments of a queue that exclude each other, or lack
// the one that gives them a meaning. Requires: each is valid by itself.
func checkTogether(where string, args *fsm.Table) error {
	given := func(name string) bool { return lookup(args, name) != nil }
	on := func(name string) bool { return lookup(args, name).GetInt() != 0 }
	groups := on(groupsArgument)
	deadline := byDeadline(args)
	for _, pair := range []struct {
		one, other string
		both       bool
	}{
		{groupsArgument, "x-single-active-consumer", groups && on("x-single-active-consumer")},
		{orderArgument, groupsArgument, deadline && groups},
		{orderArgument, "x-max-priority", deadline && given("x-max-priority")},
		{forwardArgument, groupsArgument, given(forwardArgument) && groups},
	} {
		if pair.both {
			return invalidArgument(pair.one, where, fmt.Sprintf("\"not together with '%s'\"", pair.other))
		}
	}
	for _, name := range groupDetails {
		if given(name) && !groups {
			return missingArgument(name, where, groupsArgument)
		}
	}
	if given("x-forward-to-routing-key") && !given(forwardArgument) {
		return missingArgument("x-forward-to-routing-key", where, forwardArgument)
	}
	return checkLocks(where, args)
}

// byDeadline reports whether a queue with these arguments hands out what expires first.
func byDeadline(args *fsm.Table) bool {
	order, _ := text(lookup(args, orderArgument))
	return order == orders[1]
}

// groupDetails have a meaning only in queues with groups.
var groupDetails = []string{"x-group-source", "x-group-required", "x-group-expiry", "x-group-linger", "x-group-state-ttl"}

// checkLocks refuses a lock, of a queue or a consumer, that lasts longer than
// locks may last with all renewals.
func checkLocks(where string, args *fsm.Table) error {
	lock, longest := lookup(args, "x-lock-duration"), lookup(args, "x-max-lock-duration")
	if lock != nil && longest != nil && longest.GetInt() < lock.GetInt() {
		return invalidArgument("x-max-lock-duration", where, fmt.Sprintf("{value_too_small,%d}", longest.GetInt()))
	}
	return nil
}

func missingArgument(name, where, other string) error {
	return invalidArgument(name, where, fmt.Sprintf("\"only together with '%s'\"", other))
}

// holdArgument marks a queue whose messages only wait and cannot be consumed.
const holdArgument = "x-hold"

// checkRetry refuses arguments for delayed retries that have no effect, or
// contradict each other. The log may hold declares that were never checked for
// it.
func checkRetry(where string, args *fsm.Table) error {
	const kind, shortest, longest = "x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max"
	low, high := lookup(args, shortest), lookup(args, longest)
	for _, name := range [2]string{shortest, longest} {
		if v := lookup(args, name); v != nil && v.GetInt() == 0 {
			return invalidArgument(name, where, "{value_zero,0}")
		}
	}
	strategy, _ := text(lookup(args, "x-delayed-retry-strategy"))
	steps := lookup(args, "x-delayed-retry-steps")
	byList := strategy == retryStrategies[2]
	if byList && steps == nil {
		return missingArgument("x-delayed-retry-strategy", where, "x-delayed-retry-steps")
	}
	if s, given := text(lookup(args, kind)); given && s != retries[0] && low == nil && !byList {
		return invalidArgument(kind, where, "delayed_retry_min_required")
	}
	if low != nil && high != nil && high.GetInt() < low.GetInt() {
		return invalidArgument(longest, where, fmt.Sprintf("{value_too_small,%d}", high.GetInt()))
	}
	return nil
}

const idleArgument = "x-auto-delete-on-idle"

// checkIdle refuses an idle time below the cluster's minimum.
func (s *clusterSettings) checkIdle(where string, args *fsm.Table) error {
	if n, _ := integer(lookup(args, idleArgument)); tooShort(n, s.Setting(AutoDeleteOnIdleMin)) {
		return invalidArgument(idleArgument, where, fmt.Sprintf("{value_too_small,%d}", n))
	}
	return nil
}

// tooShort: 0 is never, which is long enough. Both in ms.
func tooShort(idle, least int64) bool { return idle != 0 && idle < least }

// checkForeign goes by the order of args: the first foreign argument is
// reported.
func checkForeign(where string, args *fsm.Table) error {
	kind, _ := text(lookup(args, typeArgument))
	for _, f := range args.GetFields() {
		name := f.GetName()
		foreign := slices.Contains(foreignArguments, name) || strings.HasPrefix(name, "x-stream-")
		if foreign || kind == QuorumType && slices.Contains(classicArguments, name) {
			return foreignArgument(name, where)
		}
	}
	return nil
}

func invalidArgument(name, where, reason string) error {
	return refuse(fsm.Precondition, "invalid arg '%s' for %s: %s", name, where, reason)
}

func foreignArgument(name, where string) error {
	return refuse(fsm.Precondition, "invalid arg '%s' for %s of queue type rabbit_quorum_queue", name, where)
}

// DeadLetterExchange returns the dead-letter exchange that the arguments of a
// queue name. given is false if they name none. err: it is no text; given is
// true then. The exchange need not be there, and "" is the default exchange.
func DeadLetterExchange(vhost, queue string, args *fsm.Table) (exchange string, given bool, err error) {
	return exchangeArgument("x-dead-letter-exchange", resource(kindQueue, vhost, queue), args)
}

const (
	alternateExchange = "alternate-exchange"
	exchangeTTL       = "x-message-ttl"
)

// checkExchangeTTL refuses an invalid time-to-live of an exchange.
func checkExchangeTTL(where string, args *fsm.Table) error {
	if v := lookup(args, exchangeTTL); v != nil {
		if reason := between(0, MaxTTL)(v); reason != "" {
			return invalidArgument(exchangeTTL, where, reason)
		}
	}
	return nil
}

// exchangeArgument reads an argument that must be a text; where names what it
// was given to.
func exchangeArgument(argument, where string, args *fsm.Table) (name string, given bool, err error) {
	v := lookup(args, argument)
	if v == nil {
		return "", false, nil
	}
	name, ok := text(v)
	if !ok {
		return "", true, refuse(fsm.Precondition, "invalid type '%s' for arg '%s' in %s", typeName(v), argument, where)
	}
	return name, true, nil
}
