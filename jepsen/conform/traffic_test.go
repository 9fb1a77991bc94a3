package conform

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestTraffic(t *testing.T) { trafficRows.run(t) }

var trafficRows = suite{test: "TestTraffic", title: "Counts of what clients do", rows: []row{
	{id: "CN1", what: "messages published, returned, got, delivered, redelivered and acknowledged at different nodes are counted exactly, for the queue and the exchange", run: countsTraffic},
	{id: "CN2", what: "a channel is listed with its consumers, what it holds and waits for, and what it has done, until it is closed", run: listsChannels},
	{id: "CN3", what: "a connection has the rates of the bytes that it receives and sends, asked for at another node", long: true, run: ratesConnections},
}}

// countsTraffic uses a queue from two nodes, and asks the third.
func countsTraffic(t *T) {
	q, x := t.queue("counted"), t.exchange("counting", "fanout")
	t.must(t.ch().QueueBind(q, "", x, false, nil))
	for range 100 {
		t.send(x, "", body("m"))
	}
	for range 10 {
		t.must(t.mustGet(q).Ack(false))
	}
	ch := t.openAt(1)
	t.must(ch.Qos(90, 0, false))
	deliveries, err := ch.Consume(q, "", false, false, false, false, nil)
	t.must(err)
	var held []amqp.Delivery
	for range 90 {
		held = append(held, <-deliveries)
	}
	t.must(held[29].Ack(true))
	t.must(ch.Close())
	other := t.openAt(1)
	d, ok, err := other.Get(q, true)
	t.must(err)
	t.equal("got", ok, true)
	t.equal("redelivered", d.Redelivered, true)
	want := "publish 100 deliver 90 deliver_no_ack 0 get 10 get_no_ack 1 redeliver 1 ack 40 deliver_get 101"
	t.eventually("the counts are "+want, func() error {
		s, _ := t.http(http.MethodGet, "/api/queues/%2F/"+q, nil)["message_stats"].(map[string]any)
		got := fmt.Sprint("publish ", s["publish"], " deliver ", s["deliver"], " deliver_no_ack ", s["deliver_no_ack"], " get ", s["get"],
			" get_no_ack ", s["get_no_ack"], " redeliver ", s["redeliver"], " ack ", s["ack"], " deliver_get ", s["deliver_get"])
		if got != want {
			return fmt.Errorf("%s", got)
		}
		return nil
	})
	s, _ := t.http(http.MethodGet, "/api/exchanges/%2F/"+x, nil)["message_stats"].(map[string]any)
	t.equal("of the exchange", fmt.Sprint(s["publish_in"], s["publish_out"]), "100 100")
}

// listsChannels uses a channel at the first node, and asks the third.
func listsChannels(t *T) {
	q := t.queue("listed")
	t.publishN(q, 5)
	ch := t.open()
	t.must(ch.Qos(3, 0, false))
	t.must(ch.Confirm(false))
	deliveries, err := ch.Consume(q, "tag", false, false, false, false, nil)
	t.must(err)
	first := <-deliveries
	<-deliveries
	<-deliveries
	t.must(first.Ack(false))
	<-deliveries
	name := ""
	t.eventually("the channel is listed", func() error {
		name = ""
		for _, c := range t.list("/api/consumers/%2F") {
			if of, _ := c["queue"].(map[string]any); of["name"] == q {
				at, _ := c["channel_details"].(map[string]any)
				name, _ = at["name"].(string)
			}
		}
		if name == "" {
			return errors.New("its consumer is not")
		}
		one := t.http(http.MethodGet, "/api/channels/"+url.PathEscape(name), nil)
		s, _ := one["message_stats"].(map[string]any)
		got := fmt.Sprintln(one["consumer_count"], one["prefetch_count"], one["messages_unacknowledged"], one["confirm"], one["transactional"], one["state"], s["deliver"], s["ack"])
		if want := "1 3 3 true false running 4 1\n"; got != want {
			return fmt.Errorf("%s, want %s", got, want)
		}
		consumers, _ := one["consumer_details"].([]any)
		if len(consumers) != 1 {
			return fmt.Errorf("consumers: %v", consumers)
		}
		return nil
	})
	t.must(ch.Close())
	t.eventually("the channel is gone", func() error {
		for _, c := range t.list("/api/channels?columns=name") {
			if c["name"] == name {
				return errors.New("it is listed")
			}
		}
		return nil
	})
}

// ratesConnections publishes at the first node until its connection has rates, and asks the third.
func ratesConnections(t *T) {
	q := t.queue("rated")
	name := t.conn(0).LocalAddr().String() + " -> " + t.conn(0).RemoteAddr().String()
	t.eventually("the connection has rates", func() error {
		t.publish(q, body("m"))
		c := t.http(http.MethodGet, "/api/connections/"+url.PathEscape(name), nil)
		for _, key := range []string{"recv_oct_details", "send_oct_details"} {
			d, _ := c[key].(map[string]any)
			if rate, _ := d["rate"].(float64); rate <= 0 {
				return fmt.Errorf("%s: %v", key, c[key])
			}
		}
		return nil
	})
}
