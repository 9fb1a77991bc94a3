package mgmt

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
)

// TestScaling: an autoscaler gets numbers alone, and none of a queue whose leader does not answer.
func TestScaling(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"q", "idle", "away"} {
		w.queue("/", name, false)
	}
	w.queue("hidden", "h", false)
	age, half := uint64(1500), 0.5
	w.stats["q"] = stats.Queue{Due: 2, QueueStats: api.QueueStats{
		Ready: 5, Unacknowledged: 3, Scheduled: 40_000, Consumers: 2, OldestReadyAge: &age, OldestScheduledAge: &age, ConsumerCapacity: &half, Paused: true,
	}}
	w.stats["idle"], w.stats["h"] = stats.Queue{}, stats.Queue{}
	w.count("/", "amq.direct", "q", 10, 0)
	w.count("/", "amq.direct", "q", 30, 20)
	const path = "/api/queues/%2F/q/scaling"
	bad := failure("bad_request", fmt.Sprintf("within must be a number of seconds from 0 to %d", longestWithin))
	w.check(
		want{"maggie", "GET", path + "?within=10", "", 200, `{"messages_ready":5,"messages_unacknowledged":3,"backlog":20008,"messages_scheduled":40000,"messages_due":20000,"due_within_seconds":10,"consumers":2,` +
			`"oldest_ready_age_seconds":1.5,"oldest_unacknowledged_age_seconds":0,"oldest_scheduled_age_seconds":1.5,"publish_rate":6,"deliver_rate":4,"ack_rate":4,"consumer_capacity":0.5,"consumer_utilisation":0.5,"paused":1}`},
		want{"maggie", "GET", path, "", 200, `…"messages_due":120000,"due_within_seconds":60`},
		want{"maggie", "GET", path + "?within=0", "", 200, `…"backlog":8,"messages_scheduled":40000,"messages_due":0`},
		want{"maggie", "GET", path + "?within=2592000", "", 200, `…"due_within_seconds":2592000`},
		want{"maggie", "GET", path + "?within=2592001", "", 400, bad},
		want{"maggie", "GET", path + "?within=-1", "", 400, bad},
		want{"maggie", "GET", path + "?within=soon", "", 400, bad},
		want{"maggie", "GET", "/api/queues/%2F/away/scaling", "", 503, failure("unavailable", "no leader of queue 'away' in vhost '/' answers")},
		want{"maggie", "GET", "/api/queues/%2F/none/scaling", "", 404, notThere},
		want{"maggie", "GET", "/api/queues/hidden/h/scaling", "", 404, notThere},
		want{"mona", "GET", "/api/queues/hidden/h/scaling", "", 200, `…"messages_ready":0`},
		want{"", "GET", path, "", 401, "…"},
	)
	var all map[string]any
	if err := json.Unmarshal(w.request("maggie", "GET", "/api/queues/%2F/idle/scaling", "").Body.Bytes(), &all); err != nil {
		t.Fatal(err)
	}
	for name, v := range all {
		if n, isNumber := v.(float64); !isNumber || n != 0 && name != "due_within_seconds" {
			t.Errorf("%s of an empty queue is %v", name, v)
		}
	}
}
