package catalog

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// somePolicyKeys are drawn with values from -2 to 5, as far as a key allows them.
var somePolicyKeys = []string{"delivery-limit", "expires", "max-length", "message-ttl", "overflow", "dead-letter-exchange", "consumer-timeout", "auto-delete-on-idle",
	"lock-duration", "max-lock-duration", "count-lock-expiry", "delayed-retry-jitter", "delayed-retry-count", "dedup-window", "forward-to-exchange", "audit-max", "unique", "max-prefetch", "dispatch"}

func drawSetting(t *rapid.T, key string) *logpb.Value {
	n := rapid.Int64Range(0, 5).Draw(t, key)
	switch key {
	case "overflow":
		return &logpb.Value{Tag: 'S', Str: []byte(overflows[n%3])}
	case "dispatch":
		return &logpb.Value{Tag: 'S', Str: []byte(dispatches[n%2])}
	case "dead-letter-exchange", "forward-to-exchange":
		return &logpb.Value{Tag: 'S', Str: []byte{'x', byte('0' + n)}}
	case "unique":
		return &logpb.Value{Tag: 'S', Str: []byte([]string{"message-id", "header:h"}[n%2])}
	case "delivery-limit":
		n -= 2
	case "delayed-retry-count":
		return &logpb.Value{Tag: 'S', Str: []byte(retryCounts[n%2])}
	case "count-lock-expiry":
		return &logpb.Value{Tag: 't', Int: n % 2}
	case "expires", "max-prefetch":
		n++
	case "lock-duration":
		n += 1000
	case "max-lock-duration":
		n += 1010
	case "dedup-window":
		n += 20_000
	}
	return &logpb.Value{Tag: 'l', Int: n}
}

func drawPolicy(t *rapid.T) *logpb.PutPolicy {
	m := &logpb.PutPolicy{
		Vhost: "/", Name: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"),
		Operator:   rapid.Bool().Draw(t, "operator"),
		Pattern:    rapid.SampledFrom([]string{"", "q", "^q[01]$", "0|2", "x"}).Draw(t, "pattern"),
		ApplyTo:    rapid.SampledFrom(applyTo).Draw(t, "apply-to"),
		Priority:   rapid.Int64Range(-1, 1).Draw(t, "priority"),
		Definition: &fsm.Table{},
	}
	for _, key := range slices.Sorted(slices.Values(somePolicyKeys)) {
		if (!m.Operator || findPolicyKey(key).merge != nil) && rapid.Bool().Draw(t, "has "+key) {
			m.Definition.Fields = append(m.Definition.Fields, &logpb.Field{Name: key, Value: drawSetting(t, key)})
		}
	}
	return m
}

// naivePolicy looks at all policies and keeps the best that matches.
func naivePolicy(all []*logpb.PutPolicy, operator bool, q *Queue) (best *logpb.PutPolicy) {
	for _, p := range all {
		classic := q.Local || q.Classic
		kinds := map[string]bool{"all": true, "queues": true, "quorum_queues": !classic, "classic_queues": classic}
		if p.Operator != operator || !kinds[p.ApplyTo] || !regexp.MustCompile(p.Pattern).MatchString(q.Name) {
			continue
		}
		if best == nil || p.Priority > best.Priority || p.Priority == best.Priority && p.Name < best.Name {
			best = p
		}
	}
	return best
}

// naiveValues are what a policy, an operator policy and an argument say of a
// key; nil: nothing.
type naiveValues struct{ policy, operator, argument *logpb.Value }

// numbers lists those that are given.
func (n naiveValues) numbers() (list []int64) {
	for _, v := range []*logpb.Value{n.policy, n.operator, n.argument} {
		if v != nil {
			list = append(list, v.Int)
		}
	}
	return list
}

func (n naiveValues) smallest(otherwise int64) int64 {
	if list := n.numbers(); len(list) > 0 {
		return slices.Min(list)
	}
	return otherwise
}

// limit makes one of two delivery limits at a time, the policies' first.
func (n naiveValues) limit(otherwise int64) int64 {
	list := n.numbers()
	if len(list) == 0 {
		return otherwise
	}
	result := list[0]
	for _, next := range list[1:] {
		if result < 0 || next < 0 {
			result = max(result, next)
		} else {
			result = min(result, next)
		}
	}
	return result
}

// idle: an operator's 0 decides; then a policy's 0, unless the operator has a
// limit; then the smallest that is not 0.
func (n naiveValues) idle() int64 {
	above := n.operator
	if above == nil || n.policy != nil && above.Int != 0 && n.policy.Int != 0 && n.policy.Int < above.Int {
		above = n.policy
	}
	switch {
	case above == nil && n.argument == nil:
		return 0
	case above == nil:
		return n.argument.Int
	case above.Int == 0 || n.argument == nil || n.argument.Int == 0:
		return above.Int
	}
	return min(above.Int, n.argument.Int)
}

func firstText(values ...*logpb.Value) string {
	for _, v := range values {
		if v != nil {
			return string(v.Str)
		}
	}
	return ""
}

// naiveSettings are the settings of a queue under all policies. args are those that it has by now.
func naiveSettings(all []*logpb.PutPolicy, q *Queue, args *fsm.Table, version uint32) *logpb.QueueConfig {
	policy, operator := naivePolicy(all, false, q), naivePolicy(all, true, q)
	of := func(key string) naiveValues {
		return naiveValues{lookup(policy.GetDefinition(), key), lookup(operator.GetDefinition(), key), lookup(args, "x-"+key)}
	}
	limit := int64(DefaultDeliveryLimit)
	if q.Local || q.Classic {
		limit = -1
	}
	dispatch := of("dispatch")
	overflow, dead, forward := of("overflow"), of("dead-letter-exchange"), of("forward-to-exchange")
	first := func(values ...*logpb.Value) int64 {
		for _, v := range values {
			if v != nil {
				return v.Int
			}
		}
		return 0
	}
	jitter, counts, window := of("delayed-retry-jitter"), of("delayed-retry-count"), of("dedup-window")
	c := &logpb.QueueConfig{
		TtlPlusOne: uint64(of("message-ttl").smallest(-1) + 1), Expires: uint64(of("expires").smallest(0)),
		MaxLengthPlusOne:       uint64(of("max-length").smallest(-1) + 1),
		ConsumerTimeoutPlusOne: uint64(of("consumer-timeout").smallest(-1) + 1),
		DeliveryLimit:          of("delivery-limit").limit(limit),
		DeliveryLimitSet:       version >= 3 && of("delivery-limit") != (naiveValues{}),
		AutoDeleteOnIdle:       uint64(of("auto-delete-on-idle").idle()),
		DeadLetter:             dead.argument != nil || dead.policy != nil,
		DeadLetterExchange:     firstText(dead.argument, dead.policy),
		Lock:                   uint64(of("lock-duration").smallest(0)), MaxLock: uint64(of("max-lock-duration").smallest(0)),
		CountLockExpiry: first(of("count-lock-expiry").argument, of("count-lock-expiry").policy) != 0,
		RetryJitter:     uint32(first(jitter.operator, jitter.policy, jitter.argument)), RetryCountsAcquired: firstText(counts.operator, counts.policy, counts.argument) == "acquired",
		DedupWindow: uint64(first(window.argument, window.policy)),
		Forward:     forward.argument != nil || forward.policy != nil, ForwardExchange: firstText(forward.argument, forward.policy),
		MaxPrefetch:     uint32(of("max-prefetch").smallest(0)),
		Unique:          of("unique").argument != nil || of("unique").policy != nil,
		AuditMaxPlusOne: uint64(of("audit-max").smallest(-1) + 1), Classic: q.Classic,
	}
	if version < 3 {
		c.Unique, c.MaxPrefetch = false, 0
	} else if firstText(dispatch.operator, dispatch.policy, dispatch.argument) == "least-loaded" {
		c.Dispatch = logpb.QueueConfig_LEAST_LOADED
	}
	if q.Classic {
		c.MaxPriorityPlusOne = 1
	}
	switch firstText(overflow.operator, overflow.policy, overflow.argument) {
	case "reject-publish":
		c.Overflow = logpb.QueueConfig_REJECT_PUBLISH
	case "reject-publish-dlx":
		c.Overflow = logpb.QueueConfig_REJECT_PUBLISH_DLX
	}
	return c
}

// naiveDeclares are the arguments that queues have, and what their vhost does with others.
type naiveDeclares struct {
	version uint32
	mode    logpb.PutVhost_Redeclare
	args    map[string]*fsm.Table
}

// declare says how a declare is answered: it is refused, or a queue has other arguments.
func (n *naiveDeclares) declare(m *logpb.DeclareQueue) (refused, adopted bool) {
	had, there := n.args[m.Name]
	same := !slices.ContainsFunc(somePolicyKeys, func(key string) bool {
		return findPolicyKey(key).since <= n.version && lookup(had, "x-"+key).String() != lookup(m.Arguments, "x-"+key).String()
	})
	if there && (same || n.mode != logpb.PutVhost_ADOPT) {
		return !same && n.mode == logpb.PutVhost_STRICT, false
	}
	n.args[m.Name] = m.Arguments
	return false, there
}

// TestPolicyModel sets and clears policies at random, while queues with
// arguments come and go, or have others, and compares every queue's settings with those of the
// model. A queue is reported as configured, and gets a new revision, exactly
// if its settings have changed.
func TestPolicyModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, version := &Catalog{}, rapid.SampledFrom([]int64{1, fsm.NewestVersion}).Draw(t, "version")
		c.Apply(1, &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{
			{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{Name: "n", Incarnation: []byte("i"), OldestVersion: 1, NewestVersion: fsm.NewestVersion}}},
			{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: "/"}}},
			{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: AutoDeleteOnIdleMin, Value: 1}}},
			{Body: &logpb.CatalogCommand_PutSetting{PutSetting: &logpb.PutSetting{Name: FSMVersion, Value: version}}},
		}})
		var all []*logpb.PutPolicy
		declares := naiveDeclares{version: uint32(version), args: map[string]*fsm.Table{}}
		for index := uint64(2); index < 30; index++ {
			before := c.View()
			command, next := drawPolicyCommand(t, all)
			r := c.Apply(index, &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{command}})[0]
			if r.Refusal == 0 {
				all = next
			}
			switch m := command.Body.(type) {
			case *logpb.CatalogCommand_PutVhost:
				if version >= 3 {
					declares.mode = m.PutVhost.Redeclare
				}
			case *logpb.CatalogCommand_DeleteQueue:
				delete(declares.args, m.DeleteQueue.Name)
			case *logpb.CatalogCommand_DeclareQueue:
				if refused, adopted := declares.declare(m.DeclareQueue); refused != (r.Refusal != 0) || adopted != r.Adopted {
					t.Fatalf("%v is answered %v, want refused %v, adopted %v", m.DeclareQueue, r, refused, adopted)
				}
			}
			if err := c.Check(); err != nil {
				t.Fatal(err)
			}
			if again := mustReload(t, c); again.Hash() != c.Hash() || again.String() != c.String() {
				t.Fatalf("the snapshot gives\n%s\nnot\n%s", again, c)
			}
			checkAgainstModel(t, before, c.View(), all, declares.args, r.Configured)
		}
	})
}

func drawPolicyCommand(t *rapid.T, all []*logpb.PutPolicy) (*logpb.CatalogCommand, []*logpb.PutPolicy) {
	without := func(name string, operator bool) []*logpb.PutPolicy {
		return slices.DeleteFunc(slices.Clone(all), func(p *logpb.PutPolicy) bool { return p.Name == name && p.Operator == operator })
	}
	switch rapid.IntRange(0, 7).Draw(t, "command") {
	case 0, 1, 2:
		m := drawPolicy(t)
		return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutPolicy{PutPolicy: m}}, append(without(m.Name, m.Operator), m)
	case 3:
		m := drawPolicy(t)
		return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeletePolicy{DeletePolicy: &logpb.DeletePolicy{
			Vhost: "/", Name: m.Name, Operator: m.Operator}}}, without(m.Name, m.Operator)
	case 4:
		return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteQueue{DeleteQueue: &logpb.DeleteQueue{Vhost: "/", Name: someQueue.Draw(t, "queue")}}}, all
	case 5:
		mode := rapid.SampledFrom([]logpb.PutVhost_Redeclare{logpb.PutVhost_STRICT, logpb.PutVhost_RELAXED, logpb.PutVhost_ADOPT, logpb.PutVhost_ADOPT}).Draw(t, "mode")
		return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: "/", Redeclare: mode}}}, all
	}
	q := &logpb.DeclareQueue{Vhost: "/", Name: someQueue.Draw(t, "queue"), Members: []uint32{1}, Local: rapid.Bool().Draw(t, "local"), Classic: rapid.Bool().Draw(t, "classic"), Arguments: &fsm.Table{}}
	for _, key := range somePolicyKeys {
		if rapid.Bool().Draw(t, "has x-"+key) {
			q.Arguments.Fields = append(q.Arguments.Fields, &logpb.Field{Name: "x-" + key, Value: drawSetting(t, key)})
		}
	}
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: q}}, all
}

// checkAgainstModel holds a view against the model and against the view before.
func checkAgainstModel(t *rapid.T, before, v *View, all []*logpb.PutPolicy, args map[string]*fsm.Table, configured []uint64) {
	for _, q := range v.Queues() {
		got := v.Settings(q, Defaults{})
		revision := got.Revision
		got.Revision = 0
		if want := naiveSettings(all, q, args[q.Name], v.FSMVersion()); !sameRow(got, want) {
			t.Fatalf("%s %s under %v\nhas  %v\nwant %v", q, renderTable(args[q.Name]), all, got, want)
		}
		policies := v.EffectivePolicy(q)
		said := policies.Said(v.Arguments(q))
		for _, s := range said {
			sides := map[string]*logpb.Value{ByArgument: s.Argument, ByPolicy: s.Policy, ByOperatorPolicy: s.Operator}
			if want := (effective{v.Arguments(q), policies.Definition}).value(s.Key); s.Effective != want || sides[s.By] != want {
				t.Fatalf("%s: %s is %s by %q, want %s", q, s.Key, render(s.Effective), s.By, render(want))
			}
		}
		for _, f := range slices.Concat(v.Arguments(q).GetFields(), policies.Definition.GetFields()) {
			if name := strings.TrimPrefix(f.GetName(), "x-"); !slices.ContainsFunc(said, func(s Said) bool { return s.Key == name }) {
				t.Fatalf("%s: nothing is said of %s", q, name)
			}
		}
		old, there := before.QueueByID(q.ID)
		if !there {
			continue
		}
		was := before.Settings(old, Defaults{})
		wasRevision := was.Revision
		was.Revision = 0
		changed := !sameRow(was, got)
		if reported := slices.Contains(configured, uint64(q.ID)); reported != changed || changed != (revision != wasRevision) || changed && revision != v.Index() {
			t.Fatalf("%s: settings changed %v, reported %v, revision %d after %d", q, changed, reported, revision, wasRevision)
		}
	}
}
