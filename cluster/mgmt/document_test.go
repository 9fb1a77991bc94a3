package mgmt

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/cmd/tidy/page"
)

var _ = flag.Bool("rewrite", false, "write the documentation's list of routes anew")

// TestRoutesDocument holds the documentation's list of routes against the table by which requests are routed.
func TestRoutesDocument(t *testing.T) {
	backend := backendOf(newWorld(t))
	resources := backend.resources()
	slices.SortStableFunc(resources, func(a, b resource) int { return strings.Compare(a.path, b.path) })
	var b strings.Builder
	b.WriteString("| path | method: tag |\n|---|---|\n")
	for _, x := range resources {
		var methods []string
		for _, e := range x.endpoints {
			tag := tagNames[e.need]
			if e.need == anybody {
				tag = "no login"
			}
			methods = append(methods, e.method+": "+tag)
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", x.path, strings.Join(methods, "<br>"))
	}
	page.Hold(t, "../../docs/http.md", "routes", b.String())
}
