package v10_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/amqp/v10/wire"
)

// settled returns once the server has done what the client has sent.
func (r *raw) settled(nextIncoming, nextOutgoing uint32) {
	r.t.Helper()
	r.send(channel, &wire.Flow{NextIncomingID: wire.Some(nextIncoming), IncomingWindow: 100, NextOutgoingID: nextOutgoing, OutgoingWindow: 100, Echo: true})
	expect[*wire.Flow](r)
}

// A connection and its sessions are described as they are: windows, credit, what is not settled, and what a consumer timeout
// has taken back.
func TestSessions(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q", "a b")
	r := s.mustOpen()
	sender := aSender("/queues/a%20b")
	sender.Handle, sender.Name, sender.SndSettleMode = 4, "sender", 0
	r.mustAttach(sender)
	relay := aSender("")
	relay.Handle, relay.Name, relay.SndSettleMode = 3, "relay", 9
	r.mustAttach(relay)
	in := aReceiver("/queues/q")
	in.Name, in.MaxMessageSize = "receiver", 5000
	r.mustAttach(in)

	name := fmt.Sprint(r.conn.LocalAddr(), " -> ", r.conn.RemoteAddr())
	list := s.Connections()
	i := slices.IndexFunc(list, func(c amqp.ConnectionInfo) bool { return c.Name == name })
	if i < 0 || list[i].Protocol != "AMQP 1-0" || list[i].Container != "c" || list[i].Channels != 1 {
		t.Fatalf("%s: %+v", name, list)
	}
	mustBe := func(want v10.SessionInfo, why string) {
		t.Helper()
		got, found := v10.Sessions(s.Server, name)
		if !found || len(got) != 1 || !reflect.DeepEqual(got[0], want) {
			g, _ := json.Marshal(got)
			w, _ := json.Marshal(want)
			t.Errorf("%s:\n%s\nwant\n%s", why, g, w)
		}
	}
	address := func(s string) *string { return &s }
	want := v10.SessionInfo{
		Channel: channel, HandleMax: 10, IncomingWindow: 400, RemoteIncomingWindow: 100, RemoteOutgoingWindow: 100,
		Incoming: []v10.IncomingLinkInfo{
			{LinkInfo: v10.LinkInfo{Handle: 3, Name: "relay", Credit: 170}, SettleMode: "mixed", MaxMessageSize: 16 << 20},
			{LinkInfo: v10.LinkInfo{Handle: 4, Name: "sender", Address: address("/queues/a%20b"), Credit: 170}, SettleMode: "unsettled", MaxMessageSize: 16 << 20},
		},
		Outgoing: []v10.OutgoingLinkInfo{{LinkInfo: v10.LinkInfo{Name: "receiver", Address: address("/queues/q")}, Queue: "q", MaxMessageSize: 5000}},
	}
	mustBe(want, "links are attached")
	if in, out := v10.Links(s.Server); in != 2 || out != 1 {
		t.Errorf("%d and %d links", in, out)
	}

	for i := range uint32(3) {
		r.transfer(&wire.Transfer{Handle: 3, DeliveryID: wire.Some(i), DeliveryTag: []byte("t")}, to("/queues/q", "x"))
		mustKind(t, expect[*wire.Disposition](r), wire.StateAccepted, "")
	}
	want.NextIncomingID, want.IncomingWindow, want.RemoteOutgoingWindow = 3, 397, 97
	want.Incoming[0].DeliveryCount, want.Incoming[0].Credit = 3, 167
	mustBe(want, "three messages are published")

	s.broker.HoldConfirms()
	r.transfer(&wire.Transfer{Handle: 4, DeliveryID: wire.Some[uint32](3), DeliveryTag: []byte("t")}, message("x"))
	r.credit(wire.Flow{NextOutgoingID: 4, OutgoingWindow: 99, IncomingWindow: 100, LinkCredit: wire.Some[uint32](5)})
	for range 3 {
		r.receive()
	}
	r.send(channel, &wire.Disposition{Role: true, Settled: true, State: wire.State{Kind: wire.StateAccepted}})
	r.settled(3, 4)
	want.NextIncomingID, want.NextOutgoingID, want.Unsettled, want.IncomingWindow, want.RemoteOutgoingWindow = 4, 3, 2, 396, 100
	l := &want.Incoming[1]
	l.DeliveryCount, l.Credit, l.Unconfirmed = 1, 169, 1
	want.Outgoing[0].DeliveryCount, want.Outgoing[0].Credit = 3, 2
	mustBe(want, "one message is on its way, and two deliveries are not settled")

	s.broker.ReleaseConfirms(false)
	mustKind(t, expect[*wire.Disposition](r), wire.StateAccepted, "")
	s.broker.TimeOut("q", 1500)
	mustKind(t, expect[*wire.Disposition](r), wire.StateReleased, "")
	l.Unconfirmed = 0
	want.Outgoing[0].TimedOut = true
	mustBe(want, "the deliveries have timed out")
	r.send(channel, &wire.Disposition{Role: true, First: 1, Last: wire.Some[uint32](2), Settled: true, State: wire.State{Kind: wire.StateReleased}})
	for range 2 {
		r.receive()
	}
	r.settled(5, 4)
	want.NextOutgoingID = 5
	want.Outgoing[0].TimedOut, want.Outgoing[0].DeliveryCount, want.Outgoing[0].Credit = false, 5, 0
	mustBe(want, "they are delivered again")
	r.credit(wire.Flow{NextIncomingID: wire.Some[uint32](5), NextOutgoingID: 4, OutgoingWindow: 100, IncomingWindow: 100, DeliveryCount: wire.Some[uint32](5), LinkCredit: wire.Some[uint32](9), Drain: true})
	for f := expect[*wire.Flow](r); f.DeliveryCount != wire.Some[uint32](14); f = expect[*wire.Flow](r) {
	}
	want.Outgoing[0].DeliveryCount = 14
	mustBe(want, "a drain has ended")

	r.send(channel, &wire.Detach{Closed: true})
	expect[*wire.Detach](r)
	want.Outgoing, want.Unsettled = nil, 0
	mustBe(want, "a link is gone")
	if got, found := v10.Sessions(s.Server, "another"); found || got != nil {
		t.Errorf("of another connection: %v", got)
	}
	r.send(channel, &wire.End{})
	expect[*wire.End](r)
	if got, found := v10.Sessions(s.Server, name); !found || got != nil {
		t.Errorf("the session is still there: %v", fmt.Sprint(got))
	}
}

// answerTo sends an attach, and returns the server's.
func (r *raw) answerTo(a *wire.Attach) *wire.Attach {
	r.t.Helper()
	r.send(channel, a)
	return expect[*wire.Attach](r)
}

// Links count as memory of their client, which gets no more beyond the bound of a connection; one that it gives up makes
// room for another.
func TestLinksAreHeld(t *testing.T) {
	s := mustServe(t, func(c *amqp.Config) {
		c.Protocols, c.HeldByConnection = []amqp.Protocol{v10.Protocol{LinkMax: 1 << 16}}, 1<<20
	})
	r := s.mustRaw()
	r.login(anOpen())
	expect[*wire.Open](r)
	r.send(channel, &wire.Begin{IncomingWindow: 100, OutgoingWindow: 100, HandleMax: 1<<32 - 1})
	expect[*wire.Begin](r)
	attach := func(handle uint32) *wire.Error {
		a := aSender("/exchanges/amq.fanout")
		a.Handle, a.Name = handle, fmt.Sprint(handle)
		if answer := r.answerTo(a); answer.Target != nil {
			expect[*wire.Flow](r)
			return nil
		}
		return expect[*wire.Detach](r).Error
	}
	n := uint32(0)
	var refused *wire.Error
	for ; refused == nil && n < 2000; n++ {
		refused = attach(n)
	}
	if n < 900 || n > 1100 {
		t.Errorf("%d links fit into a mebibyte", n)
	}
	mustCondition(t, refused, wire.ConditionResourceLimit, "held_memory.connection = 1048576")
	r.send(channel, &wire.Detach{Handle: n - 1, Closed: true})
	r.send(channel, &wire.Detach{Handle: 0, Closed: true})
	expect[*wire.Detach](r)
	if err := attach(0); err != nil {
		t.Errorf("in the room of another: %v", err)
	}
}
