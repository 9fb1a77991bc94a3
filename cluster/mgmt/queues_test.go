package mgmt

import (
	"fmt"
	"slices"
	"strings"
	"testing"

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

// TestTime: a queue says when its next message expires and when it is deleted itself, and how far its
// log is; null, if never and if there is none.
func TestTime(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	w.queue("/", "local", true)
	expiry := int64(1000)
	w.stats["q"] = stats.Queue{Leader: "n1", QueueStats: api.QueueStats{NextExpiryAt: &expiry, Raft: &api.Raft{Term: 3, LastIndex: 9, SnapshotIndex: -1}}}
	w.stats["local"] = stats.Queue{Leader: "n2"}
	w.members = []api.Member{{Node: "n1", State: "leader", LastLogIndex: 9}, {Node: "n2", State: "follower", LastLogIndex: 7}, {Node: "n3", State: "noproc"}}
	const columns = "&columns=name,next_expiry_at,lease_expires_at,raft"
	w.check(
		want{"root", "GET", "/api/queues?name=q" + columns, "", 200,
			`[{"lease_expires_at":null,"name":"q","next_expiry_at":1000,"raft":{"applied_index":0,"commit_index":0,"last_index":9,"log_bytes":0,"snapshot_index":-1,"term":3}}]`},
		want{"root", "GET", "/api/queues?name=local" + columns, "", 200, `[{"lease_expires_at":null,"name":"local","next_expiry_at":null,"raft":null}]`},
		want{"root", "GET", "/api/queues/%2F/q", "", 200, `…"members":[{"node":"n1","state":"leader","match_index":9,"lag":0},{"node":"n2","state":"follower","match_index":7,"lag":2},{"node":"n3","state":"noproc","match_index":0,"lag":9}]`},
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
