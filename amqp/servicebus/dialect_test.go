package servicebus

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	client "github.com/Azure/go-amqp"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/servicebus/sas"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// Tokens give the rights of their rules on what their audience names (CB-6 to CB-10).
func TestTokens(t *testing.T) {
	s := mustServe(t)
	a := mustAsk(t, s.mustDial(t, client.SASLTypeAnonymous()), "$cbs")
	late := sas.Sign("sb://h/q", root, rootKey, time.Now().Add(-time.Second))
	for _, c := range []struct {
		name, audience, token string
		status                int32
		text                  string
	}{
		{"all", "amqp://h/q", sign("sb://x:1/?api-version=1", root, rootKey), 202, ""},
		{"a queue", "sb://h/Q/", sign("http://h/q", root, rootKey), 202, ""},
		{"a node of requests", "sb://h/q/$management", sign("http://h/q", root, rootKey), 202, ""},
		{"dead letters", "sb://h/q/$DeadLetterQueue", sign("http://h/q/", root, rootKey), 202, ""},
		{"the second key", "sb://h/q", sign("sb://h/q", "send", "k2"), 202, ""},
		{"a queue's own rule", "sb://h/q", sign("sb://h/q", "own", "k4"), 202, ""},
		{"a subscription", "sb://h/topic/Subscriptions/sub", sign("sb://h/topic", root, rootKey), 202, ""},
		{"another queue's rule", "sb://h/s", sign("sb://h/s", "own", "k4"), 401, "invalid signature"},
		{"a wrong key", "sb://h/q", sign("sb://h/q", root, "x"), 401, "invalid signature"},
		{"no rule", "sb://h/q", sign("sb://h/q", "nobody", rootKey), 401, "invalid signature"},
		{"over", "sb://h/q", late, 401, "ExpiredToken: The token is expired. Expiration time: 20"},
		{"of another", "sb://h/s", sign("sb://h/q", root, rootKey), 401, "invalid signature"},
		{"half a segment", "sb://h/q2", sign("sb://h/q", root, rootKey), 401, "invalid signature"},
		{"of nothing", "sb://h/nowhere", sign("sb://h/", root, rootKey), 404, "The messaging entity 'sb://Host/nowhere' could not be found."},
		{"malformed", "sb://h/q", "SharedAccessSignature sr=x", 400, "malformed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if status, text := a.put(c.audience, c.token); status != c.status || !strings.Contains(text, c.text) || tracked.MatchString(text) != (status != 202) {
				t.Errorf("%d %s, want %d %s", status, text, c.status, c.text)
			}
		})
	}
	for properties, want := range map[[2]string]int32{{"put-token", "jwt"}: 401, {"put-token", "other"}: 400, {"delete", typeSAS}: 501} {
		status, _, _ := a.ask(map[string]any{"operation": properties[0], "type": properties[1], "name": "sb://h/q"}, sign("sb://h/", root, rootKey))
		if status != want {
			t.Errorf("%v: %d, want %d", properties, status, want)
		}
	}
}

// What a client may attach follows from its rights and from what there is (TR-2, TR-3, AD, LN-3, LN-9).
func TestAttaches(t *testing.T) {
	s := mustServe(t)
	none := mustSession(t, s.mustDial(t, client.SASLTypeAnonymous()))
	_, err := none.NewSender(t.Context(), "q", nil)
	wantRefused(t, err, "amqp:unauthorized-access", "")
	for _, login := range []struct{ rule, key string }{{root, "wrong"}, {"nobody", rootKey}, {"own", "k4"}} {
		if _, err := client.Dial(t.Context(), "amqp://"+s.addr, &client.ConnOptions{SASLType: client.SASLTypePlain(login.rule, login.key)}); err == nil {
			t.Errorf("logged in with %v", login)
		}
	}
	sends := mustSession(t, s.mustDial(t, client.SASLTypePlain("send", "k1")))
	listens := mustSession(t, s.mustDial(t, client.SASLTypePlain("listen", "k3")))
	for _, address := range []string{"q", "/Q/", "sb://host/q", "topic"} {
		_, err := sends.NewSender(t.Context(), address, nil)
		must(t, err)
		_, err = listens.NewSender(t.Context(), address, nil)
		wantRefused(t, err, "amqp:unauthorized-access", "'Send'")
	}
	for _, c := range []struct{ address, condition, text string }{
		{"nowhere", "amqp:not-found", "The messaging entity 'sb://Host/nowhere' could not be found."},
		{"topic/Subscriptions/sub", "amqp:not-allowed", ""},
		{"q/$DeadLetterQueue", "amqp:not-allowed", ""},
		{"q/$Transfer/$DeadLetterQueue", "amqp:not-allowed", ""},
		{"topic/$transfer/$deadletterqueue", "amqp:not-allowed", ""},
	} {
		_, err := sends.NewSender(t.Context(), c.address, nil)
		wantRefused(t, err, c.condition, c.text)
	}
	for _, address := range []string{"q", "Q/$DeadLetterQueue", "/q/$deadletterqueue", "topic/subscriptions/SUB", "topic/Subscriptions/sub/$deadletterqueue",
		"Q/$transfer/$DeadLetterQueue", "s/$Transfer/$deadletterqueue", "Topic/$Transfer/$deadletterqueue", "topic/Subscriptions/sub/$Transfer/$deadletterqueue"} {
		r, err := listens.NewReceiver(t.Context(), address, nil)
		must(t, err)
		must(t, r.Close(t.Context()))
		_, err = sends.NewReceiver(t.Context(), address, nil)
		wantRefused(t, err, "amqp:unauthorized-access", "'Listen'")
	}
	for _, c := range []struct{ address, condition, text string }{
		{"topic", "amqp:not-allowed", ""},
		{"topic/$deadletterqueue", "amqp:not-allowed", ""},
		{"nowhere", "amqp:not-found", ""},
		{"s", "amqp:not-allowed", "requires sessions to create a non-sessionful message receiver."},
	} {
		_, err := listens.NewReceiver(t.Context(), c.address, nil)
		wantRefused(t, err, c.condition, c.text)
	}
}

// Links end when the right to them ends: with a token, with a rule, and when their entity is disabled (CB-12, CB-13, LI-2).
func TestRightsEnd(t *testing.T) {
	s := mustServe(t)
	change := map[string]func(){
		"a rule":  func() { delete(s.directory.rules, ":listen") },
		"a key":   func() { s.directory.rules[":listen"] = &sas.Rule{Name: "listen", Rights: sas.Listen, Primary: "new"} },
		"a right": func() { s.directory.rules[":listen"] = &sas.Rule{Name: "listen", Rights: sas.Send, Primary: "k3"} },
		"a time":  func() { s.directory.now = time.Now().Add(2 * time.Hour) },
		"a status": func() {
			disabled := *s.directory.entities["q"]
			queue := *disabled.Queue
			queue.Status = entity.ReceiveDisabled
			disabled.Queue = &queue
			s.directory.entities["q"] = &disabled
		},
	}
	for name, f := range change {
		t.Run(name, func(t *testing.T) {
			rule, queue := s.directory.rules[":listen"], s.directory.entities["q"]
			defer s.directory.change(func() {
				s.directory.rules[":listen"], s.directory.entities["q"], s.directory.now = rule, queue, time.Time{}
			})
			c := s.mustDial(t, client.SASLTypeAnonymous())
			if status, why := mustAsk(t, c, "$cbs").put("sb://h/q", sign("sb://h/q", "listen", "k3")); status != 202 {
				t.Fatal(why)
			}
			r, err := mustSession(t, c).NewReceiver(t.Context(), "q", nil)
			must(t, err)
			s.directory.change(f)
			s.Renew()
			_, err = r.Receive(t.Context(), nil)
			condition := "amqp:unauthorized-access"
			if name == "a status" {
				condition = conditionDisabled
			}
			wantRefused(t, err, condition, "")
		})
	}
}

// An answer waits for credit, and finds its way by the name of a link as well as by an address (CB-3, CB-4).
func TestAnswers(t *testing.T) {
	s := mustServe(t)
	c := s.mustDial(t, client.SASLTypeAnonymous())
	session := mustSession(t, c)
	sender, err := session.NewSender(t.Context(), "$cbs", nil)
	must(t, err)
	var receivers []*client.Receiver
	for _, name := range []string{"first", "second"} {
		r, err := session.NewReceiver(t.Context(), "$cbs", &client.ReceiverOptions{Name: name, Credit: -1})
		must(t, err)
		receivers = append(receivers, r)
	}
	for id, to := range map[string]string{"1": "first", "2": "second"} {
		must(t, sender.Send(t.Context(), &client.Message{
			Properties: &client.MessageProperties{MessageID: id, ReplyTo: &to}, Value: sign("sb://h/", root, rootKey),
			ApplicationProperties: map[string]any{"operation": "put-token", "type": typeSAS, "name": "sb://h/"},
		}, nil))
	}
	for i, id := range []string{"1", "2"} {
		must(t, receivers[i].IssueCredit(1))
		m, err := receivers[i].Receive(t.Context(), nil)
		must(t, err)
		if m.Properties.CorrelationID != id {
			t.Errorf("link %d got the answer to %v", i, m.Properties.CorrelationID)
		}
	}
}

// A connection has one link on which tokens are put at a time (CB-1).
func TestOneLinkForTokens(t *testing.T) {
	s := mustServe(t)
	c := s.mustDial(t, client.SASLTypeAnonymous())
	first, second := mustSession(t, c), mustSession(t, c)
	sender, err := first.NewSender(t.Context(), "$cbs", nil)
	must(t, err)
	_, err = second.NewSender(t.Context(), "$cbs", nil)
	wantRefused(t, err, "amqp:not-allowed", "$cbs")
	must(t, sender.Close(t.Context()))
	_, err = second.NewSender(t.Context(), "$cbs", nil)
	must(t, err)
	_, err = first.NewSender(t.Context(), "$cbs", nil)
	wantRefused(t, err, "amqp:not-allowed", "$cbs")
	must(t, second.Close(t.Context()))
	mustAsk(t, c, "$cbs").put("amqp://host/", sign("amqp://host/", root, rootKey))
}

// batch is a delivery of several messages with these texts.
func batch(texts ...string) *client.Message {
	m := &client.Message{Format: batchFormat}
	for _, text := range texts {
		b, err := (&client.Message{Properties: &client.MessageProperties{MessageID: text, GroupID: &text}, Data: [][]byte{[]byte(text)}}).MarshalBinary()
		if err != nil {
			panic(err)
		}
		m.Data = append(m.Data, b)
	}
	return m
}

// A batch is one unit, or is refused as a whole (BA-1 to BA-3).
func TestBatches(t *testing.T) {
	s := mustServe(t)
	session := mustSession(t, s.mustOpen(t))
	for address, queue := range map[string]string{"s": "S", "topic": "topic/$topic"} {
		to, err := session.NewSender(t.Context(), address, nil)
		must(t, err)
		must(t, to.Send(t.Context(), batch("a", "b", "c"), nil))
		must(t, to.Send(t.Context(), batch("d"), nil))
		all := s.machines.take()
		if len(all) != 1 || all[0].queue != queue || len(all[0].unit.Sends) != 3 || s.broker.Published() == 0 {
			t.Fatalf("%s: posted is %+v", address, all)
		}
		for i, p := range all[0].unit.Sends {
			if want := string("abc"[i]); p.MessageID != want || !strings.HasSuffix(string(p.Payload.Body()), want) {
				t.Errorf("message %d has the id %s", i, p.MessageID)
			}
		}
	}
	to, err := session.NewSender(t.Context(), "s", nil)
	must(t, err)
	without := batch("a", "b")
	without.Data[1], _ = (&client.Message{Data: [][]byte{nil}}).MarshalBinary()
	garbage := batch("a", "b")
	garbage.Data[1] = []byte("x")
	for name, c := range map[string]struct {
		m         *client.Message
		condition string
	}{
		"no session": {without, "amqp:not-allowed"}, "no message": {garbage, "amqp:decode-error"},
		"too many": {batch(slices.Repeat([]string{"m"}, 4501)...), "amqp:link:message-size-exceeded"},
		"nothing":  {&client.Message{Format: batchFormat, Value: "x"}, conditionArgument},
	} {
		if err := to.Send(t.Context(), c.m, nil); err == nil || !strings.Contains(err.Error(), c.condition) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, f := range [][2]error{{&fsm.NotTaken{Reason: fsm.TooLong}}, {nil, &fsm.NotTaken{Reason: fsm.TooLong}}} {
		s.machines.fail(f[0], f[1])
		if err := to.Send(t.Context(), batch("a", "b"), nil); err == nil || !strings.Contains(err.Error(), "amqp:resource-limit-exceeded") {
			t.Errorf("a full queue: %v", err)
		}
	}
	s.machines.fail(nil, nil)
	s.machines.take()
	must(t, to.Send(t.Context(), batch(slices.Repeat([]string{"m"}, 4500)...), nil))
	if all := s.machines.take(); len(all) != 1 || len(all[0].unit.Sends) != 4500 {
		t.Errorf("%d units", len(all))
	}
}

// The limit of a message is its entity's (LI-1), and a message without a session is refused where one is required (SE-8).
func TestRefusedMessages(t *testing.T) {
	s := mustServe(t)
	session := mustSession(t, s.mustOpen(t))
	to, err := session.NewSender(t.Context(), "q", nil)
	must(t, err)
	if n := to.MaxMessageSize(); n != 1024 {
		t.Errorf("a message may have %d bytes", n)
	}
	to, err = session.NewSender(t.Context(), "s", nil)
	if err == nil {
		err = to.Send(t.Context(), client.NewMessage([]byte("x")), nil)
	}
	if err == nil || !strings.Contains(err.Error(), "amqp:not-allowed") {
		t.Error(err)
	}
}

// mustHold puts a message into a queue, and receives it by a link on which outcomes are answered.
func (s *server) mustHold(t *testing.T, queue string) (from *client.Receiver, m *client.Message) {
	t.Helper()
	mustInject(t, s.broker, queue, "a")
	from, err := mustSession(t, s.mustOpen(t)).NewReceiver(t.Context(), strings.ToLower(queue), &client.ReceiverOptions{SettlementMode: client.ReceiverSettleModeSecond.Ptr()})
	must(t, err)
	m, err = from.Receive(t.Context(), nil)
	must(t, err)
	return from, m
}

// An outcome that is refused is answered: the link goes on, and the message stays locked (ST-6).
func TestRefusedOutcome(t *testing.T) {
	s := mustServe(t)
	from, m := s.mustHold(t, "Q/$deadletterqueue")
	var refused *client.Error
	if err := from.RejectMessage(t.Context(), m, &client.Error{Condition: conditionDeadLetter}); !errors.As(err, &refused) || refused.Condition != "amqp:not-allowed" || !tracked.MatchString(refused.Description) {
		t.Errorf("a dead letter of a dead letter: %v", err)
	}
	mustInject(t, s.broker, "Q/$deadletterqueue", "b")
	m, err := from.Receive(t.Context(), nil)
	must(t, err)
	if string(m.GetData()) != "b" {
		t.Errorf("received %s again", m.GetData())
	}
	must(t, from.AcceptMessage(t.Context(), m))
}

// A deferral that comes too late is answered, as any outcome is: the link goes on (ST-2).
func TestLateDeferral(t *testing.T) {
	s := mustServe(t)
	from, m := s.mustHold(t, "Q")
	s.broker.TakeBack("Q", 1)
	var refused *client.Error
	err := from.ModifyMessage(t.Context(), m, &client.ModifyMessageOptions{UndeliverableHere: true})
	if !errors.As(err, &refused) || refused.Condition != conditionLockLost || !tracked.MatchString(refused.Description) {
		t.Errorf("a deferral that is too late: %v", err)
	}
	mustInject(t, s.broker, "Q", "b")
	m, err = from.Receive(t.Context(), nil)
	must(t, err)
	must(t, from.AcceptMessage(t.Context(), m))
}

// The count of deliveries is told, even if it is 0 (ST-1).
func TestCountOfDeliveries(t *testing.T) {
	for _, count := range []uint32{0, 1, 300} {
		b := new(form).appendHeader(nil, &fsm.Message{Failed: count}, wire.Header{})
		var m wire.Message
		must(t, m.ParseRequest(append(b, wire.AppendString(wire.StartValue(nil), "x")...)))
		if m.Header.DeliveryCount != count || bytes.HasSuffix(b, []byte{0x40}) {
			t.Errorf("%d: %x", count, b)
		}
	}
}

// DS-11: each answer to a request is counted, by the operation's name if that is known.
func TestRequestsAreCounted(t *testing.T) {
	var mu sync.Mutex
	counted := map[string]int{}
	s := mustServe(t)
	s.dialect.Count = func(operation string, status int) {
		mu.Lock()
		defer mu.Unlock()
		counted[fmt.Sprint(operation, " ", status)]++
	}
	c := s.mustOpen(t)
	a := mustAsk(t, c, "q/$management")
	a.ask(map[string]any{"operation": "com.microsoft:peek-message"}, map[string]any{"from-sequence-number": int64(1), "message-count": int32(1)})
	a.ask(map[string]any{"operation": "com.microsoft:what"}, map[string]any{})
	mustAsk(t, c, "$cbs").put("amqp://host/", "nothing")
	mu.Lock()
	defer mu.Unlock()
	if want := map[string]int{"put-token 202": 1, "put-token 400": 1, "peek-message 204": 1, "unknown 501": 1}; !maps.Equal(counted, want) {
		t.Error(counted)
	}
}

// Sessions are listed by what they have, or by when their state was set (SE-9).
func TestListsOfSessions(t *testing.T) {
	s := mustServe(t)
	s.machines.groups = []fsm.GroupInfo{
		{ID: "held", Held: true}, {ID: "message", Messages: 1}, {ID: "new", HasState: true, StateSet: 2000}, {ID: "old", Messages: 1, HasState: true, StateSet: 1000},
	}
	a := mustAsk(t, s.mustOpen(t), "s/$management")
	for _, c := range []struct {
		since int64
		want  []string
	}{
		{253_402_300_800_000, []string{"message", "new", "old"}}, {999, []string{"new", "old"}}, {1000, []string{"new"}}, {2000, nil},
	} {
		status, _, answer := a.ask(map[string]any{"operation": "com.microsoft:get-message-sessions"},
			map[string]any{"last-updated-time": time.UnixMilli(c.since), "skip": int32(0), "top": int32(10)})
		body, _ := answer.Value.(map[string]any)
		got, _ := body["sessions-ids"].([]string)
		if want := map[bool]int32{true: 200, false: 204}[c.want != nil]; status != want || !slices.Equal(got, c.want) {
			t.Errorf("since %d: %d, %q, want %q", c.since, status, got, c.want)
		}
	}
}

// What the service annotates a sender cannot say.
func TestAnnotationsOfSenders(t *testing.T) {
	s := mustServe(t)
	session := mustSession(t, s.mustOpen(t))
	to, err := session.NewSender(t.Context(), "q", nil)
	must(t, err)
	m := client.NewMessage([]byte("x"))
	m.Annotations = client.Annotations{annotationFirst: int64(7), annotationEnqueued: time.UnixMilli(7), "x-kept": "v"}
	must(t, to.Send(t.Context(), m, nil))
	from, err := session.NewReceiver(t.Context(), "q", nil)
	must(t, err)
	got, err := from.Receive(t.Context(), nil)
	must(t, err)
	if _, has := got.Annotations[annotationFirst]; has || got.Annotations["x-kept"] != "v" || got.Annotations[annotationEnqueued] == m.Annotations[annotationEnqueued] {
		t.Errorf("its annotations are %v", got.Annotations)
	}
}
