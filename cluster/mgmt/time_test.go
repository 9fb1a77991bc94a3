package mgmt

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// Ahead is what leaders say of the queues that the test has put into times.
func (w *world) Ahead(context.Context) *stats.Ahead {
	all := &stats.Ahead{At: 1000, Within: []uint64{60_000, 3_600_000, 86_400_000}, View: w.View(), Of: map[fsm.QueueID]*peerpb.QueueTime{}}
	for _, q := range w.View().Queues() {
		if x, ok := w.times[q.Name]; ok {
			all.Of[q.ID] = x
		}
	}
	return all
}

// TestNext: everybody gets the sums and the queues of what they may see, and how much is not known.
func TestNext(t *testing.T) {
	w := newWorld(t)
	w.times = map[string]*peerpb.QueueTime{}
	for _, name := range []string{"idle", "later", "sooner", "silent"} {
		w.queue("/", name, false)
	}
	w.queue("hidden", "h", false)
	w.times["idle"] = &peerpb.QueueTime{DeletedAt: 86_400_000 + 1001}
	w.times["later"] = &peerpb.QueueTime{NextAt: 30, Expire: []uint64{0, 1, 4}, Fire: []uint64{1, 1, 2}, DeletedAt: 3_600_000 + 1000}
	w.times["sooner"] = &peerpb.QueueTime{NextAt: 20, DeadLetters: true, Expire: []uint64{10, 20, 30}, TimeOut: []uint64{1, 2, 3}, Unlock: []uint64{0, 0, 5}, Retry: []uint64{7, 7, 7}, Return: []uint64{0, 6, 6}}
	w.times["h"] = &peerpb.QueueTime{NextAt: 10, Expire: []uint64{100, 100, 100}, AtLeast: true}
	next := api.Next{
		Minute: api.TimeCounts{Expire: 10, DeadLetter: 10, Fire: 1, TimeOut: 1, Retry: 7},
		Hour:   api.TimeCounts{Expire: 21, DeadLetter: 20, Fire: 1, TimeOut: 2, Retry: 7, Return: 6, Delete: 1},
		Day:    api.TimeCounts{Expire: 34, DeadLetter: 30, Fire: 2, TimeOut: 3, Unlock: 5, Retry: 7, Return: 6, Delete: 1},
	}
	all := next
	for _, c := range []*api.TimeCounts{&all.Minute, &all.Hour, &all.Day} {
		c.Expire += 100
	}
	read := func(user, path string, into any) {
		t.Helper()
		if a := w.request(user, "GET", path, ""); json.Unmarshal(a.Body.Bytes(), into) != nil {
			t.Fatalf("%s %s: %d %s", user, path, a.Code, a.Body)
		}
	}
	for user, want := range map[string]api.Time{
		"maggie": {CountedAt: 1000, Queues: 3, Unknown: 1, AtLeast: true, Next: next},
		"mona":   {CountedAt: 1000, Queues: 4, Unknown: 1, AtLeast: true, Next: all},
	} {
		var got api.Time
		read(user, "/api/quorate/time", &got)
		within := got.Within
		if len(within) != 3 || within[0] != (api.TimeWithin{WithinMS: 60_000, TimeCounts: want.Minute}) || within[2] != (api.TimeWithin{WithinMS: 86_400_000, TimeCounts: want.Day}) {
			t.Errorf("%s: %+v", user, within)
		}
		if got.CountedAt != want.CountedAt || got.Queues != want.Queues || got.Unknown != want.Unknown || got.AtLeast != want.AtLeast || got.Next != want.Next {
			t.Errorf("%s:\n%+v, want\n%+v", user, got, want)
		}
	}
	for path, want := range map[string]string{
		"/api/quorate/time/queues":                                    "sooner later",
		"/api/quorate/time/queues/%2F":                                "sooner later",
		"/api/quorate/time/queues?sort=day.fire&sort_reverse=true":    "later sooner",
		"/api/quorate/time/queues?name=late":                          "later",
		"/api/quorate/time/queues?sort=hour.expire&columns=name,hour": "later sooner",
	} {
		var rows []api.QueueTime
		read("maggie", path, &rows)
		names := ""
		for i, x := range rows {
			if names += x.Name; i < len(rows)-1 {
				names += " "
			}
		}
		if names != want {
			t.Errorf("%s: %q, want %q", path, names, want)
		}
	}
	var rows []api.QueueTime
	read("mona", "/api/quorate/time/queues", &rows)
	if len(rows) != 3 || rows[0].Name != "h" || !rows[0].AtLeast || rows[0].VHost != "hidden" || rows[1].NextAt != 20 || rows[1].Minute != (api.TimeCounts{Expire: 10, DeadLetter: 10, TimeOut: 1, Retry: 7}) {
		t.Errorf("%+v", rows)
	}
	delete(w.times, "h")
	w.times["silent"] = &peerpb.QueueTime{}
	var got api.Time
	read("maggie", "/api/quorate/time", &got)
	if got.AtLeast || got.Unknown != 0 || got.Queues != 4 {
		t.Errorf("all is known: %+v", got)
	}
}
