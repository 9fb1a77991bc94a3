package servicebus

import (
	"fmt"
	"testing"

	client "github.com/Azure/go-amqp"

	"github.com/quorate/quorate/amqp/servicebus/entity"
)

// Rules are added, listed and removed by who may manage, at subscriptions alone (MG, CB-10).
func TestRuleRequests(t *testing.T) {
	s := mustServe(t)
	s.directory.filters = []*entity.Rule{entity.NewRule(entity.DefaultRule)}
	const sub = "topic/Subscriptions/sub/$management"
	a := mustAsk(t, s.mustOpen(t), sub)
	filter := func(expression string) map[string]any {
		return map[string]any{"sql-filter": map[string]any{"expression": expression}, "sql-rule-action": map[string]any{"expression": "SET b = 1"}}
	}
	for _, c := range []struct {
		operation string
		body      map[string]any
		status    int32
	}{
		{"add-rule", map[string]any{"rule-name": "r", "rule-description": filter("a = 1")}, 200},
		{"add-rule", map[string]any{"rule-name": "r", "rule-description": filter("a = 2")}, 409},
		{"add-rule", map[string]any{"rule-name": "x", "rule-description": filter("a = ")}, 400},
		{"add-rule", map[string]any{"rule-name": "a/b", "rule-description": filter("a = 1")}, 400},
		{"add-rule", map[string]any{"rule-name": "x"}, 400},
		{"add-rule", map[string]any{"rule-description": filter("a = 1")}, 400},
		{"add-rule", map[string]any{"rule-name": "c", "rule-description": map[string]any{"correlation-filter": map[string]any{"label": "l", "properties": map[string]any{"n": int64(5)}}}}, 200},
		{"remove-rule", map[string]any{"rule-name": entity.DefaultRule}, 200},
		{"remove-rule", map[string]any{"rule-name": entity.DefaultRule}, 404},
		{"remove-rule", map[string]any{}, 400},
		{"enumerate-rules", map[string]any{"top": int32(-1)}, 400},
		{"enumerate-rules", map[string]any{"top": int32(10), "skip": int32(2)}, 204},
	} {
		if status, text, _ := a.ask(map[string]any{"operation": "com.microsoft:" + c.operation}, c.body); status != c.status {
			t.Errorf("%s %v: %d %s, want %d", c.operation, c.body, status, text, c.status)
		}
	}
	described := func(code uint64, value string) string {
		return fmt.Sprintf("DescribedType{descriptor: %d, value: [%s]}", code, value)
	}
	none, at := described(0x13700000005, ""), "2023-11-14 22:13:20 +0000 UTC"
	sql := "map[rule-description:" + described(0x13700000004, described(0x1370000006, "a = 1 20")+" "+described(0x13700000006, "SET b = 1 20")+" r "+at) + "]"
	correlation := "map[rule-description:" + described(0x13700000004, described(0x1370000009, "<nil> <nil> <nil> <nil> l <nil> <nil> <nil> map[n:5]")+" "+none+" c "+at) + "]"
	for page, want := range map[[2]int32]string{{10, 0}: "[" + sql + " " + correlation + "]", {1, 1}: "[" + correlation + "]", {1, 0}: "[" + sql + "]"} {
		_, _, m := a.ask(map[string]any{"operation": "com.microsoft:enumerate-rules"}, map[string]any{"top": page[0], "skip": page[1]})
		if got := fmt.Sprint(m.Value.(map[string]any)["rules"]); got != want {
			t.Errorf("%v: %s\nwant %s", page, got, want)
		}
	}
	for node, want := range map[string]int32{"q/$management": 400, "topic/$management": 400, "topic/Subscriptions/sub/$deadletterqueue/$management": 400} {
		b := mustAsk(t, s.mustOpen(t), node)
		if status, _, _ := b.ask(map[string]any{"operation": "com.microsoft:enumerate-rules"}, map[string]any{}); status != want {
			t.Errorf("%s: %d, want %d", node, status, want)
		}
	}
	listens := mustAsk(t, s.mustDial(t, client.SASLTypePlain("listen", "k3")), sub)
	if status, _, _ := listens.ask(map[string]any{"operation": "com.microsoft:enumerate-rules"}, map[string]any{}); status != 401 {
		t.Error(status)
	}
}
