package metrics

import (
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/cmd/tidy/page"
)

// others are names in the documentation that look like metrics and are something else.
var others = []string{"quorate_commands", "quorate_queue_export", "quorate_0"} // a capability, a kind of file, a package

// TestPages: each metric that a page of the documentation names is one that a node has.
func TestPages(t *testing.T) {
	known := map[string]bool{}
	for _, row := range append(histograms(), table...) {
		known[row.name] = true
	}
	for _, row := range objectTable {
		known[row.name], known["rabbitmq_"+row.name], known["rabbitmq_detailed_"+row.name] = true, true, true
	}
	found := 0
	for name, text := range page.Pages(t, "../..") {
		for _, block := range page.Code(text) {
			for _, word := range metricName.FindAllString(block.Text, -1) {
				if !strings.HasPrefix(word, "quorate_") && !strings.HasSuffix(word, "_total") || slices.Contains(others, word) || strings.HasSuffix(word, "_") {
					continue
				}
				if found++; !known[word] {
					t.Errorf("%s:%d: there is no metric %s", name, block.Line, word)
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("%d metrics are named", found)
	}
}
