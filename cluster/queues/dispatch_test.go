package queues

import (
	"log/slog"
	"reflect"
	"slices"
	"testing"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// sentMessage is one that a link was given.
type sentMessage struct {
	node          string
	kind          peer.Kind
	head, payload []byte
}

// otherNode is a node that knows the catalog of w, and keeps what it sends.
func otherNode(w *world) (*self.Node, *links, *[]sentMessage) {
	n := self.New(self.Config{Node: "n2", Mesh: &peer.Mesh{}, Catalog: w, Logger: slog.New(slog.DiscardHandler), Clock: w.Stamp, Stamp: w.Stamp})
	n.Number.Store(2)
	n.Groups = w.node.Groups
	sent := &[]sentMessage{}
	l := &links{Node: n, unsent: map[unsent]struct{}{}}
	l.transmit = func(node string, k peer.Kind, head []byte, payloads ...[]byte) error {
		*sent = append(*sent, sentMessage{node, k, slices.Clone(head), slices.Concat(payloads...)})
		return nil
	}
	return n, l, sent
}

// What a session is given does not depend on the node at which its queue is led:
// messages, answers to its questions, outcomes and notices.
func TestDispatchedEverywhere(t *testing.T) {
	deaths := []*logpb.Death{{Queue: "was", Reason: logpb.Death_EXPIRED, Count: 2}}
	payloads := stored{1: grouptest.Payload("a"), 2: grouptest.Payload(""), 4: grouptest.Payload("c")}
	dispatch := func(t *testing.T, x *dispatcher, q fsm.QueueID, s fsm.SessionID) {
		to := fsm.ConsumerID{Session: s, Number: 5}
		x.deliveries(payloads, q, []fsm.Delivery{
			{To: to, ID: 1, Ref: fsm.Ref{Index: 1}, Acquired: 3, Failed: 2, Deaths: deaths, ScheduledFor: 77},
			{To: fsm.ConsumerID{Session: s}, ID: 9, Ref: fsm.Ref{Index: 4}, Ready: 6},
		})
		x.resync(payloads, q, &group.Resynced{To: to, Last: 2, Held: []fsm.Delivery{{To: to, ID: 2, Ref: fsm.Ref{Index: 2}}}, More: 4})
		x.outcomes(q, []group.Outcome{
			{Session: s, First: 1, Run: 1},
			{Session: s, First: 2, Run: 1, Result: fsm.Result{Code: fsm.OK, Count: 4, Consumers: 2}},
		})
	}
	type seen struct {
		Messages []fsm.Message
		Got      *fsm.Message
		Result   fsm.Result
		Log      []string
		Last     uint64 // the last delivery to consumer 5 that is known
	}
	begin := func() (*world, *client, *stream.Call) {
		w := newWorld(t)
		c := w.mustClient(w.MustQueue("q"))
		c.publish()
		return w, c, c.get()
	}
	w, c, get := begin()
	dispatch(t, &w.queues.dispatcher, c.stream.Queue(), c.id)
	last, _ := c.position()
	want := seen{c.messages, get.Got, get.Result, c.log, last}
	if len(want.Messages) != 2 || want.Got == nil || want.Result.Count != 4 || !slices.Contains(c.log, "settled 1 true") {
		t.Fatalf("here: %+v", want)
	}
	if m := want.Messages[0]; m.Consumer != 5 || m.Acquired != 3 || m.Failed != 2 || m.ScheduledFor != 77 || len(m.Deaths) != 1 || want.Got.Ready != 6 {
		t.Errorf("here: %+v", want)
	}

	w, c, get = begin()
	n, links, sent := otherNode(w)
	dispatch(t, &dispatcher{Node: n, routes: stream.NewTable(host{Node: n}), links: links}, c.stream.Queue(), c.id)
	r := &w.queues.dispatcher
	for _, m := range *sent {
		if m.node != "n1" {
			t.Errorf("sent to %q", m.node)
		}
		map[peer.Kind]func(string, []byte, []byte){self.KindDeliveries: r.onDeliveries, self.KindOutcomes: r.onOutcomes}[m.kind]("n2", m.head, m.payload)
	}
	last, _ = c.position()
	got := seen{c.messages, get.Got, get.Result, c.log, last}
	for _, x := range []*seen{&want, &got} { // decoded ones are equal, and not the same
		x.Messages[0].Deaths[0] = &logpb.Death{Queue: x.Messages[0].Deaths[0].Queue, Count: x.Messages[0].Deaths[0].Count}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("from another node:\n%+v\nhere:\n%+v", got, want)
	}
}

// What a busy link has refused is not lost: the node announces itself once more as
// the leader, unless somebody else leads by then.
func TestUnsentIsRepeated(t *testing.T) {
	w := newWorld(t)
	q := w.MustQueue("q")
	_, l, sent := otherNode(w)
	l.transmit = func(string, peer.Kind, []byte, ...[]byte) error { return peer.ErrBacklog }
	l.sendOrRepeat("n1", q.ID, self.KindNotice, &peerpb.Notice{})
	if _, kept := l.unsent[unsent{"n1", q.ID}]; !kept || len(l.unsent) != 1 {
		t.Errorf("kept %v", l.unsent)
	}
	l.repeat()
	if len(l.unsent)+len(*sent) != 0 {
		t.Errorf("of a queue that it does not lead: %v kept, %v sent", l.unsent, *sent)
	}
}

// Perform passes deliveries, questions' answers and outcomes on in log order.
func TestPerformOrder(t *testing.T) {
	w := newWorld(t)
	c := w.mustClient(w.MustQueue("q"))
	q := c.stream.Queue()
	to := fsm.ConsumerID{Session: c.id, Number: 5}
	d := func(id uint64) fsm.Delivery { return fsm.Delivery{To: to, ID: id, Ref: fsm.Ref{Index: id}} }
	p := stored{1: grouptest.Payload("a"), 2: grouptest.Payload("b"), 4: grouptest.Payload("c")}
	w.queues.dispatcher.deliveries(p, q, []fsm.Delivery{d(1)})
	w.queues.dispatcher.resync(p, q, &group.Resynced{To: to, Last: 3, Held: []fsm.Delivery{d(2), d(3)}})
	w.queues.dispatcher.deliveries(p, q, []fsm.Delivery{d(4), {To: fsm.ConsumerID{Session: fsm.SessionID{Node: 1, Boot: 6, Num: c.id.Num}, Number: 5}, ID: 5}})
	if want := []uint64{1, 2, 4}; !slices.Equal(c.ids(), want) {
		t.Errorf("delivered %v, want %v: 3 has no payload any more, 5 is for an earlier boot", c.ids(), want)
	}
}

// An answer that the link to a node has no room for is noted, so that the node is made to ask.
func TestUnsentIsNoted(t *testing.T) {
	w := newWorld(t)
	q := w.MustQueue("q")
	w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{
		Name: "n2", PeerAddress: "n2", Incarnation: []byte("fedcba9876543210"),
	}}})
	n, _ := w.View().NodeByName("n2")
	full := true
	w.queues.dispatcher.links.transmit = func(node string, _ peer.Kind, _ []byte, _ ...[]byte) error {
		if node != "n2" {
			t.Errorf("sent to %q", node)
		}
		if full {
			return peer.ErrBacklog
		}
		return nil
	}
	for _, full = range []bool{false, true} {
		to := fsm.SessionID{Node: fsm.NodeID(n.Number), Boot: n.Boot, Num: 1}
		w.queues.dispatcher.outcomes(q.ID, []group.Outcome{{Session: to, First: 1, Run: 1}})
		if _, noted := w.queues.dispatcher.links.unsent[unsent{"n2", q.ID}]; noted != full {
			t.Errorf("link full %v, noted %v", full, noted)
		}
	}
}

// A node that knows pauses is told why its commands were not taken; one that does not is told that this one
// does not lead, as it is when that is so.
func TestRefusals(t *testing.T) {
	for _, x := range []struct {
		why    error
		pauses peerpb.Notice_Kind
	}{
		{group.ErrFull, peerpb.Notice_FULL},
		{replica.ErrTransferring, peerpb.Notice_TRANSFERRING},
		{replica.ErrNotLeading, peerpb.Notice_NOT_LEADER},
	} {
		if got := refusal(x.why, true); got != x.pauses {
			t.Errorf("%v: %v, want %v", x.why, got, x.pauses)
		}
		if got := refusal(x.why, false); got != peerpb.Notice_NOT_LEADER {
			t.Errorf("%v, to an earlier version: %v", x.why, got)
		}
	}
	w := newWorld(t)
	target := w.queues.Routes.Route(w.MustQueue("q"))
	target.Lead("n2", 1)
	on := &w.queues.dispatcher
	for _, x := range []struct {
		kind  peerpb.Notice_Kind
		leads bool
	}{{peerpb.Notice_FULL, true}, {peerpb.Notice_TRANSFERRING, true}, {peerpb.Notice_NOT_LEADER, false}} {
		head, err := (&peerpb.Notice{Kind: x.kind, Queue: uint64(target.Queue())}).MarshalVT()
		must(t, err)
		on.onNotice("n2", head, nil)
		if target.IsLeader("n2") != x.leads {
			t.Errorf("%v: it is the leader: %v", x.kind, !x.leads)
		}
	}
}
