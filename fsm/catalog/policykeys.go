package catalog

import (
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
type rule func(strong, weak *logpb.Value) *logpb.Value

func strongWins(strong, _ *logpb.Value) *logpb.Value { return strong }

func weakWins(_, weak *logpb.Value) *logpb.Value { return weak }

func smaller(strong, weak *logpb.Value) *logpb.Value {
	if weak.GetInt() < strong.GetInt() {
		return weak
	}
	return strong
}

func larger(strong, weak *logpb.Value) *logpb.Value {
	if weak.GetInt() > strong.GetInt() {
		return weak
	}
	return strong
}

// smallerLimit knows that a negative limit is none.
func smallerLimit(strong, weak *logpb.Value) *logpb.Value {
	if strong.GetInt() < 0 || weak.GetInt() < 0 {
		return larger(strong, weak)
	}
	return smaller(strong, weak)
}

// smallerOrNever knows that 0 is never, and that never cannot be shortened by
// the weaker side.
func smallerOrNever(strong, weak *logpb.Value) *logpb.Value {
	if strong.GetInt() == 0 || weak.GetInt() == 0 {
		return strong
	}
	return smaller(strong, weak)
}

// policyKey is a row of the table of what policies may set.
type policyKey struct {
	name  string
	valid func(v *logpb.Value) bool
	// what a wrong value is not, as the refusal says.
	what string
	// merge makes one value of the operator policy's and the policy's. nil:
	// operator policies may not set the key.
	merge rule
	// argue makes one value of the policies' and the queue argument's, which is
	// called x- and the key's name. nil: no such argument has an effect.
	argue rule
	// foreign: a policy with this key matches no replicated queue.
	foreign bool
}

// policyKeys are the keys of policy definitions.
var policyKeys = []policyKey{
	{name: "message-ttl", valid: whole(0, MaxTTL), what: "a valid message TTL", merge: smaller, argue: smaller},
	{name: "expires", valid: whole(1, MaxTTL), what: "a valid queue expiry", merge: smaller, argue: smaller},
	{name: "max-length", valid: whole(0, math.MaxInt64-1), what: "a valid maximum length", merge: smaller, argue: smaller},
	{name: "max-length-bytes", valid: whole(0, math.MaxInt64-1), what: "a valid maximum length in bytes", merge: smaller, argue: smaller},
	{name: "max-in-memory-length", valid: whole(0, math.MaxInt64), what: "a valid maximum memory in bytes", merge: smaller},
	{name: "max-in-memory-bytes", valid: whole(0, math.MaxInt64), what: "a valid maximum memory in bytes", merge: smaller},
	{name: "overflow", valid: among(overflows...), what: "a valid overflow value", merge: strongWins, argue: strongWins},
	{name: "dead-letter-exchange", valid: anyText, what: "a valid dead letter exchange name", argue: weakWins},
	{name: "dead-letter-routing-key", valid: anyText, what: "a valid dead letter routing key", argue: weakWins},
	{name: "dead-letter-strategy", valid: among(strategies...), what: "a valid dead letter strategy", argue: weakWins},
	{name: "delivery-limit", valid: whole(math.MinInt64, math.MaxInt64), what: "a valid delivery limit", merge: smallerLimit, argue: smallerLimit},
	{name: "consumer-timeout", valid: whole(0, math.MaxInt64-1), what: "a valid consumer timeout", argue: smaller},
	{name: "consumer-disconnected-timeout", valid: whole(0, math.MaxInt64-1), what: "a valid consumer timeout", argue: smaller},
	{name: "delayed-retry-type", valid: among("disabled", "all", "failed", "returned"), what: "a valid delayed retry type", merge: strongWins, argue: strongWins},
	{name: "delayed-retry-min", valid: whole(1, math.MaxInt64-1), what: "a valid delayed retry minimum", merge: larger, argue: smaller},
	{name: "delayed-retry-max", valid: whole(1, math.MaxInt64-1), what: "a valid delayed retry maximum", merge: smaller, argue: smaller},
	{name: "target-group-size", valid: whole(1, math.MaxInt64), what: "a valid target group size", merge: larger},
	{name: "queue-leader-locator", valid: among(locators...), what: "a valid queue leader locator value", argue: strongWins},
	{name: "alternate-exchange", valid: anyText, what: "a valid alternate exchange name"},
	{name: "ttl-precedence", valid: among(precedences...), what: "a valid TTL precedence", argue: weakWins},
	{name: "auto-delete-on-idle", valid: whole(0, MaxTTL), what: "a valid idle time", merge: smallerOrNever, argue: smallerOrNever},
	{name: "expires-keep-pending", valid: flag, what: "a valid expires-keep-pending value", argue: weakWins},
	{name: "delivery-delay", valid: whole(0, MaxTTL), what: "a valid delivery delay", argue: weakWins},
	{name: "queue-version", valid: whole(1, 2), what: "a valid queue version", merge: strongWins},
	{name: "queue-mode", valid: among("default", "lazy"), what: "a valid queue-mode value", foreign: true},
	{name: "max-age", valid: age, what: "a valid max age", foreign: true},
	{name: "initial-cluster-size", valid: whole(0, math.MaxInt64), what: "a valid cluster size", foreign: true},
	{name: "stream-max-segment-size-bytes", valid: whole(0, math.MaxInt64), what: "a valid segment size", foreign: true},
	{name: "stream-filter-size-bytes", valid: whole(16, 255), what: "a valid filter size"},
}

// Values that both arguments and policies take.
var (
	overflows   = []string{"drop-head", "reject-publish", "reject-publish-dlx"}
	strategies  = []string{"at-most-once", "at-least-once"}
	locators    = []string{"client-local", "balanced", "random", "least-leaders", "min-masters"}
	precedences = []string{"lowest", "message"}
)

func findPolicyKey(name string) *policyKey {
	i := slices.IndexFunc(policyKeys, func(k policyKey) bool { return k.name == name })
	if i < 0 {
		return nil
	}
	return &policyKeys[i]
}

func whole(low, high int64) func(*logpb.Value) bool {
	return func(v *logpb.Value) bool {
		n, ok := integer(v)
		return ok && n >= low && n <= high
	}
}

func among(values ...string) func(*logpb.Value) bool {
	return func(v *logpb.Value) bool {
		s, ok := text(v)
		return ok && slices.Contains(values, s)
	}
}

func anyText(v *logpb.Value) bool { _, ok := text(v); return ok }

func flag(v *logpb.Value) bool { return v.GetTag() == 't' }

// age is a number and its unit: 7D, 12h.
func age(v *logpb.Value) bool {
	s, ok := text(v)
	if !ok || len(s) < 2 || !strings.Contains("YMDhms", s[len(s)-1:]) {
		return false
	}
	n, err := strconv.ParseUint(s[:len(s)-1], 10, 32)
	return err == nil && n > 0
}

// checkDefinition says why a table is no definition of a policy.
func checkDefinition(t *fsm.Table, operator bool) error {
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
		case k == nil || operator && k.merge == nil:
			unknown = append(unknown, "{"+Term(&logpb.Value{Tag: 'S', Str: []byte(f.GetName())})+","+Term(f.GetValue())+"}")
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
	return nil
}

// Term shows a value of a definition as texts about policies do.
func Term(v *logpb.Value) string {
	switch classOf(v) {
	case route.String:
		return `<<"` + string(v.GetStr()) + `">>`
	case route.Array:
		parts := make([]string, len(v.GetArray()))
		for i, e := range v.GetArray() {
			parts[i] = Term(e)
		}
		return "[" + strings.Join(parts, ",") + "]"
	case route.Nested:
		parts := make([]string, len(v.GetTable().GetFields()))
		for i, f := range v.GetTable().GetFields() {
			parts[i] = `<<"` + f.GetName() + `">> => ` + Term(f.GetValue())
		}
		return "#{" + strings.Join(parts, ",") + "}"
	case route.Void:
		return "null"
	}
	return render(v)
}

// mergeDefinitions makes one definition of a policy's and an operator
// policy's. Both, and the result, are ordered by key.
func mergeDefinitions(policy, operator *fsm.Table) *fsm.Table {
	if len(policy.GetFields()) == 0 || len(operator.GetFields()) == 0 {
		return &fsm.Table{Fields: append(slices.Clone(policy.GetFields()), operator.GetFields()...)}
	}
	merged := &fsm.Table{}
	for _, f := range policy.GetFields() {
		value := f.GetValue()
		if strong := lookup(operator, f.GetName()); strong != nil {
			value = findPolicyKey(f.GetName()).merge(strong, value)
		}
		merged.Fields = append(merged.Fields, &logpb.Field{Name: f.GetName(), Value: value})
	}
	for _, f := range operator.GetFields() {
		if lookup(policy, f.GetName()) == nil {
			merged.Fields = append(merged.Fields, f)
		}
	}
	slices.SortFunc(merged.Fields, func(a, b *logpb.Field) int { return strings.Compare(a.GetName(), b.GetName()) })
	return merged
}
