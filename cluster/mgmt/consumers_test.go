package mgmt

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// serve adds a consumer of a queue.
func (w *world) serve(vhost, queue string, c stats.Consumer) {
	w.t.Helper()
	q, ok := w.View().Queue(vhost, queue)
	if !ok {
		w.t.Fatalf("no queue %s", queue)
	}
	c.Of = q.ID
	w.consumers = append(w.consumers, c)
}

func (w *world) Consumers(_ context.Context, ids ...fsm.QueueID) []stats.Consumer {
	return slices.DeleteFunc(slices.Clone(w.consumers), func(c stats.Consumer) bool { return len(ids) > 0 && !slices.Contains(ids, c.Of) })
}

// TestConsumers: a consumer says which timeout its next delivery has, and from
// whom; users see those of the vhosts that they may see.
func TestConsumers(t *testing.T) {
	w := newWorld(t)
	w.defaults = catalog.Defaults{ConsumerTimeout: 1_800_000}
	timeout := func(ms int64) *logpb.Field {
		return &logpb.Field{Name: "x-consumer-timeout", Value: &logpb.Value{Tag: 'l', Int: ms}}
	}
	w.queue("/", "own", false)
	w.queue("/", "argument", false, timeout(5000))
	w.queue("/", "policy", false, timeout(5000))
	w.queue("/", "local", true)
	w.queue("hidden", "q", false)
	w.check(want{"root", "PUT", "/api/policies/%2F/p", `{"pattern":"^policy$","definition":{"consumer-timeout":1000}}`, 201, ""})
	acks := api.Consumer{AckRequired: true, Node: "n2", Channel: []any{}}
	is := func(change func(*stats.Consumer)) stats.Consumer {
		c := stats.Consumer{Consumer: acks}
		change(&c)
		return c
	}
	w.serve("hidden", "q", is(func(c *stats.Consumer) { c.Tag, c.Timeout = "node", 1_800_000 }))
	w.serve("/", "own", is(func(c *stats.Consumer) { c.Tag, c.Timeout, c.OwnTimeout, c.Priority = "b", 0, true, -1 }))
	w.serve("/", "own", is(func(c *stats.Consumer) { c.Tag, c.Timeout, c.AckRequired = "a", -1, false }))
	w.serve("/", "argument", is(func(c *stats.Consumer) { c.Tag, c.Timeout, c.TimedOut, c.LateAcksTotal = "argument", 5000, 2, 3 }))
	w.serve("/", "policy", is(func(c *stats.Consumer) { c.Tag, c.Timeout = "policy", 1000 }))
	w.serve("/", "local", is(func(c *stats.Consumer) { c.Tag, c.Timeout = "local", -1 }))
	w.consumers = append(w.consumers, stats.Consumer{Of: fsm.QueueID(1 << 40)}) // of a queue that is gone here

	slash := "/ argument argument queue 5000 5000 map[] 2 3\n" +
		"/ local local none -1 0 map[] 0 0\n" +
		"/ own a none -1 0 map[] 0 0\n" +
		"/ own b consumer 0 0 map[x-consumer-timeout:0 x-priority:-1] 0 0\n" +
		"/ policy policy policy 1000 1000 map[] 0 0\n"
	hidden := "hidden q node node 1800000 1800000 map[] 0 0\n"
	for _, x := range []struct{ user, path, want string }{
		{"mona", "/api/consumers", slash + hidden},
		{"maggie", "/api/consumers", slash},
		{"root", "/api/consumers/%2F", slash},
		{"mona", "/api/consumers/hidden", hidden},
	} {
		var all []api.Consumer
		out := w.request(x.user, "GET", x.path, "")
		if err := json.Unmarshal(out.Body.Bytes(), &all); err != nil || out.Code != 200 {
			t.Fatalf("%s: %d, %v", x.path, out.Code, err)
		}
		var got strings.Builder
		for _, c := range all {
			fmt.Fprintln(&got, c.Queue.VHost, c.Queue.Name, c.Tag, c.TimeoutSource, c.Timeout, c.ConsumerTimeout, c.Arguments, c.TimedOut, c.LateAcksTotal)
		}
		if got.String() != x.want {
			t.Errorf("%s sees in %s\n%swant\n%s", x.user, x.path, got.String(), x.want)
		}
	}
	w.check(
		want{"maggie", "GET", "/api/consumers/hidden", "", 404, notThere},
		want{"maggie", "GET", "/api/consumers/none", "", 404, notThere},
		want{"maggie", "GET", "/api/queues/%2F/none/consumers", "", 404, notThere},
		want{"maggie", "GET", "/api/queues/hidden/q/consumers", "", 404, notThere},
		want{"maggie", "GET", "/api/queues/%2F/own/consumers?columns=consumer_tag", "", 200, `[{"consumer_tag":"a"},{"consumer_tag":"b"}]`},
		want{"nobody", "GET", "/api/consumers", "", 401, "…"},
		want{"mona", "GET", "/api/consumers?sort=timed_out&sort_reverse=true&columns=consumer_tag&page=1&page_size=1", "", 200, `…"items":[{"consumer_tag":"argument"}]`},
	)
}

func (w *world) Timeouts(context.Context) []stats.Timeout { return w.timeouts }

// TestTimeouts: users see the timeouts of the vhosts that they may see, the newest first, and those of
// a queue under its path, unless they were those of a former one of this name.
func TestTimeouts(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	q, _ := w.View().Queue("/", "q")
	late := func(of fsm.QueueID, vhost, tag string) {
		w.timeouts = append(w.timeouts, stats.Timeout{Of: of, ConsumerTimeout: api.ConsumerTimeout{
			At: 5, Queue: api.QueueName{Name: "q", VHost: vhost}, Tag: tag, Channel: []any{}, Node: "n1", Leader: "n2", Messages: 2, HeldMS: 30, Timeout: 20, Action: "cancel",
		}})
	}
	late(q.ID, "/", "third")
	late(1<<40, "/", "second")
	late(1<<41, "hidden", "first")
	const tags = "?columns=consumer_tag"
	w.check(
		want{"maggie", "GET", "/api/queues/%2F/q/timeouts", "", 200, `[{"at":5,"queue":{"name":"q","vhost":"/"},"consumer_tag":"third","channel_details":[],"node":"n1","leader":"n2","messages":2,"held_ms":30,"timeout_ms":20,"action":"cancel"}]`},
		want{"maggie", "GET", "/api/quorate/timeouts" + tags, "", 200, `[{"consumer_tag":"third"},{"consumer_tag":"second"}]`},
		want{"mona", "GET", "/api/quorate/timeouts" + tags, "", 200, `[{"consumer_tag":"third"},{"consumer_tag":"second"},{"consumer_tag":"first"}]`},
		want{"root", "GET", "/api/quorate/timeouts/hidden" + tags, "", 200, `[{"consumer_tag":"first"}]`},
		want{"root", "GET", "/api/quorate/timeouts?page=2&page_size=2", "", 200, `…"total_count":3`},
		want{"maggie", "GET", "/api/quorate/timeouts/hidden", "", 404, notThere},
		want{"maggie", "GET", "/api/queues/hidden/q/timeouts", "", 404, notThere},
		want{"maggie", "GET", "/api/queues/%2F/none/timeouts", "", 404, notThere},
		want{"nobody", "GET", "/api/quorate/timeouts", "", 401, "…"},
	)
	w.timeouts = nil
	w.check(want{"root", "GET", "/api/quorate/timeouts", "", 200, "[]"})
}
