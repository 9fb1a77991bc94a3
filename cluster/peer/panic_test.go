package peer

import (
	"context"
	"errors"
	"testing"
)

// A handler that panics costs its message. The link holds, later messages
// arrive, and who has called gets an error.
func TestHandlerPanics(t *testing.T) {
	c := newCluster(t, false, 2, nil)
	got := make(chan string, 10)
	c.startAll(func(m *member) {
		m.Handle(testMessage, func(_ string, head, _ []byte) {
			if string(head) == "poison" {
				panic("poison")
			}
			got <- string(head)
		})
		m.HandleCall(testEcho, func(_ context.Context, _ string, req []byte) ([]byte, error) {
			if string(req) == "poison" {
				panic("poison")
			}
			return req, nil
		})
	})
	from, to := c.members["n1"], c.members["n2"]
	epoch := from.Peers()[0].Epoch
	for _, head := range []string{"poison", "good"} {
		if err := from.Send("n2", testMessage, []byte(head)); err != nil {
			t.Fatal(err)
		}
	}
	if head := mustReceive(t, got, "the good message"); head != "good" {
		t.Errorf("received %q", head)
	}
	var remote *RemoteError
	if _, err := from.Call(t.Context(), "n2", testEcho, []byte("poison")); !errors.As(err, &remote) {
		t.Errorf("the call answers %v", err)
	}
	if r, err := from.Call(t.Context(), "n2", testEcho, []byte("good")); err != nil || string(r) != "good" {
		t.Errorf("the next call answers %q, %v", r, err)
	}
	if to.Panics() != 2 || from.Panics() != 0 || from.Peers()[0].Epoch != epoch {
		t.Errorf("%d and %d panics, epoch %d after %d", to.Panics(), from.Panics(), from.Peers()[0].Epoch, epoch)
	}
}
