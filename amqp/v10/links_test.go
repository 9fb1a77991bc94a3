package v10_test

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// message is an encoded message with one data section.
func message(body string) []byte { return wire.AppendData(nil, []byte(body)) }

// to is a message for a link whose messages say where they go.
func to(address, body string) []byte {
	return append(wire.Append(nil, &wire.Properties{To: []byte(address)}), message(body)...)
}

// transfer sends a transfer of handle 0.
func (r *raw) transfer(t *wire.Transfer, payload []byte) {
	r.t.Helper()
	r.write(append(wire.AppendTransfer(nil, channel, t, len(payload)), payload...))
}

// publish sends a message unsettled, and returns its outcome.
func (r *raw) publish(id uint32, payload []byte) *wire.Disposition {
	r.t.Helper()
	r.transfer(&wire.Transfer{DeliveryID: wire.Some(id), DeliveryTag: []byte("t")}, payload)
	d := expect[*wire.Disposition](r, &wire.Flow{})
	if !d.Role || !d.Settled || d.First != id || d.Last.Or(id) != id {
		r.t.Fatalf("%+v", d)
	}
	return d
}

// mustAttach attaches with handle 0.
func (r *raw) mustAttach(a *wire.Attach) *wire.Attach {
	r.t.Helper()
	r.send(channel, a)
	answer := expect[*wire.Attach](r)
	if to, ok := a.Target.(*wire.Target); !a.Role && !(ok && to.Address.Value == "/management") {
		expect[*wire.Flow](r)
	}
	return answer
}

// mustDetach expects the end of the link, and answers it.
func (r *raw) mustDetach(condition, text string) {
	r.t.Helper()
	d := expect[*wire.Detach](r, &wire.Flow{})
	if !d.Closed {
		r.t.Errorf("%+v", d)
	}
	mustCondition(r.t, d.Error, condition, text)
	r.send(channel, &wire.Detach{Closed: true})
}

func mustKind(t testing.TB, d *wire.Disposition, kind wire.Outcome, condition string) {
	t.Helper()
	if d.State.Kind != kind {
		t.Fatalf("%+v", d.State)
	}
	if condition != "" {
		mustCondition(t, d.State.Rejected.Error, condition, "")
	}
}

func TestOutcomesOfPublishes(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q", "full")
	s.broker.RefusePublishes("full", true)
	for _, c := range []struct {
		address   string
		kind      wire.Outcome
		condition string
	}{
		{"/queues/q", wire.StateAccepted, ""},
		{"/queues/full", wire.StateRejected, wire.ConditionResourceLimit},
		{"/exchanges/amq.direct/nobody", wire.StateReleased, ""},
	} {
		r := s.mustOpen()
		r.mustAttach(aSender(c.address))
		for id := range uint32(3) {
			mustKind(t, r.publish(1<<32-2+id, message("x")), c.kind, c.condition)
		}
	}
}

// A link without an address: each message says where it goes.
func TestAnonymousTerminus(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	r := s.mustOpen()
	r.mustAttach(aSender(""))
	for i, c := range []struct {
		payload   []byte
		kind      wire.Outcome
		condition string
	}{
		{to("/queues/q", "x"), wire.StateAccepted, ""},
		{to("/exchanges/amq.direct/k", "x"), wire.StateReleased, ""},
		{to("/queues/nope", "x"), wire.StateReleased, ""},
		{message("x"), wire.StateRejected, wire.ConditionPreconditionFailed},
		{to("", "x"), wire.StateRejected, wire.ConditionPreconditionFailed},
		{to("/queue/q", "x"), wire.StateRejected, wire.ConditionPreconditionFailed},
		{to("/exchanges/nope/k", "x"), wire.StateRejected, wire.ConditionNotFound},
		{to("/queues/q", "x"), wire.StateAccepted, ""},
	} {
		mustKind(t, r.publish(uint32(i), c.payload), c.kind, c.condition)
	}
	r.transfer(&wire.Transfer{DeliveryID: wire.Some[uint32](9), Settled: wire.Some(true)}, to("/queue/q", "x"))
	r.mustDetach(wire.ConditionPreconditionFailed, "bad 'to' address string: '/queue/q'")
}

// Errors of a transfer end its link, and nothing else.
func TestErrorsOfTransfers(t *testing.T) {
	s := mustServe(t, func(c *amqp.Config) { c.MaxMessageSize = 1000 })
	s.mustDeclare("q")
	large := message(strings.Repeat("x", 1000))
	withUser := append(wire.Append(nil, &wire.Properties{UserID: []byte("bob")}), message("x")...)
	copies := append(wire.EndMap(wire.AppendString(wire.AppendSymbol(wire.StartMap(wire.StartAnnotations(nil)), "x-cc"), "k"), 3, 1), message("x")...)
	for _, c := range []struct {
		name            string
		mode            byte
		transfer        wire.Transfer
		payload         []byte
		condition, text string
	}{
		{"no delivery-id", 2, wire.Transfer{}, message("x"), wire.ConditionInvalidField, "delivery-id"},
		{"settled", 0, wire.Transfer{DeliveryID: wire.Some[uint32](1), Settled: wire.Some(true)}, message("x"), wire.ConditionInvalidField, "snd-settle-mode"},
		{"too large", 2, wire.Transfer{DeliveryID: wire.Some[uint32](1), More: true}, large, wire.ConditionMessageSize, "1000"},
		{"malformed", 2, wire.Transfer{DeliveryID: wire.Some[uint32](1)}, []byte("garbage"), wire.ConditionDecode, "failed to parse message: "},
		{"empty", 2, wire.Transfer{DeliveryID: wire.Some[uint32](1)}, nil, wire.ConditionDecode, "failed to parse message: no body"},
		{"another's user-id", 2, wire.Transfer{DeliveryID: wire.Some[uint32](1)}, withUser, wire.ConditionUnauthorized, "user_id property set to 'bob' but authenticated user was 'guest'"},
		{"x-cc", 2, wire.Transfer{DeliveryID: wire.Some[uint32](1)}, copies, wire.ConditionInvalidField, "x-cc"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := s.mustOpen()
			a := aSender("/queues/q")
			a.SndSettleMode = c.mode
			r.mustAttach(a)
			r.transfer(&c.transfer, c.payload)
			r.transfer(&wire.Transfer{DeliveryID: wire.Some[uint32](2)}, message("it crosses the detach"))
			d := expect[*wire.Detach](r, &wire.Disposition{}, &wire.Flow{})
			mustCondition(t, d.Error, c.condition, c.text)
			r.send(channel, &wire.Detach{Closed: true})
			r.mustAttach(aSender("/queues/q"))
			mustKind(t, r.publish(3, message("x")), wire.StateAccepted, "")
		})
	}
}

// A message that is too large has an outcome before its link ends.
func TestOutcomeOfTooLarge(t *testing.T) {
	s := mustServe(t, func(c *amqp.Config) { c.MaxMessageSize = 1000 })
	s.mustDeclare("q")
	r := s.mustOpen()
	r.mustAttach(aSender("/queues/q"))
	r.transfer(&wire.Transfer{DeliveryID: wire.Some[uint32](1), More: true}, message("x"))
	r.transfer(&wire.Transfer{More: true}, make([]byte, 1000))
	d := expect[*wire.Disposition](r, &wire.Flow{})
	if !d.Role || d.First != 1 || !d.Settled || d.State.Kind != wire.StateRejected {
		t.Errorf("%+v", d)
	}
	mustCondition(t, d.State.Rejected.Error, wire.ConditionMessageSize, "1000")
	r.mustDetach(wire.ConditionMessageSize, "1000")
}

func TestDeliveriesInFrames(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	r := s.mustOpen()
	r.mustAttach(aSender("/queues/q"))
	whole := message(strings.Repeat("x", 100_000))
	for at := 0; at < len(whole); at += 10_000 {
		f := &wire.Transfer{More: true}
		if at == 0 {
			f.DeliveryID = wire.Some[uint32](7)
		}
		r.transfer(f, whole[at:min(at+10_000, len(whole))])
	}
	r.transfer(&wire.Transfer{}, nil)
	if d := expect[*wire.Disposition](r); ids(d) != "7-7:2" {
		t.Errorf("%+v", d)
	}
	r.transfer(&wire.Transfer{DeliveryID: wire.Some[uint32](8), More: true}, whole)
	r.transfer(&wire.Transfer{Aborted: true}, nil)
	mustKind(t, r.publish(9, message("x")), wire.StateAccepted, "")
	if n := s.broker.Published(); n != 2 {
		t.Errorf("%d messages", n)
	}
	r.transfer(&wire.Transfer{DeliveryID: wire.Some[uint32](10), More: true}, whole)
	r.send(channel, &wire.Detach{}) // in the middle of it
	expect[*wire.Detach](r)
	if n := s.broker.Published(); n != 2 {
		t.Errorf("%d messages", n)
	}
}

// A link that does not look at its credit is ended, a session that does not look at its window, too.
func TestBeyondCreditAndWindow(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	s.broker.HoldConfirms()
	defer s.broker.ReleaseConfirms(false)
	r := s.mustOpen()
	r.mustAttach(aSender("/queues/q"))
	for i := range uint32(256) { // 170, and half of that before 170 wait
		r.transfer(&wire.Transfer{DeliveryID: wire.Some(i)}, message("x"))
	}
	r.mustDetach(wire.ConditionTransferLimit, "link-credit")
	r = s.mustOpen()
	r.mustAttach(aSender("/queues/q"))
	within(t, func() {
		for range 1000 {
			r.transfer(&wire.Transfer{Handle: 0, DeliveryID: wire.Some[uint32](1), More: true}, nil)
		}
		expect[*wire.Flow](r) // the window is refilled meanwhile
	})
}

// Credit comes back with outcomes.
func TestCreditIsRefilled(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	r := s.mustOpen()
	r.mustAttach(aSender("/queues/q"))
	s.broker.HoldConfirms()
	for i := range uint32(170) {
		r.transfer(&wire.Transfer{DeliveryID: wire.Some(i)}, message("x"))
	}
	s.broker.AwaitPublished(170)
	s.broker.ReleaseConfirms(true)
	told := map[uint32]bool{}
	credit := false
	for len(told) < 170 || !credit {
		_, body := r.next()
		code, err := wire.Peek(body)
		must(t, err)
		if code == wire.CodeFlow {
			credit = true
			continue
		}
		var d wire.Disposition
		_, err = wire.Decode(body, &d)
		must(t, err)
		for id := d.First; id <= d.Last.Or(d.First); id++ {
			if told[id] || d.State.Kind != wire.StateAccepted {
				t.Fatalf("%d: %+v", id, d)
			}
			told[id] = true
		}
	}
}

// receive expects a delivery, and returns its body.
func (r *raw) receive() (*wire.Transfer, string) {
	r.t.Helper()
	f, payload := expectPayload[*wire.Transfer](r)
	more := f.More
	for more {
		next, rest := expectPayload[*wire.Transfer](r)
		payload, more = append(payload, rest...), next.More
	}
	m := new(wire.Message)
	must(r.t, m.Parse(payload))
	var body []byte
	for d := range m.Data {
		body = append(body, d...)
	}
	return f, fmt.Sprintf("%s %d/%v", body, m.Header.DeliveryCount, m.Header.FirstAcquirer)
}

// credit gives credit on handle 0.
func (r *raw) credit(f wire.Flow) {
	r.t.Helper()
	f.Handle = wire.Some[uint32](0)
	if f.IncomingWindow == 0 {
		f.IncomingWindow = 1000
	}
	r.send(channel, &f)
}

// mustFill publishes messages to a queue on a connection of its own.
func (s *server) mustFill(queue string, bodies ...string) {
	s.t.Helper()
	r := s.mustOpen()
	r.mustAttach(aSender("/queues/" + queue))
	for i, b := range bodies {
		mustKind(s.t, r.publish(uint32(i), message(b)), wire.StateAccepted, "")
	}
	r.send(0, &wire.Close{})
	expect[*wire.Close](r)
}

func TestAttachedReceiver(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	r := s.mustOpen()
	in := aReceiver("/queues/q")
	in.SndSettleMode, in.MaxMessageSize = 2, 5000
	in.Source.Filter = wire.EndMap(wire.AppendString(wire.AppendSymbol(wire.StartMap(nil), "f"), "x"), 0, 1)
	a := r.mustAttach(in)
	if a.Role || a.SndSettleMode != 0 || a.InitialDeliveryCount != wire.Some[uint32](0) || a.MaxMessageSize != 5000 {
		t.Errorf("%+v", a)
	}
	if src := a.Source; src.Address != in.Source.Address || src.Filter != nil || src.DistributionMode != "move" || src.DefaultOutcome.Kind != wire.StateReleased || len(src.Outcomes) != 4 {
		t.Errorf("%+v", src)
	}
	// Without credit there is nothing; a flow with echo is answered.
	s.mustFill("q", "1", "2", "3")
	r.credit(wire.Flow{Echo: true})
	f := expect[*wire.Flow](r)
	if f.Handle != wire.Some[uint32](0) || f.LinkCredit != wire.Some[uint32](0) || f.Available != wire.Some[uint32](3) || f.DeliveryCount != wire.Some[uint32](0) {
		t.Errorf("%+v", f)
	}
}

func TestCreditAndDrain(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	s.mustFill("q", "1", "2", "3", "4", "5")
	r := s.mustOpen()
	r.mustAttach(aReceiver("/queues/q"))
	r.credit(wire.Flow{LinkCredit: wire.Some[uint32](3)})
	for i := range uint32(3) {
		f, body := r.receive()
		if f.DeliveryID != wire.Some(i) || f.MessageFormat != wire.Some[uint32](0) || f.Settled.Value || len(f.DeliveryTag) == 0 || body != fmt.Sprintf("%d 0/true", i+1) {
			t.Fatalf("%+v %s", f, body)
		}
	}
	// Settling gives no credit.
	r.send(channel, &wire.Disposition{Role: true, First: 0, Last: wire.Some[uint32](2), Settled: true, State: wire.State{Kind: wire.StateAccepted}})
	r.credit(wire.Flow{NextIncomingID: wire.Some[uint32](3), DeliveryCount: wire.Some[uint32](3), Echo: true})
	if f := expect[*wire.Flow](r); f.Available != wire.Some[uint32](2) || f.DeliveryCount != wire.Some[uint32](3) {
		t.Fatalf("%+v", f)
	}
	r.credit(wire.Flow{NextIncomingID: wire.Some[uint32](3), DeliveryCount: wire.Some[uint32](3), LinkCredit: wire.Some[uint32](1000), Drain: true})
	for range 2 {
		r.receive()
	}
	f := expect[*wire.Flow](r)
	if f.DeliveryCount != wire.Some[uint32](1003) || f.LinkCredit != wire.Some[uint32](0) || !f.Drain {
		t.Fatalf("%+v", f)
	}
	r.credit(wire.Flow{NextIncomingID: wire.Some[uint32](5), DeliveryCount: wire.Some[uint32](1003), LinkCredit: wire.Some[uint32](1)})
	s.mustFill("q", "6")
	if _, body := r.receive(); body != "6 0/true" {
		t.Error(body)
	}
}

// A shut window holds transfers back, frame by frame, and the flow that ends a drain behind them.
func TestShutWindow(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	large := strings.Repeat("x", 1200)
	s.mustFill("q", large, "2", "3")
	r := s.mustRaw()
	o := anOpen()
	o.MaxFrameSize = 512
	r.login(o)
	expect[*wire.Open](r)
	r.send(channel, &wire.Begin{IncomingWindow: 1, HandleMax: 10})
	expect[*wire.Begin](r)
	r.in.Expect(wire.FrameAMQP, 512)
	r.mustAttach(aReceiver("/queues/q"))
	flow := func(next, window uint32, drain bool) {
		r.send(channel, &wire.Flow{NextIncomingID: wire.Some(next), IncomingWindow: window, Handle: wire.Some[uint32](0), LinkCredit: wire.Some[uint32](10), Drain: drain})
	}
	quiet := func(next uint32) { // nothing but the answer to this comes
		t.Helper()
		r.send(channel, &wire.Flow{NextIncomingID: wire.Some(next), Echo: true})
		if f := expect[*wire.Flow](r); f.Handle.Present || f.NextOutgoingID != next {
			t.Fatalf("%+v", f)
		}
	}
	flow(0, 1, true)
	var body []byte
	for i := range uint32(3) {
		f, payload := expectPayload[*wire.Transfer](r)
		body = append(body, payload...)
		if f.More != (i < 2) {
			t.Fatalf("frame %d: %+v", i, f)
		}
		quiet(i + 1)
		r.send(channel, &wire.Flow{NextIncomingID: wire.Some(i + 1), IncomingWindow: 1})
	}
	if !bytes.Contains(body, []byte(large)) {
		t.Errorf("%d octets", len(body))
	}
	r.receive()
	quiet(4)
	r.send(channel, &wire.Flow{NextIncomingID: wire.Some[uint32](4), IncomingWindow: 1})
	r.receive()
	if f := expect[*wire.Flow](r); !f.Drain || f.DeliveryCount != wire.Some[uint32](10) {
		t.Errorf("%+v", f)
	}
}

func TestOutcomesOfDeliveries(t *testing.T) {
	s := mustServe(t, nil)
	for i, c := range []struct {
		name  string
		state wire.State
		again string // the next delivery; empty: there is none
	}{
		{"accepted", wire.State{Kind: wire.StateAccepted}, ""},
		{"rejected", wire.State{Kind: wire.StateRejected, Rejected: wire.Rejected{Error: wire.Errorf("mine", "bad")}}, ""},
		{"released", wire.State{Kind: wire.StateReleased}, "x 0/false"},
		{"none", wire.State{}, "x 0/false"},
		{"modified", wire.State{Kind: wire.StateModified}, "x 0/false"},
		{"failed", wire.State{Kind: wire.StateModified, Modified: wire.Modified{DeliveryFailed: true}}, "x 1/false"},
		{"undeliverable", wire.State{Kind: wire.StateModified, Modified: wire.Modified{UndeliverableHere: true, DeliveryFailed: true}}, ""},
		{"received", wire.State{Kind: wire.StateReceived}, "x 0/false"},
	} {
		for _, settled := range []bool{true, false} {
			if !settled && (c.state.Kind == wire.NoState || c.state.Kind == wire.StateReceived) {
				continue // they do not end it
			}
			t.Run(fmt.Sprint(c.name, settled), func(t *testing.T) {
				queue := fmt.Sprint("q", i, settled)
				s.mustDeclare(queue)
				s.mustFill(queue, "x")
				r := s.mustOpen()
				r.mustAttach(aReceiver("/queues/" + queue))
				r.credit(wire.Flow{LinkCredit: wire.Some[uint32](10)})
				if _, body := r.receive(); body != "x 0/true" {
					t.Fatal(body)
				}
				r.send(channel, &wire.Disposition{Role: true, Settled: settled, State: c.state})
				if !settled {
					if d := expect[*wire.Disposition](r, &wire.Transfer{}); d.Role || !d.Settled || d.First != 0 || d.State.Kind != c.state.Kind {
						t.Errorf("%+v", d)
					}
				}
				if c.again != "" && settled {
					if _, body := r.receive(); body != c.again {
						t.Errorf("%s, want %s", body, c.again)
					}
				}
				r.send(channel, &wire.Disposition{Role: true, First: 0, Last: wire.Some[uint32](1 << 30), Settled: true, State: wire.State{Kind: wire.StateAccepted}})
				r.credit(wire.Flow{NextIncomingID: wire.Some[uint32](1), Echo: true})
				if f := expect[*wire.Flow](r, &wire.Transfer{}); f.Available != wire.Some[uint32](0) {
					t.Errorf("%+v", f)
				}
			})
		}
	}
}

func TestStatesThatEndTheSession(t *testing.T) {
	s := mustServe(t, nil)
	for state, condition := range map[string]string{
		"\x00\x53\x99\x45":                                     wire.ConditionInvalidField,
		"\x00\x53\x34\xc0\x04\x01\xa0\x01\x74":                 wire.ConditionNotImplemented,
		"\x00\xa3\x04else\xd0\x00\x00\x00\x04\x00\x00\x00\x00": wire.ConditionInvalidField,
	} {
		r := s.mustOpen()
		body := append([]byte("\x00\x53\x15\xc0\x00\x05\x41\x43\x40\x40"), state...)
		body[4] = byte(len(body) - 5)
		r.write(append([]byte{0, 0, 0, byte(len(body) + 8), 2, 0, 0, channel}, body...))
		mustCondition(t, expect[*wire.End](r).Error, condition, "")
	}
}

func TestReservedAnnotation(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	s.mustFill("q", "x")
	r := s.mustOpen()
	r.mustAttach(aReceiver("/queues/q"))
	r.credit(wire.Flow{LinkCredit: wire.Some[uint32](1)})
	r.receive()
	reserved := wire.EndMap(wire.AppendNull(wire.AppendSymbol(wire.StartMap(nil), "other")), 0, 1)
	r.send(channel, &wire.Disposition{Role: true, Settled: true, State: wire.State{Kind: wire.StateModified, Modified: wire.Modified{MessageAnnotations: reserved}}})
	r.mustDetach(wire.ConditionInvalidField, "annotation")
	r.mustAttach(aReceiver("/queues/q"))
	r.credit(wire.Flow{NextIncomingID: wire.Some[uint32](1), LinkCredit: wire.Some[uint32](1)})
	r.receive()
}

// What a client has not settled goes back with its link, its session and its connection.
func TestUnsettledGoBack(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	s.mustFill("q", "1", "2", "3")
	for name, end := range map[string]func(*raw){
		"detach": func(r *raw) { r.send(channel, &wire.Detach{}); expect[*wire.Detach](r) },
		"end":    func(r *raw) { r.send(channel, &wire.End{}); expect[*wire.End](r) },
		"close":  func(r *raw) { r.send(0, &wire.Close{}); expect[*wire.Close](r) },
	} {
		t.Run(name, func(t *testing.T) {
			r := s.mustOpen()
			r.mustAttach(aReceiver("/queues/q"))
			r.credit(wire.Flow{LinkCredit: wire.Some[uint32](3)})
			for range 3 {
				r.receive()
			}
			end(r)
			// It is there again once the answer is.
			r = s.mustOpen()
			r.mustAttach(aReceiver("/queues/q"))
			r.credit(wire.Flow{Echo: true})
			if f := expect[*wire.Flow](r); f.Available != wire.Some[uint32](3) {
				t.Errorf("%+v", f)
			}
		})
	}
}

// A settled link's deliveries are settled once they are written.
func TestSettledReceiver(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	s.mustFill("q", "1", "2")
	r := s.mustOpen()
	a := aReceiver("/queues/q")
	a.SndSettleMode = 1
	if a := r.mustAttach(a); a.SndSettleMode != 1 {
		t.Errorf("%+v", a)
	}
	r.credit(wire.Flow{LinkCredit: wire.Some[uint32](5)})
	for range 2 {
		if f, _ := r.receive(); !f.Settled.Value {
			t.Errorf("%+v", f)
		}
	}
	within(t, func() {
		for !strings.Contains(s.broker.String(), "queue q ready=0 held=0 ") {
			runtime.Gosched() // the writer is about to settle them
		}
	})
}

// A message that the client does not take goes back as it was, and its link ends.
func TestMessageBeyondTheClientsSize(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	s.mustFill("q", strings.Repeat("x", 200))
	r := s.mustOpen()
	a := aReceiver("/queues/q")
	a.MaxMessageSize = 100
	r.mustAttach(a)
	r.credit(wire.Flow{LinkCredit: wire.Some[uint32](5)})
	r.mustDetach(wire.ConditionMessageSize, "100")
	r.mustAttach(aReceiver("/queues/q"))
	r.credit(wire.Flow{LinkCredit: wire.Some[uint32](5)})
	if _, body := r.receive(); !strings.HasSuffix(body, "x 0/false") {
		t.Error(body)
	}
}

func TestConsumerTimeout(t *testing.T) {
	s := mustServe(t, nil)
	for _, c := range []struct {
		name     string
		outcomes []string
	}{{"released", nil}, {"detached", []string{"amqp:accepted:list"}}} {
		t.Run(c.name, func(t *testing.T) {
			s.mustDeclare(c.name)
			s.mustFill(c.name, "1", "2")
			r := s.mustOpen()
			a := aReceiver("/queues/" + c.name)
			a.Source.Outcomes = c.outcomes
			r.mustAttach(a)
			r.credit(wire.Flow{LinkCredit: wire.Some[uint32](4)})
			r.receive()
			r.receive()
			s.broker.TimeOut(c.name, 1500)
			if c.outcomes != nil {
				r.mustDetach(wire.ConditionPreconditionFailed, "timed out. Timeout value used: 1500 ms")
				return
			}
			d := expect[*wire.Disposition](r)
			if d.Role || d.Settled || ids(d) != "0-1:4" {
				t.Fatalf("%+v", d)
			}
			// Once they are settled the link is served again.
			r.send(channel, &wire.Disposition{Role: true, Last: wire.Some[uint32](1), Settled: true, State: wire.State{Kind: wire.StateReleased}})
			r.credit(wire.Flow{NextIncomingID: wire.Some[uint32](2), DeliveryCount: wire.Some[uint32](2), LinkCredit: wire.Some[uint32](4)})
			for range 2 {
				if _, body := r.receive(); !strings.HasSuffix(body, " 0/false") {
					t.Error(body)
				}
			}
		})
	}
}

// Two links of a session have ids of their own, and settle together.
func TestTwoLinks(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("a", "b")
	s.mustFill("a", "1", "2")
	s.mustFill("b", "3", "4")
	r := s.mustOpen()
	for i, q := range []string{"a", "b"} {
		in := aReceiver("/queues/" + q)
		in.Handle = uint32(i)
		r.mustAttach(in)
	}
	for i := range uint32(4) {
		r.send(channel, &wire.Flow{NextIncomingID: wire.Some(i), IncomingWindow: 10, Handle: wire.Some(i % 2), LinkCredit: wire.Some(i/2 + 1)})
		if f, _ := r.receive(); f.Handle != i%2 || f.DeliveryID != wire.Some(i) {
			t.Fatalf("%+v", f)
		}
	}
	r.send(channel, &wire.Disposition{Role: true, Last: wire.Some[uint32](3), Settled: true, State: wire.State{Kind: wire.StateAccepted}})
	for i := range uint32(2) {
		r.send(channel, &wire.Flow{NextIncomingID: wire.Some[uint32](4), IncomingWindow: 10, Handle: wire.Some(i), DeliveryCount: wire.Some[uint32](2), Echo: true})
		if f := expect[*wire.Flow](r); f.Available != wire.Some[uint32](0) {
			t.Errorf("%+v", f)
		}
	}
}

// What a link has is told once however often the client asks while its window is shut.
func TestFlowsBehindShutWindow(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	s.mustFill("q", "1", "2", "3")
	r := s.mustOpen()
	r.mustAttach(aReceiver("/queues/q"))
	ask := func(count, credit uint32, drain bool) {
		r.send(channel, &wire.Flow{
			NextIncomingID: wire.Some[uint32](0), Handle: wire.Some[uint32](0), DeliveryCount: wire.Some(count), LinkCredit: wire.Some(credit), Drain: drain, Echo: true,
		})
	}
	ask(0, 1, false)
	for i := range uint32(50) {
		ask(1, 0, i%2 == 0)
	}
	r.send(channel, &wire.Flow{NextIncomingID: wire.Some[uint32](0), Echo: true})
	expect[*wire.Flow](r)
	s.broker.Quiesce()
	s.broker.Tell("q", &fsm.News{Kind: fsm.Serving})
	for range 50 {
		s.broker.Tell("q", &fsm.News{Kind: fsm.Waiting})
		s.broker.Tell("q", &fsm.News{Kind: fsm.Serving})
	}
	s.broker.Quiesce()
	ask(1, 1, false)
	r.send(channel, &wire.Flow{NextIncomingID: wire.Some[uint32](0), Echo: true})
	expect[*wire.Flow](r)
	s.broker.Quiesce()
	r.send(channel, &wire.Flow{NextIncomingID: wire.Some[uint32](0), IncomingWindow: 10})
	r.receive()
	if f := expect[*wire.Flow](r); f.DeliveryCount != wire.Some[uint32](1) || f.LinkCredit != wire.Some[uint32](0) || !f.Drain {
		t.Errorf("%+v", f)
	}
	r.mustProperty("rabbitmq:active", fmt.Sprint(wire.Boolean, " true "), 1, 0)
	r.receive()
	if f := expect[*wire.Flow](r); f.DeliveryCount != wire.Some[uint32](2) || f.Drain {
		t.Errorf("%+v", f)
	}
	r.quiet(2)
}

// Of a message that the client has in part nothing comes once its link has ended: the handle may be another's. It goes back.
func TestDetachWithinMessage(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	large := strings.Repeat("x", 1200)
	s.mustFill("q", large)
	for _, settled := range []byte{0, 1} {
		r := s.mustRaw()
		o := anOpen()
		o.MaxFrameSize = 512
		r.login(o)
		expect[*wire.Open](r)
		r.send(channel, &wire.Begin{IncomingWindow: 1, HandleMax: 10})
		expect[*wire.Begin](r)
		r.in.Expect(wire.FrameAMQP, 512)
		in := aReceiver("/queues/q")
		in.SndSettleMode = settled
		r.mustAttach(in)
		r.send(channel, &wire.Flow{NextIncomingID: wire.Some[uint32](0), IncomingWindow: 1, Handle: wire.Some[uint32](0), LinkCredit: wire.Some[uint32](1)})
		if f, _ := expectPayload[*wire.Transfer](r); !f.More {
			t.Fatalf("%+v", f)
		}
		r.send(channel, &wire.Detach{Closed: true})
		expect[*wire.Detach](r)
		r.mustAttach(aReceiver("/queues/q"))
		r.send(channel, &wire.Flow{NextIncomingID: wire.Some[uint32](1), IncomingWindow: 10, Handle: wire.Some[uint32](0), LinkCredit: wire.Some[uint32](1)})
		f, body := expectPayload[*wire.Transfer](r)
		if !f.DeliveryID.Present {
			t.Fatalf("the message goes on: %+v", f)
		}
		for f.More {
			var more []byte
			f, more = expectPayload[*wire.Transfer](r)
			body = append(body, more...)
		}
		if !bytes.Contains(body, []byte(large)) {
			t.Errorf("%d octets", len(body))
		}
		r.send(0, &wire.Close{})
		expect[*wire.Close](r)
	}
}

// What waits behind a message that does not come any more waits no longer.
func TestDetachFreesWhatIsBehind(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q", "empty")
	s.mustFill("q", "1")
	r := s.mustOpen()
	r.mustAttach(aReceiver("/queues/q"))
	r.send(channel, &wire.Flow{NextIncomingID: wire.Some[uint32](0), Handle: wire.Some[uint32](0), LinkCredit: wire.Some[uint32](1)})
	s.broker.Quiesce()
	other := aReceiver("/queues/empty")
	other.Name, other.Handle = "m", 1
	r.mustAttach(other)
	r.send(channel, &wire.Flow{NextIncomingID: wire.Some[uint32](0), Handle: wire.Some[uint32](1), LinkCredit: wire.Some[uint32](5), Drain: true})
	s.broker.Quiesce()
	r.send(channel, &wire.Flow{NextIncomingID: wire.Some[uint32](0), Echo: true})
	if f := expect[*wire.Flow](r); f.Handle.Present {
		t.Fatalf("%+v", f)
	}
	r.send(channel, &wire.Detach{Closed: true})
	if f := expect[*wire.Flow](r); f.Handle != wire.Some[uint32](1) || !f.Drain {
		t.Errorf("%+v", f)
	}
	expect[*wire.Detach](r)
}
