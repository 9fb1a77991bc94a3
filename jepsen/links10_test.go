package jepsen

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/Azure/go-amqp"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
)

// A client of AMQP 1.0 is listed by each node with its sessions and links, as they are, counted by its node as what it is,
// and can be told to go.
func TestListedLinks(t *testing.T) {
	t.Parallel()
	r := mustStartBrief(t, time.Minute, cluster.Options{})
	here, there := r.Nodes[0], r.Nodes[2]
	r.must(here.Call(r.ctx, "PUT", "/api/queues/%2F/q", map[string]any{"durable": true}, nil))
	c, err := amqp.Dial(r.ctx, here.URI(), &amqp.ConnOptions{ContainerID: "box", Properties: map[string]any{"connection_name": "mine"}})
	r.must(err)
	defer c.Close()
	s, err := c.NewSession(r.ctx, nil)
	r.must(err)
	sender, err := s.NewSender(r.ctx, "/queues/q", &amqp.SenderOptions{Name: "in"})
	r.must(err)
	for range 3 {
		r.must(sender.Send(r.ctx, amqp.NewMessage([]byte("m")), nil))
	}
	receiver, err := s.NewReceiver(r.ctx, "/queues/q", &amqp.ReceiverOptions{Name: "out", Credit: 10})
	r.must(err)
	m, err := receiver.Receive(r.ctx, nil)
	r.must(err)
	r.must(receiver.AcceptMessage(r.ctx, m))

	type link struct {
		Name      string  `json:"link_name"`
		Address   *string `json:"target_address"`
		Count     int     `json:"delivery_count"`
		Credit    int     `json:"credit"`
		Queue     string  `json:"queue_name"`
		Waiting   int     `json:"unconfirmed_messages"`
		Size      any     `json:"max_message_size"`
		IsSettled bool    `json:"send_settled"`
	}
	type session struct {
		Unsettled int    `json:"outgoing_unsettled_deliveries"`
		Incoming  []link `json:"incoming_links"`
		Outgoing  []link `json:"outgoing_links"`
	}
	var name string
	for _, n := range []*cluster.Node{here, there} {
		var all []struct {
			Name, Protocol, Node string
			Container            string `json:"container_id"`
			Given                string `json:"user_provided_name"`
			Channels             int
		}
		r.must(n.Call(r.ctx, "GET", "/api/connections", nil, &all))
		if len(all) != 1 || all[0].Protocol != "AMQP 1-0" || all[0].Container != "box" || all[0].Given != "mine" || all[0].Channels != 1 || all[0].Node != here.Name() {
			t.Fatalf("node %d: %+v", n.Number, all)
		}
		name = url.PathEscape(all[0].Name)
		var sessions []session
		r.must(await.Until(r.ctx, 20*time.Millisecond, "two deliveries to be left", func() (bool, error) {
			err := n.Call(r.ctx, "GET", "/api/connections/"+name+"/sessions", nil, &sessions)
			return err == nil && len(sessions) == 1 && sessions[0].Unsettled == 2, err
		}))
		in, out := sessions[0].Incoming, sessions[0].Outgoing
		if len(in) != 1 || in[0].Name != "in" || *in[0].Address != "/queues/q" || in[0].Count != 3 || in[0].Credit != 167 || in[0].Waiting != 0 {
			t.Errorf("node %d: %+v", n.Number, in)
		}
		if len(out) != 1 || out[0].Name != "out" || out[0].Queue != "q" || out[0].Count != 3 || out[0].Credit < 7 || out[0].Credit > 8 || out[0].Size != "unlimited" || out[0].IsSettled {
			t.Errorf("node %d: %+v", n.Number, out)
		}
		var channels, consumers []struct {
			Tag     string `json:"consumer_tag"`
			Credit  *int   `json:"link_credit"`
			Channel struct {
				Name       string
				Connection string `json:"connection_name"`
			} `json:"channel_details"`
		}
		r.must(n.Call(r.ctx, "GET", "/api/channels", nil, &channels))
		r.must(n.Call(r.ctx, "GET", "/api/consumers", nil, &consumers))
		if len(channels) != 0 || len(consumers) != 1 || consumers[0].Tag != "out" || consumers[0].Credit == nil || consumers[0].Channel.Connection != all[0].Name || consumers[0].Channel.Name != all[0].Name+" (0)" {
			t.Errorf("node %d: %d channels, %+v", n.Number, len(channels), consumers)
		}
	}
	for line, want := range map[string]float64{
		`rabbitmq_global_messages_received_total protocol="amqp10"`: 3, `rabbitmq_global_messages_acknowledged_total protocol="amqp10" queue_type="rabbit_quorum_queue"`: 1,
		`rabbitmq_global_messages_received_total protocol="amqp091"`: 0, `quorate_sessions`: 1, `rabbitmq_channels`: 0, `quorate_links direction="incoming"`: 1,
		`quorate_links direction="outgoing"`: 1, `quorate_protocol_connections protocol="amqp10"`: 1, `rabbitmq_auth_attempts_succeeded_total protocol="amqp10"`: 1,
	} {
		words := strings.Fields(line)
		if got, err := here.Metric(r.ctx, words[0], words[1:]...); err != nil || got != want {
			t.Errorf("%s is %v, want %v; %v", line, got, want, err)
		}
	}
	var overview struct {
		Listeners []struct {
			Protocol string
			Speaks   []string
		}
		Churn struct {
			Channels int `json:"channel_created"`
		} `json:"churn_rates"`
	}
	r.must(here.Call(r.ctx, "GET", "/api/overview", nil, &overview))
	for _, l := range overview.Listeners {
		if speaks := fmt.Sprint(l.Speaks); l.Protocol == "amqp" && speaks != "[AMQP 0-9-1 AMQP 1-0]" {
			t.Errorf("the listener speaks %s", speaks)
		}
	}
	if overview.Churn.Channels != 0 {
		t.Errorf("%d channels were opened", overview.Churn.Channels)
	}

	r.must(there.Call(r.ctx, "DELETE", "/api/connections/"+name, nil, nil))
	_, err = receiver.Receive(r.ctx, nil)
	for i := 0; err == nil && i < 10; i++ { // what came before
		_, err = receiver.Receive(r.ctx, nil)
	}
	var closed *amqp.ConnError
	if !errors.As(err, &closed) || closed.RemoteErr == nil || closed.RemoteErr.Condition != "amqp:connection:forced" {
		t.Errorf("the client is told %v", err)
	}
	r.must(await.Until(r.ctx, 20*time.Millisecond, "the connection to be gone", func() (bool, error) {
		status, _, err := there.Do(r.ctx, "GET", "/api/connections/"+name+"/sessions", nil)
		return status == 404, err
	}))
}
