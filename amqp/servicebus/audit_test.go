package servicebus

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	client "github.com/Azure/go-amqp"

	"github.com/quorate/quorate/amqp/v10"
)

// DS-11: who is refused something for want of a right, or loses it, is reported, and so is who changes the rules of a subscription.
func TestAudit(t *testing.T) {
	s := mustServe(t)
	var mu sync.Mutex
	var told []string
	s.dialect.Audit = func(_ *v10.Client, access, action, rule string, err error) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, fmt.Sprint(access, " ", action, " ", rule, " ", err))
	}
	denied := func(what string, want ...string) {
		t.Helper()
		if got := s.denials.take(); !slices.Equal(got, want) {
			t.Errorf("%s: reported is %q, not %q", what, got, want)
		}
	}
	c := s.mustDial(t, client.SASLTypeAnonymous())
	session := mustSession(t, c)
	_, err := session.NewSender(t.Context(), "q", nil)
	wantRefused(t, err, "amqp:unauthorized-access", "")
	tokens := mustAsk(t, c, "$cbs")
	tokens.put("sb://h/q", sign("sb://h/q", "listen", "guess"))
	tokens.put("sb://h/q", "no token") // which is malformed, and no guess
	denied("without a token", "attach", "put-token")
	tokens.put("sb://h/", sign("sb://h/", "listen", "k3"))
	_, err = session.NewSender(t.Context(), "q", nil)
	wantRefused(t, err, "amqp:unauthorized-access", "")
	const sub = "topic/Subscriptions/sub"
	mustAsk(t, c, sub+"/$management").ask(map[string]any{"operation": "com.microsoft:remove-rule"}, map[string]any{"rule-name": "r"})
	denied("with a token that does not do", "attach", "remove-rule")
	r, err := session.NewReceiver(t.Context(), "q", nil)
	must(t, err)
	s.directory.change(func() { delete(s.directory.rules, ":listen") })
	s.Renew()
	if _, err = r.Receive(t.Context(), nil); !errors.As(err, new(*client.LinkError)) {
		t.Error(err)
	}
	denied("without its rule", "")

	a := mustAsk(t, s.mustOpen(t), sub+"/$management")
	description := map[string]any{"sql-filter": map[string]any{"expression": "a = 1"}}
	for range 2 { // the second time there is nothing to tell
		a.ask(map[string]any{"operation": "com.microsoft:add-rule"}, map[string]any{"rule-name": "r", "rule-description": description})
	}
	for range 2 {
		a.ask(map[string]any{"operation": "com.microsoft:remove-rule"}, map[string]any{"rule-name": "r"})
	}
	mu.Lock()
	defer mu.Unlock()
	if want := []string{root + " add-rule " + sub + "/Rules/r <nil>", root + " remove-rule " + sub + "/Rules/r <nil>"}; !slices.Equal(told, want) {
		t.Errorf("told is %q, not %q", told, want)
	}
}
