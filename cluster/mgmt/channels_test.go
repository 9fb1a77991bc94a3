package mgmt

import (
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/proto/peerpb"
)

// TestChannels: channels are listed of all connections, one, or a vhost, to those who may see the
// connection, with what was counted there and their consumers.
func TestChannels(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	q, _ := w.View().Queue("/", "q")
	channel := func(connection, user, vhost string, number uint16) api.Channel {
		return api.Channel{Name: traffic.ChannelName(connection, number), Number: number, User: user, VHost: vhost, Connection: api.ConnectionDetails{Name: connection}}
	}
	w.clients = []api.Connection{{Name: "a", User: "maggie", VHost: "/"}, {Name: "b", User: "root", VHost: "hidden"}, {Name: "none", User: "maggie", VHost: "/"}}
	w.channels = []api.Channel{channel("a", "maggie", "/", 1), channel("a", "maggie", "/", 2), channel("b", "root", "hidden", 1)}
	w.consumers = []stats.Consumer{
		{Of: q.ID, Consumer: api.Consumer{Tag: "one", Channel: api.ChannelDetails{Name: "a (2)"}}},
		{Of: q.ID, Consumer: api.Consumer{Tag: "two", Channel: api.ChannelDetails{Name: "a (1)"}}},
	}
	w.table, w.slot = traffic.NewTable(), 1000
	ch := w.table.Open("/", func() *peerpb.ConsumingSession {
		return &peerpb.ConsumingSession{Connection: "a", Channel: 2, User: "mona", PeerHost: "::1", PeerPort: 9}
	})
	w.table.Add(ch, func() *traffic.Tally {
		var t traffic.Tally
		t.Published("x", 1500, 1, true)
		t.Confirmed()
		return &t
	}())
	for path, want := range map[string]map[string]int{
		"/api/channels":                  {"mona": 3, "maggie": 2, "polly": 0},
		"/api/vhosts/%2F/channels":       {"mona": 2, "maggie": 2},
		"/api/connections/a/channels":    {"mona": 2, "maggie": 2},
		"/api/connections/b/channels":    {"mona": 1},
		"/api/connections/none/channels": {"mona": 0, "maggie": 0},
	} {
		for user, n := range want {
			if got := mustJSON[[]api.Channel](w, user, path); len(got) != n {
				t.Errorf("%s sees %d channels at %s: %+v", user, len(got), path, got)
			}
		}
	}
	w.check(
		want{"maggie", "GET", "/api/connections/b/channels", "", 404, notThere},
		want{"mona", "GET", "/api/connections/gone/channels", "", 404, notThere},
		want{"maggie", "GET", "/api/vhosts/hidden/channels", "", 404, notThere},
		want{"maggie", "GET", "/api/channels/b%20%281%29", "", 404, notThere},
		want{"nobody", "GET", "/api/channels", "", 401, failure("not_authorised", "Not management user")},
	)
	one := mustJSON[api.Channel](w, "maggie", "/api/channels/a%20%282%29")
	if one.Number != 2 || one.MessageStats["publish"] != 1.0 || one.MessageStats["confirm"] != 1.0 || len(one.ConsumerDetails) != 1 || one.ConsumerDetails[0].Tag != "one" {
		t.Errorf("one channel: %+v", one)
	}
	if all := mustJSON[[]api.Channel](w, "maggie", "/api/channels?sort=number"); all[1].MessageStats["publish"] != 1.0 || all[0].MessageStats != nil || all[1].ConsumerDetails != nil {
		t.Errorf("in the list: %+v", all)
	}
}
