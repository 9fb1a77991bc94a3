package catalog

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

// keysTable is the table of policy keys as the documentation shows it.
func keysTable() string {
	var b strings.Builder
	b.WriteString("| key | values | operators | policy and operator policy | policy and argument |\n|---|---|---|---|---|\n")
	about := func(r *rule, strong, weak string) string {
		switch {
		case r == nil:
			return ""
		case r == strongWins:
			return strong
		case r == weakWins:
			return weak
		}
		return strings.ReplaceAll(r.about, "strong", strong)
	}
	for _, k := range policyKeys {
		operators, argument := "no", about(k.argue, "the policy's", "the argument's")
		if k.merge != nil {
			operators = "yes"
		}
		if k.foreign {
			argument = "*the policy matches no replicated queue*"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", k.name, k.accepts, operators, about(k.merge, "the operator's", ""), argument)
	}
	return b.String()
}

// TestDocument holds the documentation against the table of keys.
func TestDocument(t *testing.T) {
	const path = "../../docs/policies.md"
	const begin, end = "<!-- keys -->\n", "<!-- end of keys -->\n"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(page), begin)
	old, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s: no place for the keys", path)
	}
	switch {
	case old == keysTable():
	case flag.Lookup("rewrite").Value.String() == "true":
		if err := os.WriteFile(path, []byte(head+begin+keysTable()+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s: the keys are not those of the program; run go test ./fsm/catalog -rewrite", path)
	}
}
