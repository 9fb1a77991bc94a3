package metrics

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/quorate/quorate/cluster/alarm"
	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/cluster/durations"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/limit"
	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/origin"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/cluster/watchdog"
	"github.com/quorate/quorate/cmd/tidy/page"
	"github.com/quorate/quorate/fsm/queue"
)

var _ = flag.Bool("rewrite", false, "write the documentation's table of metrics anew")

// TestDocument holds the documentation against the table.
func TestDocument(t *testing.T) { page.Hold(t, "../../docs/metrics.md", "table", Document()) }

// TestTable: names and labels are as Prometheus wants them, each name stands
// once, counters are called so.
func TestTable(t *testing.T) {
	word := regexp.MustCompile(`^(quorate|rabbitmq|erlang_vm_dist)(_[a-z0-9]+)+$`)
	seen := map[string]bool{}
	for _, row := range append(histograms(), table...) {
		if !word.MatchString(row.name) || seen[row.name] {
			t.Errorf("%s: a wrong name, or twice", row.name)
		}
		seen[row.name] = true
		if strings.HasSuffix(row.name, "_total") != (row.kind == counter) {
			t.Errorf("%s is a %s", row.name, kinds[row.kind])
		}
		if row.help == "" || strings.HasSuffix(row.help, ".") {
			t.Errorf("%s: help %q", row.name, row.help)
		}
	}
}

// TestPage reads the page as Prometheus does.
func TestPage(t *testing.T) {
	calls := 0
	m := New(func() Stats {
		calls++
		return Stats{
			Node: "n1", Cluster: "c", Version: "1.2.3",
			Clock: clock.Status{Sampled: true, Offset: -1500 * time.Microsecond, Skewed: true, JumpsRefused: 4, LogAhead: 12, Peers: []clock.PeerStatus{
				{Node: "n2", Known: true, Offset: 2 * time.Second}, {Node: "n3"},
			}},
			Links: Links{Peers: []peer.PeerStatus{{Node: "n2", Alive: true, Linked: true, Backlog: 10, Sent: 110, RoundTrip: time.Millisecond}, {Node: "n3"}}},
			Log:   raftlog.Metrics{DiskBytes: 100, CacheHits: 5, Syncs: durations.Counts{Of: took(5, 6)}},
			Queues: Queues{Declared: 9, DeclaresTolerated: 112, DeclaresAdopted: 113, UnexpectedAnswers: 20, RefusedCommands: 22, Led: Led{Queues: 3, Paused: 108, Redriving: 111, ByCredit: 1, ConsumersTimedOut: 102, OldestReady: 109_000, OldestUnacked: 103_000, OldestScheduled: 110_500, Stats: queue.Stats{Consumers: 2, Ready: queue.Count{Messages: 10, Bytes: 1000}, Unacknowledged: queue.Count{Messages: 4, Bytes: 400},
				Outbox: queue.Count{Messages: 1, Bytes: 101}, Waiting: queue.Count{Messages: 1}, Delayed: queue.Count{Messages: 104}, Deferred: queue.Count{Messages: 105}, Parked: queue.Count{Messages: 106}, Locked: 107, Scheduled: queue.Count{Messages: 6}},
				Times: Times{NextExpiry: 2500, TickLag: 1500, Ahead: 250}, Delayed: []Delayed{{"/", "x", 5, 1500}, {"/", "y", 0, 0}}}},
			DeadLetters: DeadLetters{LostOnce: 13, Deaths: group.Deaths{
				Replicated: queue.Dead{By: queue.Deaths{{1, 2, 3, 4}, {5}, {6}, {7}, {}, {21}, {22}}, Confirmed: 8, Dropped: 9, Refused: 10, Cancelled: 23, Replaced: 24, Purged: 25, Forwarded: 26, Deleted: 27, Redriven: 28},
				Local:      queue.Dead{By: queue.Deaths{{0, 0, 0, 11}}, Dropped: 12},
			}},
			Certificates: []Certificate{{"clustering", false, time.Unix(77, 0)}, {"clustering", true, time.Unix(88, 0)}},
			Replicas:     Replicas{Count: 8, Quarantined: 14, Unproven: 21, Closed: 53, Failures: 54},
			Panics:       Panics{Groups: 15, Peers: 16, Loops: 18, Broker: 19},
			Counts: traffic.Totals{
				All: traffic.Counts{traffic.Publish: 81, traffic.Confirm: 83, traffic.PublishOut: 84, traffic.ReturnUnroutable: 85, traffic.DropUnroutable: 86, traffic.QueueCreated: 37},
				By: [traffic.Protocols]traffic.Sums{
					traffic.AMQP091: {
						All:        traffic.Counts{traffic.Publish: 31, traffic.Confirmable: 32, traffic.Confirm: 33, traffic.PublishOut: 34, traffic.ReturnUnroutable: 35, traffic.DropUnroutable: 36},
						Replicated: traffic.Counts{traffic.Deliver: 1, traffic.DeliverNoAck: 2, traffic.Get: 3, traffic.GetNoAck: 4, traffic.Redeliver: 5, traffic.Ack: 6}, Local: traffic.Counts{traffic.GetEmpty: 7}, Publishers: 38,
						Sizes: traffic.Sizes{Counts: [9]uint64{2, 3, 0, 0, 0, 0, 0, 0, 1}, Bytes: 200_000_000},
					},
					traffic.AMQP10: {
						All:        traffic.Counts{traffic.Publish: 71, traffic.Confirm: 72},
						Replicated: traffic.Counts{traffic.Deliver: 73, traffic.Ack: 74}, Local: traffic.Counts{traffic.DeliverNoAck: 75}, Publishers: 76,
						Sizes: traffic.Sizes{Counts: [9]uint64{0, 77}, Bytes: 78},
					},
				},
			},
			Meters: group.Meters{Applies: durations.Counts{Of: took(1, 2), Sum: time.Second}, Snapshots: durations.Counts{Of: took(3, 4)}, Led: 51, Refused: 52, Copies: 53, Early: 54}, Resent: 55,
			Raft: Raft{Members: Members{61, 62, 63, 64, 65}, CommitLatency: 2 * time.Millisecond, Term: 41, Commit: 42, Last: 43, Applied: 44, Snapshot: 45}, Process: Process{Uptime: 1500 * time.Millisecond, Files: 46, MaxFiles: 47},
			Logins:    login.Tally{login.AMQP: {Accepted: 3, Refused: 2}, login.HTTP: {Accepted: 2, HeldBack: 1}},
			Resources: alarm.Resources{MemoryUsed: 11, MemoryLimit: 12, DiskFree: 13, DiskLimit: 14, DiskAlarm: true}, Watchdog: watchdog.Stats{Syncs: 111},
		}
	})
	m.SetTraffic(func() Traffic {
		return Traffic{Connections: [traffic.Protocols]Churn{{5, 2}, {14, 4}}, Channels: [traffic.Protocols]Churn{{7, 0}, {9, 3}}, IncomingLinks: 79, OutgoingLinks: 80, Timeouts: Timeouts{1, 2, 3, 4}, Blocked: 3, Held: api.HeldMemory{Channels: 21, Publishes: 22, Answers: 23, HTTP: 24}, Panics: 17, Requests: map[Request]uint64{{"amqp10", "peek", 204}: 9}, Refused: 10, Listeners: []limit.Status{{Name: "amqp", Open: 9, Pending: 2, Max: 50, Refused: 22}}}
	})
	m.Late("message", 30*time.Millisecond)
	m.Late("message", 3*time.Millisecond)
	page := mustScrape(t, m)
	for _, line := range []string{
		`rabbitmq_identity_info{rabbitmq_cluster="c",rabbitmq_endpoint="aggregated",rabbitmq_node="n1"} 1`,
		`rabbitmq_build_info{erlang_version="` + runtime.Version() + `",product="quorate",product_version="1.2.3",prometheus_client_version="` + clientVersion() + `",prometheus_plugin_version="1.2.3",rabbitmq_version="4.3.0"} 1`,
		`quorate_raft_apply_duration_seconds_bucket{le="1e-05"} 1`, `quorate_raft_apply_duration_seconds_bucket{le="10"} 1`, `quorate_raft_apply_duration_seconds_bucket{le="+Inf"} 3`, `quorate_raft_apply_duration_seconds_sum 1`,
		`quorate_raft_snapshot_duration_seconds_count 7`, `quorate_raft_fsync_duration_seconds_count 11`,
		`quorate_queue_next_expiry_seconds 2.5`, `quorate_queue_tick_lag_seconds 1.5`, `quorate_queue_clock_skew_seconds 0.25`,
		`quorate_raft_members{state="leader"} 61`, `quorate_raft_members{state="follower"} 62`, `quorate_raft_members{state="candidate"} 63`, `quorate_raft_members{state="learner"} 64`, `quorate_raft_members{state="stopped"} 65`,
		`quorate_raft_leader_changes_total 51`, `quorate_raft_append_rejected_total 52`,
		`quorate_commands_repeated_total 53`, `quorate_commands_early_total 54`, `quorate_commands_resent_total 55`,
		`rabbitmq_connections 13`, `rabbitmq_connections_opened_total 19`, `rabbitmq_connections_closed_total 6`, `rabbitmq_channels 7`, `rabbitmq_channels_opened_total 7`,
		`quorate_protocol_connections{protocol="amqp091"} 3`, `quorate_protocol_connections{protocol="amqp10"} 10`, `quorate_sessions 6`, `quorate_sessions_opened_total 9`, `quorate_sessions_closed_total 3`,
		`quorate_entity_requests_total{operation="peek",protocol="amqp10",status="204"} 9`,
		`quorate_settled_refused_total{protocol="amqp10"} 10`,
		`quorate_links{direction="incoming"} 79`, `quorate_links{direction="outgoing"} 80`, `rabbitmq_global_consumers{protocol="amqp10"} 1`, `rabbitmq_global_publishers{protocol="amqp10"} 76`,
		`rabbitmq_global_messages_received_total{protocol="amqp10"} 71`, `rabbitmq_global_messages_confirmed_total{protocol="amqp10"} 72`, `rabbitmq_message_size_bytes_count{protocol="amqp10"} 77`,
		`rabbitmq_global_messages_delivered_total{protocol="amqp10",queue_type="rabbit_quorum_queue"} 73`, `rabbitmq_global_messages_acknowledged_total{protocol="amqp10",queue_type="rabbit_quorum_queue"} 74`,
		`rabbitmq_global_messages_delivered_consume_auto_ack_total{protocol="amqp10",queue_type="rabbit_classic_queue"} 75`,
		`rabbitmq_process_resident_memory_bytes 11`, `rabbitmq_resident_memory_limit_bytes 12`, `rabbitmq_disk_space_available_bytes 13`,
		`rabbitmq_disk_space_available_limit_bytes 14`, `rabbitmq_alarms_memory_used_watermark 0`, `rabbitmq_alarms_free_disk_space_watermark 1`,
		`rabbitmq_global_messages_received_total{protocol="amqp091"} 31`, `rabbitmq_global_messages_received_confirm_total{protocol="amqp091"} 32`,
		`rabbitmq_global_messages_confirmed_total{protocol="amqp091"} 33`, `rabbitmq_global_messages_routed_total{protocol="amqp091"} 34`,
		`rabbitmq_global_messages_unroutable_returned_total{protocol="amqp091"} 35`, `rabbitmq_global_messages_unroutable_dropped_total{protocol="amqp091"} 36`,
		`rabbitmq_global_messages_delivered_total{protocol="amqp091",queue_type="rabbit_quorum_queue"} 10`, `rabbitmq_global_messages_delivered_get_auto_ack_total{protocol="amqp091",queue_type="rabbit_quorum_queue"} 4`,
		`rabbitmq_global_messages_redelivered_total{protocol="amqp091",queue_type="rabbit_quorum_queue"} 5`, `rabbitmq_global_messages_acknowledged_total{protocol="amqp091",queue_type="rabbit_quorum_queue"} 6`,
		`rabbitmq_global_messages_get_empty_total{protocol="amqp091",queue_type="rabbit_classic_queue"} 7`, `rabbitmq_queues_created_total 37`, `rabbitmq_global_publishers{protocol="amqp091"} 38`,
		`rabbitmq_raft_term_total 41`, `rabbitmq_raft_log_commit_index 42`, `rabbitmq_raft_log_last_written_index 43`, `rabbitmq_raft_last_applied 44`, `rabbitmq_raft_log_snapshot_index 45`,
		`rabbitmq_message_size_bytes_bucket{protocol="amqp091",le="100"} 2`, `rabbitmq_message_size_bytes_bucket{protocol="amqp091",le="1e+08"} 5`, `rabbitmq_message_size_bytes_bucket{protocol="amqp091",le="+Inf"} 6`,
		`rabbitmq_message_size_bytes_sum{protocol="amqp091"} 2e+08`, `rabbitmq_message_size_bytes_count{protocol="amqp091"} 6`, `rabbitmq_raft_commit_latency_seconds 0.002`,
		`erlang_vm_dist_node_state{peer="n2"} 3`, `erlang_vm_dist_node_state{peer="n3"} 1`, `rabbitmq_alarms_file_descriptor_limit 0`, `rabbitmq_channel_messages_unroutable_returned_total 85`, `rabbitmq_channel_messages_unroutable_dropped_total 86`,
		`rabbitmq_channel_messages_published_total 81`, `rabbitmq_channel_messages_confirmed_total 83`, `rabbitmq_exchange_messages_published_total 81`, `rabbitmq_queue_messages_published_total 84`, `rabbitmq_queue_consumers 2`,
		`rabbitmq_erlang_uptime_seconds 1.5`, `rabbitmq_process_open_fds 46`, `rabbitmq_process_max_fds 47`, `rabbitmq_auth_attempts_total{protocol="amqp091"} 5`, `rabbitmq_auth_attempts_failed_total{protocol="http"} 1`,
		`quorate_held_memory_bytes{by="channels"} 21`, `quorate_held_memory_bytes{by="publishes"} 22`, `quorate_held_memory_bytes{by="answers"} 23`, `quorate_held_memory_bytes{by="http"} 24`,
		`quorate_blocked_connections 3`, `quorate_quarantined_groups 14`, `quorate_replicas_unproven 21`, `quorate_replicas_closed 53`, `quorate_replica_failures_total 54`, `quorate_group_panics_total 15`,
		`quorate_panics_total{where="peer"} 16`, `quorate_panics_total{where="loop"} 18`, `quorate_panics_total{where="broker"} 19`, `quorate_unexpected_answers_total 20`, `quorate_commands_refused_total 22`, `quorate_panics_total{where="connection"} 17`,
		`rabbitmq_queues 3`, `rabbitmq_queue_messages 14`, `rabbitmq_queue_messages_bytes 1400`, `quorate_queues_declared 9`,
		`quorate_clock_offset_seconds -0.0015`, `quorate_clock_skew_alarm 1`, `quorate_clock_agreed 0`, `quorate_clock_jump_refused_total 4`,
		`quorate_clock_peer_offset_seconds{peer="n2"} 2`, `quorate_leader_clock_skew_seconds 0.012`,
		`rabbitmq_unreachable_cluster_peers_count 1`, `quorate_peer_alive{peer="n3"} 0`, `quorate_peer_backlog_bytes{peer="n2"} 10`,
		`quorate_peer_round_trip_seconds{peer="n2"} 0.001`, `quorate_peer_frames_sent_total{peer="n2"} 110`, `quorate_peer_frames_sent_total{peer="n3"} 0`, `quorate_disk_syncs_total 111`, `quorate_raft_log_disk_bytes 100`, `quorate_raft_log_cache_hits_total 5`,
		`quorate_timer_lateness_seconds_bucket{kind="message",le="0.005"} 1`, `quorate_timer_lateness_seconds_count{kind="message"} 2`,
		`quorate_consumer_timeout_actions_total{action="cancel"} 1`, `quorate_consumer_timeout_actions_total{action="suspend"} 2`,
		`quorate_consumer_timeout_actions_total{action="channel_close"} 3`, `quorate_consumer_timeout_actions_total{action="get"} 4`,
		`quorate_dead_letter_outbox_depth 1`, `quorate_dead_letter_outbox_waiting 1`, `quorate_dead_letter_outbox_bytes 101`,
		`quorate_consumers_timed_out 102`, `quorate_consumer_oldest_unacked_seconds 103`, `quorate_queue_oldest_ready_seconds 109`, `quorate_queue_oldest_scheduled_seconds 110.5`, `quorate_queue_messages_delayed_retry 104`, `quorate_queue_messages_deferred 105`,
		`quorate_queue_messages_parked 106`, `quorate_queue_messages_locked 107`, `quorate_queues_paused 108`, `quorate_queues_redriving 111`, `quorate_drifted_declares_total{outcome="tolerated"} 112`, `quorate_drifted_declares_total{outcome="adopted"} 113`, `rabbitmq_consumers 2`, `rabbitmq_global_consumers{protocol="amqp091"} 1`,
		`rabbitmq_queue_messages_ready 10`, `rabbitmq_queue_messages_unacked 4`, `rabbitmq_queue_messages_ready_bytes 1000`, `rabbitmq_queue_messages_unacked_bytes 400`,
		`rabbitmq_global_messages_dead_lettered_expired_total{dead_letter_strategy="disabled",queue_type="rabbit_quorum_queue"} 1`,
		`rabbitmq_global_messages_dead_lettered_expired_total{dead_letter_strategy="at_most_once",queue_type="rabbit_quorum_queue"} 2`,
		`rabbitmq_global_messages_dead_lettered_expired_total{dead_letter_strategy="transactional",queue_type="rabbit_quorum_queue"} 3`,
		`rabbitmq_global_messages_dead_lettered_expired_total{dead_letter_strategy="at_least_once",queue_type="rabbit_classic_queue"} 11`,
		`rabbitmq_global_messages_dead_lettered_rejected_total{dead_letter_strategy="disabled",queue_type="rabbit_quorum_queue"} 5`,
		`rabbitmq_global_messages_dead_lettered_maxlen_total{dead_letter_strategy="disabled",queue_type="rabbit_quorum_queue"} 6`,
		`rabbitmq_global_messages_dead_lettered_delivery_limit_total{dead_letter_strategy="disabled",queue_type="rabbit_quorum_queue"} 7`,
		`rabbitmq_global_messages_dead_lettered_confirmed_total{queue_type="rabbit_quorum_queue"} 8`,
		`rabbitmq_global_messages_dead_lettered_group_expired_total{dead_letter_strategy="disabled",queue_type="rabbit_quorum_queue"} 21`,
		`rabbitmq_global_messages_dead_lettered_maxhops_total{dead_letter_strategy="disabled",queue_type="rabbit_quorum_queue"} 22`,
		`quorate_messages_removed_total{queue_type="rabbit_quorum_queue",reason="cancelled"} 23`,
		`quorate_messages_removed_total{queue_type="rabbit_quorum_queue",reason="replaced"} 24`,
		`quorate_messages_removed_total{queue_type="rabbit_quorum_queue",reason="purged"} 25`,
		`quorate_queue_messages_scheduled 6`, `quorate_delayed_messages{exchange="x",vhost="/"} 5`,
		`quorate_delayed_next_due_seconds{exchange="x",vhost="/"} 1.5`,
		`quorate_certificate_expires_timestamp_seconds{of="node",protocol="clustering"} 77`, `quorate_certificate_expires_timestamp_seconds{of="authorities",protocol="clustering"} 88`,
		`quorate_messages_forwarded_total{queue_type="rabbit_quorum_queue"} 26`, `quorate_messages_deleted_total{queue_type="rabbit_quorum_queue"} 27`, `quorate_messages_redriven_total{queue_type="rabbit_quorum_queue"} 28`,
		`quorate_dead_letters_refused_total{queue_type="rabbit_quorum_queue"} 10`,
		`quorate_listener_connections{listener="amqp",state="settled"} 7`, `quorate_listener_connections{listener="amqp",state="pending"} 2`,
		`quorate_listener_connections_max{listener="amqp"} 50`, `quorate_listener_connections_refused_total{listener="amqp"} 22`,
		`quorate_dead_letters_lost_total{way="outbox"} 21`, `quorate_dead_letters_lost_total{way="once"} 13`,
	} {
		if !strings.Contains(page, "\n"+line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	for _, absent := range []string{`quorate_delayed_next_due_seconds{exchange="y"`, `quorate_clock_peer_offset_seconds{peer="n3"}`, `quorate_peer_round_trip_seconds{peer="n3"}`} {
		if strings.Contains(page, absent) {
			t.Errorf("what is not known is shown: %s", absent)
		}
	}
	for _, row := range table {
		if !strings.Contains(page, fmt.Sprintf("# TYPE %s %s\n", row.name, kinds[row.kind])) {
			t.Errorf("%s is missing", row.name)
		}
	}
	problems, err := promlint.New(strings.NewReader(page)).Lint()
	for _, p := range problems {
		if !strings.HasPrefix(p.Metric, "rabbitmq_") { // those names are the peer's
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	if err != nil {
		t.Error(err)
	}
	if !strings.Contains(page, "go_goroutines") || !strings.Contains(page, "process_open_fds") {
		t.Error("the process's own stats are missing")
	}
	if calls != 1 {
		t.Errorf("stats were gathered %d times for a page", calls)
	}
}

// took counts durations in the first and the last of the ranges.
func took(first, last uint64) (of [len(durations.Bounds) + 1]uint64) {
	of[0], of[len(durations.Bounds)] = first, last
	return of
}

// TestClientVersion: the version of the library is found among those that the program is built with.
func TestClientVersion(t *testing.T) {
	build := &debug.BuildInfo{Deps: []*debug.Module{{Path: "github.com/prometheus/client_model", Version: "v0.1.0"}, {Path: "github.com/prometheus/client_golang", Version: "v1.2.3"}}}
	if v := clientOf(build); v != "1.2.3" {
		t.Errorf("%q", v)
	}
	if v := clientOf(nil) + clientOf(&debug.BuildInfo{}); v != "" {
		t.Errorf("of a program that does not say: %q", v)
	}
}

// TestBeforeAnythingIsKnown: a page without stats is a page.
func TestBeforeAnythingIsKnown(t *testing.T) {
	page := mustScrape(t, New(func() Stats { return Stats{} }))
	if strings.Contains(page, "quorate_clock_offset_seconds ") || strings.Contains(page, "quorate_queue_next_expiry_seconds ") || !strings.Contains(page, "quorate_clock_skew_alarm 0") {
		t.Errorf("%s", page)
	}
}

// The page is for those who may see it, and for no page of another site.
func TestAccess(t *testing.T) {
	guard, err := origin.New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := New(func() Stats { return Stats{} }).Server(slog.New(slog.DiscardHandler), Access{Guard: guard, Login: func(w http.ResponseWriter, r *http.Request) bool {
		if _, _, in := r.BasicAuth(); !in {
			w.WriteHeader(http.StatusUnauthorized)
			return false
		}
		return true
	}})
	for _, c := range []struct {
		name, header, value string
		in                  bool
		status              int
	}{
		{"a login", "", "", true, 200},
		{"no login", "", "", false, 401},
		{"another site", "Sec-Fetch-Site", "cross-site", true, 403},
		{"another site in an old browser", "Origin", "http://evil.example", true, 403},
	} {
		r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:15692/metrics", http.NoBody)
		if c.header != "" {
			r.Header.Set(c.header, c.value)
		}
		if c.in {
			r.SetBasicAuth("u", "p")
		}
		out := httptest.NewRecorder()
		s.http.Handler.ServeHTTP(out, r)
		if out.Code != c.status || out.Header().Get("X-Content-Type-Options") != "nosniff" || out.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %v, want %d", c.name, out.Code, out.Header(), c.status)
		}
	}
}

// mustScrape serves the page and reads it.
func mustScrape(t *testing.T, m *Metrics) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	guard, err := origin.New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := m.Server(slog.New(slog.DiscardHandler), Access{Guard: guard, Login: func(http.ResponseWriter, *http.Request) bool { return true }})
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	res, err := http.Get("http://" + l.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", res.Status, err)
	}
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	return "\n" + string(page)
}
