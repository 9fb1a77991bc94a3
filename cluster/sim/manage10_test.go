package sim

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/Azure/go-amqp"
	rabbit "github.com/rabbitmq/amqp091-go"
)

// manager10 is a management link pair.
type manager10 struct {
	t        *testing.T
	session  *amqp.Session
	sender   *amqp.Sender
	receiver *amqp.Receiver
	last     int
}

func (w *world) manage10(ctx context.Context, t *testing.T, name, node string) *manager10 {
	t.Helper()
	m := &manager10{t: t, session: w.dial10(ctx, t, name, node)}
	var err error
	properties, settled := map[string]any{"paired": true}, amqp.SenderSettleModeSettled.Ptr()
	if m.sender, err = m.session.NewSender(ctx, "/management", &amqp.SenderOptions{Name: "pair", Properties: properties, SettlementMode: settled}); err != nil {
		t.Fatal(err)
	}
	m.receiver, err = m.session.NewReceiver(ctx, "/management", &amqp.ReceiverOptions{Name: "pair", Properties: properties, RequestedSenderSettleMode: settled, Credit: 100})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait() // there is credit for answers
	return m
}

// do makes a request.
func (m *manager10) do(ctx context.Context, method, path string, body any) (status string, value any) {
	m.t.Helper()
	m.last++
	me, id := "$me", fmt.Sprint(m.last)
	if err := m.sender.Send(ctx, &amqp.Message{
		Value: body, Properties: &amqp.MessageProperties{ReplyTo: &me, To: &path, Subject: &method, MessageID: id},
	}, nil); err != nil {
		m.t.Fatal(err)
	}
	a, err := m.receiver.Receive(ctx, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	if a.Properties.CorrelationID != id {
		m.t.Fatalf("answer to %v, want %s", a.Properties.CorrelationID, id)
	}
	return *a.Properties.Subject, a.Value
}

// must makes a request that has this status; want is a part of the answer if that is a text.
func (m *manager10) must(ctx context.Context, method, path string, body any, status, want string) any {
	m.t.Helper()
	got, v := m.do(ctx, method, path, body)
	if text, _ := v.(string); got != status || !strings.Contains(text, want) {
		m.t.Fatalf("%s %s is answered %s %v, want %s %s", method, path, got, v, status, want)
	}
	return v
}

// mustLocations returns where bindings are.
func (m *manager10) mustLocations(ctx context.Context, query string) (locations []string) {
	m.t.Helper()
	list, ok := m.must(ctx, "GET", "/bindings?"+query, amqp.Null{}, "200", "").([]any)
	if !ok {
		m.t.Fatal("no list")
	}
	for _, b := range list {
		locations = append(locations, b.(map[string]any)["location"].(string))
	}
	return locations
}

// What one node is told all others know, a leader change in between changes nothing, and what cannot be decided is not
// available.
func TestManagement10(t *testing.T) {
	inWorld(t, func(ctx context.Context, t *testing.T, w *world) {
		type object = map[string]any
		null := amqp.Null{}
		a := w.manage10(ctx, t, "a", w.names[0])
		q := object{"durable": true, "arguments": object{"x-queue-type": "quorum", "x-max-length": int64(100)}}
		created := a.must(ctx, "PUT", "/queues/q%2F1", q, "201", "").(object)
		leader, _ := created["leader"].(string)
		if replicas := created["replicas"].([]string); len(replicas) != 3 || created["type"] != "quorum" || leader == "" || created["vhost"] != "/" {
			t.Fatalf("%v", created)
		}
		var others []string
		for _, name := range w.names {
			if name != leader {
				others = append(others, name)
			}
		}
		b, c := w.manage10(ctx, t, "b", others[0]), w.manage10(ctx, t, "c", others[1])
		b.must(ctx, "PUT", "/queues/q%2F1", q, "200", "")
		b.must(ctx, "PUT", "/queues/q%2F1", object{"durable": true}, "409", "inequivalent arg 'x-max-length' for queue 'q/1' in vhost '/'")
		b.must(ctx, "PUT", "/queues/other", object{"arguments": object{"x-max-length": "many"}}, "409", "x-max-length")
		b.must(ctx, "PUT", "/queues/amq.mine", object{}, "403", "queue name 'amq.mine' contains reserved prefix 'amq.*'")
		b.must(ctx, "PUT", "/exchanges/x", object{"type": "nosuch"}, "400", "unknown exchange type 'nosuch'")
		b.must(ctx, "PUT", "/exchanges/x", object{"type": "headers"}, "204", "")
		c.must(ctx, "PUT", "/exchanges/x", object{"type": "topic"}, "409", "inequivalent arg 'type'")
		c.must(ctx, "PUT", "/exchanges/", object{}, "403", "default exchange")
		c.must(ctx, "DELETE", "/exchanges/amq.direct", null, "403", "")
		b.must(ctx, "PUT", "/queues/mine", object{"exclusive": true}, "201", "")
		c.must(ctx, "PUT", "/queues/mine", object{"exclusive": true}, "400", "cannot obtain exclusive access")
		c.must(ctx, "DELETE", "/queues/mine", null, "400", "cannot obtain exclusive access")
		for _, arguments := range []object{nil, {"a": "b", "n": int64(1)}, {"a": "b", "n": int64(2)}} {
			b.must(ctx, "POST", "/bindings", object{"source": "x", "destination_queue": "q/1", "binding_key": "k", "arguments": arguments}, "204", "")
		}
		const query = "src=x&dstq=q%2F1&key=k"
		locations := c.mustLocations(ctx, query)
		if here := b.mustLocations(ctx, query); len(here) != 3 || !reflect.DeepEqual(here, locations) {
			t.Fatalf("%q at one node, %q at another", here, locations)
		}
		sender, err := b.session.NewSender(ctx, "/queues/q%2F1", nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			if err := sender.Send(ctx, amqp.NewMessage([]byte("x")), nil); err != nil {
				t.Fatal(err)
			}
		}

		w.crash(leader, false, 100)
		for { // while it is decided who leads
			status, v := b.do(ctx, "GET", "/queues/q%2F1", null)
			if status == "503" {
				continue
			}
			info := v.(object)
			if status != "200" || info["message_count"] != uint64(5) || info["leader"] == leader || len(info["replicas"].([]string)) != 3 {
				t.Fatalf("%s %v", status, v)
			}
			break
		}
		purged := c.must(ctx, "DELETE", "/queues/q%2F1/messages", null, "200", "")
		if !reflect.DeepEqual(purged, object{"message_count": uint64(5)}) {
			t.Errorf("purge is answered %v", purged)
		}
		go w.start(leader)
		if !w.awaitReady() {
			t.Fatal("not all nodes serve clients")
		}
		d := w.manage10(ctx, t, "d", leader)
		if now := d.mustLocations(ctx, query); !reflect.DeepEqual(now, locations) {
			t.Errorf("%q after a restart, %q before", now, locations)
		}
		d.must(ctx, "DELETE", locations[1], null, "204", "")
		if left := c.mustLocations(ctx, query); !reflect.DeepEqual(left, []string{locations[0], locations[2]}) {
			t.Errorf("%q are left of %q", left, locations)
		}
		d.must(ctx, "DELETE", "/queues/q%2F1", null, "200", "")
		c.must(ctx, "GET", "/queues/q%2F1", null, "404", "no queue 'q/1' in vhost '/'")

		w.crash(leader, false, 100)
		w.crash(others[1], false, 100)
		before := time.Now()
		b.must(ctx, "PUT", "/exchanges/late", object{}, "503", "Could not declare exchange 'late'")
		if waited := time.Since(before); waited > 20*time.Second {
			t.Errorf("answered after %s", waited)
		}
	})
}

// Queues that are there for a link, and replies, cross nodes and protocols; what is gone is gone at all nodes.
func TestDynamicNodes10(t *testing.T) {
	inWorld(t, func(ctx context.Context, t *testing.T, w *world) {
		here := w.dial10(ctx, t, "here", w.names[0])
		there := w.manage10(ctx, t, "there", w.names[1])
		own, err := here.NewReceiver(ctx, "", &amqp.ReceiverOptions{Name: "link", DynamicAddress: true, Credit: 5})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(own.Address(), "/queues/amq.dyn-here-link-") {
			t.Fatalf("address %q", own.Address())
		}
		relay, err := there.session.NewSender(ctx, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		send := func(address, body string) amqp.DeliveryState {
			t.Helper()
			m := amqp.NewMessage([]byte(body))
			m.Properties = &amqp.MessageProperties{To: &address}
			r, err := relay.SendWithReceipt(ctx, m, nil)
			if err != nil {
				t.Fatal(err)
			}
			state, err := r.Wait(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return state
		}
		mustReceive := func(r *amqp.Receiver, body string) {
			t.Helper()
			m, err := r.Receive(ctx, nil)
			if err != nil || string(m.GetData()) != body {
				t.Fatalf("received %v, %v, want %s", m, err, body)
			}
			if err := r.AcceptMessage(ctx, m); err != nil {
				t.Fatal(err)
			}
		}
		accepted, released := amqp.DeliveryState(&amqp.StateAccepted{}), amqp.DeliveryState(&amqp.StateReleased{})
		if s := send(own.Address(), "to a queue"); !reflect.DeepEqual(s, accepted) {
			t.Fatalf("%#v", s)
		}
		mustReceive(own, "to a queue")
		there.must(ctx, "GET", own.Address(), amqp.Null{}, "400", "cannot obtain exclusive access")
		if err := own.Close(ctx); err != nil {
			t.Fatal(err)
		}
		there.must(ctx, "GET", own.Address(), amqp.Null{}, "404", "no queue")
		if s := send(own.Address(), "to nobody"); !reflect.DeepEqual(s, released) {
			t.Fatalf("%#v", s)
		}

		volatile := &amqp.ReceiverOptions{
			DynamicAddress: true, SourceCapabilities: []string{"rabbitmq:volatile-queue"}, SourceExpiryPolicy: amqp.ExpiryPolicyLinkDetach,
			RequestedSenderSettleMode: amqp.SenderSettleModeSettled.Ptr(), Credit: 5,
		}
		requester, err := here.NewReceiver(ctx, "", volatile)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // it has credit
		if s := send(requester.Address(), "reply"); !reflect.DeepEqual(s, accepted) {
			t.Fatalf("%#v", s)
		}
		mustReceive(requester, "reply")
		conn, ch, err := w.connect(ctx, w.dialer("other"), w.names[2])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		// A responder of 0-9-1 reads the name that it replies to from the request.
		there.must(ctx, "PUT", "/queues/requests", map[string]any{}, "201", "")
		replyTo, requests := requester.Address(), "/queues/requests"
		ask := amqp.NewMessage([]byte("ask"))
		ask.Properties = &amqp.MessageProperties{To: &requests, ReplyTo: &replyTo}
		if err := relay.Send(ctx, ask, nil); err != nil {
			t.Fatal(err)
		}
		var request rabbit.Delivery
		for ok := false; !ok; {
			if request, ok, err = ch.Get("requests", true); err != nil {
				t.Fatal(err)
			}
		}
		if request.ReplyTo != strings.TrimPrefix(replyTo, "/queues/") {
			t.Errorf("reply-to %q, want that of %q", request.ReplyTo, replyTo)
		}
		if err := ch.PublishWithContext(ctx, "", request.ReplyTo, false, false, rabbit.Publishing{Body: []byte("of 0-9-1")}); err != nil {
			t.Fatal(err)
		}
		mustReceive(requester, "of 0-9-1")
		if err := requester.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if s := send(requester.Address(), "late"); !reflect.DeepEqual(s, released) {
			t.Fatalf("a reply to a link that is gone is %#v", s)
		}

		// A requester of 0-9-1 is answered by a responder of 1.0.
		replies, err := ch.Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := ch.PublishWithContext(ctx, "", "requests", false, false, rabbit.Publishing{ReplyTo: "amq.rabbitmq.reply-to", Body: []byte("ask")}); err != nil {
			t.Fatal(err)
		}
		responder, err := there.session.NewReceiver(ctx, requests, nil)
		if err != nil {
			t.Fatal(err)
		}
		asked, err := responder.Receive(ctx, nil)
		if err != nil || asked.Properties == nil || asked.Properties.ReplyTo == nil {
			t.Fatalf("request %+v, %v", asked, err)
		}
		if s := send(*asked.Properties.ReplyTo, "answer"); !reflect.DeepEqual(s, accepted) {
			t.Fatalf("%#v", s)
		}
		if d := <-replies; string(d.Body) != "answer" {
			t.Errorf("reply %q", d.Body)
		}
	})
}
