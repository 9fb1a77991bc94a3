package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// pageTries is how often each page is read. The first reading is left out: it opens the connection.
const pageTries = 9

// tabled are the columns of the console's list of queues.
const tabled = "vhost,name,state,leader,online,members,messages_ready,messages_unacknowledged,messages_scheduled,messages_delayed_retry,messages_locked," +
	"next_expiry_at,lease_expires_at,consumers,consumers_timed_out,messages_expired_total,message_stats.publish_details,message_stats.deliver_get_details,policy,operator_policy"

// pages are read with many queues. What they cost depends on what is asked of whom.
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
}

// scrapes are the pages for Prometheus.
var scrapes = []struct{ name, path string }{{"/metrics", "/metrics"}, {"/metrics/per-object", "/metrics/per-object"}}

// readPages measures how long pages of the HTTP API and scrapes take.
func (c *crowd) readPages(ctx context.Context) error {
	n := c.cluster.Nodes[0]
	settings, err := c.metricsAddress(ctx)
	if err != nil {
		return err
	}
	r := result{Name: fmt.Sprintf("HTTP with %d queues", c.n)}
	began := clock()
	var errs []error
	read := func(name, url string) {
		median, longest, bytes, err := timed(ctx, url)
		r.note(name+": median", median, "ms")
		r.note(name+": longest", longest, "ms")
		r.note(name+": size", float64(bytes)/1024, "KiB")
		errs = append(errs, err)
	}
	for _, p := range pages {
		read(p.name, "http://"+n.HTTP+p.path)
	}
	for _, p := range scrapes {
		read(p.name, "http://"+settings+p.path)
	}
	r.Seconds = (clock() - began).Seconds()
	return c.keep(&r, errors.Join(errs...))
}

// metricsAddress asks the first node where it is scraped.
func (c *crowd) metricsAddress(ctx context.Context) (string, error) {
	body, err := fetch(ctx, "http://"+c.cluster.Nodes[0].HTTP+"/api/quorate/status")
	if err != nil {
		return "", err
	}
	var status struct {
		Listeners []struct{ Protocol, Address string }
	}
	if err := json.Unmarshal(body, &status); err != nil {
		return "", err
	}
	for _, l := range status.Listeners {
		if l.Protocol == "http/prometheus" {
			return l.Address, nil
		}
	}
	return "", errors.New("the node serves no metrics")
}

// timed reads a page some times.
func timed(ctx context.Context, url string) (median, longest float64, bytes int, err error) {
	var took []time.Duration
	for i := range pageTries + 1 {
		began := clock()
		body, err := fetch(ctx, url)
		if err != nil {
			return 0, 0, 0, err
		}
		if bytes = len(body); i > 0 {
			took = append(took, clock()-began)
		}
	}
	slices.Sort(took)
	return float64(took[len(took)/2].Microseconds()) / 1000, float64(took[len(took)-1].Microseconds()) / 1000, bytes, nil
}

func fetch(ctx context.Context, url string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
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
	if err != nil || answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s %s: %w", url, answer.Status, strings.TrimSpace(string(body[:min(len(body), 200)])), err)
	}
	return body, nil
}
