package metrics

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// metricName is a name in an expression that is, or may be, one of a metric of a node.
var metricName = regexp.MustCompile(`\b(?:rabbitmq|quorate|go|process)_[a-z0-9_]+`)

// TestDeployedNames: each metric that a dashboard or an alert rule names is one that a node has.
func TestDeployedNames(t *testing.T) {
	known := map[string]bool{
		"go_goroutines": true, "process_cpu_seconds_total": true, // of the library
		"rabbitmq_node": true, "rabbitmq_cluster": true, // labels
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		known[lateness.name+suffix], known[sizes.name+suffix] = true, true
	}
	for _, row := range table {
		known[row.name] = true
	}
	for pattern, least := range map[string]int{"../../deploy/grafana/*.json": 50, "../../deploy/prometheus/alerts.yml": 15} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		used := map[string]bool{}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(file, ".json") && !json.Valid(text) {
				t.Errorf("%s is no JSON", file)
			}
			for _, name := range metricName.FindAllString(string(text), -1) {
				if used[name] = true; !known[name] {
					t.Errorf("%s: there is no metric %s", file, name)
				}
			}
		}
		if len(used) < least {
			t.Errorf("%s names %d metrics only", pattern, len(used))
		}
	}
}
