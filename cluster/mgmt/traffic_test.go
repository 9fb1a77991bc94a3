package mgmt

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// always is a cluster that has whatever is asked for.
var always = traffic.Exists{
	VHost: func(string) bool { return true }, Exchange: func(traffic.Exchange) bool { return true }, Queue: func(fsm.QueueID) bool { return true },
}

// count makes a client of a vhost publish, take and acknowledge, and takes the next sample.
func (w *world) count(vhost, exchange, queue string, published, acked int) {
	q, _ := w.View().Queue(vhost, queue)
	if w.table == nil {
		w.table, w.slot = traffic.NewTable(), 1000
	}
	ch := w.table.Open(vhost, traffic.AMQP091, nil)
	var t traffic.Tally
	for range published {
		t.Published(exchange, 1500, 1, true)
		t.Confirmed()
	}
	t.TakeQueue(traffic.QueueCounts{VHost: vhost, Queue: q.ID}, &traffic.Counts{
		traffic.Publish: uint64(published), traffic.Deliver: uint64(acked), traffic.Ack: uint64(acked),
	}, &traffic.Routes{})
	w.table.Add(ch, &t)
	w.table.Close(ch)
	w.slot++
	w.table.Sample(time.UnixMilli(traffic.TimeOf(w.slot)), []traffic.Length{{VHost: vhost, Queue: q.ID, Ready: uint64(published - acked)}}, always)
}

// mustJSON makes a request and decodes the answer.
func mustJSON[T any](w *world, user, path string) (v T) {
	w.t.Helper()
	answer := w.request(user, "GET", path, "")
	if err := json.Unmarshal(answer.Body.Bytes(), &v); err != nil || answer.Code != 200 {
		w.t.Fatalf("%s: %d %s: %v", path, answer.Code, answer.Body, err)
	}
	return v
}

// TestMessageStats: what clients do is counted for the overview, their vhost, the exchange and the
// queue, with rates, and with samples where a request asks for them.
func TestMessageStats(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	w.queue("/", "idle", false)
	w.queue("hidden", "h", false)
	for _, name := range []string{"q", "idle", "h"} {
		w.stats[name] = stats.Queue{QueueStats: api.QueueStats{Messages: 1}}
	}
	w.count("hidden", "", "h", 5, 0)
	q, _ := w.View().Queue("/", "q")
	w.table.Died("/", q.ID, 10, 5)
	w.count("/", "amq.direct", "q", 10, 0)
	w.count("/", "amq.direct", "q", 30, 20)

	type row struct {
		MessageStats map[string]any `json:"message_stats"`
		Ready        *api.Details   `json:"messages_ready_details"`
	}
	at := func(r row, name string) string {
		n, d := r.MessageStats[name], r.MessageStats[name+"_details"]
		if n == nil {
			return "none"
		}
		return fmt.Sprint(n, " ", d.(map[string]any)["rate"])
	}
	for path, want := range map[string]map[string]string{
		"/api/overview":                 {"publish": "45 6", "confirm": "45 6", "ack": "20 4", "deliver_get": "20 4", "get": "0 0", "publish_out": "none", "expired": "10 0", "dead_lettered": "5 0"},
		"/api/vhosts/%2F":               {"publish": "40 6", "deliver": "20 4", "expired": "10 0"},
		"/api/queues/%2F/q":             {"publish": "40 6", "ack": "20 4", "deliver_get": "20 4", "confirm": "none", "expired": "10 0", "dead_lettered": "5 0"},
		"/api/queues/%2F/idle":          {"publish": "none"},
		"/api/exchanges/%2F/amq.direct": {"publish_in": "40 6", "publish_out": "40 6", "publish": "none", "expired": "none"},
		"/api/exchanges/%2F/amq.topic":  {"publish_in": "none"},
	} {
		r := mustJSON[row](w, "mona", path)
		for name, text := range want {
			if got := at(r, name); got != text {
				t.Errorf("%s: %s is %s, want %s", path, name, got, text)
			}
		}
	}
	if r := mustJSON[row](w, "maggie", "/api/overview"); at(r, "publish") != "40 6" {
		t.Errorf("a user without the tag monitoring sees %v", r.MessageStats)
	}
	lists := mustJSON[[]row](w, "mona", "/api/queues?name=q&columns=message_stats.publish,messages_ready_details")
	if len(lists) != 1 || lists[0].MessageStats["publish"] != 40.0 || lists[0].Ready == nil || lists[0].Ready.Rate != 0 {
		t.Errorf("the list has %+v", lists)
	}
	if rows := mustJSON[[]row](w, "mona", "/api/queues?disable_stats=true"); rows[0].MessageStats != nil {
		t.Errorf("without stats there are %+v", rows[0])
	}
	var samples struct {
		MessageStats struct {
			Publish api.Details `json:"publish_details"`
			Get     api.Details `json:"get_details"`
		} `json:"message_stats"`
		Messages api.Details `json:"messages_details"`
	}
	samples.MessageStats.Publish.Rate = -1
	answer := w.request("mona", "GET", "/api/queues/%2F/q?msg_rates_age=10&msg_rates_incr=5&lengths_age=20&lengths_incr=10", "")
	if err := json.Unmarshal(answer.Body.Bytes(), &samples); err != nil {
		t.Fatal(err)
	}
	p := samples.MessageStats.Publish
	if fmt.Sprint(p.Samples) != fmt.Sprint([]api.Sample{{Value: 40, At: 5015000}, {Value: 10, At: 5010000}, {Value: 0, At: 5005000}}) || *p.Mean != 50.0/3 || *p.AvgRate != 4 {
		t.Errorf("samples of publish: %+v, %v, %v", p.Samples, *p.Mean, *p.AvgRate)
	}
	if m := samples.Messages; fmt.Sprint(m.Samples) != fmt.Sprint([]api.Sample{{Value: 10, At: 5015000}, {Value: 0, At: 5005000}, {Value: 0, At: 4995000}}) {
		t.Errorf("samples of messages: %+v", m.Samples)
	}
	empty := mustJSON[[]api.Queue](w, "mona", "/api/queues/%2F?name=idle&lengths_age=20&lengths_incr=10")
	if len(empty) != 1 || len(empty[0].ReadyDetails.Samples) != 3 || empty[0].ReadyDetails.Samples[2].Value != 0 {
		t.Errorf("a queue without messages: %+v", empty)
	}
	const ages = "msg_rates_age=10&msg_rates_incr=5"
	for _, path := range []string{"/api/queues?name=q&" + ages, "/api/exchanges?name=amq.direct&" + ages} {
		rows := mustJSON[[]row](w, "mona", path)
		if len(rows) == 0 {
			t.Fatalf("%s: nothing is listed", path)
		}
		counter := "publish_details"
		if rows[0].MessageStats[counter] == nil {
			counter = "publish_in_details"
		}
		if d, _ := rows[0].MessageStats[counter].(map[string]any); d == nil || len(d["samples"].([]any)) != 3 || d["avg_rate"] != 4.0 {
			t.Errorf("%s: %v", path, d)
		}
	}
	for _, query := range []string{"", "?msg_rates_age=10", "?msg_rates_age=x&msg_rates_incr=5", "?msg_rates_age=-1&msg_rates_incr=5"} {
		if r := mustJSON[row](w, "mona", "/api/queues/%2F/q"+query); r.MessageStats["publish_details"].(map[string]any)["samples"] != nil {
			t.Errorf("%q: there are samples", query)
		}
	}
}

// TestPairs: one queue, exchange and channel say which others they have to do with; lists do not.
func TestPairs(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	w.stats["q"] = stats.Queue{QueueStats: api.QueueStats{Messages: 1}}
	q, _ := w.View().Queue("/", "q")
	w.table = traffic.NewTable()
	w.channels = []api.Channel{{Name: "a (2)", Number: 2, User: "maggie", VHost: "/"}}
	ch := w.table.Open("/", traffic.AMQP091, func() *peerpb.ConsumingSession {
		return &peerpb.ConsumingSession{Connection: "a", Channel: 2, User: "maggie", PeerHost: "::1", PeerPort: 9}
	})
	for slot := range int64(2) {
		var more traffic.Tally
		var routes traffic.Routes
		for range 10 {
			more.Published("amq.direct", 1500, 1, true)
			routes.Count("amq.direct")
		}
		more.TakeQueue(traffic.QueueCounts{VHost: "/", Queue: q.ID}, &traffic.Counts{traffic.Publish: 10, traffic.Deliver: 5}, &routes)
		w.table.Add(ch, &more)
		w.slot = 1000 + slot
		w.table.Sample(time.UnixMilli(traffic.TimeOf(w.slot)), nil, always)
	}
	const from = `"channel_details":{"name":"a (2)","number":2,"connection_name":"a","node":"n1","peer_host":"::1","peer_port":9,"user":"maggie"}`
	const direct, to = `"exchange":{"name":"amq.direct","vhost":"/"}`, `"queue":{"name":"q","vhost":"/"}`
	const stats = `"stats":{"publish":20,"publish_details":{"rate":2}}`
	for path, want := range map[string][]string{
		"/api/queues/%2F/q":              {`"incoming":[{` + direct + `,` + stats + `}]`, `"deliveries":[{` + from + `,"stats":{"ack":0,`, `"deliver":10,"deliver_details":{"rate":1}`, `"publishers":1`},
		"/api/exchanges/%2F/amq.direct":  {`"incoming":[{` + from + `,` + stats + `}]`, `"outgoing":[{` + to + `,` + stats + `}]`},
		"/api/exchanges/%2F/amq.topic":   {`"incoming":[]`, `"outgoing":[]`},
		"/api/channels/a%20%282%29":      {`"publishes":[{` + direct + `,` + stats + `}]`, `"deliveries":[{` + to + `,"stats":{"ack":0,`},
		"/api/queues?columns=publishers": {`[{"publishers":1}]`},
	} {
		answer := w.request("mona", "GET", path, "").Body.String()
		for _, text := range want {
			if !strings.Contains(answer, text) {
				t.Errorf("%s: %s is not in %s", path, text, answer)
			}
		}
	}
	if answer := w.request("mona", "GET", "/api/exchanges/%2F", "").Body.String(); strings.Contains(answer, "incoming") {
		t.Errorf("a list has pairs: %s", answer)
	}
	w.table.Close(ch)
	if answer := w.request("mona", "GET", "/api/queues/%2F/q", "").Body.String(); !strings.Contains(answer, `"deliveries":[]`) || !strings.Contains(answer, `"publishers":0`) {
		t.Errorf("after the channel: %s", answer)
	}
}
