package v091_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

const protocolHeader = "AMQP\x00\x00\x09\x01"

func TestProtocolHeader(t *testing.T) {
	s := mustServe(t, nil)
	for _, c := range []struct{ sent, want string }{
		{"AMQP\x00\x00\x0a\x00", protocolHeader},
		{"AMQP\x01\x01\x08\x00", protocolHeader},
		{"AMQP\x03\x01\x00\x00", protocolHeader},
		{"HELLOxyz", protocolHeader},
		{"\x16\x03\x01\x02\x00\x01\x00\x01", protocolHeader},
		{"GET / HT", "HTTP/1.1 400"},
	} {
		conn := s.mustConnect()
		if _, err := conn.Write([]byte(c.sent)); err != nil {
			t.Fatal(err)
		}
		if got := mustReadAll(t, conn); !strings.HasPrefix(got, c.want) {
			t.Errorf("%q: got %q, want %q", c.sent, got, c.want)
		}
	}
	for _, version := range []string{protocolHeader, "AMQP\x01\x01\x00\x09"} {
		c := s.mustDial()
		c.Write([]byte(version))
		start := amqptest.Expect[*wire.ConnectionStart](c)
		if start.VersionMajor != 0 || start.VersionMinor != 9 || start.Locales != "en_US" || start.Mechanisms != "PLAIN AMQPLAIN" {
			t.Errorf("%q: %+v", version, start)
		}
		can, _ := start.ServerProperties.Get("capabilities")
		for _, name := range []string{
			"publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify", "connection.blocked",
			"consumer_priorities", "authentication_failure_close", "per_consumer_qos", "accept_consumer_cancel_ok",
			"quorate_commands", "message_scheduling", "message_lock_renewal", "message_deferral",
		} {
			if v, _ := can.Table.Get(name); v.Tag != wire.TagBool || v.Int != 1 {
				t.Errorf("capability %s is %+v", name, v)
			}
		}
		for name, want := range map[string]string{"product": "quorate", "version": "1.2.3", "cluster_name": "test"} {
			if v, _ := start.ServerProperties.Get(name); v.Str != want {
				t.Errorf("%s is %q", name, v.Str)
			}
		}
	}
}

// TestHandshakeErrors checks what a client is told that gets one step of the
// handshake wrong.
func TestHandshakeErrors(t *testing.T) {
	s := mustServe(t, nil)
	login := amqptest.StartOK("PLAIN", "\x00guest\x00guest")
	amqplain := func(t wire.Table) string { return string(wire.AppendFields(nil, t)) }
	tune := func(channels uint16, frame uint32) wire.Method {
		return &wire.ConnectionTuneOK{ChannelMax: channels, FrameMax: frame}
	}
	for _, c := range []struct {
		name string
		send []wire.Method
		want string
	}{
		{"unknown mechanism", []wire.Method{amqptest.StartOK("FOO", "")},
			`503 "COMMAND_INVALID - unknown authentication mechanism 'FOO'" 0 0`},
		{"no user in PLAIN", []wire.Method{amqptest.StartOK("PLAIN", "guest")},
			`502 "SYNTAX_ERROR - response to authentication mechanism PLAIN invalid" 0 0`},
		{"authzid in PLAIN", []wire.Method{amqptest.StartOK("PLAIN", "a\x00guest\x00guest")},
			`502 "SYNTAX_ERROR - response to authentication mechanism PLAIN invalid" 0 0`},
		{"AMQPLAIN without password", []wire.Method{amqptest.StartOK("AMQPLAIN", amqplain(wire.Table{{Name: "LOGIN", Value: wire.String("guest")}}))},
			`502 "SYNTAX_ERROR - AMQPLAIN auth info is missing LOGIN or PASSWORD field" 0 0`},
		{"AMQPLAIN that is no table", []wire.Method{amqptest.StartOK("AMQPLAIN", "LOGIN")},
			`502 "SYNTAX_ERROR - response to authentication mechanism AMQPLAIN invalid" 0 0`},
		{"login refused", []wire.Method{amqptest.StartOK("PLAIN", "\x00guest\x00wrong", "authentication_failure_close")},
			`403 "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile." 0 0`},
		{"channel_max too high", []wire.Method{login, tune(2048, 131072)},
			`530 "NOT_ALLOWED - negotiated channel_max = 2048 is higher than the maximum allowed value (2047)" 10 30`},
		{"channel_max 0", []wire.Method{login, tune(0, 131072)},
			`530 "NOT_ALLOWED - negotiated channel_max = 0 (no limit) is higher than the maximum allowed value (2047)" 10 30`},
		{"frame_max too high", []wire.Method{login, tune(10, 131073)},
			`530 "NOT_ALLOWED - negotiated frame_max = 131073 is higher than the maximum allowed value (131072)" 10 30`},
		{"frame_max too low", []wire.Method{login, tune(10, 4095)},
			`530 "NOT_ALLOWED - negotiated frame_max = 4095 is lower than the minimum allowed value (4096)" 10 30`},
		{"unknown vhost", []wire.Method{login, tune(10, 4096), &wire.ConnectionOpen{VirtualHost: "nope"}},
			`530 "NOT_ALLOWED - vhost nope not found" 10 40`},
		{"method out of turn", []wire.Method{login, &wire.ConnectionOpen{}},
			`504 "CHANNEL_ERROR - unexpected method in connection state tuning" 10 40`},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := s.mustDial()
			client.Write([]byte(protocolHeader))
			for _, m := range c.send {
				client.Send(0, m)
			}
			for {
				f, err := client.Receive()
				if err != nil {
					t.Fatal(err)
				}
				m, err := wire.DecodeMethod(f.Payload)
				if err != nil {
					t.Fatal(err)
				}
				if closed, ok := m.(*wire.ConnectionClose); ok {
					expectClose(t, closed, c.want)
					return
				}
			}
		})
	}
}

func expectClose(t *testing.T, m *wire.ConnectionClose, want string) {
	t.Helper()
	if got := fmt.Sprintf("%d %q %d %d", m.ReplyCode, m.ReplyText, m.FailedClass, m.FailedMethod); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A login that could not be looked at is no wrong password: the client is told
// to come again.
func TestBusyLogin(t *testing.T) {
	s := mustServe(t, nil)
	s.broker.Fail("Login", fsm.Refuse(fsm.Forced, "too many logins are waiting, try again later"))
	c := s.mustDial()
	c.Write([]byte(protocolHeader))
	amqptest.Expect[*wire.ConnectionStart](c)
	c.Send(0, amqptest.StartOK("PLAIN", "\x00guest\x00guest"))
	expectClose(t, amqptest.Expect[*wire.ConnectionClose](c), `320 "CONNECTION_FORCED - too many logins are waiting, try again later" 10 11`)
}

func TestAMQPLAIN(t *testing.T) {
	s := mustServe(t, nil)
	c := s.mustDial()
	c.Write([]byte(protocolHeader))
	amqptest.Expect[*wire.ConnectionStart](c)
	c.Send(0, amqptest.StartOK("AMQPLAIN", string(wire.AppendFields(nil, wire.Table{
		{Name: "PASSWORD", Value: wire.String("guest")}, {Name: "LOGIN", Value: wire.String("guest")},
	}))))
	tune := amqptest.Expect[*wire.ConnectionTune](c)
	if *tune != (wire.ConnectionTune{ChannelMax: 2047, FrameMax: 131072, Heartbeat: 60}) {
		t.Errorf("%+v", tune)
	}
}

// TestConnectionErrors sends octets on a running connection with channel 1
// open and checks with which error the connection ends.
func TestConnectionErrors(t *testing.T) {
	s := mustServe(t, nil)
	method := func(channel uint16, m wire.Method) []byte { return wire.AppendMethod(nil, channel, m) }
	frame := func(typ byte, channel uint16, payload string) []byte {
		return append(append(wire.AppendFrameStart(nil, typ, channel, uint32(len(payload))), payload...), wire.FrameEnd)
	}
	publish := method(1, &wire.BasicPublish{RoutingKey: "q"})
	header := func(class uint16, size uint64, properties string) []byte {
		return wire.AppendHeader(nil, 1, class, size, []byte(properties))
	}
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	badTable := "\x20\x00" + "\x00\x00\x00\x04\x01aZ\x00" // headers with an unknown tag
	open := func(n uint16) []byte { return method(n, &wire.ChannelOpen{}) }
	for _, c := range []struct {
		name string
		sent []byte
		want string
	}{
		{"queue.declare on channel 0", method(0, &wire.QueueDeclare{}),
			`504 "CHANNEL_ERROR - unexpected method in connection state running" 50 10`},
		{"connection.close on channel 1", method(1, &wire.ConnectionClose{}),
			`503 "COMMAND_INVALID - unimplemented method" 10 50`},
		{"unknown method", frame(1, 1, "\x00\x63\x00\x63"), `503 "COMMAND_INVALID - unimplemented method" 0 0`},
		{"a server's method", method(1, &wire.BasicCancelOK{ConsumerTag: "fine"}), ``},
		{"basic.deliver of a client", method(1, &wire.BasicDeliver{}), `503 "COMMAND_INVALID - unimplemented method" 60 60`},
		{"channel not open", method(3, &wire.QueueDeclare{}), `504 "CHANNEL_ERROR - expected 'channel.open'" 50 10`},
		{"channel open already", open(1), `504 "CHANNEL_ERROR - second 'channel.open' seen" 20 10`},
		{"too many channels", join(open(2), open(3), open(9)),
			`530 "NOT_ALLOWED - number of channels opened (3) has reached the negotiated channel_max (3)" 0 0`},
		{"heartbeat on a channel", frame(8, 1, ""), `505 "UNEXPECTED_FRAME - type 8, all octets = <<>>" 0 0`},
		{"heartbeat with a payload", frame(8, 0, "abc"), `501 "FRAME_ERROR - type 8, all octets = <<\"abc\">>: unknown_frame" 0 0`},
		{"frame of type 9", frame(9, 1, "abc"), `501 "FRAME_ERROR - type 9, all octets = <<\"abc\">>: unknown_frame" 0 0`},
		{"end octet 0", append(publish[:len(publish)-1:len(publish)-1], 0),
			`501 "FRAME_ERROR - type 1, all octets = <<0,60,0,40,0,0,0,1,113,0>>: {invalid_frame_end_marker,0}" 0 0`},
		{"frame too large", wire.AppendFrameStart(nil, 1, 1, 8193), `501 "FRAME_ERROR - type 1, all octets = <<>>: {frame_too_large,8193,8184}" 0 0`},
		{"frame of 4 GiB", wire.AppendFrameStart(nil, 1, 1, 1<<32-1), `501 "FRAME_ERROR - type 1, all octets = <<>>: {frame_too_large,4294967295,8184}" 0 0`},
		{"truncated method", frame(1, 1, "\x00\x32\x00\x0a\x00\x00\x05q"), `501 "FRAME_ERROR - cannot decode <<0,0,5,113>>" 0 0`},
		{"name that is not UTF-8", method(1, &wire.QueueDeclare{Queue: "\xff\xfe"}), `501 "FRAME_ERROR - Malformed UTF-8 in shortstr" 0 0`},
		{"malformed table in a method", frame(1, 1, "\x00\x32\x00\x0a\x00\x00\x01q\x00\x00\x00\x00\x04\x01aZ\x00"),
			`502 "SYNTAX_ERROR - malformed field table" 0 0`},
		{"malformed table in a header", join(publish, header(60, 1, badTable)), `502 "SYNTAX_ERROR - malformed field table" 0 0`},
		{"body without header", frame(3, 1, "x"), `505 "UNEXPECTED_FRAME - expected method frame, got non method frame instead" 0 0`},
		{"header without method", header(60, 1, ""), `505 "UNEXPECTED_FRAME - expected method frame, got non method frame instead" 0 0`},
		{"method in place of a header", join(publish, publish),
			`505 "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead" 60 40`},
		{"body in place of a header", join(publish, frame(3, 1, "x")),
			`505 "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead" 60 40`},
		{"header of another class", join(publish, header(50, 1, "")),
			`505 "UNEXPECTED_FRAME - expected content header for class 60, got one for class 50 instead" 60 40`},
		{"header of 600 MiB", join(publish, header(60, 600<<20, "")),
			`501 "FRAME_ERROR - content body size 629145600 exceeds maximum allowed size 536870912" 60 40`},
		{"body too long", join(publish, header(60, 1, ""), frame(3, 1, "xy")),
			`501 "FRAME_ERROR - content body frame exceeds remaining content size" 60 40`},
		{"method in place of a body", join(publish, header(60, 1, ""), publish),
			`505 "UNEXPECTED_FRAME - expected content body, got non content body frame instead" 60 40`},
		{"empty body frames are fine", join(publish, header(60, 1, ""), frame(3, 1, ""), frame(3, 1, "x"), frame(3, 1, "x")),
			`505 "UNEXPECTED_FRAME - expected method frame, got non method frame instead" 0 0`},
		{"prefetch size", method(1, &wire.BasicQos{PrefetchSize: 10}), `540 "NOT_IMPLEMENTED - prefetch_size!=0 (10)" 60 10`},
		{"recover without requeue", method(1, &wire.BasicRecover{}), `540 "NOT_IMPLEMENTED - requeue=false" 60 110`},
		{"recover-async without requeue", method(1, &wire.BasicRecoverAsync{}), `540 "NOT_IMPLEMENTED - requeue=false" 60 100`},
		{"flow off", method(1, &wire.ChannelFlow{}), `540 "NOT_IMPLEMENTED - active=false" 20 20`},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := s.mustDial()
			client.Login(wire.ConnectionTuneOK{ChannelMax: 3, FrameMax: 8192})
			client.Send(1, &wire.ChannelOpen{})
			amqptest.Expect[*wire.ChannelOpenOK](client)
			client.Write(c.sent)
			if c.want == "" {
				client.Send(0, &wire.ConnectionClose{})
				amqptest.Expect[*wire.ConnectionCloseOK](client)
				return
			}
			for {
				f, err := client.Receive()
				if err != nil {
					t.Fatal(err)
				}
				if f.Channel != 0 {
					continue
				}
				m, err := wire.DecodeMethod(f.Payload)
				if err != nil {
					t.Fatal(err)
				}
				expectClose(t, m.(*wire.ConnectionClose), c.want)
				break
			}
			client.Send(0, &wire.ConnectionCloseOK{})
			if rest := client.Rest(); len(rest) != 1 || rest[0] != "eof" {
				t.Errorf("after the close: %v", rest)
			}
		})
	}
}

// TestRefusals checks which code and scope each kind of refusal gets.
func TestRefusals(t *testing.T) {
	s := mustServe(t, nil)
	for _, c := range []struct {
		kind fsm.Kind
		want string
	}{
		{fsm.Internal, "0 connection.close reply-code=541 reply-text=\"INTERNAL_ERROR - why\""},
		{fsm.NotFoundKind, "1 channel.close reply-code=404 reply-text=\"NOT_FOUND - why\""},
		{fsm.AccessRefused, "1 channel.close reply-code=403 reply-text=\"ACCESS_REFUSED - why\""},
		{fsm.Locked, "1 channel.close reply-code=405 reply-text=\"RESOURCE_LOCKED - why\""},
		{fsm.Precondition, "1 channel.close reply-code=406 reply-text=\"PRECONDITION_FAILED - why\""},
		{fsm.NotAllowed, "0 connection.close reply-code=530 reply-text=\"NOT_ALLOWED - why\""},
		{fsm.NotImplemented, "0 connection.close reply-code=540 reply-text=\"NOT_IMPLEMENTED - why\""},
		{fsm.Unavailable, "1 channel.close reply-code=406 reply-text=\"PRECONDITION_FAILED - why\""},
		{fsm.Forced, "0 connection.close reply-code=320 reply-text=\"CONNECTION_FORCED - why\""},
		{99, "0 connection.close reply-code=541 reply-text=\"INTERNAL_ERROR - internal error\""},
	} {
		client := s.mustLogin()
		client.Send(1, &wire.ChannelOpen{})
		s.broker.Fail("PurgeQueue", fsm.Refuse(c.kind, "why"))
		client.Send(1, &wire.QueuePurge{Queue: "q"})
		amqptest.Expect[*wire.ChannelOpenOK](client)
		f, err := client.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if got := amqptest.FormatFrame(f); got != c.want+" failed-class=50 failed-method=30" {
			t.Errorf("kind %d: %s", c.kind, got)
		}
	}
}

// TestLongReplyText checks that texts are cut between runes.
func TestLongReplyText(t *testing.T) {
	s := mustServe(t, nil)
	client := s.mustLogin()
	client.Send(1, &wire.ChannelOpen{})
	s.broker.Fail("PurgeQueue", fsm.Refuse(fsm.NotFoundKind, strings.Repeat("ü", 300)))
	client.Send(1, &wire.QueuePurge{Queue: "q"})
	amqptest.Expect[*wire.ChannelOpenOK](client)
	text := amqptest.Expect[*wire.ChannelClose](client).ReplyText
	if len(text) > 255 || !strings.HasSuffix(text, "ü...") {
		t.Errorf("%d octets: %q", len(text), text)
	}
}

// Frames may be as long as was negotiated, and no longer: neither what the client asked
// for nor what applies before it has is used instead.
func TestNegotiatedFrameSize(t *testing.T) {
	s := mustServe(t, nil)
	for _, c := range []struct {
		max     uint32
		size    int
		refused bool
	}{{4096, 4088, false}, {4096, 4097, true}, {131072, 100_000, false}, {131072, 131_073, true}} {
		client := s.mustDial()
		client.Login(wire.ConnectionTuneOK{ChannelMax: 3, FrameMax: c.max})
		client.Send(1, &wire.ChannelOpen{})
		client.Send(1, &wire.ConfirmSelect{})
		amqptest.Expect[*wire.ChannelOpenOK](client)
		amqptest.Expect[*wire.ConfirmSelectOK](client)
		client.Publish(1, &wire.BasicPublish{RoutingKey: "nowhere"}, nil, make([]byte, c.size), 1<<20)
		if !c.refused {
			amqptest.Expect[*wire.BasicAck](client)
		} else if got := amqptest.Expect[*wire.ConnectionClose](client); got.ReplyCode != wire.CodeFrameError {
			t.Errorf("a frame of %d octets of %d is answered %d", c.size, c.max, got.ReplyCode)
		}
	}
}

// TestLargeBody publishes what needs many frames, and memory in several steps.
func TestLargeBody(t *testing.T) {
	s := mustServe(t, nil)
	body := make([]byte, 5<<20)
	for i := range body[:len(body)/4] {
		binary.BigEndian.PutUint32(body[4*i:], uint32(i))
	}
	client := s.mustDial()
	client.Login(wire.ConnectionTuneOK{ChannelMax: 3, FrameMax: 4096})
	client.Send(1, &wire.ChannelOpen{})
	client.Send(1, &wire.QueueDeclare{Queue: "q"})
	client.Publish(1, &wire.BasicPublish{RoutingKey: "q"}, nil, body, 4096)
	client.Send(1, &wire.BasicGet{Queue: "q"})
	amqptest.Expect[*wire.ChannelOpenOK](client)
	amqptest.Expect[*wire.QueueDeclareOK](client)
	amqptest.Expect[*wire.BasicGetOK](client)
	var got []byte
	for len(got) < len(body) {
		f, err := client.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if len(f.Payload)+wire.FrameOverhead > 4096 {
			t.Fatalf("frame of %d octets", len(f.Payload)+wire.FrameOverhead)
		}
		if f.Type == wire.FrameBody {
			got = append(got, f.Payload...)
		}
	}
	if !bytes.Equal(got, body) {
		t.Error("another body came back")
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		change func(*amqp.Config)
		want   string
	}{
		{func(c *amqp.Config) { c.FrameMax = 4095 }, "frame_max is 4095, must be between 4096 and 16777216"},
		{func(c *amqp.Config) { c.MaxMessageSize = 1 << 30 }, "max_message_size is 1073741824, must be between 1 and 536870912"},
		{func(c *amqp.Config) { c.Broker = nil }, "broker is missing"},
	} {
		cfg := amqp.Config{Protocols: protocols, Broker: amqptest.NewBroker()}
		c.change(&cfg)
		if _, err := amqp.New(cfg); err == nil || err.Error() != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}
