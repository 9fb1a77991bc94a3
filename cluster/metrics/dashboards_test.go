package metrics

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/traffic"
)

// TestRabbitMQDashboards: the panels of RabbitMQ's dashboards, and its alert rules, find the metrics
// that they name on the pages of a node. With -v it lists what each lacks.
func TestRabbitMQDashboards(t *testing.T) {
	text, err := os.ReadFile("testdata/rabbitmq.txt")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	h := handlerOf(t, func() Objects {
		return Objects{Queues: []Queue{{VHost: "/", Name: "q", Led: &Lengths{}, Counts: &traffic.Counts{}}}}
	})
	for _, path := range []string{"/metrics", "/metrics/detailed?family=queue_coarse_metrics&family=queue_consumer_count"} {
		for _, name := range regexp.MustCompile(`(?m)^[a-z0-9_]+`).FindAllString(scraped(t, h, path), -1) {
			known[name] = true
		}
	}
	whole, all := map[string]int{}, map[string]int{}
	for line := range strings.Lines(string(text)) {
		row := strings.Split(strings.TrimSpace(line), " | ")
		if strings.HasPrefix(line, "#") || len(row) != 3 {
			continue
		}
		var lacks []string
		for name := range strings.FieldsSeq(row[2]) {
			if !known[name] {
				lacks = append(lacks, name)
			}
		}
		if all[row[0]]++; len(lacks) == 0 {
			whole[row[0]]++
		} else {
			t.Logf("%s, %s: there is no %s", row[0], row[1], strings.Join(lacks, ", "))
		}
	}
	for where, want := range map[string]int{"overview": 41, "raft": 5, "alert": 8, "alert per object": 2} {
		if t.Logf("%s: %d of %d", where, whole[where], all[where]); whole[where] != want || all[where] != want {
			t.Errorf("%s: %d of %d find their metrics, want %d", where, whole[where], all[where], want)
		}
	}
}
