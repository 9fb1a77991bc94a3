package session

import (
	"log/slog"
	"reflect"
	"slices"
	"testing"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// sentMessage is one that a link was given.
type sentMessage struct {
	node          string
	kind          kind
	head, payload []byte
}

// otherNode is a node that knows the catalog of w, and keeps what it sends.
func otherNode(w *world) (*node, *links, *[]sentMessage) {
	n := &node{name: "n2", catalog: w, slog: slog.New(slog.DiscardHandler), clock: w.Stamp, stamp: w.Stamp}
	n.number.Store(2)
	sent := &[]sentMessage{}
	l := &links{node: n, unsent: map[unsent]struct{}{}}
	l.transmit = func(node string, k kind, head []byte, payloads ...[]byte) error {
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
	begin := func(t *testing.T) (*world, *recorder, *Session, *stream.Stream, *stream.Call) {
		w, c, s, l := mustStream(t)
		addConsumer(s, l, 5, false)
		publish(s, l, 1, "m")
		get := request(s, l, &logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{}})
		return w, c, s, l, get
	}
	w, c, s, l, get := begin(t)
	dispatch(t, w.broker.dispatcher, l.Queue(), s.id)
	last, _, _ := s.known[5].Position()
	want := seen{c.messages, get.Got, get.Result, c.log, last}
	if len(want.Messages) != 2 || want.Got == nil || want.Result.Count != 4 || c.settled[1] != 1 {
		t.Fatalf("here: %+v", want)
	}
	if m := want.Messages[0]; m.Consumer != 5 || m.Acquired != 3 || m.Failed != 2 || m.ScheduledFor != 77 || len(m.Deaths) != 1 || want.Got.Ready != 6 {
		t.Errorf("here: %+v", want)
	}

	w, c, s, l, get = begin(t)
	n, links, sent := otherNode(w)
	dispatch(t, &dispatcher{node: n, routes: stream.NewTable(w.host), links: links}, l.Queue(), s.id)
	r := &receiver{node: w.broker.node, routes: w.broker.routes, links: w.broker.links}
	for _, m := range *sent {
		if m.node != "n1" {
			t.Errorf("sent to %q", m.node)
		}
		map[kind]func(string, []byte, []byte){kindDeliveries: r.onDeliveries, kindOutcomes: r.onOutcomes}[m.kind]("n2", m.head, m.payload)
	}
	last, _, _ = s.known[5].Position()
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
	n, l, sent := otherNode(w)
	n.groups = w.mustHost()
	n.mesh = w.broker.mesh
	l.transmit = func(string, kind, []byte, ...[]byte) error { return peer.ErrBacklog }
	l.sendOrRepeat("n1", q.ID, kindNotice, &peerpb.Notice{})
	if _, kept := l.unsent[unsent{"n1", q.ID}]; !kept || len(l.unsent) != 1 {
		t.Errorf("kept %v", l.unsent)
	}
	l.repeat()
	if len(l.unsent)+len(*sent) != 0 {
		t.Errorf("of a queue that it does not lead: %v kept, %v sent", l.unsent, *sent)
	}
}
