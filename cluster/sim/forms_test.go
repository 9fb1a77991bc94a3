package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Azure/go-amqp"
	rabbit "github.com/rabbitmq/amqp091-go"
)

// said is what a message says, in either protocol.
type said struct {
	headers   map[string]any // names that begin with x- are annotations in AMQP 1.0
	id, group string
	ttl       time.Duration
}

// fromNow is a time: a timestamp in AMQP 1.0, a number of milliseconds in 0-9-1.
type fromNow time.Duration

// publisher publishes by one protocol, and returns the outcome: "ok", "no", or why the message was refused.
type publisher func(exchange, key, body string, m said) string

func isTime(v any) bool { _, is := v.(fromNow); return is }

func timeOf(v any) time.Time { return time.Now().Add(time.Duration(v.(fromNow))) }

// publishers returns a client of each protocol at a node.
func (w *world) publishers(ctx context.Context, t *testing.T, node string) map[string]publisher {
	t.Helper()
	anonymous, err := w.dial10(ctx, t, "both", node).NewSender(ctx, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]publisher{
		"0-9-1": func(exchange, key, body string, m said) string {
			conn, ch, err := w.connect(ctx, w.dialer("both"), node)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := ch.Confirm(false); err != nil {
				t.Fatal(err)
			}
			closed := ch.NotifyClose(make(chan *rabbit.Error, 1))
			p := rabbit.Publishing{Headers: rabbit.Table{}, MessageId: m.id, Body: []byte(body)}
			for name, v := range m.headers {
				if p.Headers[name] = v; isTime(v) {
					p.Headers[name] = timeOf(v).UnixMilli()
				}
			}
			if m.group != "" {
				p.Headers["x-group-id"] = m.group
			}
			if m.ttl > 0 {
				p.Expiration = fmt.Sprint(m.ttl.Milliseconds())
			}
			c, err := ch.PublishWithDeferredConfirm(exchange, key, false, false, p)
			if err != nil {
				t.Fatal(err)
			}
			select {
			case <-c.Done():
			case e := <-closed:
				return strings.TrimPrefix(e.Reason, "PRECONDITION_FAILED - ")
			}
			if !c.Acked() {
				return "no"
			}
			return "ok"
		},
		"1.0": func(exchange, key, body string, m said) string {
			to := "/queues/" + key
			if exchange != "" {
				to = "/exchanges/" + exchange + "/" + key
			}
			p := amqp.NewMessage([]byte(body))
			p.Properties = &amqp.MessageProperties{To: &to}
			p.Annotations, p.ApplicationProperties = amqp.Annotations{}, map[string]any{}
			for name, v := range m.headers {
				if isTime(v) {
					v = timeOf(v)
				}
				if strings.HasPrefix(name, "x-") {
					p.Annotations[name] = v
				} else {
					p.ApplicationProperties[name] = v
				}
			}
			if m.group != "" {
				p.Properties.GroupID = &m.group
			}
			if m.id != "" {
				p.Properties.MessageID = m.id
			}
			if m.ttl > 0 {
				p.Header = &amqp.MessageHeader{TTL: m.ttl}
			}
			err, refused := anonymous.Send(ctx, p, nil), new(amqp.Error)
			switch {
			case err == nil:
				return "ok"
			case !errors.As(err, &refused):
				t.Fatal(err)
			case strings.HasPrefix(refused.Description, "invalid "):
				return refused.Description
			}
			return "no"
		},
	}
}

// consumed declares things, and counts what has come to queues.
type consumed struct {
	t      *testing.T
	ch     *rabbit.Channel
	queues []string
}

func (x *consumed) must(err error) {
	x.t.Helper()
	if err != nil {
		x.t.Fatal(err)
	}
}

func (x *consumed) exchange(name, kind string, arguments rabbit.Table) {
	x.must(x.ch.ExchangeDeclare(name, kind, true, false, false, false, arguments))
}

func (x *consumed) queue(name string, arguments rabbit.Table) {
	all := rabbit.Table{"x-queue-type": "quorum"}
	maps.Copy(all, arguments)
	_, err := x.ch.QueueDeclare(name, true, false, false, false, all)
	x.must(err)
	x.queues = append(x.queues, name)
}

func (x *consumed) bind(queue, key, exchange string, arguments rabbit.Table) {
	x.must(x.ch.QueueBind(queue, key, exchange, false, arguments))
}

// ready names the queues that have a ready message, once for each.
func (x *consumed) ready() (in []string) {
	for _, name := range x.queues {
		q, err := x.ch.QueueDeclarePassive(name, true, false, false, false, nil)
		x.must(err)
		in = append(in, slices.Repeat([]string{name}, q.Messages)...)
	}
	return in
}

func (x *consumed) purge() {
	for _, name := range x.queues {
		_, err := x.ch.QueuePurge(name, false)
		x.must(err)
	}
}

// TestBothProtocolsSay has messages say the same in both protocols: exchanges, delays, groups and dead letters
// take it for the same.
func TestBothProtocolsSay(t *testing.T) {
	inWorld(t, func(ctx context.Context, t *testing.T, w *world) {
		conn, ch, err := w.connect(ctx, w.dialer("declarer"), w.names...)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		x := &consumed{t: t, ch: ch}
		x.exchange("by-headers", "headers", nil)
		x.exchange("dead", "headers", nil)
		x.exchange("later", "x-delayed-message", rabbit.Table{"x-delayed-type": "direct"})
		x.queue("red", nil)
		x.queue("marked", nil)
		x.queue("dead", nil)
		x.queue("delayed", nil)
		x.queue("dying", rabbit.Table{"x-dead-letter-exchange": "dead", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"})
		x.queue("dying-once", rabbit.Table{"x-dead-letter-exchange": "dead"})
		x.queue("dying-on", rabbit.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "forwards"})
		x.queue("grouped", rabbit.Table{"x-message-groups": true, "x-group-required": true})
		x.queue("once", rabbit.Table{"x-dedup-window": 60_000})
		x.queue("forwards", rabbit.Table{"x-forward-to-exchange": "by-headers"})
		x.bind("red", "", "by-headers", rabbit.Table{"x-match": "all", "colour": "red"})
		x.bind("marked", "", "by-headers", rabbit.Table{"x-match": "all-with-x", "x-mark": int64(5)})
		x.bind("dead", "", "dead", rabbit.Table{"x-match": "all-with-x", "colour": "red", "x-first-death-reason": "expired"})
		x.bind("delayed", "k", "later", nil)

		for protocol, publish := range w.publishers(ctx, t, w.names[1]) {
			for name, c := range map[string]struct {
				exchange, key string
				m             said
				outcome       string
				in            []string // queues in which it is
				after         time.Duration
			}{
				"colour":             {"by-headers", "", said{headers: map[string]any{"colour": "red"}}, "ok", []string{"red"}, 0},
				"another colour":     {"by-headers", "", said{headers: map[string]any{"colour": "blue"}}, "ok", nil, 0},
				"x- counts if asked": {"by-headers", "", said{headers: map[string]any{"x-mark": int64(5)}}, "ok", []string{"marked"}, 0},
				"died":               {"", "dying", said{headers: map[string]any{"colour": "red"}, ttl: time.Second}, "ok", []string{"dead"}, time.Second},
				"died, sent once":    {"", "dying-once", said{headers: map[string]any{"colour": "red"}, ttl: time.Second}, "ok", []string{"dead"}, time.Second},
				"died, forwarded":    {"", "dying-on", said{headers: map[string]any{"colour": "red"}, ttl: time.Second}, "ok", []string{"red"}, time.Second},
				"died, of no colour": {"", "dying", said{ttl: time.Second}, "ok", nil, time.Second},
				"delay":              {"", "red", said{headers: map[string]any{"x-opt-delivery-delay": int64(5000)}}, "ok", []string{"red"}, 5 * time.Second},
				"time":               {"", "red", said{headers: map[string]any{"x-opt-delivery-time": fromNow(time.Minute)}}, "ok", []string{"red"}, time.Minute},
				"delayed exchange":   {"later", "k", said{headers: map[string]any{"x-delay": int64(3000)}}, "ok", []string{"delayed"}, 3 * time.Second},
				"too long a delay":   {"later", "k", said{headers: map[string]any{"x-delay": int64(1 << 50)}}, "invalid x-delay '1125899906842624': it must be at most 315360000000", nil, 0},
				"no number":          {"", "red", said{headers: map[string]any{"x-opt-delivery-delay": "soon"}}, "invalid x-opt-delivery-delay 'soon': no_integer", nil, 0},
				"misspelled":         {"", "red", said{headers: map[string]any{"x-opt-delivery-dealy": int64(1)}}, "invalid x-opt-delivery-dealy: unknown header; did you mean x-opt-delivery-delay?", nil, 0},
				"group":              {"", "grouped", said{group: "g"}, "ok", []string{"grouped"}, 0},
				"group of its own":   {"", "grouped", said{headers: map[string]any{"x-group-id": "a"}}, "ok", []string{"grouped"}, 0},
				"without a group":    {"", "grouped", said{}, "no", nil, 0},
				"an id":              {"", "once", said{id: "id of " + protocol}, "ok", []string{"once"}, 0},
				"forwarded":          {"", "forwards", said{headers: map[string]any{"colour": "red"}}, "ok", []string{"red"}, 0},
			} {
				for range 2 { // what is said by an id is said once
					if got := publish(c.exchange, c.key, name, c.m); got != c.outcome {
						t.Errorf("%s: %s: %s, not %s", protocol, name, got, c.outcome)
					}
					if c.m.id == "" {
						break
					}
				}
				if c.after > 0 {
					_ = sleep(ctx, c.after-500*time.Millisecond) // its end is seen by what follows
					if in := x.ready(); len(in) > 0 && c.m.ttl == 0 {
						t.Errorf("%s: %s: too early in %v", protocol, name, in)
					}
				}
				_ = sleep(ctx, 2*time.Second)
				if in := x.ready(); !slices.Equal(in, c.in) {
					t.Errorf("%s: %s: in %v, not %v", protocol, name, in, c.in)
				}
				x.purge()
			}
		}
	})
}

// TestWay10 has a message of AMQP 1.0 wait at a delayed exchange, be forwarded, die of its age and be received
// at another node: what it carries is as it was, and its annotations say what has become of it.
func TestWay10(t *testing.T) {
	inWorld(t, func(ctx context.Context, t *testing.T, w *world) {
		conn, ch, err := w.connect(ctx, w.dialer("declarer"), w.names...)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		x := &consumed{t: t, ch: ch}
		x.exchange("later", "x-delayed-message", rabbit.Table{"x-delayed-type": "direct"})
		x.exchange("dead", "fanout", nil)
		x.queue("forwards", rabbit.Table{"x-forward-to-exchange": "", "x-forward-to-routing-key": "dying"})
		x.queue("dying", rabbit.Table{"x-dead-letter-exchange": "dead", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"})
		x.queue("dead", nil)
		x.bind("forwards", "k", "later", nil)
		x.bind("dead", "", "dead", nil)
		sender, err := w.dial10(ctx, t, "sender", w.names[0]).NewSender(ctx, "/exchanges/later/k", nil)
		if err != nil {
			t.Fatal(err)
		}
		receiver, err := w.dial10(ctx, t, "receiver", w.names[1]).NewReceiver(ctx, "/queues/dead", nil)
		if err != nil {
			t.Fatal(err)
		}
		subject, group, began := "subject", "group", time.Now()
		given := &amqp.Message{
			Header:                &amqp.MessageHeader{Durable: true, Priority: 7, TTL: 2 * time.Second},
			Annotations:           amqp.Annotations{"x-delay": int32(3000), "x-kept": uint8(1)},
			Properties:            &amqp.MessageProperties{MessageID: amqp.UUID{1, 2, 3}, Subject: &subject, GroupID: &group, UserID: []byte("guest")},
			ApplicationProperties: map[string]any{"n": uint8(5), "s": "text"},
			Data:                  [][]byte{[]byte("a"), []byte("b")},
			Footer:                amqp.Annotations{"f": int64(1)},
		}
		wrong, refused := amqp.NewMessage(nil), new(amqp.Error)
		wrong.Annotations = amqp.Annotations{"x-delay": "soon"}
		if err := sender.Send(ctx, wrong, nil); !errors.As(err, &refused) || refused.Condition != amqp.ErrCondPreconditionFailed || refused.Description != "invalid x-delay 'soon': no_integer" {
			t.Errorf("a wrong delay: %v", err)
		}
		if err := sender.Send(ctx, given, nil); err != nil { // the link lives
			t.Fatal(err)
		}
		m, err := receiver.Receive(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 5*time.Second || took > 8*time.Second {
			t.Errorf("it is there after %v", took)
		}
		carried := func(m *amqp.Message) []any {
			return []any{m.Properties, m.ApplicationProperties, m.Data, m.Footer}
		}
		if !reflect.DeepEqual(carried(m), carried(given)) {
			t.Errorf("it carries %+v", m)
		}
		if !m.Header.Durable || m.Header.Priority != 7 || m.Header.TTL != 0 {
			t.Errorf("its header is %+v", m.Header)
		}
		if a := m.Annotations; a["x-delay"] != int32(-3000) || a["x-kept"] != uint8(1) || a["x-first-death-queue"] != "dying" || a["x-first-death-reason"] != "expired" {
			t.Errorf("its annotations are %v", a)
		}
	})
}
