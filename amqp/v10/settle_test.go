package v10_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

var errTooFar = fsm.Refuse(fsm.Precondition, "it is too far from now")

var accepted = wire.State{Kind: wire.StateAccepted}

// mustHold attaches a receiver to a new queue, and receives messages.
func (s *server) mustHold(queue string, n int, change func(*wire.Attach)) *raw {
	s.t.Helper()
	s.mustDeclare(queue)
	for i := range n {
		s.mustFill(queue, fmt.Sprint(i))
	}
	r := s.mustOpen()
	a := aReceiver("/queues/" + queue)
	if change != nil {
		change(a)
	}
	r.mustAttach(a)
	r.credit(wire.Flow{LinkCredit: wire.Some(uint32(n))})
	for range n {
		r.receive()
	}
	return r
}

// second makes a link settle when it knows what its outcomes have done.
func second(a *wire.Attach) { a.RcvSettleMode = 1 }

// outcome sends an outcome of deliveries.
func (r *raw) outcome(first, last uint32, settled bool, state wire.State) {
	r.t.Helper()
	r.send(channel, &wire.Disposition{Role: true, First: first, Last: wire.Some(last), Settled: settled, State: state})
}

// quiet checks that nothing waits to be read but the answer to this.
func (r *raw) quiet(next uint32) {
	r.t.Helper()
	r.send(channel, &wire.Flow{NextIncomingID: wire.Some(next), IncomingWindow: 1000, Echo: true})
	expect[*wire.Flow](r)
}

// mustTell expects a disposition of the server.
func (r *raw) mustTell(want string, settled bool) {
	r.t.Helper()
	if d := expect[*wire.Disposition](r); d.Role || d.Settled != settled || ids(d) != want {
		r.t.Fatalf("%+v, want %s", d, want)
	}
}

// An outcome of which the client wants to know is answered when it is committed.
func TestOutcomeIsAnsweredOnCommit(t *testing.T) {
	s := mustServe(t, nil)
	for name, change := range map[string]func(*wire.Attach){"first": nil, "second": second} {
		r := s.mustHold(name, 5, change)
		s.broker.HoldSettled()
		r.outcome(0, 1, false, accepted)
		r.outcome(2, 2, false, accepted)
		r.outcome(3, 3, false, wire.State{Kind: wire.StateRejected, Rejected: wire.Rejected{Error: wire.Errorf("mine", "bad")}})
		r.outcome(4, 4, true, accepted) // is not answered
		r.quiet(5)
		s.broker.ReleaseSettled()
		// Those that are alike may come together.
		var told []string
		for n := uint32(0); n < 4; {
			d := expect[*wire.Disposition](r)
			for id := d.First; id <= d.Last.Value; id++ {
				told = append(told, fmt.Sprintf("%d:%d", id, d.State.Kind))
				n++
			}
			if e := d.State.Rejected.Error; d.State.Kind == wire.StateRejected && (e == nil || e.Condition != "mine") {
				t.Errorf("%+v", d)
			}
		}
		if got := strings.Join(told, " "); got != "0:2 1:2 2:2 3:3" {
			t.Error(name, got)
		}
	}
}

// In mode second the answer is what has taken effect: deliveries that were taken back meanwhile are released.
func TestAnswerSaysWhatTookEffect(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustHold("q", 4, second)
	s.broker.TakeBack("q", 2, 3)
	r.outcome(0, 3, false, accepted)
	r.mustTell("0-0:2", true)
	r.mustTell("1-2:4", true)
	r.mustTell("3-3:2", true)
	r = s.mustHold("first", 2, nil)
	s.broker.TakeBack("first", 1)
	r.outcome(0, 1, false, accepted) // whoever does not ask is told what it has said
	r.mustTell("0-1:2", true)
}

// A client that names what it has settled is answered all the same.
func TestOutcomeOfNothing(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustHold("q", 1, second)
	r.outcome(0, 0, true, accepted)
	r.outcome(0, 77, false, accepted)
	r.mustTell("0-77:2", true)
}

// Outcomes are answered before the end of their link.
func TestAnswersBeforeADetach(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustHold("q", 2, second)
	r.outcome(0, 0, false, accepted)
	r.mustTell("0-0:2", true)
	s.broker.HoldSettled()
	r.outcome(1, 1, false, accepted)
	r.send(channel, &wire.Detach{})
	expect[*wire.Detach](r)
	s.broker.ReleaseSettled() // nobody waits for it any more
	r.mustAttach(aReceiver("/queues/q"))
	r.credit(wire.Flow{NextIncomingID: wire.Some[uint32](2), Echo: true})
	if f := expect[*wire.Flow](r); f.Available != wire.Some[uint32](0) {
		t.Errorf("%+v", f)
	}
}

// An outcome that comes too late ends a link that wants to know, unless it agrees with what has happened.
func TestLateOutcomeIsAnError(t *testing.T) {
	s := mustServe(t, nil)
	strict := func(a *wire.Attach) {
		a.Properties = wire.EndMap(wire.AppendString(wire.AppendSymbol(wire.StartMap(nil), "x-late-settle"), "error"), 0, 1)
	}
	r := s.mustHold("q", 3, strict)
	s.broker.TakeBack("q", 1, 2)
	r.outcome(0, 0, true, wire.State{Kind: wire.StateReleased})
	r.outcome(2, 2, true, accepted)
	r.quiet(3)
	r.outcome(1, 1, true, accepted)
	r.mustDetach(wire.ConditionPreconditionFailed, "settled after it had been lost")
	r = s.mustHold("lenient", 1, nil)
	s.broker.TakeBack("lenient", 1)
	r.outcome(0, 0, true, accepted)
	r.quiet(1)
}

// modified is a state with one annotation.
func modified(key string, value []byte) wire.State {
	m := wire.EndMap(append(wire.AppendSymbol(wire.StartMap(nil), key), value...), 0, 1)
	return wire.State{Kind: wire.StateModified, Modified: wire.Modified{MessageAnnotations: m}}
}

// awaitJournal waits until the broker has noted something.
func (s *server) awaitJournal(text string) {
	s.t.Helper()
	within(s.t, func() {
		for all := ""; !strings.Contains(all, text); {
			all += strings.Join(s.broker.Journal(), "\n") + "\n"
			runtime.Gosched()
		}
	})
}

// What a client says of a message goes with it.
func TestWhatOutcomesSay(t *testing.T) {
	s := mustServe(t, nil)
	late := wire.AppendTimestamp(nil, 1<<45)
	for i, c := range []struct {
		state wire.State
		want  string
	}{
		{wire.State{Kind: wire.StateRejected, Rejected: wire.Rejected{Error: wire.Errorf("mine", "bad")}}, "deferral= reason=mine description=bad due=0"},
		{modified("x-opt-delivery-time", late), "due=35184372088832"},
		{modified("x-opt-delivery-time", wire.AppendUlong(nil, 1<<45)), "due=35184372088832"},
		{modified("x-opt-deferral-token", wire.AppendString(nil, "one")), "deferral=one "},
		{modified("x-opt-deferral-token", wire.AppendBinary(nil, []byte("two"))), "deferral=two "},
	} {
		r := s.mustHold(fmt.Sprint("q", i), 1, nil)
		r.outcome(0, 0, true, c.state)
		s.awaitJournal(c.want)
	}
}

// Annotations of a modified message are merged into those that it has, and keep their types.
func TestModifiedAnnotations(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	annotations := wire.AppendString(wire.AppendSymbol(wire.StartMap(nil), "x-kept"), "old")
	annotations = wire.EndMap(wire.AppendString(wire.AppendSymbol(annotations, "x-replaced"), "old"), 0, 2)
	bare, err := fsm.AppendBareHead(nil, "", "q", fsm.BareHeader{Priority: -1, TTL: -1}, annotations, nil)
	must(t, err)
	s.broker.Inject("q", fsm.Message{Payload: append(bare, message("x")...)})
	r := s.mustOpen()
	r.mustAttach(aReceiver("/queues/q"))
	r.credit(wire.Flow{LinkCredit: wire.Some[uint32](10)})
	r.receive()
	more := wire.AppendUbyte(wire.AppendSymbol(wire.StartMap(nil), "x-replaced"), 7)
	more = wire.AppendTimestamp(wire.AppendSymbol(more, "x-new"), 5)
	more = wire.EndMap(wire.AppendString(wire.AppendSymbol(more, "x-exchange"), "forged"), 0, 3)
	r.outcome(0, 0, true, wire.State{Kind: wire.StateModified, Modified: wire.Modified{MessageAnnotations: more}})
	_, payload := expectPayload[*wire.Transfer](r)
	var m wire.Message
	must(t, m.Parse(payload))
	var found []string
	for w := m.Annotations.Walk(); w.NextPair(); {
		if name := string(w.Key.Bytes()); name != "x-routing-key" {
			found = append(found, fmt.Sprint(name, " ", w.Value.Type, " ", string(w.Value.Bytes()), w.Value.Signed()))
		}
	}
	want := fmt.Sprintf("[x-exchange %v 0 x-replaced %v 7 x-new %v 5 x-kept %v old0]", wire.String, wire.Ubyte, wire.Timestamp, wire.String)
	if got := fmt.Sprint(found); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// What a client says of a message that is wrong ends its link, and the message goes back.
func TestWhatOutcomesMayNotSay(t *testing.T) {
	s := mustServe(t, nil)
	taken := modified("x-opt-deferral-token", wire.AppendString(nil, "taken"))
	for i, c := range []struct {
		state           wire.State
		condition, text string
	}{
		{modified("x-opt-delivery-time", wire.AppendString(nil, "soon")), wire.ConditionInvalidField, "x-opt-delivery-time"},
		{modified("x-opt-deferral-token", wire.AppendNull(nil)), wire.ConditionInvalidField, "x-opt-deferral-token"},
		{modified("x-opt-deferral-token", wire.AppendString(nil, strings.Repeat("x", 256))), wire.ConditionInvalidField, "255"},
		{modified("x-opt-deferral-token", wire.AppendString(nil, "both")), wire.ConditionInvalidField, "not for 2"},
		{modified("other", wire.AppendNull(nil)), wire.ConditionInvalidField, "begins with x-"},
		{modified("x-large", wire.AppendBinary(nil, make([]byte, fsm.MaxAnnotationBytes))), wire.ConditionResourceLimit, "4096 bytes"},
		{taken, wire.ConditionPreconditionFailed, "in use"},
	} {
		queue := fmt.Sprint("q", i)
		if c.text == "in use" {
			s.mustHold("before", 1, nil).outcome(0, 0, true, taken)
			s.awaitJournal("deferral=taken")
		}
		r := s.mustHold(queue, 2, nil)
		last := uint32(1)
		if c.text == "in use" {
			last = 0
		}
		r.outcome(0, last, true, c.state)
		r.mustDetach(c.condition, c.text)
	}
	r := s.mustHold("limit", 1, nil)
	s.broker.Fail("SettleAs", errTooFar)
	r.outcome(0, 0, true, modified("x-opt-delivery-time", wire.AppendUlong(nil, 1<<60)))
	r.mustDetach(wire.ConditionPreconditionFailed, "too far")
}

// So is one that names such while another one waits for the broker.
func TestOutcomeOfNothingMeanwhile(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustHold("q", 3, second)
	s.broker.HoldSettled()
	r.outcome(0, 0, true, accepted)
	r.outcome(1, 1, false, accepted)
	r.outcome(0, 0, false, accepted)
	r.mustTell("0-0:2", true)
	r.outcome(0, 1, false, accepted) // of which one is not decided
	r.quiet(3)
	s.broker.ReleaseSettled()
	r.mustTell("1-1:2", true)
}
