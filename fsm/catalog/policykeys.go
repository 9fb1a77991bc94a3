package catalog

import (
	"fmt"
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

// policyKey is a row of the table of what policies may set.
//
// Who may set what: policies any key, operator policies those with merge,
// arguments those with argue. An effective value is argue(merge(operator,
// policy), argument), where each step is left out if a side is missing.
type policyKey struct {
	name string
	value
	// what a wrong value is not, as the refusal says.
	what string
	// merge makes one value of the operator policy's and the policy's. nil:
	// operator policies may not set the key.
	merge *rule
	// argue makes one value of the policies' and the queue argument's, which is
	// called x- and the key's name. nil: no such argument has an effect.
	argue *rule
	// idle: the key has no effect.
	idle bool
	// foreign: a policy with this key matches no replicated queue, unless it is
	// lenient, see PutPolicy. Such keys are idle.
	foreign bool
	// since is the version from which on there is the key; 0: always.
	since uint32
}

// value says which values a key takes.
type value struct {
	valid   func(v *logpb.Value) bool
	accepts string // for the documentation
}

// anything: the values of keys without effect are the business of those who
// gave them one.
var anything = value{func(*logpb.Value) bool { return true }, "any"}

// policyKeys are the keys of policy definitions. A key's name, range and rules
// are part of the state machine: a change needs a new version, since all
// replicas must accept and merge the same.
var policyKeys = []policyKey{
	{name: "message-ttl", value: whole(0, MaxTTL), what: "a valid message TTL", merge: smaller, argue: smaller},
	{name: "expires", value: whole(1, MaxTTL), what: "a valid queue expiry", merge: smaller, argue: smaller},
	{name: "max-length", value: whole(0, math.MaxInt64-1), what: "a valid maximum length", merge: smaller, argue: smaller},
	{name: "max-length-bytes", value: whole(0, math.MaxInt64-1), what: "a valid maximum length in bytes", merge: smaller, argue: smaller},
	{name: "max-in-memory-length", value: whole(0, math.MaxInt64), what: "a valid maximum memory in bytes", merge: smaller, idle: true},
	{name: "max-in-memory-bytes", value: whole(0, math.MaxInt64), what: "a valid maximum memory in bytes", merge: smaller, idle: true},
	{name: "overflow", value: among(overflows...), what: "a valid overflow value", merge: strongWins, argue: strongWins},
	{name: "dead-letter-exchange", value: anyText, what: "a valid dead letter exchange name", argue: weakWins},
	{name: "dead-letter-routing-key", value: anyText, what: "a valid dead letter routing key", argue: weakWins},
	{name: "dead-letter-strategy", value: among(strategies...), what: "a valid dead letter strategy", argue: weakWins},
	{name: "dead-letter-max-pending", value: whole(0, math.MaxInt64-1), what: "a valid maximum of pending dead letters", argue: smaller},
	{name: "delivery-limit", value: whole(math.MinInt64, math.MaxInt64), what: "a valid delivery limit", merge: smallerLimit, argue: smallerLimit},
	{name: "consumer-timeout", value: whole(0, math.MaxInt64-1), what: "a valid consumer timeout", argue: smaller},
	{name: "consumer-timeout-action", value: among(timeoutActions...), what: "a valid consumer timeout action", argue: weakWins},
	{name: "consumer-disconnected-timeout", value: whole(0, math.MaxInt64-1), what: "a valid consumer timeout", argue: smaller},
	{name: "delayed-retry-type", value: among(retries...), what: "a valid delayed retry type", merge: strongWins, argue: strongWins},
	{name: "delayed-retry-min", value: whole(1, math.MaxInt64-1), what: "a valid delayed retry minimum", merge: larger, argue: smaller},
	{name: "delayed-retry-max", value: whole(1, math.MaxInt64-1), what: "a valid delayed retry maximum", merge: smaller, argue: smaller},
	{name: "delayed-retry-strategy", value: among(retryStrategies...), what: "a valid delayed retry strategy", merge: strongWins, argue: strongWins},
	{name: "delayed-retry-multiplier", value: whole(leastMultiplier, maxMultiplier), what: "a valid delayed retry multiplier", merge: strongWins, argue: strongWins},
	{name: "delayed-retry-steps", value: listOfSteps, what: "a valid list of delayed retry steps", merge: strongWins, argue: strongWins},
	{name: "delayed-retry-jitter", value: whole(0, 100), what: "a valid delayed retry jitter", merge: strongWins, argue: strongWins},
	{name: "delayed-retry-count", value: among(retryCounts...), what: "a valid delayed retry count", merge: strongWins, argue: strongWins},
	{name: "lock-duration", value: whole(leastLock, maxLock), what: "a valid lock duration", merge: smaller, argue: smaller},
	{name: "max-lock-duration", value: whole(leastLock, MaxTTL), what: "a valid maximum lock duration", merge: smaller, argue: smaller},
	{name: "count-lock-expiry", value: yesOrNo, what: "a valid count-lock-expiry value", argue: weakWins},
	{name: "dedup-window", value: whole(leastWindow, maxWindow), what: "a valid duplicate detection window", argue: weakWins},
	{name: "forward-to-exchange", value: anyText, what: "a valid exchange name", argue: weakWins},
	{name: "forward-to-routing-key", value: anyText, what: "a valid routing key", argue: weakWins},
	{name: "audit-max", value: whole(0, maxAudit), what: "a valid number of remembered ends", merge: smaller, argue: smaller},
	{name: "target-group-size", value: whole(1, math.MaxInt64), what: "a valid target group size", merge: larger},
	{name: "queue-leader-locator", value: among(locators...), what: "a valid queue leader locator value", argue: strongWins},
	{name: "alternate-exchange", value: anyText, what: "a valid alternate exchange name"},
	{name: "ttl-precedence", value: among(precedences...), what: "a valid TTL precedence", argue: weakWins},
	{name: "auto-delete-on-idle", value: whole(0, MaxTTL), what: "a valid idle time", merge: smallerOrNever, argue: smallerOrNever},
	{name: "expires-keep-pending", value: yesOrNo, what: "a valid expires-keep-pending value", argue: weakWins},
	{name: "delivery-delay", value: whole(0, MaxTTL), what: "a valid delivery delay", argue: weakWins},
	{name: "delayed-message", value: yesOrNo, what: "a valid delayed-message value"},
	{name: "delayed-max-length", value: whole(0, math.MaxInt64-1), what: "a valid maximum length", merge: smaller},
	{name: "delayed-max-length-bytes", value: whole(0, math.MaxInt64-1), what: "a valid maximum length in bytes", merge: smaller},
	{name: "queue-version", value: whole(1, 2), what: "a valid queue version", merge: strongWins, idle: true},
	{name: "queue-mode", value: among("default", "lazy"), what: "a valid queue-mode value", idle: true, foreign: true},
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
)

// findPolicyKey returns the row of a key, or nil. It walks over the table.
func findPolicyKey(name string) *policyKey {
	i := slices.IndexFunc(policyKeys, func(k policyKey) bool { return k.name == name })
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
	return value{func(v *logpb.Value) bool {
		n, ok := integer(v)
		return ok && n >= low && n <= high
	}, accepts}
}

// among takes texts that are one of values. Case counts.
func among(values ...string) value {
	return value{func(v *logpb.Value) bool {
		s, ok := text(v)
		return ok && slices.Contains(values, s)
	}, "`" + strings.Join(values, "`, `") + "`"}
}

var (
	anyText = value{func(v *logpb.Value) bool { _, ok := text(v); return ok }, "a string of at most 255 bytes"} // see shortInPolicies
	yesOrNo = value{func(v *logpb.Value) bool { return v.GetTag() == 't' }, "`true`, `false`"}
	age     = value{isAge, "a number and Y, M, D, h, m or s"}
	// listOfSteps takes what retrySteps reads.
	listOfSteps = value{func(v *logpb.Value) bool { return checkSteps(v) == "" }, "a string: waits from 1 ms, separated by commas, at most 32"}
)

// isAge: a whole number from 1 to 2^32-1 and one letter for the unit.
func isAge(v *logpb.Value) bool {
	s, ok := text(v)
	if !ok || len(s) < 2 || !strings.Contains("YMDhms", s[len(s)-1:]) {
		return false
	}
	n, err := strconv.ParseUint(s[:len(s)-1], 10, 32)
	return err == nil && n > 0
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
