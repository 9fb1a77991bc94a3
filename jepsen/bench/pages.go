package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/report"
)

// pageTries is how often each page is read. The first reading is left out: it opens the connection.
const pageTries = 9

// tabled are the columns of the console's list of queues.
const tabled = "vhost,name,state,leader,online,members,messages_ready,messages_unacknowledged,messages_scheduled,messages_delayed_retry,messages_locked," +
	"next_expiry_at,lease_expires_at,consumers,consumers_timed_out,messages_expired_total,message_stats.publish_details,message_stats.deliver_get_details,policy,operator_policy"

// pages are read with many queues. What they cost depends on what is asked of whom. Those of the metrics listener
// are the last two.
var pages = []struct{ name, path string }{
	{"page of queues, as the console asks, by name", "/api/queues?page=1&page_size=50&sort=name&columns=" + tabled},
	{"page of queues, as the console asks, by ready messages", "/api/queues?page=1&page_size=50&sort=messages_ready&sort_reverse=true&columns=" + tabled},
	{"page of queues, as the console asks, by rate", "/api/queues?page=1&page_size=50&sort=message_stats.publish_details.rate&sort_reverse=true&columns=" + tabled},
	{"page of 500 queues, all columns", "/api/queues?page=1&page_size=500"},
	{"page of 100 queues, filtered by a pattern", "/api/queues?page=1&page_size=100&name=9$&use_regex=true&sort=name"},
	{"one queue", "/api/queues/%2F/bench-crowd-1"},
	{"all queues without stats", "/api/queues?disable_stats=true&enable_queue_totals=true"},
	{"all queues, all columns", "/api/queues"},
	{"overview", "/api/overview"},
	{"vhosts", "/api/vhosts"},
	{"page of bindings", "/api/bindings?page=1&page_size=100"},
	{"page of consumers", "/api/consumers?page=1&page_size=100"},
	{"/metrics", "/metrics"},
	{"/metrics/per-object", "/metrics/per-object"},
}

// readPages measures how long pages of the HTTP API and scrapes take.
func (c *crowd) readPages() {
	r := c.result("HTTP with %d queues", c.queues)
	scraped, began := get(c.own.Nodes[0].Metrics()), clock()
	for _, p := range pages {
		url := "http://" + c.own.Nodes[0].HTTP + p.path
		if strings.HasPrefix(p.path, "/metrics") {
			url = "http://" + scraped + p.path
		}
		var took []time.Duration
		var body []byte
		for i := range pageTries + 1 {
			began := clock()
			if body = get(fetch(c.ctx, http.MethodGet, url)); i > 0 {
				took = append(took, clock()-began)
			}
		}
		q := report.QuantilesOf(took)
		r.Note(p.name+": median", q.P50, "ms")
		r.Note(p.name+": longest", q.Max, "ms")
		r.Note(p.name+": size", float64(len(body))/1024, "KiB")
	}
	r.Seconds = (clock() - began).Seconds()
	c.keep(r)
}

// fetch makes a request that may take as long as ctx lasts, and returns the answer.
func fetch(ctx context.Context, method, url string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, err
	}
	r.SetBasicAuth("guest", "guest")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %s %s", url, answer.Status, strings.TrimSpace(string(body[:min(len(body), 200)])))
	}
	return body, err
}
