package servicebus

import (
	"testing"

	client "github.com/Azure/go-amqp"

	"github.com/quorate/quorate/amqp/servicebus/entity"
)

// What a status forbids is refused and ended; what it allows, and requests, are not (LI-2).
func TestStatuses(t *testing.T) {
	s := mustServe(t)
	set := func(status entity.Status, only string) {
		s.directory.change(func() {
			for key, d := range s.directory.entities {
				if only != "" && only != key {
					continue
				}
				changed := *d
				switch {
				case d.Queue != nil:
					of := *d.Queue
					changed.Queue = &of
				case d.Topic != nil:
					of := *d.Topic
					changed.Topic = &of
				default:
					of := *d.Subscription
					changed.Subscription = &of
				}
				changed.Common().Status = status
				s.directory.entities[key] = &changed
			}
		})
		s.Renew()
	}
	for _, c := range []struct {
		status          entity.Status
		sends, receives bool
	}{{entity.SendDisabled, false, true}, {entity.ReceiveDisabled, true, false}, {entity.Disabled, false, false}, {entity.Active, true, true}} {
		t.Run(string(c.status), func(t *testing.T) {
			session := mustSession(t, s.mustOpen(t))
			check := func(address string, err error, allowed bool) {
				t.Helper()
				if !allowed {
					wantRefused(t, err, conditionDisabled, "is currently disabled.")
				} else if err != nil {
					t.Errorf("%s: %v", address, err)
				}
			}
			var ends []func() error
			set(entity.Active, "")
			for _, address := range []string{"q", "topic"} {
				to, err := session.NewSender(t.Context(), address, nil)
				must(t, err)
				ends = append(ends, func() error { return to.Send(t.Context(), client.NewMessage(nil), nil) })
			}
			set(c.status, "")
			for i, send := range ends {
				check("a link", send(), c.sends)
				address := []string{"q", "topic"}[i]
				_, err := session.NewSender(t.Context(), address, nil)
				check(address, err, c.sends)
			}
			for _, address := range []string{"q", "Q/$deadletterqueue", "topic/Subscriptions/sub"} {
				r, err := session.NewReceiver(t.Context(), address, nil)
				check(address, err, c.receives)
				if err == nil {
					must(t, r.Close(t.Context()))
				}
			}
			rule := mustAsk(t, s.mustOpen(t), "topic/Subscriptions/sub/$management")
			want := int32(404)
			if c.status == entity.Disabled {
				want = 403
			}
			if status, text, _ := rule.ask(map[string]any{"operation": "com.microsoft:remove-rule"}, map[string]any{"rule-name": "none"}); status != want {
				t.Error(status, text)
			}
			if status, text, _ := mustAsk(t, s.mustOpen(t), "q/$management").ask(map[string]any{"operation": "com.microsoft:peek-message"},
				map[string]any{"from-sequence-number": int64(1), "message-count": int32(1)}); status != 204 {
				t.Error(status, text)
			}
		})
	} // A subscription gives nothing while its topic is disabled.
	session := mustSession(t, s.mustOpen(t))
	r, err := session.NewReceiver(t.Context(), "topic/Subscriptions/sub", nil)
	must(t, err)
	set(entity.Disabled, "topic")
	_, err = r.Receive(t.Context(), nil)
	wantRefused(t, err, conditionDisabled, "")
	_, err = session.NewReceiver(t.Context(), "topic/Subscriptions/sub", nil)
	wantRefused(t, err, conditionDisabled, "")
}

// During an alarm messages are refused for now, and no others: tokens are put, what is locked is settled, and what is there is
// received (LI-3).
func TestAlarm(t *testing.T) {
	s := mustServe(t)
	mustInject(t, s.broker, "Q", "there")
	c := s.mustOpen(t)
	session := mustSession(t, c)
	to, err := session.NewSender(t.Context(), "q", nil)
	must(t, err)
	from, err := session.NewReceiver(t.Context(), "q", &client.ReceiverOptions{Credit: 1})
	must(t, err)
	tokens, requests := mustAsk(t, c, "$cbs"), mustAsk(t, c, "q/$management")
	s.SetAlarm("memory")
	defer s.SetAlarm("")
	wantRefused(t, to.Send(t.Context(), client.NewMessage(nil), nil), conditionBusy, "Please retry the operation.")
	later := map[string]any{"messages": []any{map[string]any{"message-id": "m", "message": []byte{0, 0x53, 0x75, 0xa0, 0}}}}
	if status, text, _ := requests.ask(map[string]any{"operation": "com.microsoft:schedule-message"}, later); status != 503 {
		t.Errorf("scheduled: %d %s", status, text)
	}
	if status, text := tokens.put("amqp://host/", sign("amqp://host/", root, rootKey)); status != 202 {
		t.Errorf("a token: %d %s", status, text)
	}
	m, err := from.Receive(t.Context(), nil)
	must(t, err)
	must(t, from.AcceptMessage(t.Context(), m))
	later = map[string]any{"from-sequence-number": int64(1), "message-count": int32(1)}
	if status, text, _ := requests.ask(map[string]any{"operation": "com.microsoft:peek-message"}, later); status != 204 {
		t.Errorf("peeked: %d %s", status, text)
	}
	s.SetAlarm("")
	must(t, to.Send(t.Context(), client.NewMessage(nil), nil))
}
