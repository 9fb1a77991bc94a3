package conform

import (
	"fmt"
	"net/http"
	"strings"
)

// countsApart asks everyone who counts. Nothing else is in the cluster.
func countsApart(t *T) {
	x, q := t.delayed("fanout")
	for i, n := range []int{4, 3} {
		t.publishN(t.queue(fmt.Sprint("hold", i), "x-message-ttl", int32(600_000), "x-dead-letter-exchange", x), n)
	}
	for i := range 5 {
		t.send(x, "", headers("x-delay", int32(600_000+i)), body("12345"))
	}
	held := 0
	for _, name := range []string{"hold0", "hold1"} {
		q, err := t.Nodes[1].Queue(t.ctx, t.name(name))
		t.must(err)
		held += q.Messages
	}
	t.equal("held", held, 7)
	info := t.http(http.MethodGet, t.at(x), nil)
	t.equal("delayed", info["messages_delayed"], 5.0)
	if first, last := info["next_delayed_at"].(float64), info["last_delayed_at"].(float64); last < first+4 {
		t.Errorf("due from %v to %v", first, last)
	}
	store := t.http(http.MethodGet, "/api/queues/%2F/amq.delayed-"+x, nil)
	t.equal("internal", store["internal"], true)
	t.eventually("the overview counts both", func() error {
		totals := t.http(http.MethodGet, "/api/overview", nil)["queue_totals"].(map[string]any)
		if have := fmt.Sprint(totals["messages_delayed"], totals["messages_ready"], totals["messages"]); have != "5 7 12" {
			return fmt.Errorf("delayed, ready, all: %s of %v", have, totals)
		}
		return nil
	})
	counted := 0.0
	for _, n := range t.Nodes {
		if here, err := n.Metric(t.ctx, "quorate_delayed_messages", `exchange="`+x+`"`); err == nil {
			counted += here // it is there where the store is led
		}
	}
	t.equal("counted by the nodes", counted, 5.0)
	t.countsByTool(x, q)
}

// countsByTool asks the command line tool about the same messages.
func (t *T) countsByTool(x, q string) {
	t.Helper()
	t.equal("delayed count", t.mustCtl(2, "delayed", "count", "--exchange", x), "5")
	listed := t.mustCtl(2, "list_queues", "name", "messages")
	for _, want := range []string{t.name("hold0") + " 4", t.name("hold1") + " 3", q + " 0"} {
		found := false
		for line := range strings.Lines(listed) {
			found = found || strings.Join(strings.Fields(line), " ") == want
		}
		if !found {
			t.Errorf("no line %q in\n%s", want, listed)
		}
	}
}
