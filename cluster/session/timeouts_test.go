package session

import (
	"fmt"
	"testing"

	"github.com/quorate/quorate/cluster/group"
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
			w.broker.routes.Notice(q.ID, s.id, stream.Notice{Kind: peerpb.Notice_TIMED_OUT, Consumer: number, IDs: []uint64{4}, Limit: 10})
		}
	}
	late(&knownClient{cancellable: true}, 5, "")
	late(&knownClient{cancellable: true}, 5, catalog.TimeoutSuspend)
	late(&knownClient{}, 5, catalog.TimeoutCancel)
	late(&knownClient{}, 0, catalog.TimeoutSuspend)
	late(&recorder{}, 5, "") // nobody knows where it is
	got := ""
	for _, x := range w.broker.Timeouts().Served {
		s := x.Session
		got += fmt.Sprintln(s.Boot, s.Session, s.User, s.Connection, s.Channel, s.PeerHost, s.PeerPort, x.Number, x.Action)
	}
	const at = "guest a -> b 1 10.0.0.1 5"
	if want := "7 1 " + at + " 5 cancel\n7 2 " + at + " 5 suspend\n7 3 " + at + " 5 channel_close\n7 4 " + at + " 0 get\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestLastTimeouts: a node remembers as many timeouts as it may, and no notice twice.
func TestLastTimeouts(t *testing.T) {
	w := newWorld(t)
	q := w.MustQueue("q")
	g := w.mustHost().OpenLocal(group.Spec{Group: q.Group, Queue: q.ID, VHost: "/", Name: "q", Local: true, Members: []string{"n1"}})
	defer w.broker.groups.DropLocal(q.Group)
	of := fsm.ConsumerID{Session: fsm.SessionID{Node: 1, Boot: 7, Num: 9}, Number: 5}
	for i := range maxTimeouts + 2 {
		w.broker.late.note(g, &group.Work{Timeouts: []fsm.Timeout{
			{To: of, Tag: fmt.Sprint("tag ", i), Deliveries: []uint64{1, 2}, Limit: 10, Held: 12},
			{To: of, Tag: "again", Deliveries: []uint64{1, 2}, Again: true},
		}})
	}
	w.broker.late.note(g, &group.Work{Timeouts: []fsm.Timeout{{To: fsm.ConsumerID{Session: of.Session}, Deliveries: []uint64{1}}}})
	all := w.broker.Timeouts().Led
	if len(all) != maxTimeouts || all[0].Tag != "tag 3" || all[maxTimeouts-1].Tag != getTag {
		t.Fatalf("%d, from %v to %v", len(all), all[0], all[len(all)-1])
	}
	x := all[maxTimeouts-2]
	if got := fmt.Sprintln(x.At > 0, x.Queue == uint64(q.ID), x.Vhost, x.Name, x.Node, x.Boot, x.Session, x.Number, x.Tag, x.Messages, x.Held, x.Timeout); got != "true true / q 1 7 9 5 tag 257 2 12 10\n" {
		t.Error(got)
	}
}
