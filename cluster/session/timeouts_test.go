package session

import (
	"fmt"
	"testing"

	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/peerpb"
)

// knownClient is a channel that knows where it is, and what its client understands.
type knownClient struct {
	place
	cancellable bool
}

func (c *knownClient) Cancellable() bool { return c.cancellable }

// TestServedTimeouts: the node of a client remembers which of its consumers timed out and what became
// of it, each consumer once.
func TestServedTimeouts(t *testing.T) {
	w := newWorld(t)
	q := w.MustQueue("q")
	late := func(c fsm.SessionEvents, number uint64, action catalog.TimeoutAction) {
		t.Helper()
		s, err := w.mustConnect("guest").OpenSession(c)
		if err != nil {
			t.Fatal(err)
		}
		l := streamTo(s, q)
		addConsumer(s, l, 5, false)
		s.known[5].action = action
		for range 2 {
			w.queues.Routes.Stream(q.ID, s.id).Notice(stream.Notice{Kind: peerpb.Notice_TIMED_OUT, Consumer: number, IDs: []uint64{4}, Limit: 10})
		}
	}
	late(&knownClient{cancellable: true}, 5, "")
	late(&knownClient{cancellable: true}, 5, catalog.TimeoutSuspend)
	late(&knownClient{}, 5, catalog.TimeoutCancel)
	late(&knownClient{}, 0, catalog.TimeoutSuspend)
	late(&recorder{}, 5, "") // nobody knows where it is
	got := ""
	for _, x := range w.queues.Timeouts.List().Served {
		s := x.Session
		got += fmt.Sprintln(s.Boot, s.Session, s.User, s.Connection, s.Channel, s.PeerHost, s.PeerPort, x.Number, x.Action)
	}
	const at = "guest a -> b 1 10.0.0.1 5"
	if want := "7 1 " + at + " 5 cancel\n7 2 " + at + " 5 suspend\n7 3 " + at + " 5 channel_close\n7 4 " + at + " 0 get\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
