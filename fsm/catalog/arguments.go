package catalog

import (
	"fmt"
	"math"
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

func (a argument) is() string { return a.name }

// queueArgument is an argument of queue.declare.
type queueArgument struct {
	argument
	// adoptable: a queue can have another value than it was declared with, which
	// is so if a policy may say another one, see adopted.
	adoptable bool
	since     uint32 // as in key
}

// queueArguments are the arguments of queue.declare that have a meaning, in the order of keys, in which they are
// checked. The dead-letter exchange is checked before all of them. Arguments that are not listed there are stored and
// ignored.
var queueArguments = func() (rows []queueArgument) {
	for _, k := range keys {
		check := k.reason
		if k.asArgument != nil {
			check = k.asArgument
		}
		if k.declared != byPolicyOnly {
			rows = append(rows, queueArgument{argument{"x-" + k.name, k.declared == compared, check}, k.declared == compared && k.argue != nil, k.since})
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
		if value == nil || a.since > s.FSMVersion() || a.name == typeArgument && s.isUntyped(value) {
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
	groupsArgument      = "x-message-groups"
	orderArgument       = "x-queue-order"
	forwardArgument     = "x-forward-to-exchange"
	sentRefusedArgument = "x-sent-refused-queue"
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
	for _, name := range []string{"x-forward-to-routing-key", "x-forward-copies", "x-forward-refused"} {
		if given(name) && !given(forwardArgument) {
			return missingArgument(name, where, forwardArgument)
		}
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
	{"x-group-id", false, textUpTo(fsm.MaxGroup, "invalid_group_id")},
}

// shortText accepts texts of 1 to 255 bytes, as the name of a header is. empty is why there must be one.
func shortText(empty string) func(v *logpb.Value) string { return textUpTo(fsm.MaxShort, empty) }

// textUpTo accepts texts of 1 to so many bytes.
func textUpTo(limit int, empty string) func(v *logpb.Value) string {
	return func(v *logpb.Value) string {
		switch s, ok := text(v); {
		case !ok:
			return unacceptableType(v)
		case s == "":
			return empty
		case len(s) > limit:
			return fmt.Sprintf("{value_too_long,%d}", len(s))
		}
		return ""
	}
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

// Arguments that nobody reads are stored, as other brokers do: applications
// keep notes there. But an argument must not be without effect because it is
// spelled wrongly, given to the wrong method, of a later version, or of another
// broker. The checks here are for proposers only, so names may be added. What a
// queue or an exchange has since before is not refused when it is declared again.

// method is where arguments are given.
type method struct {
	name string
	// known are the names of arguments that have a meaning there, or none by
	// intent.
	known []string
	// missing are names that have a meaning elsewhere, or will have one. They may
	// be known already.
	missing []string
	// elsewhere are names that have a meaning in other brokers, and what to use.
	elsewhere map[string]string
}

var (
	declareQueue = method{"queue.declare", slices.Concat(argumentNames(queueArguments), foreignArguments, classicArguments,
		[]string{"x-name-prefix"}), nil, queuesElsewhere}
	declareExchange = method{"exchange.declare", append([]string{exchangeTTL, idleArgument}, delayedArguments...), nil, exchangesElsewhere}
	consume         = method{"basic.consume", append(argumentNames(consumeArguments), "x-cancel-on-ha-failover"),
		[]string{"x-browse", "x-lock-warning", "x-skip-late"}, consumersElsewhere}
)

// Names of arguments in other brokers: plug-ins of RabbitMQ and LavinMQ, and the words
// of Azure Service Bus, Amazon SQS and NATS JetStream with an x- in front. What is
// not a name of an argument says how else it is done.
var (
	queuesElsewhere = map[string]string{
		"x-deduplication-header":                    "x-unique with header: and the name of the header",
		"x-cache-size":                              "x-dedup-window",
		"x-cache-ttl":                               "x-dedup-window",
		"x-cache-persistence":                       "x-dedup-window",
		"x-duplicate-window":                        "x-dedup-window",
		"x-duplicate-detection":                     "x-dedup-window",
		"x-duplicate-detection-window":              "x-dedup-window",
		"x-duplicate-detection-history-time-window": "x-dedup-window",
		"x-requires-duplicate-detection":            "x-dedup-window",
		"x-content-based-deduplication":             "x-dedup-window, which compares the message_id",
		"x-requires-session":                        "x-message-groups",
		"x-fifo-queue":                              "x-message-groups",
		"x-max-delivery-count":                      "x-delivery-limit",
		"x-max-deliver":                             "x-delivery-limit",
		"x-max-receive-count":                       "x-delivery-limit",
		"x-default-message-time-to-live":            "x-message-ttl",
		"x-message-retention-period":                "x-message-ttl",
		"x-visibility-timeout":                      "x-lock-duration",
		"x-ack-wait":                                "x-lock-duration",
		"x-delay-seconds":                           "x-delivery-delay",
		"x-delay":                                   "x-delivery-delay",
		"x-forward-to":                              "x-forward-to-exchange",
		"x-forward-dead-lettered-messages-to":       "x-dead-letter-exchange",
		"x-redrive-policy":                          "x-dead-letter-exchange and x-delivery-limit",
		"x-max-msgs":                                "x-max-length",
		"x-max-bytes":                               "x-max-length-bytes",
		"x-max-size-in-megabytes":                   "x-max-length-bytes",
		"x-discard":                                 "x-overflow",
		"x-num-replicas":                            "x-quorum-initial-group-size",
	}
	exchangesElsewhere = map[string]string{
		"x-message-deduplication": "x-dedup-window or x-unique of the queues",
		"x-deduplication-header":  "x-dedup-window or x-unique of the queues",
		"x-cache-size":            "x-dedup-window of the queues",
		"x-cache-ttl":             "x-dedup-window of the queues",
		"x-cache-persistence":     "x-dedup-window of the queues",
		"x-recent-history-length": "a queue with x-max-length",
		"x-message-history":       "a queue with x-max-length",
	}
	consumersElsewhere = map[string]string{
		"x-credit":             "basic.qos",
		"x-max-ack-pending":    "basic.qos",
		"x-prefetch-count":     "basic.qos",
		"x-visibility-timeout": "x-lock-duration",
		"x-ack-wait":           "x-lock-duration",
		"x-max-deliver":        "x-delivery-limit of the queue",
		"x-session-id":         "x-group-id",
		"x-message-group-id":   "x-group-id",
		"x-filter":             "a binding to a separate queue",
		"x-selector":           "a binding to a separate queue",
		"x-deliver-policy":     "a separate queue",
	}
)

func argumentNames[A interface{ is() string }](rows []A) (names []string) {
	for _, a := range rows {
		names = append(names, a.is())
	}
	return names
}

// shared are the names that RabbitMQ knows as well. Given to the wrong method
// they are stored there, and so they are here.
var shared = slices.Concat(foreignArguments, classicArguments, []string{
	"x-queue-type", deadLetterExchange, deadLetterRoutingKey, "x-dead-letter-strategy", "x-expires", "x-message-ttl", "x-max-length", "x-max-length-bytes",
	"x-max-in-memory-length", "x-max-in-memory-bytes", "x-overflow", "x-single-active-consumer", "x-consumer-timeout", "x-consumer-disconnected-timeout",
	"x-quorum-initial-group-size", "x-quorum-target-group-size", "x-queue-leader-locator", "x-delivery-limit",
	"x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max", delayedType, "x-priority", "x-cancel-on-ha-failover",
})

// maxMisspelling is by how many letters a misspelled name differs.
const maxMisspelling = 2

// checkNames refuses the first argument that has no effect although it looks as
// if it were to have one. had are the arguments of what is declared again; nil: it is
// new.
func (m *method) checkNames(where string, args, had *fsm.Table) error {
	for _, f := range args.GetFields() {
		name := f.GetName()
		if !fsm.Extension(name) || lookup(had, name) != nil || slices.Contains(m.known, name) && !slices.Contains(m.missing, name) {
			continue
		}
		if reason := m.strange(name, args); reason != "" {
			return invalidArgument(name, where, reason)
		}
	}
	return nil
}

// strange says why a name that is not known should not be given; empty: nothing
// is known of it. A name is no misspelling of one that is given, too.
func (m *method) strange(name string, args *fsm.Table) string {
	if slices.Contains(m.missing, name) {
		return `"not implemented"`
	}
	if use := m.elsewhere[name]; use != "" {
		return fmt.Sprintf("\"has no effect here, use %s\"", use)
	}
	for _, other := range []*method{&declareQueue, &consume, &declareExchange} {
		if slices.Contains(other.known, name) && !slices.Contains(shared, name) {
			return fmt.Sprintf("\"an argument of %s, not of %s\"", other.name, m.name)
		}
	}
	if near := nearestArgument(name, m.known, maxMisspelling, args); near != "" {
		return fmt.Sprintf("\"unknown; did you mean '%s'?\"", near)
	}
	return ""
}

func nearestArgument(name string, known []string, limit int, args *fsm.Table) string {
	if near := fsm.Nearest(name, known, limit); lookup(args, near) == nil {
		return near
	}
	return ""
}

// checkBindingNames refuses an argument of a headers binding that was to be
// x-match. Other exchanges read no arguments. Such bindings also name headers of
// messages, so the name must differ by one letter only.
func checkBindingNames(kind, where string, args *fsm.Table) error {
	if kind != Headers {
		return nil
	}
	for _, f := range args.GetFields() {
		name := f.GetName()
		if !fsm.Extension(name) || name == matchArgument {
			continue
		}
		if near := nearestArgument(name, []string{matchArgument}, 1, args); near != "" {
			return invalidArgument(name, where, fmt.Sprintf("\"unknown; did you mean '%s'?\"", near))
		}
	}
	return nil
}

const matchArgument = "x-match"
