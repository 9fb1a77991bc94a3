package mgmt

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
)

// TestPagesAskLittle: leaders are asked about the queues of a page, and about all only if the order
// depends on what they say.
func TestPagesAskLittle(t *testing.T) {
	w := newWorld(t)
	at := func(ms int64) *int64 { return &ms }
	for i := range 12 {
		name := fmt.Sprintf("q%02d", i)
		w.queue("/", name, i%2 == 1)
		w.stats[name] = stats.Queue{Leader: "n" + fmt.Sprint(i%3+1), QueueStats: api.QueueStats{Messages: uint64(i), NextExpiryAt: at(int64(1000 - i)), Raft: &api.Raft{LastIndex: uint64(i % 5)}}}
	}
	w.stats["q03"] = stats.Queue{Leader: "n1"}
	delete(w.stats, "q04") // no leader
	for path, c := range map[string]struct {
		first     string
		questions []int
	}{
		"page=1&page_size=5":                       {"q00", []int{5}},
		"page=3&page_size=5&sort=name":             {"q10", []int{2}},
		"page=1&page_size=5&sort=vhost&name=q1":    {"q10", []int{2}},
		"page=1&page_size=5&sort=name&name=none":   {"", nil},
		"page=1&page_size=5&sort=type":             {"q01", []int{5}},
		"page=1&page_size=5&columns=name,state":    {"q00", nil},
		"page=1&page_size=5&disable_stats=true":    {"q00", nil},
		"page=1&page_size=2&sort=messages":         {"q04", []int{0, 2}},
		"page=1&page_size=2&sort=next_expiry_at":   {"q03", []int{0, 2}},
		"page=2&page_size=2&sort=next_expiry_at":   {"q11", []int{0, 2}},
		"page=2&page_size=2&sort=raft.last_index":  {"q00", []int{0, 2}},
		"page=1&page_size=2&sort=node":             {"q00", []int{0, 2}},
		"page=1&page_size=2&sort=leader&name=q0":   {"q04", []int{0, 2}},
		"page=1&page_size=2&sort=nothing":          {"q00", []int{0, 2}},
		"page=1&page_size=2&sort=messages.nothing": {"q00", []int{0, 2}},
		"":                            {"q00", []int{12}},
		"sort=name&sort_reverse=true": {"q11", []int{12}},
	} {
		w.questions = nil
		answer := w.request("root", "GET", "/api/queues?"+path, "")
		_, rest, _ := strings.Cut(answer.Body.String(), `"name":"`)
		if first, _, _ := strings.Cut(rest, `"`); answer.Code != 200 || first != c.first || !slices.Equal(w.questions, c.questions) {
			t.Errorf("%s: %d, first is %q, questions %d: %s", path, answer.Code, first, w.questions, answer.Body)
		}
	}
}

// TestFilters: a list has the queues that an operator looks for, and asks leaders once if it takes
// them to know which these are.
func TestFilters(t *testing.T) {
	w := newWorld(t)
	in := func(d time.Duration) *int64 { at := int64(w.Now()) + d.Milliseconds(); return &at }
	for name, s := range map[string]api.QueueStats{
		"busy": {Messages: 7}, "ending": {LeaseExpiresAt: in(time.Hour)}, "lasting": {LeaseExpiresAt: in(time.Hour + time.Millisecond)},
		"late": {ConsumersTimedOut: 2}, "later": {ConsumersTimedOut: 1, LeaseExpiresAt: in(0)},
	} {
		w.queue("/", name, false)
		w.stats[name] = stats.Queue{Leader: "n1", QueueStats: s}
	}
	w.queue("/", "alone", true) // on n2
	w.queue("/", "lost", false)
	w.queue("hidden", "lost", false)
	w.offline["n2"] = true
	const page = "page=1&page_size=10&columns=name&sort=name"
	for query, c := range map[string]struct {
		names     string
		questions []int
	}{
		"/api/queues?filter=leaderless&" + page:                         {"alone lost", []int{0}},
		"/api/queues/%2F?filter=leaderless&name=OS&" + page:             {"lost", []int{0}},
		"/api/queues?filter=minority&" + page:                           {"alone", nil},
		"/api/queues?filter=late&" + page:                               {"late later", []int{0}},
		"/api/queues?filter=late&columns=name&sort=consumers_timed_out": {"later late", []int{0}},
		"/api/queues?filter=lease-ending&" + page:                       {"ending later", []int{0}},
		"/api/queues?filter=lease-ending&name=none&" + page:             {"", nil},
		"/api/queues?filter=&name=l&" + page:                            {"alone lasting late later lost", nil},
	} {
		w.questions = nil
		var names []string
		for _, name := range regexp.MustCompile(`"name":"(\w+)"`).FindAllStringSubmatch(w.request("maggie", "GET", query, "").Body.String(), -1) {
			names = append(names, name[1])
		}
		if got := strings.Join(names, " "); got != c.names || !slices.Equal(w.questions, c.questions) {
			t.Errorf("%s: %q, questions %d", query, got, w.questions)
		}
	}
	w.offline["n1"] = true
	w.check(
		want{"maggie", "GET", "/api/queues?filter=minority&page=1&page_size=1&columns=name,state&sort=name", "", 200,
			`{"items":[{"name":"alone","state":"down"}],"page":1,"page_count":7,"page_size":1,"item_count":1,"filtered_count":7,"total_count":7}`},
		want{"maggie", "GET", "/api/queues?filter=late&columns=name,consumers_timed_out&page=1&page_size=1", "", 200,
			`{"items":[{"consumers_timed_out":2,"name":"late"}],"page":1,"page_count":2,"page_size":1,"item_count":1,"filtered_count":2,"total_count":7}`},
		want{"maggie", "GET", "/api/queues?filter=lost", "", 400, `{"error":"bad_request","reason":"filter must be one of leaderless, minority, late and lease-ending"}`},
	)
}

// TestTime: a queue says when its next message expires and when it is deleted itself, and how far its
// log is; null, if never and if there is none.
func TestTime(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	w.queue("/", "local", true)
	expiry := int64(1000)
	w.stats["q"] = stats.Queue{Leader: "n1", QueueStats: api.QueueStats{NextExpiryAt: &expiry, Raft: &api.Raft{Term: 3, LastIndex: 9, SnapshotIndex: -1}},
		Expiring: []api.ExpiringWithin{{WithinMS: 1000}, {WithinMS: 2000, Messages: 3}}}
	w.stats["local"] = stats.Queue{Leader: "n2"}
	w.members = []api.Member{{Node: "n1", State: "leader", LastLogIndex: 9}, {Node: "n2", State: "follower", LastLogIndex: 7}, {Node: "n3", State: "noproc"}}
	const columns = "&columns=name,next_expiry_at,lease_expires_at,raft"
	w.check(
		want{"root", "GET", "/api/queues?name=q" + columns, "", 200,
			`[{"lease_expires_at":null,"name":"q","next_expiry_at":1000,"raft":{"applied_index":0,"commit_index":0,"last_index":9,"log_bytes":0,"snapshot_index":-1,"term":3}}]`},
		want{"root", "GET", "/api/queues?name=local" + columns, "", 200, `[{"lease_expires_at":null,"name":"local","next_expiry_at":null,"raft":null}]`},
		want{"root", "GET", "/api/queues/%2F/q", "", 200, `…"members":[{"node":"n1","state":"leader","match_index":9,"lag":0},{"node":"n2","state":"follower","match_index":7,"lag":2},{"node":"n3","state":"noproc","match_index":0,"lag":9}]`},
		want{"root", "GET", "/api/queues/%2F/q?columns=expiring", "", 200, `…"expiring":[{"within_ms":1000,"messages":0},{"within_ms":2000,"messages":3}]`},
		want{"root", "GET", "/api/queues/%2F/local", "", 200, `…"raft":null`},
	)
}

// A list without stats asks no leader.
func TestCheapList(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	w.stats["q"] = stats.Queue{Leader: "n1", QueueStats: api.QueueStats{Messages: 5}}
	w.check(
		want{"root", "GET", "/api/queues?disable_stats=true&columns=name,messages", "", 200, `[{"name":"q"}]`},
		want{"root", "GET", "/api/queues?disable_stats=true&enable_queue_totals=true&columns=name,messages", "", 200, `[{"messages":5,"name":"q"}]`},
	)
}
