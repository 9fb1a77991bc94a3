package v10_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// raw is a client that sends and expects frames.
type raw struct {
	t    testing.TB
	conn net.Conn
	in   *wire.Reader
}

func (s *server) mustRaw() *raw {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	must(s.t, err)
	s.t.Cleanup(func() { conn.Close() })
	return newRaw(s.t, conn)
}

func newRaw(t testing.TB, conn net.Conn) *raw {
	return &raw{t: t, conn: conn, in: wire.NewReader(conn, 1<<20)}
}

func (r *raw) write(b []byte) {
	r.t.Helper()
	if _, err := r.conn.Write(b); err != nil {
		r.t.Fatal(err)
	}
}

// header sends a protocol header, and expects one.
func (r *raw) header(id, answer byte) {
	r.t.Helper()
	h := wire.ProtocolHeader(id)
	r.write(h[:])
	r.mustHeader(answer)
}

func (r *raw) mustHeader(id byte) {
	r.t.Helper()
	if h, err := r.in.ReadProtocolHeader(); err != nil || h != wire.ProtocolHeader(id) {
		r.t.Fatalf("header %q, %v", h, err)
	}
}

func (r *raw) send(channel uint16, c wire.Composite) {
	r.t.Helper()
	r.write(wire.AppendFrame(nil, channel, c))
}

// next reads a frame that is not empty; nil: the stream has ended.
func (r *raw) next() (channel uint16, body []byte) {
	r.t.Helper()
	for {
		f, err := r.in.ReadFrame()
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
			return 0, nil
		}
		if err != nil {
			r.t.Fatal(err)
		}
		if len(f.Body) > 0 {
			return f.Channel, f.Body
		}
	}
}

// expect reads a frame of one type, past frames of those given.
func expect[P interface {
	wire.Composite
	*T
}, T any](r *raw, past ...wire.Composite) *T {
	r.t.Helper()
	c, _ := expectPayload[P](r, past...)
	return c
}

func expectPayload[P interface {
	wire.Composite
	*T
}, T any](r *raw, past ...wire.Composite) (*T, []byte) {
	r.t.Helper()
	for {
		_, body := r.next()
		if body == nil {
			r.t.Fatalf("the stream ends, want %T", new(T))
		}
		code, err := wire.Peek(body)
		must(r.t, err)
		c := P(new(T))
		if code == wire.Code(c) {
			rest, err := wire.Decode(body, c)
			must(r.t, err)
			return c, rest
		}
		ok := false
		for _, p := range past {
			ok = ok || wire.Code(p) == code
		}
		if !ok {
			r.t.Fatalf("received %#x % x, want %T", code, body, c)
		}
	}
}

// mustEnd expects the end of the stream.
func (r *raw) mustEnd() {
	r.t.Helper()
	if _, body := r.next(); body != nil {
		r.t.Fatalf("received % x, want the end", body)
	}
}

// login logs in, and sends the open.
func (r *raw) login(o *wire.Open) {
	r.t.Helper()
	r.header(3, 3)
	expect[*wire.SASLMechanisms](r)
	r.send(0, &wire.SASLInit{Mechanism: "PLAIN", InitialResponse: []byte("\x00guest\x00guest")})
	if o := expect[*wire.SASLOutcome](r); o.Code != 0 {
		r.t.Fatalf("outcome %d", o.Code)
	}
	r.header(0, 0)
	r.in.Expect(wire.FrameAMQP, 1<<20)
	r.send(0, o)
}

func anOpen() *wire.Open {
	return &wire.Open{ContainerID: "c", MaxFrameSize: 1 << 20, ChannelMax: 1000}
}

// mustOpen opens a connection and a session on channel 7.
func (s *server) mustOpen() *raw {
	s.t.Helper()
	r := s.mustRaw()
	r.login(anOpen())
	expect[*wire.Open](r)
	r.begin()
	return r
}

const channel = 7

func (r *raw) begin() *wire.Begin {
	r.t.Helper()
	r.send(channel, &wire.Begin{IncomingWindow: 100, OutgoingWindow: 100, HandleMax: 10})
	return expect[*wire.Begin](r)
}

func mustCondition(t testing.TB, e *wire.Error, condition, text string) {
	t.Helper()
	if e == nil || e.Condition != condition || !strings.Contains(e.Description, text) {
		t.Fatalf("error %v, want %s with %q", e, condition, text)
	}
}

// mustClose expects a close with an error, and answers it.
func (r *raw) mustClose(condition, text string) {
	r.t.Helper()
	mustCondition(r.t, expect[*wire.Close](r, &wire.Open{}, &wire.Begin{}, &wire.Flow{}).Error, condition, text)
	r.send(0, &wire.Close{})
	r.mustEnd()
}

func TestHeaders(t *testing.T) {
	s := mustServe(t, nil)
	for _, h := range []string{"AMQP\x00\x01\x00\x00", "AMQP\x02\x01\x00\x00", "AMQP\x03\x01\x01\x00", "AMQP\x00\x00\x09\x01", "whatever"} {
		r := s.mustRaw()
		r.write([]byte(h))
		r.mustHeader(3)
		r.mustEnd()
	}
}

func TestLogin(t *testing.T) {
	s := mustServe(t, nil)
	for _, c := range []struct {
		mechanism, response string
		code                byte
	}{
		{"PLAIN", "\x00guest\x00guest", 0},
		{"PLAIN", "\x00guest\x00wrong", 1}, {"PLAIN", "\x00nobody\x00guest", 1}, {"PLAIN", "guest", 1}, {"PLAIN", "", 1},
		{"ANONYMOUS", "", 1}, {"EXTERNAL", "guest", 1}, {"AMQPLAIN", "", 1},
	} {
		r := s.mustRaw()
		r.header(3, 3)
		if m := expect[*wire.SASLMechanisms](r); !reflect.DeepEqual(m.SASLServerMechanisms, []string{"PLAIN"}) {
			t.Fatalf("mechanisms %q", m.SASLServerMechanisms)
		}
		r.send(0, &wire.SASLInit{Mechanism: c.mechanism, InitialResponse: []byte(c.response)})
		if o := expect[*wire.SASLOutcome](r); o.Code != c.code {
			t.Errorf("%s %q: outcome %d, want %d", c.mechanism, c.response, o.Code, c.code)
		}
		r.conn.Close()
	}
}

// Clients that do not say who they are have a user if there is one for them.
func TestAnonymousLogin(t *testing.T) {
	s := mustServe(t, func(c *amqp.Config) { c.AnonymousUser = "guest" })
	r := s.mustRaw()
	r.header(3, 3)
	if m := expect[*wire.SASLMechanisms](r); !reflect.DeepEqual(m.SASLServerMechanisms, []string{"PLAIN", "ANONYMOUS"}) {
		t.Fatalf("mechanisms %q", m.SASLServerMechanisms)
	}
	r.send(0, &wire.SASLInit{Mechanism: "ANONYMOUS", InitialResponse: []byte("trace \xff")})
	if o := expect[*wire.SASLOutcome](r); o.Code != 0 {
		t.Fatalf("outcome %d", o.Code)
	}
	r.header(0, 0)
	r.in.Expect(wire.FrameAMQP, 1<<20)
	r.send(0, anOpen())
	expect[*wire.Open](r)
	if list := s.Connections(); len(list) != 1 || list[0].User != "guest" || list[0].Mechanism != "ANONYMOUS" {
		t.Errorf("%+v", list)
	}
	s.broker.Fail("Login", fsm.Refuse(fsm.Forced, "not now"))
	for _, want := range []byte{4, 0} {
		r := s.mustRaw()
		r.header(3, 3)
		expect[*wire.SASLMechanisms](r)
		r.send(0, &wire.SASLInit{Mechanism: "ANONYMOUS"})
		if o := expect[*wire.SASLOutcome](r); o.Code != want {
			t.Errorf("outcome %d, want %d", o.Code, want)
		}
	}
}

// Nothing but a login comes before the outcome.
func TestFramesDuringLogin(t *testing.T) {
	s := mustServe(t, nil)
	for name, b := range map[string][]byte{
		"open": wire.AppendFrame(nil, 0, anOpen()), "header": []byte("AMQP\x00\x01\x00\x00"), "response": wire.AppendFrame(nil, 0, &wire.SASLResponse{Response: []byte("x")}),
		"garbage": []byte("\x00\x00\x00\x09\x02\x01\x00\x00x"),
	} {
		t.Run(name, func(t *testing.T) {
			r := s.mustRaw()
			r.header(3, 3)
			expect[*wire.SASLMechanisms](r)
			r.write(b)
			if _, err := r.in.ReadFrame(); err == nil {
				t.Fatal("it is answered")
			}
		})
	}
}

// A client may send all up to begin at once.
func TestPipelinedOpening(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustRaw()
	b := []byte("AMQP\x03\x01\x00\x00")
	b = wire.AppendFrame(b, 0, &wire.SASLInit{Mechanism: "PLAIN", InitialResponse: []byte("\x00guest\x00guest")})
	b = append(b, "AMQP\x00\x01\x00\x00"...)
	b = wire.AppendFrame(b, 0, anOpen())
	r.write(wire.AppendFrame(b, 3, &wire.Begin{IncomingWindow: 1}))
	r.mustHeader(3)
	expect[*wire.SASLMechanisms](r)
	expect[*wire.SASLOutcome](r)
	r.mustHeader(0)
	r.in.Expect(wire.FrameAMQP, 1<<20)
	expect[*wire.Open](r)
	if b := expect[*wire.Begin](r); b.RemoteChannel != wire.Some[uint16](3) {
		t.Errorf("%+v", b)
	}
}

// offered are the capabilities that clients look for.
var offered = []string{"LINK_PAIR_V1_0", "ANONYMOUS-RELAY", "quorate_commands", "message_lock_renewal", "message_deferral", "message_scheduling"}

func TestAnsweredOpen(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustRaw()
	r.login(&wire.Open{ContainerID: "c", MaxFrameSize: 1 << 20, ChannelMax: 9, Hostname: "broker.example.org"})
	o := expect[*wire.Open](r)
	if o.ContainerID == "" || o.MaxFrameSize != 128<<10 || o.ChannelMax != 63 || o.IdleTimeOut != 30_000 || !reflect.DeepEqual(o.OfferedCapabilities, offered) {
		t.Errorf("%+v", o)
	}
	r.send(0, &wire.Close{Error: wire.Errorf("mine", "bye")})
	if c := expect[*wire.Close](r); c.Error != nil {
		t.Error(c.Error)
	}
	r.mustEnd()
}

func TestRefusedOpen(t *testing.T) {
	s := mustServe(t, nil)
	open := func(change func(*wire.Open)) []byte {
		o := anOpen()
		change(o)
		return wire.AppendFrame(nil, 0, o)
	}
	for _, c := range []struct {
		name            string
		frame           []byte
		condition, text string
	}{
		{"unknown vhost", open(func(o *wire.Open) { o.Hostname = "vhost:nope" }), wire.ConditionUnauthorized, "nope"},
		{"small frames", open(func(o *wire.Open) { o.MaxFrameSize = 511 }), wire.ConditionFrameSizeTooSmall, "511"},
		{"short idle time", open(func(o *wire.Open) { o.IdleTimeOut = 999 }), wire.ConditionNotAllowed, "999"},
		{"begin", wire.AppendFrame(nil, 0, &wire.Begin{}), wire.ConditionIllegalState, "expected open"},
		{"SASL frame", wire.AppendFrame(nil, 0, &wire.SASLOutcome{}), wire.ConditionFraming, "frame type 1"},
		{"no container-id", []byte("\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x10\x45"), wire.ConditionDecode, "container-id"},
		{"no performative", []byte("\x00\x00\x00\x09\x02\x00\x00\x00\x41"), wire.ConditionDecode, "frame body"},
		{"large frame", []byte("\x00\x01\x00\x00\x02\x00\x00\x00"), wire.ConditionFraming, "65536"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := s.mustRaw()
			r.header(3, 3)
			expect[*wire.SASLMechanisms](r)
			r.send(0, &wire.SASLInit{Mechanism: "PLAIN", InitialResponse: []byte("\x00guest\x00guest")})
			expect[*wire.SASLOutcome](r)
			r.header(0, 0)
			r.in.Expect(wire.FrameAMQP, 1<<20)
			r.write(wire.AppendHeartbeat(nil)) // is ignored
			r.write(c.frame)
			expect[*wire.Open](r)
			mustCondition(t, expect[*wire.Close](r).Error, c.condition, c.text)
			r.mustEnd()
		})
	}
}

func TestErrorsOfConnection(t *testing.T) {
	s := mustServe(t, nil)
	for _, c := range []struct {
		name            string
		frame           []byte
		condition, text string
	}{
		{"second open", wire.AppendFrame(nil, 0, anOpen()), wire.ConditionIllegalState, "open"},
		{"channel", wire.AppendFrame(nil, 64, &wire.Begin{}), wire.ConditionFraming, "channel number (64) exceeds maximum channel number (63)"},
		{"unknown descriptor", []byte("\x00\x00\x00\x0c\x02\x00\x00\x07\x00\x53\x0f\x45"), wire.ConditionDecode, "frame body"},
		{"no performative", wire.AppendFrame(nil, 7, &wire.Source{}), wire.ConditionDecode, "no performative"},
		{"short list", []byte("\x00\x00\x00\x0c\x02\x00\x00\x07\x00\x53\x14\x45"), wire.ConditionDecode, "transfer: field handle"},
		{"size", []byte("\x00\x00\x00\x07\x02\x00\x00\x07"), wire.ConditionFraming, "7"},
		{"type", []byte("\x00\x00\x00\x08\x02\x09\x00\x07"), wire.ConditionFraming, "9"},
		{"large", []byte("\xff\xff\xff\xff\x02\x00\x00\x07"), wire.ConditionFraming, "4294967295"},
		{"deep", append([]byte("\x00\x00\x00\x30\x02\x00\x00\x07"), strings.Repeat("\x00", 40)...), wire.ConditionDecode, "deep"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := s.mustOpen()
			r.write(c.frame)
			mustCondition(t, expect[*wire.Close](r).Error, c.condition, c.text)
			r.send(0, &wire.Close{})
			r.mustEnd()
		})
	}
}

func TestConnectionIsClosedByOperator(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustOpen()
	s.CloseConnections("maintenance")
	r.mustClose(wire.ConditionConnectionForced, "maintenance")
}

func TestErrorsOfSession(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	frames := func(list ...wire.Composite) (b []byte) {
		for _, c := range list {
			b = wire.AppendFrame(b, channel, c)
		}
		return b
	}
	flow := func(f wire.Flow) *wire.Flow { return &f }
	for _, c := range []struct {
		name            string
		frames          []byte
		condition, text string
	}{
		{"second begin", frames(&wire.Begin{}), wire.ConditionIllegalState, "open"},
		{"flow on no link", frames(flow(wire.Flow{Handle: wire.Some[uint32](3)})), wire.ConditionUnattachedHandle, "Unattached link handle: 3"},
		{"transfer on no link", frames(&wire.Transfer{Handle: 3}), wire.ConditionUnattachedHandle, "Unattached link handle: 3"},
		{"flow ahead", frames(flow(wire.Flow{NextIncomingID: wire.Some[uint32](77)})), wire.ConditionWindowViolation, "77"},
		{"high handle", frames(&wire.Attach{Name: "l", Handle: 11}), wire.ConditionFraming, "handle 11"},
		{"handle in use", frames(aSender("/queues/q"), aSender("/queues/q")), wire.ConditionHandleInUse, "handle 0"},
		{"unknown state", []byte("\x00\x00\x00\x15\x02\x00\x00\x07\x00\x53\x15\xc0\x08\x05\x41\x43\x40\x40\x00\x53\x99\x45"), wire.ConditionInvalidField, "Unrecognised state"},
		{"transaction", frames(&wire.Disposition{Role: true, Settled: true}), "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := s.mustOpen()
			if c.name == "unknown state" {
				c.frames = append([]byte{0, 0, 0, byte(len(c.frames))}, c.frames[4:]...)
				c.frames[12] = byte(len(c.frames) - 13)
			}
			r.write(c.frames)
			if c.condition == "" { // it is no error
				r.send(channel, &wire.End{})
				if e := expect[*wire.End](r); e.Error != nil {
					t.Error(e.Error)
				}
				return
			}
			mustCondition(t, expect[*wire.End](r, &wire.Attach{}, &wire.Flow{}).Error, c.condition, c.text)
			// Everything is ignored until the client's end, and then the number is free.
			r.write(frames(&wire.Transfer{Handle: 5}, &wire.Detach{Handle: 9}, &wire.End{}))
			r.begin()
		})
	}
}

// aSender is an attach with handle 0 of a client that publishes.
func aSender(address string) *wire.Attach {
	a := &wire.Attach{
		Name: "l", SndSettleMode: 2, Source: &wire.Source{ExpiryPolicy: "session-end"}, Target: &wire.Target{Address: wire.Some(address), ExpiryPolicy: "session-end"},
		InitialDeliveryCount: wire.Some[uint32](0),
	}
	if address == "" {
		a.Target.(*wire.Target).Address.Present = false
	}
	return a
}

// aReceiver is an attach with handle 0 of a client that receives.
func aReceiver(address string) *wire.Attach {
	return &wire.Attach{
		Name: "l", Role: true, Source: &wire.Source{Address: wire.Some(address), ExpiryPolicy: "session-end"}, Target: &wire.Target{ExpiryPolicy: "session-end"},
	}
}

func TestBegin(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustRaw()
	r.login(anOpen())
	expect[*wire.Open](r)
	r.send(1, &wire.Flow{}) // there is no session
	r.send(1, &wire.Begin{RemoteChannel: wire.Some[uint16](5)})
	expect[*wire.Begin](r)
	mustCondition(t, expect[*wire.End](r).Error, wire.ConditionInvalidField, "remote-channel")
	r.send(1, &wire.End{})
	b := r.begin()
	want := wire.Begin{RemoteChannel: wire.Some[uint16](channel), IncomingWindow: 400, OutgoingWindow: 1<<32 - 1, HandleMax: 10}
	if !reflect.DeepEqual(*b, want) {
		t.Errorf("%+v", b)
	}
	r.send(channel, &wire.Detach{Handle: 3}) // is ignored
	r.send(channel, &wire.Flow{Echo: true})
	f := expect[*wire.Flow](r)
	if f.Handle.Present || f.IncomingWindow != 400 || f.NextIncomingID != wire.Some[uint32](0) {
		t.Errorf("%+v", f)
	}
	for range 3 { // the number is free at once
		r.send(channel, &wire.End{})
		r.send(channel, &wire.Begin{HandleMax: 1 << 31})
		expect[*wire.End](r)
		if b := expect[*wire.Begin](r); b.HandleMax != 255 {
			t.Errorf("%+v", b)
		}
	}
}

func TestRefusedLinks(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q")
	sender := func(change func(*wire.Attach)) *wire.Attach {
		a := aSender("/queues/q")
		change(a)
		return a
	}
	receiver := func(change func(*wire.Attach)) *wire.Attach {
		a := aReceiver("/queues/q")
		change(a)
		return a
	}
	unsettled := wire.MapBytes(wire.EndMap(wire.AppendNull(wire.AppendBinary(wire.StartMap(nil), "tag")), 0, 1))
	for _, c := range []struct {
		name            string
		attach          *wire.Attach
		condition, text string
	}{
		{"no queue", aSender("/queues/nope"), wire.ConditionNotFound, "no queue 'nope' in vhost '/'"},
		{"no exchange", aSender("/exchanges/nope/k"), wire.ConditionNotFound, "no exchange 'nope' in vhost '/'"},
		{"bad address", aSender("/queue/q"), wire.ConditionInvalidField, "/queue/q"},
		{"null target", sender(func(a *wire.Attach) { a.Target = nil }), wire.ConditionInvalidField, "target is null"},
		{"coordinator", sender(func(a *wire.Attach) { a.Target = &wire.Coordinator{} }), wire.ConditionNotImplemented, "Transactions not supported"},
		{"dynamic target", sender(func(a *wire.Attach) {
			a.Target = &wire.Target{Dynamic: true, Capabilities: []string{"rabbitmq:volatile-queue", "x"}}
		}), wire.ConditionNotImplemented, "Dynamic target not supported: rabbitmq:volatile-queue, x"},
		{"dynamic target with an address", sender(func(a *wire.Attach) {
			a.Target = &wire.Target{Dynamic: true, Address: wire.Some("/queues/q")}
		}), wire.ConditionInvalidField, "a dynamic terminus has an address"},
		{"dynamic source", receiver(func(a *wire.Attach) {
			a.Source = &wire.Source{Dynamic: true, Capabilities: []string{"queue"}}
		}), wire.ConditionNotImplemented, "Dynamic source not supported: queue"},
		{"volatile and not settled", receiver(func(a *wire.Attach) {
			a.Source = &wire.Source{Dynamic: true, ExpiryPolicy: "link-detach", Capabilities: []string{"rabbitmq:volatile-queue"}}
		}), wire.ConditionNotImplemented, "Dynamic source not supported: rabbitmq:volatile-queue"},
		{"dynamic source with an address", receiver(func(a *wire.Attach) {
			a.Source = &wire.Source{Dynamic: true, Address: wire.Some("/queues/q")}
		}), wire.ConditionInvalidField, "a dynamic terminus has an address"},
		{"replies without a name", aReceiver("/queues/amq.rabbitmq.reply-to"), wire.ConditionInvalidField, "amq.rabbitmq.reply-to"},
		{"half a pair", aSender("/management"), wire.ConditionInvalidField, "Link property 'paired' is not set to boolean value 'true'"},
		{"the other half", aReceiver("/management"), wire.ConditionInvalidField, "Link property 'paired'"},
		{"unsettled", sender(func(a *wire.Attach) { a.Unsettled = unsettled }), wire.ConditionNotImplemented, "Link recovery not supported"},
		{"incomplete", sender(func(a *wire.Attach) { a.IncompleteUnsettled = true }), wire.ConditionNotImplemented, "Link recovery not supported"},
		{"no source queue", aReceiver("/queues/nope"), wire.ConditionNotFound, "no queue 'nope' in vhost '/'"},
		{"bad source", aReceiver("/exchanges/amq.direct"), wire.ConditionInvalidField, "/exchanges/amq.direct"},
		{"null source", receiver(func(a *wire.Attach) { a.Source = nil }), wire.ConditionInvalidField, "source is null"},
		{"outcomes", receiver(func(a *wire.Attach) { a.Source.Outcomes = []string{"amqp:accepted:list", "x"} }), wire.ConditionNotImplemented, "Outcomes not supported"},
		{"long name", sender(func(a *wire.Attach) { a.Name = strings.Repeat("n", 256) }), wire.ConditionInvalidField, "the name of the link is longer than 255 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := s.mustOpen()
			r.send(channel, c.attach)
			a := expect[*wire.Attach](r)
			if a.Name != c.attach.Name || a.Role == c.attach.Role || a.Role && a.Target != nil || !a.Role && a.Source != nil {
				t.Errorf("%+v", a)
			}
			d := expect[*wire.Detach](r)
			if !d.Closed {
				t.Error("it is not closed")
			}
			mustCondition(t, d.Error, c.condition, c.text)
			// What crosses is ignored, and afterwards the handle is free.
			r.send(channel, &wire.Transfer{})
			r.send(channel, &wire.Flow{Handle: wire.Some[uint32](0)})
			r.send(channel, &wire.Detach{Closed: true})
			r.send(channel, aSender("/exchanges/amq.direct"))
			if a := expect[*wire.Attach](r); a.Target == nil {
				t.Errorf("%+v", a)
			}
		})
	}
}

func TestAttachedSender(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustOpen()
	in := aSender("/exchanges/amq.direct/k")
	in.InitialDeliveryCount, in.Unsettled = wire.Some[uint32](5), wire.EndMap(wire.StartMap(nil), 0, 0)
	r.send(channel, in)
	a := expect[*wire.Attach](r)
	want := wire.Attach{Name: "l", Role: true, SndSettleMode: 2, Source: in.Source, Target: in.Target, MaxMessageSize: 16 << 20}
	if !reflect.DeepEqual(*a, want) {
		t.Errorf("%+v\nwant %+v", *a, want)
	}
	f := expect[*wire.Flow](r)
	if f.Handle != wire.Some[uint32](0) || f.DeliveryCount != wire.Some[uint32](5) || f.LinkCredit != wire.Some[uint32](170) || f.IncomingWindow != 400 {
		t.Errorf("%+v", f)
	}
	for _, closed := range []bool{true, false} {
		r.send(channel, &wire.Detach{Closed: closed})
		if d := expect[*wire.Detach](r); d.Closed != closed || d.Error != nil {
			t.Errorf("%+v", d)
		}
		r.send(channel, in)
		expect[*wire.Attach](r)
		expect[*wire.Flow](r)
	}
}

func ids(d *wire.Disposition) string {
	return fmt.Sprintf("%d-%d:%d", d.First, d.Last.Or(d.First), d.State.Kind)
}

// within fails the test if f takes too long.
func within(t testing.TB, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("it takes too long")
	}
}
