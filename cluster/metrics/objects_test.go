package metrics

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/quorate/quorate/cluster/origin"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/cmd/tidy/page"
	"github.com/quorate/quorate/fsm/queue"
)

// TestDocumentObjects holds the documentation against the table.
func TestDocumentObjects(t *testing.T) {
	page.Hold(t, "../../docs/metrics.md", "objects", DocumentObjects())
}

// handlerOf serves the pages of a node with some objects.
func handlerOf(t testing.TB, objects func() Objects) http.Handler {
	t.Helper()
	guard, err := origin.New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := New(func() Stats {
		return Stats{Node: "n1", Cluster: "c", Links: Links{Peers: []peer.PeerStatus{{Node: "n2", Linked: true}}}}
	})
	m.SetObjects(objects)
	return m.Server(slog.New(slog.DiscardHandler), Access{Guard: guard, Login: func(http.ResponseWriter, *http.Request) bool { return true }}).http.Handler
}

func scraped(t *testing.T, h http.Handler, path string) string {
	t.Helper()
	out := httptest.NewRecorder()
	h.ServeHTTP(out, httptest.NewRequest(http.MethodGet, "http://127.0.0.1:15692"+path, http.NoBody))
	if out.Code != http.StatusOK || !strings.HasPrefix(out.Header().Get("Content-Type"), "text/plain") {
		t.Fatalf("%s: %d %v %s", path, out.Code, out.Header(), out.Body)
	}
	return "\n" + out.Body.String()
}

// TestObjects: values of objects replace their sums, and can be asked for by family and vhost.
func TestObjects(t *testing.T) {
	h := handlerOf(t, func() Objects {
		return Objects{
			Queues: []Queue{
				{VHost: "/", Name: "q", Type: "quorum", Led: &Lengths{Ready: queue.Count{Messages: 3, Bytes: 30}, Consumers: 2}, Capacity: 0.25, OldestReady: 2500, OldestUnacked: 1500, OldestScheduled: 500, Values: []HeaderValue{{"add", 3, 2000}, {"", 1, 0}}, Counts: &traffic.Counts{traffic.Publish: 7, traffic.Get: 1}, Raft: &replica.Progress{Term: 2, Commit: 9}, Snapshot: -1},
				{VHost: "/", Name: "local", Type: "classic", Led: &Lengths{Ready: queue.Count{Messages: 2, Bytes: 20}}},
				{VHost: "other", Name: "away", Type: "classic", Raft: &replica.Progress{Term: 5}, Snapshot: 4},
			},
			Exchanges:   []Exchange{{"/", "", &traffic.Counts{traffic.Publish: 7}}},
			Channels:    []Channel{{VHost: "/", Name: "c (1)", Unacked: 6, Counts: &traffic.Counts{traffic.Confirm: 5}}},
			Connections: []Connection{{VHost: "/", Name: "c", Received: 100, Sent: 200, Channels: 1}},
		}
	})
	all := scraped(t, h, "/metrics/per-object")
	for _, line := range []string{
		`rabbitmq_identity_info{rabbitmq_cluster="c",rabbitmq_endpoint="per-object",rabbitmq_node="n1"} 1`,
		`rabbitmq_queue_messages_ready{vhost="/",queue="q"} 3`, `rabbitmq_queue_messages_ready_bytes{vhost="/",queue="q"} 30`,
		`rabbitmq_queue_oldest_ready_seconds{vhost="/",queue="q"} 2.5`, `rabbitmq_queue_oldest_unacked_seconds{vhost="/",queue="q"} 1.5`, `rabbitmq_queue_oldest_scheduled_seconds{vhost="/",queue="q"} 0.5`,
		`rabbitmq_queue_oldest_ready_seconds{vhost="/",queue="local"} 0`, `rabbitmq_queue_header_messages_ready{vhost="/",queue="q",value="add"} 3`, `rabbitmq_queue_header_messages_ready{vhost="/",queue="q",value=""} 1`,
		`rabbitmq_queue_header_oldest_ready_seconds{vhost="/",queue="q",value="add"} 2`,
		`rabbitmq_queue_consumers{vhost="/",queue="q"} 2`, `rabbitmq_queue_consumer_capacity{vhost="/",queue="q"} 0.25`, `rabbitmq_queue_consumer_utilisation{vhost="/",queue="q"} 0.25`, `rabbitmq_queue_messages_published_total{vhost="/",queue="q"} 7`, `rabbitmq_queue_get_ack_total{vhost="/",queue="q"} 1`,
		`rabbitmq_exchange_messages_published_total{vhost="/",exchange=""} 7`, `rabbitmq_raft_log_commit_index{vhost="/",queue="q"} 9`,
		`rabbitmq_queue_messages_persistent{vhost="/",queue="q"} 3`, `rabbitmq_queue_messages_persistent_bytes{vhost="/",queue="q"} 30`, `rabbitmq_queue_messages_ram{vhost="/",queue="q"} 0`,
		`rabbitmq_queue_messages_persistent{vhost="/",queue="local"} 0`, `rabbitmq_queue_messages_ram{vhost="/",queue="local"} 2`, `rabbitmq_queue_messages_ram_bytes{vhost="/",queue="local"} 20`,
		`rabbitmq_queue_info{vhost="/",queue="q",queue_type="rabbit_quorum_queue",membership="leader"} 1`, `rabbitmq_queue_info{vhost="/",queue="local",queue_type="rabbit_classic_queue",membership="leader"} 1`,
		`rabbitmq_queue_info{vhost="other",queue="away",queue_type="rabbit_classic_queue",membership="follower"} 1`,
		`rabbitmq_raft_log_snapshot_index{vhost="/",queue="q"} -1`, `rabbitmq_raft_term_total{vhost="other",queue="away"} 5`,
		`rabbitmq_channel_messages_unacked{channel="c (1)"} 6`, `rabbitmq_channel_messages_confirmed_total{channel="c (1)"} 5`,
		`rabbitmq_connection_incoming_bytes_total{connection="c"} 100`, `rabbitmq_connections 0`,
	} {
		if !strings.Contains(all, "\n"+line+"\n") {
			t.Errorf("%q is missing", line)
		}
	}
	for _, line := range []string{`rabbitmq_queue_messages_ready 0`, `rabbitmq_queue_messages_ready{vhost="other"`, `rabbitmq_queue_messages_published_total{vhost="other"`} {
		if strings.Contains(all, "\n"+line) {
			t.Errorf("%q is there", line)
		}
	}
	some := scraped(t, h, "/metrics/detailed?family=ra_metrics&family=queue_consumer_count&vhost=/")
	if !strings.Contains(some, "\nrabbitmq_detailed_queue_consumers{vhost=\"/\",queue=\"q\"} 2\n") || strings.Contains(some, "away") || strings.Contains(some, "_ready") {
		t.Errorf("two families of a vhost: %s", some)
	}
	if none := scraped(t, h, "/metrics/detailed"); none != "\n" {
		t.Errorf("without a family: %s", none)
	}
}

// TestNamesAreEscaped: whatever a queue is called, a scraper reads it back.
func TestNamesAreEscaped(t *testing.T) {
	const name = "a\"b\\c\nd{}=,é"
	h := handlerOf(t, func() Objects {
		return Objects{Queues: []Queue{{VHost: "/", Name: name, Led: &Lengths{Ready: queue.Count{Messages: 1e15, Bytes: 3}}}}}
	})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1:15692/metrics/per-object", http.NoBody))
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	f := families["rabbitmq_queue_messages_ready"]
	if len(f.GetMetric()) != 1 || f.Metric[0].Label[1].GetValue() != name || f.Metric[0].Gauge.GetValue() != 1e15 {
		t.Errorf("%v", f)
	}
}

// manyQueues are queues of which the node has a replica, and leads a third.
func manyQueues(count int) []Queue {
	queues := make([]Queue, count)
	for i := range queues {
		queues[i] = Queue{VHost: "/", Name: fmt.Sprint("queue-", i), Type: "quorum", Raft: &replica.Progress{Term: 2, Commit: 4, Last: 4, Applied: 4}, Snapshot: -1}
		if i%3 == 0 {
			queues[i].Led = &Lengths{}
		}
	}
	return queues
}

// BenchmarkManyObjects is a scrape of a node of a hundred thousand queues.
func BenchmarkManyObjects(b *testing.B) {
	queues := manyQueues(100_000)
	h := handlerOf(b, func() Objects { return Objects{Queues: queues} })
	for _, page := range []string{"per-object", "detailed?family=queue_coarse_metrics&family=queue_consumer_count", "detailed?family=queue_coarse_metrics&vhost=other"} {
		b.Run(page, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				w := &counting{each: func() {}}
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1:15692/metrics/"+page, http.NoBody))
				b.ReportMetric(float64(w.bytes)/1e6, "MB")
			}
		})
	}
}

// TestManyObjects: a scrape of ten thousand queues takes little memory.
func TestManyObjects(t *testing.T) {
	const count = 10_000
	queues := manyQueues(count)
	for i := range queues {
		queues[i].Led, queues[i].Counts = &Lengths{}, &traffic.Counts{}
	}
	h := handlerOf(t, func() Objects { return Objects{Queues: queues} })
	var before, during runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	w, peak := &counting{}, uint64(0)
	w.each = func() {
		runtime.ReadMemStats(&during)
		peak = max(peak, during.HeapAlloc)
	}
	began := time.Now()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1:15692/metrics/per-object", http.NoBody))
	t.Logf("%d lines, %d bytes, %v, peak of the heap %d MiB above %d MiB", w.lines, w.bytes, time.Since(began), (peak-min(peak, before.HeapAlloc))>>20, before.HeapAlloc>>20)
	if w.lines < count*20 {
		t.Errorf("%d lines", w.lines)
	}
	if peak > before.HeapAlloc+16<<20 {
		t.Errorf("the heap has grown by %d MiB", (peak-before.HeapAlloc)>>20)
	}
}

// counting is an answer that nobody keeps.
type counting struct {
	header      http.Header
	lines       int
	bytes, next int
	each        func() // called once for each MiB
}

func (c *counting) Header() http.Header {
	if c.header == nil {
		c.header = http.Header{}
	}
	return c.header
}
func (c *counting) WriteHeader(int) {}
func (c *counting) Write(b []byte) (int, error) {
	c.lines += strings.Count(string(b), "\n")
	if c.bytes += len(b); c.bytes >= c.next {
		c.next += 1 << 20
		c.each()
	}
	return len(b), nil
}
