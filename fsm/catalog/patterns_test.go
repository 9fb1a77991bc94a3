package catalog

import (
	"fmt"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/pattern"
	"github.com/quorate/quorate/proto/logpb"
)

// mustBeOfVersion returns a catalog of a version, with one node and the vhost /.
func mustBeOfVersion(t testing.TB, version int) *Catalog {
	c := &Catalog{}
	mustApply(t, c, "node n1 a versions=1-3", "initialize / guest", fmt.Sprintf("setting fsm_version %d", version))
	return c
}

func policyOf(name, pattern string) *logpb.PutPolicy {
	return &logpb.PutPolicy{Vhost: "/", Name: name, Pattern: pattern, ApplyTo: applyAll,
		Definition: &fsm.Table{Fields: []*logpb.Field{{Name: "max-length", Value: &logpb.Value{Tag: 'l', Int: 5}}}}}
}

// mustPut proposes a policy as a client's would be: validated first.
func mustPut(t testing.TB, c *Catalog, m *logpb.PutPolicy) {
	t.Helper()
	if err := c.View().ValidatePolicy(m); err != nil {
		t.Fatal(err)
	}
	e := &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{{Body: &logpb.CatalogCommand_PutPolicy{PutPolicy: m}}}}
	if err := Refused(c.Apply(c.View().Index()+1, e)[0]); err != nil {
		t.Fatal(err)
	}
}

// TestPatternsAsFound: patterns with look-around and back-references are taken once
// all nodes know them, with the place where one is wrong; what was put before keeps
// its meaning, until it is put again.
func TestPatternsAsFound(t *testing.T) {
	c := mustBeOfVersion(t, 2)
	for text, want := range map[string]string{
		"^(?!amq\\.).*":           "fsm_version 3",
		"^a(":                     "offset 2",
		strings.Repeat("a", 1025): "longer than 1024 bytes",
	} {
		if err := c.View().ValidatePolicy(policyOf("p", text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20s: %v, want %s", text, err, want)
		}
		if err := c.View().ValidatePattern(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("permission %.20s: %v, want %s", text, err, want)
		}
	}
	mustPut(t, c, policyOf("line", "^line$"))
	mustApply(t, c, "setting fsm_version 3")
	mustApply(t, c, "queue / line durable members=1", "queue / other durable members=1")
	line, _ := c.View().Queue("/", "line")
	line = &Queue{VHost: "/", Name: "line\n"}
	matches := func() bool {
		p, _ := c.View().Policy("/", "line", false)
		return p.matchesQueue(line)
	}
	if matches() {
		t.Error("a policy has changed its meaning with the version")
	}
	mustPut(t, c, policyOf("line", "^line$"))
	if !matches() {
		t.Error("$ does not match before a newline at the end, as it does at the peer")
	}
	greek := policyOf("greek", "^\\p{Greek}")
	mustPut(t, c, greek)
	if greek.Dialect != dialectRE2 {
		t.Error("what only RE2 takes is not read so")
	}
	text := "^(?!(amq\\.|.*dead)).*"
	mustPut(t, c, policyOf("ahead", text))
	for name, want := range map[string]string{"jobs": "ahead", "jobs.dead": "", "amq.gen-x": ""} {
		mustApply(t, c, "queue / "+name+" durable members=1")
		q, _ := c.View().Queue("/", name)
		if got := c.View().EffectivePolicy(q).Policy; got != want {
			t.Errorf("%s has the policy %q, not %q", name, got, want)
		}
	}
	again := mustReload(t, c)
	if again.Hash() != c.Hash() || again.String() != c.String() {
		t.Error("a replica restored from the snapshot differs")
	}
	if p, _ := again.View().Policy("/", "ahead", false); p.Pattern != text {
		t.Errorf("the pattern has become %s", p.Pattern)
	}
	for text, want := range map[string]string{
		"^(?!amq\\.":              "missing ) at offset 1",
		"^(?<!a+)":                "the length of the look-behind is not limited at offset 1",
		"^a(?R)":                  "not supported at offset 4",
		strings.Repeat("a", 1025): "longer than 1024 bytes",
	} {
		if err := c.View().ValidatePolicy(policyOf("p", text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20s: %v, want %s", text, err, want)
		}
	}
}

// TestPermissionPatterns: permissions and topic permissions take what policies take,
// and names that are put into them stand for themselves.
func TestPermissionPatterns(t *testing.T) {
	c := mustBeOfVersion(t, 3)
	mustApply(t, c, "user u", "user a#|x", "permission u / ^(?!amq\\.).* ^(\\w+)\\.\\1$ ^\\pL",
		"topic-permission u / amq.topic ^{username}\\.(?!secret) ^a(?=b)", "topic-permission a#|x / amq.topic (?x)^{username}\\. ^")
	v := c.View()
	for _, x := range []struct {
		verb Verb
		name string
		may  bool
	}{{Configure, "jobs", true}, {Configure, "amq.topic", false}, {Write, "ab.ab", true}, {Write, "ab.ac", false}, {Read, "x", true}, {Read, "1", false}} {
		if may := v.May("u", "/", x.verb, x.name); may != x.may {
			t.Errorf("%s %s: %v", x.verb, x.name, may)
		}
	}
	for _, x := range []struct {
		user string
		verb Verb
		key  string
		may  bool
	}{
		{"u", Write, "u.x", true}, {"u", Write, "u.secret", false}, {"u", Write, "v.x", false}, {"u", Read, "ab", true}, {"u", Read, "ac", false},
		{"a#|x", Write, "a#|x.1", true}, {"a#|x", Write, "a.1", false}, {"a#|x", Write, "x.1", false},
	} {
		if err := v.TopicRule(x.user, "/", "amq.topic").Check(x.verb, x.key); (err == nil) != x.may {
			t.Errorf("%s %s %s: %v", x.user, x.verb, x.key, err)
		}
	}
}

// TestPolicyWork: a policy is refused if its pattern would take too long for the names
// that are there, and setting one tries no pattern but its own.
func TestPolicyWork(t *testing.T) {
	c := mustBeOfVersion(t, 3)
	for i := range 200 {
		mustApply(t, c, fmt.Sprintf("queue / orders.%0220d durable members=1", i))
	}
	for text, want := range map[string]string{
		"^(?=o)(o+)+$":                   "",
		"^(?!amq\\.|.*(a|b|c)\\.dlq$).+": "",
		`^(?=(.*)(.*)(.*)\1\2\3x)orders`: "it takes more than 131072 steps for the name",
	} {
		steps, err := c.View().policyWork(&logpb.PutPolicy{Vhost: "/", Pattern: text, Dialect: dialectOwn})
		if got := fmt.Sprint(err); want == "" && err != nil || !strings.Contains(got, want) || steps > 200*pattern.MaxSteps {
			t.Errorf("%s: %s after %d steps", text, got, steps)
		}
	}
	// all: one list of policies, the winning one first
	var ps policies
	all := make([]*Policy, 100)
	for i := range all {
		m := policyOf(fmt.Sprint("p", i), fmt.Sprintf("^(?!x)orders\\.%d", i))
		m.Priority, m.Dialect = int64(i), dialectOwn
		all[i] = newPolicy(m)
		ps.put(all[i])
	}
	q := &Queue{VHost: "/", Name: "orders.50"}
	m := ps.matchQueue(q, policyMatch{})
	tried := 0
	try := func(p *Policy) bool { tried++; return p.matchesQueue(q) }
	lower, higher := *all[10], *all[99]
	for _, x := range []struct {
		what      string
		old, next *Policy
		tries     int
	}{
		{"below", all[10], &lower, 0}, {"above", all[99], &higher, 1}, {"gone elsewhere", all[99], nil, 0},
	} {
		tried = 0
		if got := ps.rematch(m, x.old, x.next, try); got != m || tried != x.tries {
			t.Errorf("%s: %v after %d tries, not %d", x.what, got.policy, tried, x.tries)
		}
	}
	ps.remove("p50", false)
	tried = 0
	if got := ps.rematch(m, all[50], nil, try); got.policy != all[5] || tried != 45 {
		t.Errorf("without the one in force: %v after %d tries", got.policy, tried)
	}
}

// BenchmarkPolicies sets 100 policies with look-ahead beside 10,000 queues: the time
// of all of them.
func BenchmarkPolicies(b *testing.B) {
	filled := mustBeOfVersion(b, 3)
	for i := range 10_000 {
		mustApply(b, filled, fmt.Sprintf("queue / orders.europe.%d durable members=1", i))
	}
	for b.Loop() {
		c := &Catalog{view: filled.View()}
		for i := range 100 {
			m := policyOf(fmt.Sprint("p", i), fmt.Sprintf("^(?!(amq|mqtt)\\.|.*\\.dlq$)orders\\..*\\.%d", i))
			m.Priority = int64(i)
			mustPut(b, c, m)
		}
	}
}
