package mgmt

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/proto/logpb"
)

func (w *world) Traffic(_ context.Context, q traffic.Query) *traffic.Report {
	q.Slot = w.slot
	report := traffic.NewReport(&q)
	if w.table != nil {
		report.Add("n1", w.table.Answer(&q))
	}
	return report
}

func (w *world) ForgetSamples(_ context.Context, node string) bool {
	if w.table != nil {
		w.table.ForgetSamples(time.Now())
	}
	return !w.offline[node]
}

func (w *world) Status() api.Status {
	return api.Status{Node: "n1", Cluster: "c", Listeners: w.listeners, Connections: len(w.clients), MaxConnections: 2, Logins: []api.LoginAttempts{{Protocol: "amqp091", Attempts: w.accepted + 1, Failed: 1, Succeeded: w.accepted}, {Protocol: "http", Attempts: 1, Succeeded: 1}}}
}

// TestOverview: everybody gets the sums of what they may see.
func TestOverview(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	w.queue("/", "silent", false)
	w.queue("hidden", "h", false)
	w.stats["q"] = stats.Queue{QueueStats: api.QueueStats{
		Messages: 10, Ready: 1, Unacknowledged: 2, Scheduled: 3, DeadLetters: 4, DeadLettersWaiting: 1, Bytes: 100, DeadLetterBytes: 40, Consumers: 5, Delayed: 6, DelayedBytes: 60,
	}}
	w.stats["h"] = stats.Queue{QueueStats: api.QueueStats{Messages: 1, DeadLetters: 1}}
	q := api.Totals{Unknown: 1, Messages: 10, Ready: 1, Unacknowledged: 2, Scheduled: 3, DeadLetters: 4, DeadWaiting: 1, Bytes: 100, DeadLetterBytes: 40, Delayed: 6, DelayedBytes: 60}
	both := q
	both.Messages, both.DeadLetters = 11, 5
	exchanges := 1 + len(w.View().Exchanges("/"))
	for user, want := range map[string]api.Overview{
		"maggie": {QueueTotals: api.QueueTotals{Totals: q}, ObjectTotals: api.ObjectTotals{Queues: 2, Exchanges: exchanges, Consumers: 5}},
		"mona":   {QueueTotals: api.QueueTotals{Totals: both}, ObjectTotals: api.ObjectTotals{Queues: 3, Exchanges: 2 * exchanges, Consumers: 5}},
	} {
		var o api.Overview
		if err := json.Unmarshal(w.request(user, "GET", "/api/overview", "").Body.Bytes(), &o); err != nil {
			t.Fatal(err)
		}
		if o.QueueTotals.Totals != want.QueueTotals.Totals || o.ObjectTotals != want.ObjectTotals {
			t.Errorf("%s sees %+v, want %+v", user, o, want)
		}
		if o.ClusterName != "c" || o.Node != "n1" || o.ProductVersion != "1.2.3" || o.RabbitMQVersion != "4.3.0" || len(o.ExchangeTypes) < 4 {
			t.Errorf("%s sees %+v", user, o)
		}
	}
	w.check(want{"", "GET", "/api/overview", "", 401, `…"not_authorized"`}, want{"root", "PUT", "/api/overview", "", 405, "…method_not_allowed"})

	var list []api.VHost
	if err := json.Unmarshal(w.request("mona", "GET", "/api/vhosts", "").Body.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 || *list[0].Totals != q || list[1].Messages != 1 {
		t.Errorf("vhosts: %+v", list)
	}
	w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteVhost{DeleteVhost: &logpb.DeleteVhost{Name: "hidden"}}})
	list = nil
	if err := json.Unmarshal(w.request("root", "GET", "/api/vhosts?disable_stats=true", "").Body.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 || list[0].Totals != nil {
		t.Errorf("without stats: %+v", list)
	}
}

// TestOverviewExpiry: the overview sums up which messages expire soon, over the queues that the user sees.
func TestOverviewExpiry(t *testing.T) {
	w := newWorld(t)
	expires := func(vhost, name string, next int64, within ...api.ExpiringWithin) {
		w.queue(vhost, name, false)
		f := stats.Queue{Expiring: within}
		if next != 0 {
			f.NextExpiryAt = &next
		}
		w.stats[name] = f
	}
	soon := api.Expiry{}
	check := func(user string, want string) {
		t.Helper()
		var o api.Overview
		if err := json.Unmarshal(w.request(user, "GET", "/api/overview", "").Body.Bytes(), &o); err != nil {
			t.Fatal(err)
		}
		soon = o.QueueTotals.Expiry
		next := int64(0)
		if soon.NextExpiryAt != nil {
			next = *soon.NextExpiryAt
		}
		if got := fmt.Sprint(next, soon.WithinMinute, soon.WithinHour); got != want {
			t.Errorf("%s sees %s, not %s", user, got, want)
		}
	}
	expires("/", "never", 0)
	check("maggie", "0 0 0")
	w.check(want{"maggie", "GET", "/api/overview", "", 200, `…"next_expiry_at":null,"messages_expiring_within_minute":0,"messages_expiring_within_hour":0`})
	expires("/", "late", 9_000_000)
	expires("/", "both", 5000, api.ExpiringWithin{WithinMS: 60_000, Messages: 2}, api.ExpiringWithin{WithinMS: 3_600_000, Messages: 5})
	expires("/", "soon", 4000, api.ExpiringWithin{WithinMS: 60_000, Messages: 7})
	expires("hidden", "h", 3000, api.ExpiringWithin{WithinMS: 60_000}, api.ExpiringWithin{WithinMS: 3_600_000, Messages: 1})
	check("maggie", "4000 9 12")
	check("mona", "3000 9 13")
}
