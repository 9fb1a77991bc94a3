package servicebus

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	client "github.com/Azure/go-amqp"

	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// raw is a client of frames, as the SDK of .NET sends them: no other one here knows transactions.
type raw struct {
	t    testing.TB
	conn net.Conn
	in   *wire.Reader
	next uint32 // delivery-id
}

// mustRaw connects with all rights, and opens sessions on these channels.
func (s *server) mustRaw(t testing.TB, channels ...uint16) *raw {
	t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	r := &raw{t: t, conn: conn, in: wire.NewReader(conn, 1<<20)}
	header := wire.ProtocolHeader(3)
	r.write(header[:])
	_, err = r.in.ReadProtocolHeader()
	must(t, err)
	r.send(0, &wire.SASLInit{Mechanism: "PLAIN", InitialResponse: []byte("\x00" + root + "\x00" + rootKey)})
	if o := expect[*wire.SASLOutcome](r); o.Code != 0 {
		t.Fatalf("outcome %d", o.Code)
	}
	header = wire.ProtocolHeader(0)
	r.write(header[:])
	_, err = r.in.ReadProtocolHeader()
	must(t, err)
	r.in.Expect(wire.FrameAMQP, 1<<20)
	r.send(0, &wire.Open{ContainerID: "c", MaxFrameSize: 1 << 20, ChannelMax: 1000, Hostname: "host"})
	expect[*wire.Open](r)
	for _, channel := range channels {
		r.send(channel, &wire.Begin{IncomingWindow: 1000, OutgoingWindow: 1000, HandleMax: 100})
		expect[*wire.Begin](r)
	}
	return r
}

func (r *raw) write(b []byte) {
	r.t.Helper()
	_, err := r.conn.Write(b)
	must(r.t, err)
}

func (r *raw) send(channel uint16, c wire.Composite) {
	r.t.Helper()
	r.write(wire.AppendFrame(nil, channel, c))
}

// expect reads frames up to one of a type.
func expect[P interface {
	wire.Composite
	*T
}, T any](r *raw) *T {
	r.t.Helper()
	for {
		f, err := r.in.ReadFrame()
		must(r.t, err)
		if len(f.Body) == 0 {
			continue
		}
		code, err := wire.Peek(f.Body)
		must(r.t, err)
		if c := P(new(T)); code == wire.Code(c) {
			_, err := wire.Decode(bytes.Clone(f.Body), c)
			must(r.t, err)
			return c
		} else if d := new(wire.Detach); code == wire.Code(d) {
			_, _ = wire.Decode(f.Body, d)
			r.t.Fatalf("detached: %v, want %T", d.Error, c)
		}
	}
}

// attach opens a link on which the client sends, to a target and maybe via another one.
func (r *raw) attach(channel uint16, handle uint32, target wire.Composite, properties wire.MapBytes) {
	r.t.Helper()
	r.send(channel, &wire.Attach{Name: fmt.Sprint("to", handle), Handle: handle, Source: &wire.Source{}, Target: target, Properties: properties})
	if a := expect[*wire.Attach](r); a.Target == nil {
		r.t.Fatalf("refused: %v", expect[*wire.Detach](r).Error)
	}
}

func to(address string) *wire.Target { return &wire.Target{Address: wire.Some(address)} }

// receive opens a link on which the client receives one message that is there.
func (r *raw) receive(channel uint16, handle uint32, address string) (id uint32) {
	r.t.Helper()
	r.send(channel, &wire.Attach{Name: fmt.Sprint("from", handle), Handle: handle, Role: true, RcvSettleMode: 1, Source: &wire.Source{Address: wire.Some(address)}, Target: &wire.Target{}})
	if a := expect[*wire.Attach](r); a.Source == nil {
		r.t.Fatalf("refused: %v", expect[*wire.Detach](r).Error)
	}
	r.send(channel, &wire.Flow{NextIncomingID: wire.Some[uint32](0), IncomingWindow: 1000, OutgoingWindow: 1000, Handle: wire.Some(handle), DeliveryCount: wire.Some[uint32](0), LinkCredit: wire.Some[uint32](1)})
	return expect[*wire.Transfer](r).DeliveryID.Value
}

// transfer sends a message, in a transaction unless its id is nil, and returns the answer.
func (r *raw) transfer(channel uint16, handle uint32, txn, message []byte) wire.State {
	r.t.Helper()
	f := &wire.Transfer{Handle: handle, DeliveryID: wire.Some(r.next), DeliveryTag: []byte{1}}
	if r.next++; txn != nil {
		f.State = wire.State{Kind: wire.StateTransactional, Transactional: &wire.TransactionalState{TxnID: txn}}
	}
	r.write(append(wire.AppendTransfer(nil, channel, f, len(message)), message...))
	d := expect[*wire.Disposition](r)
	if !d.Role || !d.Settled || d.First != r.next-1 {
		r.t.Fatalf("answered with %+v", d)
	}
	return d.State
}

// settle ends a delivery with an outcome, in a transaction, and returns the answer.
func (r *raw) settle(channel uint16, id uint32, txn []byte, outcome wire.State) wire.State {
	r.t.Helper()
	if txn != nil {
		outcome = wire.State{Kind: wire.StateTransactional, Transactional: &wire.TransactionalState{TxnID: txn, Outcome: outcome}}
	}
	r.send(channel, &wire.Disposition{Role: true, First: id, State: outcome})
	d := expect[*wire.Disposition](r)
	if d.Role || !d.Settled || d.First != id {
		r.t.Fatalf("answered with %+v", d)
	}
	return d.State
}

// control is a message for the controller.
func controlMessage(code byte, values ...[]byte) []byte {
	b := wire.AppendDescriptor(wire.StartValue(nil), code)
	at := len(b)
	return wire.EndList(append(wire.StartList(b), bytes.Join(values, nil)...), at, len(values))
}

const control1 = 90 // handle of the controller

// declare begins a transaction.
func (r *raw) declare(channel uint16) []byte {
	r.t.Helper()
	state := r.transfer(channel, control1, nil, controlMessage(codeDeclare))
	if state.Kind != wire.StateDeclared || len(state.Transactional.TxnID) != transactionIDLen {
		r.t.Fatalf("declared is %+v", state)
	}
	return state.Transactional.TxnID
}

func (r *raw) discharge(channel uint16, txn []byte, fail bool) wire.State {
	r.t.Helper()
	return r.transfer(channel, control1, nil, controlMessage(codeDischarge, wire.AppendBinary(nil, txn), wire.AppendBool(nil, fail)))
}

// mustBe wants an outcome: accepted in a transaction, or a rejection with a condition.
func mustBe(t testing.TB, got wire.State, want string) {
	t.Helper()
	text := fmt.Sprint(got.Kind)
	switch got.Kind {
	case wire.StateTransactional:
		text = "provisional"
		if got.Transactional.Outcome.Kind != wire.StateAccepted {
			text += fmt.Sprint(got.Transactional.Outcome.Kind)
		}
	case wire.StateAccepted:
		text = "accepted"
	case wire.StateRejected:
		if text = "rejected"; got.Rejected.Error != nil {
			text = got.Rejected.Error.Error()
		}
	}
	if !strings.Contains(text, want) {
		t.Fatalf("the outcome is %s, want %s", text, want)
	}
}

func textMessage(text string) []byte {
	b, err := (&client.Message{Properties: &client.MessageProperties{MessageID: text}, Data: [][]byte{[]byte(text)}}).MarshalBinary()
	if err != nil {
		panic(err)
	}
	return b
}

// inject puts a message into a queue, as one that can be named.
func (s *server) inject(queue string, number uint64) {
	s.broker.Inject(queue, fsm.Message{Sequence: number, Payload: fsm.Payload(mustPayload(queue, textMessage("x")))})
}

func mustPayload(queue string, encoded []byte) []byte {
	b, err := fsm.AppendBareHead(nil, "", queue, fsm.BareHeader{Priority: -1, TTL: -1}, nil, nil)
	if err != nil {
		panic(err)
	}
	return append(b, encoded...)
}

// What is done in a transaction is one unit once it is discharged, and is nowhere before (TX-1, TX-2, TX-4).
func TestTransaction(t *testing.T) {
	s := mustServe(t)
	r := s.mustRaw(t, 1, 2)
	r.attach(2, control1, &wire.Coordinator{}, nil)
	r.attach(1, 1, to("q"), nil)
	s.inject("Q", 7)
	id := r.receive(1, 2, "q")
	txn := r.declare(2)
	for _, text := range []string{"a", "b"} {
		mustBe(t, r.transfer(1, 1, txn, textMessage(text)), "provisional")
	}
	mustBe(t, r.settle(1, id, txn, wire.State{Kind: wire.StateAccepted}), "provisional")
	if n := len(s.machines.take()) + s.broker.Published(); n != 0 {
		t.Fatalf("%d are done before the discharge", n)
	}
	mustBe(t, r.discharge(2, txn, false), "accepted")
	all := s.machines.take()
	if len(all) != 1 || all[0].queue != "Q" {
		t.Fatalf("posted is %+v", all)
	}
	u := all[0].unit
	if len(u.Sends) != 2 || u.Sends[0].MessageID != "a" || len(u.Onward) != 0 || len(u.Endings) != 1 || u.Endings[0].Handles[0].Number != 7 || u.Endings[0].Outcome != fsm.Ack {
		t.Errorf("the unit is %+v", u)
	}
	mustBe(t, r.settle(1, id, nil, wire.State{Kind: wire.StateAccepted}), conditionLockLost) // it is over
	mustBe(t, r.discharge(2, txn, false), conditionUnknownID)
	mustBe(t, r.transfer(1, 1, txn, textMessage("c")), conditionUnknownID)
}

// What is not committed has no effect, and what it would have ended is held as before (TX-3, TX-4, TX-7, TX-8).
func TestRolledBack(t *testing.T) {
	s := mustServe(t)
	for name, c := range map[string]struct {
		spoil        func(r *raw, txn []byte)
		fail         bool
		why          error
		want, reason string
	}{
		"fails":         {fail: true, want: "accepted"},
		"a lock lost":   {why: fsm.ErrNotHeld, want: conditionRollback, reason: conditionLockLost},
		"a full queue":  {why: &fsm.NotTaken{Reason: fsm.TooLong}, want: conditionRollback, reason: wire.ConditionResourceLimit},
		"two entities":  {spoil: func(r *raw, txn []byte) { mustBe(t, r.transfer(1, 3, txn, textMessage("m")), wire.ConditionNotAllowed) }, want: conditionRollback},
		"a bad message": {spoil: func(r *raw, txn []byte) { mustBe(t, r.transfer(1, 1, txn, []byte("x")), wire.ConditionDecode) }, want: conditionRollback},
		"too many": {spoil: func(r *raw, txn []byte) {
			for range maxSteps - 2 {
				mustBe(t, r.transfer(1, 1, txn, textMessage("m")), "provisional")
			}
			mustBe(t, r.transfer(1, 1, txn, textMessage("m")), wire.ConditionResourceLimit)
		}, want: conditionRollback},
	} {
		t.Run(name, func(t *testing.T) {
			s.machines.fail(c.why, nil)
			defer s.machines.fail(nil, nil)
			s.inject("Q", 7)
			r := s.mustRaw(t, 1, 2)
			r.attach(2, control1, &wire.Coordinator{}, nil)
			r.attach(1, 1, to("q"), nil)
			r.attach(1, 3, to("topic"), nil)
			id, txn := r.receive(1, 2, "q"), r.declare(2)
			mustBe(t, r.transfer(1, 1, txn, textMessage("a")), "provisional")
			mustBe(t, r.settle(1, id, txn, wire.State{Kind: wire.StateAccepted}), "provisional")
			if c.spoil != nil {
				c.spoil(r, txn)
			}
			state := r.discharge(2, txn, c.fail)
			mustBe(t, state, c.want)
			mustBe(t, state, c.reason)
			if posted := s.machines.take(); len(posted) != 0 && c.why == nil || s.broker.Published() != 0 {
				t.Errorf("posted is %+v", posted)
			}
			mustBe(t, r.settle(1, id, nil, wire.State{Kind: wire.StateAccepted}), "accepted")
		})
	}
}

// A transaction ends with its time and with its link (TX-7), and there are only so many (TX-8).
func TestTransactionsEnd(t *testing.T) {
	s := mustServe(t)
	s.dialect.Transaction = time.Millisecond
	r := s.mustRaw(t, 1, 2)
	r.attach(2, control1, &wire.Coordinator{}, nil)
	r.attach(1, 1, to("q"), nil)
	txn := r.declare(2)
	for state := r.transfer(1, 1, txn, textMessage("a")); !strings.Contains(fmt.Sprint(state.Rejected.Error), conditionTooLate); {
		mustBe(t, state, "provisional")
		state = r.transfer(1, 1, txn, textMessage("a"))
	}
	mustBe(t, r.discharge(2, txn, false), conditionTooLate)
	s.dialect.Transaction = 0
	all := [][]byte{}
	for range maxTransactions {
		all = append(all, r.declare(2))
	}
	mustBe(t, r.transfer(2, control1, nil, controlMessage(codeDeclare)), wire.ConditionResourceLimit)
	mustBe(t, r.transfer(2, control1, nil, controlMessage(0x77)), wire.ConditionDecode)
	mustBe(t, r.transfer(1, 1, all[0], textMessage("a")), "provisional")
	r.send(2, &wire.Detach{Handle: control1, Closed: true})
	r.awaitDetach()
	mustBe(t, r.transfer(1, 1, all[0], textMessage("a")), conditionUnknownID)
	if len(s.machines.take())+s.broker.Published() != 0 {
		t.Error("something was done")
	}
}

// An entity hands on what is sent via it, in a transaction or not; a topic and its subscriptions are one (TX-3, TX-5, TX-6).
func TestSendVia(t *testing.T) {
	s := mustServe(t)
	r := s.mustRaw(t, 1, 2)
	via := func(address string) wire.MapBytes {
		return wire.EndMap(wire.AppendString(wire.AppendSymbol(wire.StartMap(nil), destination), address), 0, 1)
	}
	r.attach(2, control1, &wire.Coordinator{}, nil)
	r.attach(1, 1, to("q"), via("topic"))
	r.attach(1, 3, to("topic"), nil)
	r.attach(2, 4, to("topic"), nil)
	mustBe(t, r.transfer(1, 1, nil, textMessage("a")), "accepted")
	if all := s.machines.take(); len(all) != 1 || all[0].queue != "Q" || len(all[0].unit.Onward) != 1 || all[0].unit.Onward[0].RoutingKey != "topic/$topic" {
		t.Fatalf("posted is %+v", all)
	}
	for name, c := range map[string]struct {
		from    string // whose message is settled; empty: none is
		handles []uint32
		channel uint16
		queue   string
		onward  int
	}{
		"via":                       {"q", []uint32{1}, 1, "Q", 1},
		"via, and nothing received": {"", []uint32{1}, 1, "Q", 1},
		"to a subscription's topic": {"topic/Subscriptions/sub", []uint32{3}, 1, "topic/Subscriptions/sub", 1},
		"on the controller's own":   {"q", []uint32{4}, 2, "Q", 1},
	} {
		t.Run(name, func(t *testing.T) {
			txn := r.declare(2)
			if c.from != "" {
				object := map[string]string{"q": "Q"}[c.from]
				if object == "" {
					object = c.from
				}
				s.inject(object, 9)
				id := r.receive(1, 10, c.from)
				mustBe(t, r.settle(1, id, txn, wire.State{Kind: wire.StateAccepted}), "provisional")
			}
			for _, handle := range c.handles {
				mustBe(t, r.transfer(c.channel, handle, txn, textMessage("m")), "provisional")
			}
			mustBe(t, r.discharge(2, txn, false), "accepted")
			all := s.machines.take()
			if len(all) != 1 || all[0].queue != c.queue || len(all[0].unit.Onward) != c.onward || len(all[0].unit.Sends) != 0 {
				t.Errorf("posted is %+v", all)
			}
			if c.from != "" {
				r.send(1, &wire.Detach{Handle: 10, Closed: true})
				r.awaitDetach()
			}
		})
	}
	r.send(1, &wire.Attach{Name: "x", Handle: 20, Source: &wire.Source{}, Target: to("q"), Properties: via("nowhere")})
	if a := expect[*wire.Attach](r); a.Target != nil {
		t.Error("a link via nowhere")
	}
}

func (r *raw) awaitDetach() {
	r.t.Helper()
	for {
		f, err := r.in.ReadFrame()
		must(r.t, err)
		if code, err := wire.Peek(f.Body); err == nil && code == wire.Code(&wire.Detach{}) {
			return
		}
	}
}

// A disposition by a request may be a part of a transaction (TX-9); other requests may not.
func TestRequestsInTransactions(t *testing.T) {
	s := mustServe(t)
	r := s.mustRaw(t, 1, 2)
	r.attach(2, control1, &wire.Coordinator{}, nil)
	r.attach(1, 1, to("q/$management"), nil)
	r.send(1, &wire.Attach{Name: "answers", Handle: 2, Role: true, SndSettleMode: 1, Source: &wire.Source{Address: wire.Some("q/$management")}, Target: &wire.Target{}})
	expect[*wire.Attach](r)
	r.send(1, &wire.Flow{NextIncomingID: wire.Some[uint32](0), IncomingWindow: 1000, OutgoingWindow: 1000, Handle: wire.Some[uint32](2), DeliveryCount: wire.Some[uint32](0), LinkCredit: wire.Some[uint32](9)})
	txn := r.declare(2)
	lock := newSealer([16]byte{}).seal(fsm.Handle{Number: 5})
	request := func(operation string) []byte {
		b, err := (&client.Message{
			ApplicationProperties: map[string]any{"operation": operationPrefix + operation},
			Value:                 map[string]any{"lock-tokens": []client.UUID{client.UUID(lock)}, "disposition-status": "completed"},
		}).MarshalBinary()
		must(t, err)
		return b
	}
	for _, operation := range []string{"renew-lock", "update-disposition"} {
		mustBe(t, r.transfer(1, 1, txn, request(operation)), "accepted")
		expect[*wire.Transfer](r) // the answer
	}
	mustBe(t, r.discharge(2, txn, false), "accepted")
	all := s.machines.take()
	if len(all) != 1 || len(all[0].unit.Endings) != 1 || !slices.Equal(all[0].unit.Endings[0].Handles, []fsm.Handle{{Number: 5}}) {
		t.Errorf("posted is %+v", all)
	}
}
