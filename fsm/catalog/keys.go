package catalog

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/route"
	"github.com/quorate/quorate/proto/logpb"
)

// rule makes one value of two. strong is the operator policy's against the
// policy's, and the policies' against the argument's. Both are valid.
//
// apply returns one of its two values, unchanged, so the result is shared and
// valid if both were. Neither may be nil: with one side only there is nothing
// to merge.
type rule struct {
	about string // for the documentation; strong and weak stand for the sides
	apply func(strong, weak *logpb.Value) *logpb.Value
}

var (
	strongWins = &rule{"strong", func(strong, _ *logpb.Value) *logpb.Value { return strong }}
	weakWins   = &rule{"weak", func(_, weak *logpb.Value) *logpb.Value { return weak }}
	smaller    = &rule{"the smaller", smallerOf}
	larger     = &rule{"the larger", largerOf}
	// A negative limit is none.
	smallerLimit = &rule{"the smaller; if one is negative, the larger", func(strong, weak *logpb.Value) *logpb.Value {
		if strong.GetInt() < 0 || weak.GetInt() < 0 {
			return largerOf(strong, weak)
		}
		return smallerOf(strong, weak)
	}}
	// 0 is never, and the weaker side cannot shorten never.
	smallerOrNever = &rule{"the smallest above 0; 0 if it is strong", func(strong, weak *logpb.Value) *logpb.Value {
		if strong.GetInt() == 0 || weak.GetInt() == 0 {
			return strong
		}
		return smallerOf(strong, weak)
	}}
)

// of says what the rule makes of two values that are strong's and weak's.
func (r *rule) of(strong, weak string) string {
	switch r {
	case nil:
		return ""
	case strongWins:
		return strong
	case weakWins:
		return weak
	}
	return strings.ReplaceAll(r.about, "strong", strong)
}

// smallerOf and largerOf compare integers. If both are equal, strong is
// returned.
func smallerOf(strong, weak *logpb.Value) *logpb.Value {
	if weak.GetInt() < strong.GetInt() {
		return weak
	}
	return strong
}

func largerOf(strong, weak *logpb.Value) *logpb.Value {
	if weak.GetInt() > strong.GetInt() {
		return weak
	}
	return strong
}

// key is a row of the table of what queues are told by arguments, policies, or both.
//
// Who may set what: policies the keys that have what or are idle, operator policies those with merge, arguments those
// with argue, and those that are in no policy. An effective value is argue(merge(operator, policy), argument), where
// each step is left out if a side is missing.
type key struct {
	name string // in policies; the argument has x- before it
	value
	// declared says whether it is an argument of queue.declare.
	declared declared
	// asArgument takes the place of reason there, if it is not nil.
	asArgument func(v *logpb.Value) string
	// what a wrong value in a policy is not, as the refusal says.
	what string
	// merge makes one value of the operator policy's and the policy's. nil: operator policies may not set the key.
	merge *rule
	// argue makes one value of the policies' and the queue argument's. nil: no such argument has an effect.
	argue *rule
	// idle: the key has no effect in policies.
	idle bool
	// foreign: a policy with this key matches no replicated queue, unless it is lenient, see PutPolicy. Such keys are
	// idle.
	foreign bool
	// since is the version from which on policies have the key, and queue.declare reads it; 0: always.
	since uint32
}

// declared says how queue.declare takes a key.
type declared uint8

const (
	byPolicyOnly declared = iota
	compared              // a redeclare must have the same value
	loose                 // a redeclare may have another value
)

// value says which values a key takes.
type value struct {
	// reason says why v is none of them, as refusals of arguments do; empty: it is one.
	reason  func(v *logpb.Value) string
	accepts string // for the documentation
}

func (x value) valid(v *logpb.Value) bool { return x.reason(v) == "" }

// anything: the values of keys without effect are the business of those who gave them one.
var anything = value{func(*logpb.Value) string { return "" }, "any"}

// keys are what queues are told. Names, ranges and rules are part of the state machine: a change needs a new version,
// since all replicas must accept and merge the same. The order decides which of several mistakes in the arguments of a
// declare its client is told of.
var keys = []key{
	{name: "queue-type", value: value{reason: checkQueueType}, declared: loose}, // compared by meaning, see equivalentType
	{name: "dead-letter-exchange", value: anyText, declared: compared, what: "a valid dead letter exchange name", argue: weakWins},
	{name: "dead-letter-routing-key", value: anyText, declared: compared, what: "a valid dead letter routing key", argue: weakWins},
	{name: "dead-letter-max-pending", value: whole(0, math.MaxInt64-1), declared: compared, what: "a valid maximum of pending dead letters", argue: smaller},
	{name: "dead-letter-strategy", value: among("invalid_dlx_strategy", strategies...), declared: compared, what: "a valid dead letter strategy", argue: weakWins},
	{name: "dead-letter-expired", value: yesOrNo, declared: compared, what: "a valid dead-letter-expired value", argue: weakWins, since: descriptionsSince},
	{name: "dead-letter-on-delete", value: yesOrNo, declared: compared, what: "a valid dead-letter-on-delete value", argue: weakWins, since: lastWill},
	{name: "expires", value: whole(1, MaxTTL), declared: compared, what: "a valid queue expiry", merge: smaller, argue: smaller},
	{name: "message-ttl", value: whole(0, MaxTTL), declared: compared, what: "a valid message TTL", merge: smaller, argue: smaller},
	{name: "ttl-precedence", value: among("invalid_ttl_precedence", precedences...), declared: compared, what: "a valid TTL precedence", argue: weakWins},
	{name: "expires-keep-pending", value: yesOrNo, declared: compared, what: "a valid expires-keep-pending value", argue: weakWins},
	{name: "auto-delete-on-idle", value: whole(0, MaxTTL), declared: compared, what: "a valid idle time", merge: smallerOrNever, argue: smallerOrNever}, // and at least the cluster's minimum, see checkIdle
	{name: "idle-counts-routed", value: yesOrNo, declared: compared},
	{name: "idle-dead-letters", value: yesOrNo, declared: compared, since: filters},
	{name: "hold", value: yesOrNo, declared: compared},
	{name: "delivery-delay", value: whole(0, MaxTTL), declared: compared, what: "a valid delivery delay", argue: weakWins},
	{name: "delivery-time-header", value: aHeader, declared: compared, what: "a valid name of a header", argue: weakWins, since: headerTimes},
	{name: "expiry-header", value: aHeader, declared: compared, what: "a valid name of a header", argue: weakWins, since: headerTimes},
	{name: "age-header", value: aHeader, declared: compared, what: "a valid name of a header", argue: weakWins, since: tallies},
	{name: "max-length", value: whole(0, math.MaxInt64-1), declared: compared, what: "a valid maximum length", merge: smaller, argue: smaller},
	{name: "max-length-bytes", value: whole(0, math.MaxInt64-1), declared: compared, what: "a valid maximum length in bytes", merge: smaller, argue: smaller},
	{name: "max-in-memory-length", value: whole(0, math.MaxInt64), declared: compared, what: "a valid maximum memory in bytes", merge: smaller, idle: true},
	{name: "max-in-memory-bytes", value: whole(0, math.MaxInt64), declared: compared, what: "a valid maximum memory in bytes", merge: smaller, idle: true},
	{name: "max-priority", value: value{reason: checkMaxPriority}, declared: compared},
	{name: "overflow", value: among("invalid_overflow", overflows...), declared: compared, what: "a valid overflow value", merge: strongWins, argue: strongWins},
	{name: "single-active-consumer", value: yesOrNo, declared: compared},
	{name: "max-prefetch", value: whole(1, fsm.MaxHeld), declared: compared, what: "a valid maximum prefetch", merge: smaller, argue: smaller, since: prefetchLimits},
	{name: "dispatch", value: among("invalid_dispatch", dispatches...), declared: compared, what: "a valid order of dispatch", merge: strongWins, argue: strongWins, since: dispatchOrders},
	{name: "consumer-timeout", value: whole(0, math.MaxInt64-1), declared: compared, what: "a valid consumer timeout", argue: smaller},
	{name: "consumer-timeout-action", value: among("invalid_consumer_timeout_action", timeoutActions...), declared: compared, what: "a valid consumer timeout action", argue: weakWins},
	{name: "consumer-disconnected-timeout", value: whole(0, math.MaxInt64-1), declared: compared, what: "a valid consumer timeout", argue: smaller},
	{name: "lock-duration", value: whole(leastLock, maxLock), declared: compared, what: "a valid lock duration", merge: smaller, argue: smaller},
	{name: "max-lock-duration", value: whole(leastLock, MaxTTL), declared: compared, what: "a valid maximum lock duration", merge: smaller, argue: smaller},
	{name: "count-lock-expiry", value: yesOrNo, declared: compared, what: "a valid count-lock-expiry value", argue: weakWins},
	{name: "quorum-initial-group-size", value: whole(1, math.MaxInt64), declared: compared},
	{name: "quorum-target-group-size", value: whole(1, math.MaxInt64), declared: loose},
	{name: "queue-leader-locator", value: among("invalid_queue_locator_arg", locators...), declared: compared, what: "a valid queue leader locator value", argue: strongWins},
	{name: "delivery-limit", value: whole(math.MinInt64, math.MaxInt64), declared: compared, what: "a valid delivery limit", merge: smallerLimit, argue: smallerLimit},
	{name: "delayed-retry-type", value: among("invalid_delayed_retry_type", retries...), declared: compared, what: "a valid delayed retry type", merge: strongWins, argue: strongWins},
	{name: "delayed-retry-min", value: whole(1, math.MaxInt64-1), declared: compared, asArgument: between(0, math.MaxInt64-1), what: "a valid delayed retry minimum", merge: larger, argue: smaller}, // see checkRetry too
	{name: "delayed-retry-max", value: whole(1, math.MaxInt64-1), declared: compared, asArgument: between(0, math.MaxInt64-1), what: "a valid delayed retry maximum", merge: smaller, argue: smaller},
	{name: "delayed-retry-strategy", value: among("invalid_delayed_retry_strategy", retryStrategies...), declared: compared, what: "a valid delayed retry strategy", merge: strongWins, argue: strongWins},
	{name: "delayed-retry-multiplier", value: whole(leastMultiplier, maxMultiplier), declared: compared, what: "a valid delayed retry multiplier", merge: strongWins, argue: strongWins},
	{name: "delayed-retry-steps", value: listOfSteps, declared: compared, what: "a valid list of delayed retry steps", merge: strongWins, argue: strongWins},
	{name: "delayed-retry-jitter", value: whole(0, 100), declared: compared, what: "a valid delayed retry jitter", merge: strongWins, argue: strongWins},
	{name: "delayed-retry-count", value: among("invalid_delayed_retry_count", retryCounts...), declared: compared, what: "a valid delayed retry count", merge: strongWins, argue: strongWins},
	{name: "message-groups", value: yesOrNo, declared: compared},
	{name: "group-source", value: among("invalid_group_source", groupSources...), declared: compared},
	{name: "group-required", value: yesOrNo, declared: compared},
	{name: "group-expiry", value: among("invalid_group_expiry", groupExpiries...), declared: compared},
	{name: "group-linger", value: whole(0, MaxTTL), declared: compared},
	{name: "group-state-ttl", value: whole(0, MaxTTL), declared: compared},
	{name: "queue-order", value: among("invalid_queue_order", orders...), declared: compared},
	{name: "dedup-window", value: whole(leastWindow, maxWindow), declared: compared, what: "a valid duplicate detection window", argue: weakWins},
	{name: "unique", value: uniqueness, declared: compared, what: "a valid key of unique messages", argue: weakWins, since: uniqueKeys},
	{name: "message-deduplication", value: yesOrNo, declared: compared, since: uniqueKeys}, // as RabbitMQ's plug-in has it
	{name: "forward-to-exchange", value: anyText, declared: compared, what: "a valid exchange name", argue: weakWins},
	{name: "forward-to-routing-key", value: anyText, declared: compared, what: "a valid routing key", argue: weakWins},
	{name: "forward-copies", value: yesOrNo, declared: compared, since: filters},
	{name: "forward-refused", value: among("invalid_forward_refused", refusals...), declared: compared, what: "a valid forward-refused value", argue: weakWins, since: filters},
	{name: "sent-refused-queue", value: anyText, declared: compared, since: filters},
	{name: "refuse-publishes", value: yesOrNo, declared: compared, what: "a valid refuse-publishes value", merge: strongWins, argue: weakWins, since: filters},
	{name: "audit-max", value: whole(0, maxAudit), declared: compared, what: "a valid number of remembered ends", merge: smaller, argue: smaller},
	{name: "pause-consumers", value: yesOrNo, what: "a valid pause-consumers value", merge: strongWins, since: pausing},
	{name: "target-group-size", value: whole(1, math.MaxInt64), what: "a valid target group size", merge: larger},
	{name: "alternate-exchange", value: anyText, what: "a valid alternate exchange name"},
	{name: "delayed-message", value: yesOrNo, what: "a valid delayed-message value"},
	{name: "delayed-max-length", value: whole(0, math.MaxInt64-1), what: "a valid maximum length", merge: smaller},
	{name: "delayed-max-length-bytes", value: whole(0, math.MaxInt64-1), what: "a valid maximum length in bytes", merge: smaller},
	{name: "queue-version", value: whole(1, 2), what: "a valid queue version", merge: strongWins, idle: true},
	{name: "queue-mode", value: among("invalid_queue_mode", "default", "lazy"), what: "a valid queue-mode value", idle: true, foreign: true},
	{name: "max-age", value: age, what: "a valid max age", idle: true, foreign: true},
	{name: "initial-cluster-size", value: whole(0, math.MaxInt64), what: "a valid cluster size", idle: true, foreign: true},
	{name: "stream-max-segment-size-bytes", value: whole(0, math.MaxInt64), what: "a valid segment size", idle: true, foreign: true},
	{name: "stream-filter-size-bytes", value: whole(16, 255), what: "a valid filter size", idle: true},
	{name: "queue-master-locator", value: anything, idle: true, since: declaredTypes},
	{name: "ha-mode", value: anything, merge: strongWins, idle: true, since: declaredTypes},
	{name: "ha-params", value: anything, merge: strongWins, idle: true, since: declaredTypes},
	{name: "ha-sync-mode", value: anything, merge: strongWins, idle: true, since: declaredTypes},
	{name: "ha-sync-batch-size", value: anything, merge: strongWins, idle: true, since: declaredTypes},
	{name: "ha-promote-on-shutdown", value: anything, merge: strongWins, idle: true, since: declaredTypes},
	{name: "ha-promote-on-failure", value: anything, merge: strongWins, idle: true, since: declaredTypes},
	{name: "federation-upstream", value: anything, idle: true, since: declaredTypes},
	{name: "federation-upstream-set", value: anything, idle: true, since: declaredTypes},
	{name: "federation-upstream-pattern", value: anything, idle: true, since: declaredTypes},
}

// policyKeys are the keys of policy definitions.
var policyKeys = slices.DeleteFunc(slices.Clone(keys), func(k key) bool { return k.what == "" && !k.idle })

// Values that both arguments and policies take. Where settings are made of
// them, their positions are those of the log's enumerations.
var (
	overflows   = []string{"drop-head", "reject-publish", "reject-publish-dlx"}
	strategies  = []string{"at-most-once", "at-least-once"}
	locators    = []string{"client-local", "balanced", "random", "least-leaders", "min-masters"}
	precedences = []string{"lowest", "message"}
	retries     = []string{"disabled", "all", "failed", "returned"}

	retryStrategies = []string{"linear", "exponential", "list"}
	retryCounts     = []string{"failed", "acquired"}
	groupSources    = []string{"header", "app-id"}
	groupExpiries   = []string{"message", "group"}
	orders          = []string{"fifo", "deadline"}
	dispatches      = []string{"round-robin", "least-loaded"}
	refusals        = []string{"wait", "dead-letter"}
)

// findPolicyKey returns the row of a key, or nil. It walks over the table.
func findPolicyKey(name string) *key {
	i := slices.IndexFunc(policyKeys, func(k key) bool { return k.name == name })
	if i < 0 {
		return nil
	}
	return &policyKeys[i]
}

// whole takes integers of any width, low ≤ n ≤ high.
func whole(low, high int64) value {
	accepts := fmt.Sprintf("%d … %d", low, high)
	switch {
	case low == math.MinInt64:
		accepts = "a whole number; negative: no limit"
	case high >= math.MaxInt64-1:
		accepts = fmt.Sprintf("from %d", low)
	}
	return value{between(low, high), accepts}
}

// among takes texts that are one of values; reason is that of all others. Case counts.
func among(reason string, values ...string) value {
	return value{oneOf(reason, values...), "`" + strings.Join(values, "`, `") + "`"}
}

var (
	anyText = value{longstr, "a string of at most 255 bytes"} // see shortInPolicies
	aHeader = value{shortText("invalid_header_name"), "a string of 1 to 255 bytes"}
	// uniqueness takes what UniqueKey reads.
	uniqueness = value{checkUnique, "`message-id`, or `header:` and a name of 1 to 255 bytes"}
	yesOrNo    = value{boolean, "`true`, `false`"}
	age        = value{checkAge, "a number and Y, M, D, h, m or s"}
	// listOfSteps takes what retrySteps reads.
	listOfSteps = value{checkSteps, "a string: waits from 1 ms, separated by commas, at most 32"}
)

// headerTimes is the version from which on headers named by a queue's settings say when its messages are due and expire.
const headerTimes = 3

// tallies is the version from which on queues count messages by the value of a header.
const tallies = 3

// lastWill is the version from which on what is left of a queue can be dead-lettered.
const lastWill = 3

// uniqueKeys is the version from which on queues take no second message with a key.
const uniqueKeys = 3

// Values of unique: what makes messages the same.
const (
	byMessageID = "message-id"
	byHeader    = "header:"
	// bySameHeader is what x-message-deduplication stands for.
	bySameHeader = byHeader + "x-deduplication-header"
)

func checkUnique(v *logpb.Value) string {
	s, ok := text(v)
	name, isHeader := strings.CutPrefix(s, byHeader)
	switch {
	case isHeader:
		return aHeader.reason(&logpb.Value{Tag: 'S', Str: []byte(name)})
	case ok && s != byMessageID:
		return "invalid_unique_key"
	}
	return longstr(v)
}

// unique returns by what messages are told apart of which a queue takes each once at a time; empty: it takes all.
func (e effective) unique() string {
	if lookup(e.arguments, "x-unique") == nil && lookup(e.arguments, "x-message-deduplication").GetInt() != 0 {
		return bySameHeader
	}
	by, _ := text(e.value("unique"))
	return by
}

// UniqueKey returns the key of a message, 16 bytes however long what it says is; nil: it has none. by is that of Needs,
// not empty. Keys of other settings differ from all of this one. property reads the properties of the message, and its
// headers by the names that begin with header:.
func UniqueKey(by string, property func(name string) []byte) []byte {
	name := by
	if by == byMessageID {
		name = PropertyMessageID
	}
	text := property(name)
	if len(text) == 0 {
		return nil
	}
	sum := sha256.Sum256(append([]byte(by+"\x00"), text...))
	return sum[:16]
}

// prefetchLimits is the version from which on queues limit the prefetch of their consumers.
const prefetchLimits = 3

// dispatchOrders is the version from which on queues say which of their consumers is served first.
const dispatchOrders = 3

// filters is the version from which on there are exchanges of type Filter, and queues that forward to them.
const filters = 3

// pausing is the version from which on consumers can be paused.
const pausing = 3

// CheckPause refuses to pause consumers in a cluster of a version.
func CheckPause(version uint32) error {
	if version < pausing {
		return refuse(fsm.Precondition, "consumers can be paused once all nodes have fsm_version %d", pausing)
	}
	return nil
}

// taking is the version from which on messages at hand can be deleted, moved and copied.
const taking = 3

// CheckTake refuses to take messages at hand in a cluster of a version, or to send them to their own queue.
func CheckTake(version uint32, from, to *Queue) error {
	if version < taking {
		return refuse(fsm.Precondition, "messages can be deleted, moved and copied once all nodes have fsm_version %d", taking)
	}
	if from == to {
		return refuse(fsm.Precondition, "the messages are in %s already", to)
	}
	return nil
}

// checkAge accepts a whole number from 1 to 2^32-1 and one letter for the unit.
func checkAge(v *logpb.Value) string {
	s, ok := text(v)
	if !ok || len(s) < 2 || !strings.Contains("YMDhms", s[len(s)-1:]) {
		return "invalid_age"
	}
	if n, err := strconv.ParseUint(s[:len(s)-1], 10, 32); err != nil || n == 0 {
		return "invalid_age"
	}
	return ""
}

// maxUnknownKeys bounds how many keys a refusal tells.
const maxUnknownKeys = 16

// checkDefinition says why a table is no definition of a policy in a version.
//
// Requires nothing; ensures, with nil: it has 1 key or more, in ascending order
// and each once; each has a row and a valid value; of an operator policy, each
// may be set by operators, so mergeDefinitions finds a rule for it. Keys must
// come ordered since definitions are compared as encoded. A value that is not
// valid is reported rather than unknown keys.
func checkDefinition(t *fsm.Table, operator bool, version uint32) error {
	fields := t.GetFields()
	if len(fields) == 0 {
		return refuse(fsm.Precondition, "no policy provided")
	}
	var unknown []string
	for i, f := range fields {
		k := findPolicyKey(f.GetName())
		switch {
		case i > 0 && fields[i-1].GetName() >= f.GetName():
			return refuse(fsm.Internal, "the keys of a policy are not in order")
		case k == nil || k.since > version || operator && k.merge == nil:
			if len(unknown) < maxUnknownKeys {
				unknown = append(unknown, "{"+Term(&logpb.Value{Tag: 'S', Str: []byte(f.GetName())})+","+Term(f.GetValue())+"}")
			}
		case !k.valid(f.GetValue()):
			return refuse(fsm.Precondition, "%s is not %s", Term(f.GetValue()), k.what)
		}
	}
	if len(unknown) > 0 {
		return refuse(fsm.Precondition, "[%s] are not recognised policy settings", strings.Join(unknown, ","))
	}
	low, high := lookup(t, "delayed-retry-min"), lookup(t, "delayed-retry-max")
	if low != nil && high != nil && low.GetInt() > high.GetInt() {
		return refuse(fsm.Precondition, "%s is not %s", Term(high), findPolicyKey("delayed-retry-max").what)
	}
	lock, most := lookup(t, "lock-duration"), lookup(t, "max-lock-duration")
	if lock != nil && most != nil && lock.GetInt() > most.GetInt() {
		return refuse(fsm.Precondition, "%s is not %s", Term(most), findPolicyKey("max-lock-duration").what)
	}
	return nil
}

// maxTerm is about how many bytes of a value are shown.
const maxTerm = 1024

// Term shows a value of a definition as texts about policies do. Of one that is
// long, or deep, it shows the beginning: who sent it knows the rest.
func Term(v *logpb.Value) string {
	var b strings.Builder
	appendTerm(&b, v)
	return b.String()
}

func appendTerm(b *strings.Builder, v *logpb.Value) {
	switch classOf(v) {
	case route.String:
		appendTermText(b, v.GetStr())
	case route.Array:
		b.WriteByte('[')
		for i, e := range v.GetArray() {
			if !appendTermComma(b, i) {
				break
			}
			appendTerm(b, e)
		}
		b.WriteByte(']')
	case route.Nested:
		b.WriteString("#{")
		for i, f := range v.GetTable().GetFields() {
			if !appendTermComma(b, i) {
				break
			}
			appendTermText(b, []byte(f.GetName()))
			b.WriteString(" => ")
			appendTerm(b, f.GetValue())
		}
		b.WriteByte('}')
	case route.Void:
		b.WriteString("null")
	default:
		b.WriteString(render(v))
	}
}

// appendTermComma separates the parts of a term. It returns false if the term is
// as long as it may be.
func appendTermComma(b *strings.Builder, i int) (more bool) {
	if b.Len() >= maxTerm {
		b.WriteString("...")
		return false
	}
	if i > 0 {
		b.WriteByte(',')
	}
	return true
}

func appendTermText(b *strings.Builder, text []byte) {
	b.WriteString(`<<"`)
	if len(text) > maxTerm {
		b.Write(text[:maxTerm])
		b.WriteString("...")
	} else {
		b.Write(text)
	}
	b.WriteString(`">>`)
}

// mergeDefinitions makes one definition of a policy's and an operator
// policy's. Both, and the result, are ordered by key.
//
// A key that both have gets the value that the key's merge rule chooses,
// operator strong; a key that one has keeps its value. Requires: both are
// checked, so each key of operator has a rule. nil stands for no policy. The
// result is new, its values are shared.
func mergeDefinitions(policy, operator *fsm.Table) *fsm.Table {
	if len(policy.GetFields()) == 0 || len(operator.GetFields()) == 0 {
		return &fsm.Table{Fields: append(slices.Clone(policy.GetFields()), operator.GetFields()...)}
	}
	merged := &fsm.Table{}
	for _, f := range policy.GetFields() {
		both := f.GetValue()
		if strong := lookup(operator, f.GetName()); strong != nil {
			both = findPolicyKey(f.GetName()).merge.apply(strong, both)
		}
		merged.Fields = append(merged.Fields, &logpb.Field{Name: f.GetName(), Value: both})
	}
	for _, f := range operator.GetFields() {
		if lookup(policy, f.GetName()) == nil {
			merged.Fields = append(merged.Fields, f)
		}
	}
	slices.SortFunc(merged.Fields, func(a, b *logpb.Field) int { return strings.Compare(a.GetName(), b.GetName()) })
	return merged
}

// Who says what is in force.
const (
	ByArgument       = "argument"
	ByPolicy         = "policy"
	ByOperatorPolicy = "operator policy"
)

// Said is what a queue is told under a key, by whom, and what of it is in force.
type Said struct {
	Key                                   string
	Argument, Policy, Operator, Effective *logpb.Value // the first three are nil if nothing is said; shared
	By                                    string       // whose value is in force
	Rule                                  string       // by which it was chosen of several, or "no effect"; empty: it is alone
}

// Said lists what the policies, and arguments of a queue, say under each key, by key. Requires: both are valid.
func (p EffectivePolicy) Said(arguments *fsm.Table) (all []Said) {
	told := map[string]bool{}
	for _, f := range arguments.GetFields() {
		told[strings.TrimPrefix(f.GetName(), "x-")] = true
	}
	for _, t := range []*fsm.Table{p.policy, p.operator} {
		for _, f := range t.GetFields() {
			told[f.GetName()] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(told)) {
		s := Said{Key: name, Argument: lookup(arguments, "x-"+name), Policy: lookup(p.policy, name), Operator: lookup(p.operator, name)}
		k := findPolicyKey(name)
		if k == nil {
			k = &key{}
		}
		s.choose(s.Policy, ByPolicy, nil)
		s.choose(s.Operator, ByOperatorPolicy, k.merge)
		strong, by := s.Effective, s.By
		if s.Argument != nil {
			s.Effective, s.By = s.Argument, ByArgument
			s.choose(strong, by, k.argue)
		}
		if k.idle {
			s.Rule = "no effect"
		}
		all = append(all, s)
	}
	return all
}

// choose lets a stronger value be in force, or not, as the rule says about it and the one that is; nil: it is stronger
// in any case.
func (s *Said) choose(strong *logpb.Value, by string, r *rule) {
	switch weak := s.Effective; {
	case strong == nil:
	case weak == nil || r == nil:
		s.Effective, s.By = strong, by
	default:
		s.Rule = r.of("the "+by+"'s", "the "+s.By+"'s")
		if s.Effective = r.apply(strong, weak); s.Effective == strong {
			s.By = by
		}
	}
}
