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
	ch := w.table.Open("/", traffic.AMQP091, func() *peerpb.ConsumingSession {
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

// TestSessions: the sessions of a connection of AMQP 1.0 are shown, as their node tells them, to those who may see the
// connection; no other connection has some.
func TestSessions(t *testing.T) {
	w := newWorld(t)
	address := "/queues/q"
	w.clients = []api.Connection{
		{Name: "a", User: "maggie", VHost: "/", Node: "n1", Protocol: api.AMQP10, ContainerID: "me"}, {Name: "b", User: "root", VHost: "hidden", Protocol: api.AMQP10},
		{Name: "idle", User: "maggie", VHost: "/", Protocol: api.AMQP10}, {Name: "old", User: "maggie", VHost: "/", Protocol: "AMQP 0-9-1"},
	}
	w.sessions = map[string][]api.Session{"a": {
		{Channel: 1, HandleMax: 255, NextIncomingID: 2, IncomingWindow: 398, NextOutgoingID: 3, RemoteIncomingWindow: 100, RemoteOutgoingWindow: 99, Unsettled: 4,
			IncomingLinks: []api.IncomingLink{{Link: api.Link{Name: "in", DeliveryCount: 2, Credit: 168}, SettleMode: "mixed", MaxMessageSize: 9, Unconfirmed: 1}},
			OutgoingLinks: []api.OutgoingLink{{Link: api.Link{Handle: 1, Name: "out", DeliveryCount: 3, Credit: 7}, Address: &address, Queue: "q", MaxMessageSize: "unlimited", Filters: []api.Filter{}, TimedOut: true}}},
		{Channel: 3, IncomingLinks: []api.IncomingLink{}, OutgoingLinks: []api.OutgoingLink{}},
	}}
	const first = `{"channel_number":1,"handle_max":255,"next_incoming_id":2,"incoming_window":398,"next_outgoing_id":3,"remote_incoming_window":100,"remote_outgoing_window":99,"outgoing_unsettled_deliveries":4,` +
		`"incoming_links":[{"handle":0,"link_name":"in","delivery_count":2,"credit":168,"target_address":null,"snd_settle_mode":"mixed","max_message_size":9,"unconfirmed_messages":1}],` +
		`"outgoing_links":[{"handle":1,"link_name":"out","delivery_count":3,"credit":7,"source_address":"/queues/q","queue_name":"q","send_settled":false,"max_message_size":"unlimited","filter":[],"consumer_timeout":true}]}`
	const second = `{"channel_number":3,"handle_max":0,"next_incoming_id":0,"incoming_window":0,"next_outgoing_id":0,"remote_incoming_window":0,"remote_outgoing_window":0,"outgoing_unsettled_deliveries":0,"incoming_links":[],"outgoing_links":[]}`
	w.check(
		want{"maggie", "GET", "/api/connections/a/sessions", "", 200, "[" + first + "," + second + "]"},
		want{"mona", "GET", "/api/connections/idle/sessions", "", 200, "[]"},
		want{"maggie", "GET", "/api/connections/b/sessions", "", 404, notThere},
		want{"maggie", "GET", "/api/connections/gone/sessions", "", 404, notThere},
		want{"maggie", "GET", "/api/connections/old/sessions", "", 400, failure("bad_request", "connection does not use AMQP 1.0")},
		want{"nobody", "GET", "/api/connections/a/sessions", "", 401, failure("not_authorised", "Not management user")},
	)
	if c := mustJSON[api.Connection](w, "maggie", "/api/connections/a"); c.ContainerID != "me" || c.Protocol != "AMQP 1-0" {
		t.Errorf("%+v", c)
	}
	w.offline["n1"] = true
	if status := w.statusOf("maggie", "GET", "/api/connections/a/sessions", ""); status != 503 {
		t.Errorf("%d if the node does not answer", status)
	}
}
