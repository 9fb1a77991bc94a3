package mgmt

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
	leader "github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

func (w *world) message(body string) Message {
	return Message{
		Peeked:     leader.Peeked{Message: fsm.Message{Payload: append(fsm.AppendPayloadHead(nil, "x", "k", nil), "as it came"...), Ready: 2}, Number: 7, Place: queue.Returned},
		Properties: &fsm.Table{Fields: []*logpb.Field{{Name: "priority", Value: &logpb.Value{Tag: 'l', Int: 3}}}},
		Body:       []byte(body),
	}
}

func (w *world) Take(_ context.Context, _, _, _ string, count int, outcome fsm.Outcome, admit func(int) error) ([]Message, error) {
	if outcome == fsm.Discard {
		return nil, fsm.Refuse(fsm.AccessRefused, "no")
	}
	if err := admit(count << 20); err != nil {
		return nil, err
	}
	w.settled += min(count, 2)
	return []Message{w.message("héllo"), w.message("\xff\x00")}[:min(count, 2)], nil
}

func (w *world) Peek(_ context.Context, _ *catalog.Queue, in queue.Place, after uint64, _ int) ([]Message, bool, error) {
	m := w.message("m")
	if in != queue.Deferred {
		return []Message{m}, true, nil
	}
	m.Place, m.Deferral, m.DueAt, m.Acquired = in, "step 4", 5000, 1
	return []Message{m}, after < m.Number, nil
}

// NameLocked: the token T is good.
func (w *world) NameLocked(_ *catalog.Queue, token string, c *logpb.Command) bool {
	return token == "T" || token == "lost"
}

// Command renews until 5000, at 1000, unless the lock is lost. Kicks, unparks, pauses and redrives are answered with
// results, one after the other. All that a Take names is taken.
func (w *world) Command(_ context.Context, _ *catalog.Queue, c ...*logpb.Command) (r []fsm.Result, err error) {
	w.commands = append(w.commands, c...)
	switch {
	case c[0].Take != nil:
		for _, c := range c {
			r = append(r, fsm.Result{Count: uint64(len(c.Take.Messages))})
		}
		return r, nil
	case c[0].Kick != nil || c[0].Unpark != nil || c[0].Pause != nil || c[0].Redrive != nil:
		n := w.results[0]
		w.results = w.results[1:]
		return []fsm.Result{{Count: n}}, nil
	case c[0].Renew != nil && c[0].Renew.Duration == 2000, c[0].Settle.GetReason() == "late":
		return []fsm.Result{{Code: fsm.NotFound}}, nil
	case c[0].Renew != nil:
		return []fsm.Result{{Count: 1, Until: 5000}}, nil
	}
	return []fsm.Result{{}}, nil
}

func (w *world) Now() fsm.Time { return 1000 }

// TestLocks: locks are renewed and deliveries settled by token. A token that is none
// and one whose lock is lost get the same answer.
func TestLocks(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	at := "/api/queues/%2F/q/locks/T/"
	bad := func(reason string) string { return `{"error":"bad_request","reason":"` + reason + `"}` }
	lost := failure("not_found", "no lock with this token")
	w.check(
		want{"root", "POST", at + "renew", `{}`, 200, `{"ok":true,"locked_until":5000,"remaining_ms":4000}`},
		want{"root", "POST", at + "renew", "", 200, `{"ok":true,"locked_until":5000,"remaining_ms":4000}`},
		want{"root", "POST", at + "renew", `{"duration":2000}`, 404, lost},
		want{"root", "POST", at + "renew", `{"duration":999}`, 400, bad("duration must be a whole number from 1000 to 43200000")},
		want{"root", "POST", at + "settle", `{"outcome":"dead-letter","reason":"r","description":"d"}`, 200, `{"ok":true}`},
		want{"root", "POST", at + "settle", `{"outcome":"ack","reason":"late"}`, 404, lost},
		want{"root", "POST", at + "settle", `{"outcome":"defer"}`, 400, bad("outcome must be one of ack, requeue, reject, dead-letter")},
		want{"root", "POST", at + "settle", `{}`, 400, "…key_missing,outcome"},
		want{"root", "POST", "/api/queues/%2F/q/locks/U/renew", `{}`, 404, lost},
		want{"root", "POST", "/api/queues/%2F/none/locks/T/renew", `{}`, 404, "…no queue"},
		want{"mona", "POST", at + "renew", `{}`, 401, "…Access refused."}, // sees the queue, and may not read it
	)
}

func TestMessages(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	get, peek := "/api/queues/%2F/q/get", "/api/queues/%2F/q/messages/peek"
	noQueue := `{"error":"not_found","reason":"queue_not_found"}`
	bad := func(reason string) string { return `{"error":"bad_request","reason":"` + reason + `"}` }
	first := `{"payload_bytes":6,"redelivered":false,"exchange":"x","routing_key":"k","message_count":2,"properties":{"priority":3},`
	w.check(
		want{"root", "POST", get, `{"count":"1","ackmode":"ack_requeue_true","encoding":"auto"}`, 200, `[` + first + `"payload":"héllo","payload_encoding":"string"}]`},
		want{"root", "POST", get, `{"count":1,"ackmode":"ack_requeue_false","encoding":"base64"}`, 200, `[` + first + `"payload":"aMOpbGxv","payload_encoding":"base64"}]`},
		want{"root", "POST", get, `{"count":1,"ackmode":"ack_requeue_true","encoding":"auto","truncate":1}`, 200, `[` + first + `"payload":"h","payload_encoding":"string"}]`},
		want{"root", "POST", get, `{"count":2,"ackmode":"reject_requeue_true","encoding":"auto"}`, 200, `…"payload":"/wA=","payload_encoding":"base64"`},
		want{"root", "POST", get, `{"count":0,"ackmode":"ack_requeue_true","encoding":"auto"}`, 200, `[]`},
		want{"root", "POST", get, `{}`, 400, bad("[{key_missing,count},{key_missing,ackmode},{key_missing,encoding}]")},
		want{"root", "POST", get, `{"count":-1,"ackmode":"ack_requeue_true","encoding":"auto"}`, 400, bad("count must be a whole number from 0")},
		want{"root", "POST", get, `{"count":1,"ackmode":"ack","encoding":"auto"}`, 400, "…ackmode must be one of"},
		want{"root", "POST", get, `{"count":1,"ackmode":"ack_requeue_true","encoding":"hex"}`, 400, bad("unsupported encoding: hex")},
		want{"root", "POST", get, `{"count":1,"ackmode":"reject_requeue_false","encoding":"auto"}`, 401, "…Access refused."},
		want{"root", "POST", "/api/queues/%2F/none/get", `{"count":1,"ackmode":"ack_requeue_true","encoding":"auto"}`, 404, noQueue},
		want{"root", "GET", peek, "", 200, `{"items":[{"number":7,"state":"ready","acquired_count":0,"delivery_count":0,"payload_bytes":1,"redelivered":false,"exchange":"x","routing_key":"k",` +
			`"message_count":2,"properties":{"priority":3},"payload":"m","payload_encoding":"string"}],"next":7}`},
		want{"mona", "GET", peek, "", 401, "…Access refused."}, // sees the queue, and may not read it
		want{"root", "GET", peek + "?state=dead", "", 400, bad("state must be one of ready, unacked, scheduled, delayed, deferred, parked")},
		want{"root", "GET", peek + "?after=x", "", 400, bad("after must be the number of a message")},
		want{"root", "GET", peek + "?limit=1001", "", 400, bad("limit must be a whole number from 1 to 1000")},
		want{"root", "GET", peek + "?truncate=-1", "", 400, bad("truncate must be a whole number from 0")},
		want{"root", "GET", "/api/queues/%2F/none/messages/peek", "", 404, noQueue},
		want{"maggie", "GET", "/api/queues/hidden/q/messages/peek", "", 404, notThere},
	)
}

// TestUnpark: parked messages become ready, as many as are parked or are asked for. A
// queue without any is asked for nothing, as it may be of a version without them.
func TestUnpark(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	const unpark = "/api/queues/%2F/q/unpark"
	asked := func(reason string, wantCounts ...uint64) {
		t.Helper()
		var counts []uint64
		for _, c := range w.commands {
			counts = append(counts, c.GetUnpark().GetCount())
		}
		if !slices.Equal(counts, wantCounts) {
			t.Errorf("%s: asked for %v, not %v", reason, counts, wantCounts)
		}
		w.commands = nil
	}
	w.check(want{"root", "POST", unpark, "", 200, `{"messages":0}`}, want{"root", "POST", unpark, `{"count":3}`, 200, `{"messages":0}`})
	asked("nothing is parked")
	w.stats["q"] = stats.Queue{QueueStats: api.QueueStats{Parked: 7}}
	w.results = []uint64{5, 2}
	w.check(want{"root", "POST", unpark, "", 200, `{"messages":7}`})
	asked("all, and the queue takes 5 at once", 7, 2)
	w.results = []uint64{7}
	w.check(want{"root", "POST", unpark, `{"count":9}`, 200, `{"messages":7}`})
	asked("more than there are", 7)
	w.results = []uint64{3}
	w.check(
		want{"root", "POST", unpark, `{"count":3}`, 200, `{"messages":3}`},
		want{"root", "POST", unpark, `{"count":-1}`, 400, `{"error":"bad_request","reason":"count must be a whole number from 0"}`},
		want{"mona", "POST", unpark, "", 401, "…Access refused."},
		want{"root", "POST", "/api/queues/%2F/none/unpark", "", 404, `{"error":"not_found","reason":"queue_not_found"}`},
	)
	asked("so many", 3)
}

// TestPause: who may configure a queue pauses its consumers, says why and until when, and
// resumes them.
func TestPause(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	const pause, resume = "/api/queues/%2F/q/pause", "/api/queues/%2F/q/resume"
	bad := func(reason string) string { return `{"error":"bad_request","reason":"` + reason + `"}` }
	const noTime = "until must be a time to come, in ms since the epoch, or for a time in ms from 1; not both"
	w.results = []uint64{1, 0, 0, 0, 1}
	w.check(
		want{"root", "POST", pause, "", 200, `{"changed":true}`},
		want{"root", "POST", pause, `{"reason":"it burns","for":500}`, 200, `{"changed":false}`},
		want{"root", "POST", pause, `{"until":1700}`, 200, `{"changed":false}`},
		want{"root", "POST", pause, `{"until":"1700"}`, 200, `{"changed":false}`},
		want{"root", "POST", resume, "", 200, `{"changed":true}`},
	)
	var asked []string
	for _, c := range w.commands {
		p := c.GetPause()
		asked = append(asked, fmt.Sprint(p.By, " ", p.Reason, " ", p.Until, " ", p.Resume))
	}
	if want := []string{"root  0 false", "root it burns 1500 false", "root  1700 false", "root  1700 false", "  0 true"}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
	w.commands = nil
	for _, body := range []string{`{"for":0}`, `{"for":-1}`, `{"for":1.5}`, `{"for":"x"}`, `{"until":1000}`, `{"until":0}`, `{"for":1,"until":2000}`, `{"for":9223372036854775807}`, `{"until":9223372036854775807}`, `{"until":99999999999999999999}`} {
		w.check(want{"root", "POST", pause, body, 400, bad(noTime)})
	}
	w.check(
		want{"root", "POST", pause, `{"reason":7}`, 400, "…a string"},
		want{"root", "POST", pause, `{"reason":"` + strings.Repeat("x", 256) + `"}`, 400, bad("reason must have at most 255 bytes")},
		want{"root", "POST", pause, "[]", 400, bad("invalid payload: the request body is not a JSON object")},
		want{"mona", "POST", pause, "", 401, "…Access refused."},
		want{"mona", "POST", resume, "", 401, "…Access refused."},
		want{"root", "POST", "/api/queues/%2F/none/pause", "", 404, `{"error":"not_found","reason":"queue_not_found"}`},
		want{"root", "POST", "/api/queues/%2F/none/resume", "", 404, `{"error":"not_found","reason":"queue_not_found"}`},
	)
	if len(w.commands) > 0 {
		t.Errorf("%v were sent", w.commands)
	}
}

// TestRetries: delayed messages are retried at once, as many as wait or are asked
// for, in as many commands as it takes; deferred ones are listed.
func TestRetries(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	kick, deferred := "/api/queues/%2F/q/kick", "/api/queues/%2F/q/deferred"
	kicks := func(reason string, wantCounts ...uint64) {
		t.Helper()
		var counts []uint64
		for _, c := range w.commands {
			counts = append(counts, c.GetKick().GetCount())
		}
		if !slices.Equal(counts, wantCounts) {
			t.Errorf("%s: kicks of %v, not %v", reason, counts, wantCounts)
		}
		w.commands = nil
	}
	bad := func(reason string) string { return `{"error":"bad_request","reason":"` + reason + `"}` }
	w.check(want{"root", "POST", kick, "", 200, `{"messages":0}`})
	kicks("nothing waits")
	w.stats["q"] = stats.Queue{QueueStats: api.QueueStats{DelayedRetry: 7}}
	w.results = []uint64{5, 2}
	w.check(want{"root", "POST", kick, "", 200, `{"messages":7}`})
	kicks("all, and the queue takes 5 at once", 7, 2)
	w.results = []uint64{1, 0}
	w.check(want{"root", "POST", kick, `{"count":3}`, 200, `{"messages":1}`})
	kicks("more than there are", 3, 2)
	w.check(
		want{"root", "POST", kick, `{"count":-1}`, 400, bad("count must be a whole number from 0")},
		want{"mona", "POST", kick, "", 401, "…Access refused."},
		want{"root", "POST", "/api/queues/%2F/none/kick", "", 404, `{"error":"not_found","reason":"queue_not_found"}`},
		want{"root", "GET", deferred, "", 200, `{"items":[{"number":7,"deferral_token":"step 4","due_at":5000,"acquired_count":1,"delivery_count":0,"routing_key":"k","bytes":1}],"next":7}`},
		want{"root", "GET", deferred + "?after=7&limit=1", "", 200, `…"next":0}`},
		want{"root", "GET", deferred + "?after=x", "", 400, bad("after must be the number of a message")},
		want{"root", "GET", deferred + "?limit=0", "", 400, bad("limit must be a whole number from 1 to 1000")},
		want{"mona", "GET", deferred, "", 401, "…Access refused."},
	)
}

// GroupsAfter: there are two groups, and one is held.
func (w *world) GroupsAfter(_ context.Context, _ *catalog.Queue, after string, limit int) (api.GroupPage, error) {
	all := []api.Group{
		{ID: "a", Held: true, ConsumerTag: "worker", Session: "n1/7/3", LockedUntil: 5000, Remaining: 4000, Messages: 2, Unacknowledged: 1, OldestAt: 900},
		{ID: "b\xff", HasState: true, StateBytes: 12, StateUntil: 6000},
	}
	page := api.GroupPage{Items: []api.Group{}}
	for _, g := range all {
		if g.ID > after && len(page.Items) < limit {
			page.Items = append(page.Items, g)
		}
	}
	if limit == 1 {
		page.Next = "YQ"
	}
	return page, nil
}

// TestMessageGroups: groups are listed by pages, for those who may read the queue.
func TestMessageGroups(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	groups := "/api/queues/%2F/q/groups"
	a := `{"id":"a","held":true,"consumer_tag":"worker","session":"n1/7/3","locked_until":5000,"remaining_ms":4000,"messages":2,"messages_unacknowledged":1,"oldest":900,"has_state":false,"state_bytes":0}`
	b := `{"id":"b\ufffd","held":false,"messages":0,"messages_unacknowledged":0,"has_state":true,"state_bytes":12,"state_until":6000}`
	bad := func(reason string) string { return `{"error":"bad_request","reason":"` + reason + `"}` }
	w.check(
		want{"root", "GET", groups, "", 200, `{"items":[` + a + `,` + b + `],"next":""}`},
		want{"root", "GET", groups + "?limit=1", "", 200, `{"items":[` + a + `],"next":"YQ"}`},
		want{"root", "GET", groups + "?after=YQ", "", 200, `{"items":[` + b + `],"next":""}`},
		want{"root", "GET", groups + "?after=!", "", 400, bad("after must be the value next of a page")},
		want{"root", "GET", groups + "?limit=0", "", 400, bad("limit must be a whole number from 1 to 1000")},
		want{"root", "GET", "/api/queues/%2F/none/groups", "", 404, `{"error":"not_found","reason":"queue_not_found"}`},
		want{"mona", "GET", groups, "", 401, "…Access refused."}, // sees the queue, and may not read it
	)
}
