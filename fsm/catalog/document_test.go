package catalog

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/quorate/quorate/cmd/tidy/page"
)

// keysTable is the table of policy keys as the documentation shows it.
func keysTable() string {
	var b strings.Builder
	b.WriteString("| key | values | operators | policy and operator policy | policy and argument |\n|---|---|---|---|---|\n")
	for _, k := range policyKeys {
		operators, argument := "no", k.argue.of("the policy's", "the argument's")
		if k.merge != nil {
			operators = "yes"
		}
		if k.idle {
			argument = "*no effect*"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", k.name, k.accepts, operators, k.merge.of("the operator's", ""), argument)
	}
	return b.String()
}

// TestDocument holds the documentation against the table of keys.
func TestDocument(t *testing.T) { page.Hold(t, "../../docs/policies.md", "keys", keysTable()) }

// TestElsewhereDocument: docs/migration.md names each argument of other brokers that is refused.
func TestElsewhereDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/migration.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*method{&declareQueue, &declareExchange, &consume} {
		for name := range m.elsewhere { // det: each on its own
			if !strings.Contains(string(text), "`"+name+"`") {
				t.Errorf("%s: there is no %s", m.name, name)
			}
		}
	}
}
