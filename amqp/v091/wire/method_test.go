package wire

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestThereAreAllMethods(t *testing.T) {
	const inSpecification, access = 64, 2
	if n := len(allIDs()); n != inSpecification+access {
		t.Errorf("%d methods, want %d", n, inSpecification+access)
	}
	names := map[string]bool{}
	for _, id := range allIDs() {
		name := MethodName(id)
		if name == "" || names[name] {
			t.Errorf("method %d,%d has no name or that of another: %q", id>>16, id&0xffff, name)
		}
		names[name] = true
		if m := newMethod(id); ID(m) != id {
			t.Errorf("%s says its id is %d,%d", name, m.ClassID(), m.MethodID())
		}
	}
}

func TestMethodFacts(t *testing.T) {
	content := map[string]bool{"basic.publish": true, "basic.return": true, "basic.deliver": true, "basic.get-ok": true}
	asynchronous := map[string]bool{
		"connection.blocked": true, "connection.unblocked": true, "channel.flow-ok": true,
		"basic.publish": true, "basic.return": true, "basic.deliver": true, "basic.ack": true,
		"basic.reject": true, "basic.nack": true, "basic.recover-async": true,
	}
	for _, id := range allIDs() {
		name := MethodName(id)
		if HasContent(id) != content[name] {
			t.Errorf("%s: HasContent = %v", name, HasContent(id))
		}
		if Synchronous(id) == asynchronous[name] {
			t.Errorf("%s: Synchronous = %v", name, Synchronous(id))
		}
	}
	if HasContent(99) || Synchronous(99) || MethodName(99) != "" {
		t.Error("something is known of a method that does not exist")
	}
}

// goldenFrames are whole frames on channel 258 (0 for class connection),
// worked out by hand from the specification.
var goldenFrames = []struct {
	name  string
	m     Method
	frame string
}{
	{"connection.start", &ConnectionStart{VersionMinor: 9, ServerProperties: Table{{"a", Bool(true)}}, Mechanisms: "PLAIN", Locales: "en_US"},
		`01 0000 00000020 000a000a 00 09 00000004 01 61 74 01 00000005 504c41494e 00000005 656e5f5553 ce`},
	{"connection.start-ok", &ConnectionStartOK{Mechanism: "PLAIN", Response: "\x00u\x00p", Locale: "en_US"},
		`01 0000 0000001c 000a000b 00000000 05 504c41494e 00000004 00750070 05 656e5f5553 ce`},
	{"connection.tune", &ConnectionTune{ChannelMax: 2047, FrameMax: 131072, Heartbeat: 60},
		`01 0000 0000000c 000a001e 07ff 00020000 003c ce`},
	{"connection.open", &ConnectionOpen{VirtualHost: "/"}, `01 0000 00000008 000a0028 01 2f 00 00 ce`},
	{"connection.open-ok", &ConnectionOpenOK{}, `01 0000 00000005 000a0029 00 ce`},
	{"connection.close", &ConnectionClose{ReplyCode: 320, ReplyText: "x", FailedClass: 60, FailedMethod: 40},
		`01 0000 0000000c 000a0032 0140 01 78 003c 0028 ce`},
	{"connection.update-secret", &ConnectionUpdateSecret{NewSecret: "s", Reason: "r"}, `01 0000 0000000b 000a0046 00000001 73 01 72 ce`},
	{"channel.open", &ChannelOpen{}, `01 0102 00000005 0014000a 00 ce`},
	{"channel.open-ok", &ChannelOpenOK{}, `01 0102 00000008 0014000b 00000000 ce`},
	{"channel.flow", &ChannelFlow{Active: true}, `01 0102 00000005 00140014 01 ce`},
	{"access.request", &AccessRequest{Realm: "/d", Active: true, Read: true}, `01 0102 00000008 001e000a 02 2f64 14 ce`},
	{"access.request-ok", &AccessRequestOK{Ticket: 1}, `01 0102 00000006 001e000b 0001 ce`},
	{"exchange.declare", &ExchangeDeclare{Exchange: "e", Type: "topic", Durable: true, Internal: true},
		`01 0102 00000013 0028000a 0000 01 65 05 746f706963 0a 00000000 ce`},
	{"exchange.unbind-ok", &ExchangeUnbindOK{}, `01 0102 00000004 00280033 ce`},
	{"queue.declare", &QueueDeclare{Queue: "q", Durable: true, AutoDelete: true, NoWait: true, Arguments: Table{{"x-expires", Int32(1000)}}},
		`01 0102 0000001c 0032000a 0000 01 71 1a 0000000f 09 782d65787069726573 49 000003e8 ce`},
	{"queue.declare-ok", &QueueDeclareOK{Queue: "q", MessageCount: 1, ConsumerCount: 2}, `01 0102 0000000e 0032000b 01 71 00000001 00000002 ce`},
	{"queue.delete", &QueueDelete{Queue: "q", IfEmpty: true}, `01 0102 00000009 00320028 0000 01 71 02 ce`},
	{"basic.consume", &BasicConsume{Queue: "q", ConsumerTag: "c", NoAck: true}, `01 0102 0000000f 003c0014 0000 01 71 01 63 02 00000000 ce`},
	{"basic.publish", &BasicPublish{Exchange: "e", RoutingKey: "k", Mandatory: true}, `01 0102 0000000b 003c0028 0000 01 65 01 6b 01 ce`},
	{"basic.return", &BasicReturn{ReplyCode: 312, ReplyText: "NO_ROUTE", Exchange: "e", RoutingKey: "k"},
		`01 0102 00000013 003c0032 0138 08 4e4f5f524f555445 01 65 01 6b ce`},
	{"basic.deliver", &BasicDeliver{ConsumerTag: "c", DeliveryTag: 7, Redelivered: true, Exchange: "e", RoutingKey: "k"},
		`01 0102 00000013 003c003c 01 63 0000000000000007 01 01 65 01 6b ce`},
	{"basic.get-ok", &BasicGetOK{DeliveryTag: 7, Exchange: "e", RoutingKey: "k", MessageCount: 3},
		`01 0102 00000015 003c0047 0000000000000007 00 01 65 01 6b 00000003 ce`},
	{"basic.ack", &BasicAck{DeliveryTag: 1 << 40, Multiple: true}, `01 0102 0000000d 003c0050 0000010000000000 01 ce`},
	{"basic.nack", &BasicNack{DeliveryTag: 2, Multiple: true, Requeue: true}, `01 0102 0000000d 003c0078 0000000000000002 03 ce`},
	{"basic.qos", &BasicQos{PrefetchCount: 10, Global: true}, `01 0102 0000000b 003c000a 00000000 000a 01 ce`},
	{"confirm.select", &ConfirmSelect{NoWait: true}, `01 0102 00000005 0055000a 01 ce`},
	{"tx.rollback-ok", &TxRollbackOK{}, `01 0102 00000004 005a001f ce`},
}

func TestGoldenMethods(t *testing.T) {
	for _, c := range goldenFrames {
		t.Run(c.name, func(t *testing.T) {
			channel := uint16(258)
			if c.m.ClassID() == ClassConnection {
				channel = 0
			}
			want := mustHex(t, c.frame)
			if got := AppendMethod([]byte("before"), channel, c.m); !bytes.Equal(got[6:], want) {
				t.Errorf("encoded % x\nwant    % x", got[6:], want)
			}
			f := mustReadFrame(t, want)
			if f.Type != FrameMethod || f.Channel != channel {
				t.Errorf("frame of type %d on channel %d", f.Type, f.Channel)
			}
			if got := MethodName(PeekID(f.Payload)); got != c.name {
				t.Errorf("it is a %s", got)
			}
			got, err := DecodeMethod(f.Payload)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, c.m) {
				t.Errorf("decoded %+v\nwant    %+v", got, c.m)
			}
		})
	}
}

func TestEveryMethodSurvivesTheWire(t *testing.T) {
	for _, id := range allIDs() {
		t.Run(MethodName(id), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				m := newMethod(id)
				drawMethod(t, m)
				channel := rapid.Uint16().Draw(t, "channel")
				b := AppendMethod(nil, channel, m)
				r := NewReader(bytes.NewReader(b), 1<<20)
				f, err := r.ReadFrame()
				if err != nil {
					t.Fatal(err)
				}
				got, err := DecodeMethod(f.Payload)
				if err != nil {
					t.Fatal(err)
				}
				if f.Channel != channel || !reflect.DeepEqual(got, Method(m)) {
					t.Fatalf("channel %d, decoded %+v\nsent %d, %+v", f.Channel, got, channel, m)
				}
			})
		})
	}
}

// Every method refuses arguments that are one octet short or one too long.
func TestArgumentsMustFit(t *testing.T) {
	for _, id := range allIDs() {
		m := newMethod(id)
		payload := m.appendArgs(binary.BigEndian.AppendUint32(nil, id))
		long := append(payload, 0)
		mustFail(t, second(DecodeMethod(long)), Error{
			Code: CodeFrameError, Text: "cannot decode " + octets(long[4:]), ClassID: m.ClassID(), MethodID: m.MethodID(),
		})
		if len(payload) == 4 {
			continue
		}
		short := payload[:len(payload)-1]
		mustFail(t, second(DecodeMethod(short)), Error{
			Code: CodeFrameError, Text: "cannot decode " + octets(short[4:]), ClassID: m.ClassID(), MethodID: m.MethodID(),
		})
	}
}

func second[A any](_ A, err error) error { return err }

func TestDecodeMethodErrors(t *testing.T) {
	const declare = `0032000a 0000 01 71 00 `
	for _, c := range []struct {
		name, payload string
		want          Error
	}{
		{"nothing", ``, Error{Code: 501, Text: "type 1, all octets = <<>>: unknown_frame"}},
		{"half an id", `003200`, Error{Code: 501, Text: "type 1, all octets = <<0,50,0>>: unknown_frame"}},
		{"unknown class", `00630063`, Error{Code: 503, Text: "unimplemented method"}},
		{"unknown method", `00320063`, Error{Code: 503, Text: "unimplemented method"}},
		{"no arguments", `0032000a`, Error{501, "cannot decode <<>>", 50, 10}},
		{"truncated name", `0032000a 0000 05 7171`, Error{501, "cannot decode <<0,0,5,113,113>>", 50, 10}},
		{"name is not UTF-8", `0032000a 0000 02 fffe 00 00000000`, Error{501, "Malformed UTF-8 in shortstr", 50, 10}},
		{"name is not UTF-8 and the rest is missing", `0032000a 0000 02 fffe`, Error{501, "Malformed UTF-8 in shortstr", 50, 10}},
		{"no table length", declare + `0000`, Error{501, "cannot decode <<0,0,1,113,0,0,0>>", 50, 10}},
		{"table longer than the frame", declare + `00000001`, Error{502, "malformed field table", 50, 10}},
		{"unknown tag", declare + `00000004 01 61 5a 00`, Error{502, "malformed field table", 50, 10}},
		{"octet behind the table", declare + `00000000 61`, Error{501, "cannot decode <<0,0,1,113,0,0,0,0,0,97>>", 50, 10}},
		{"publish without flags", `003c0028 0000 00 00`, Error{501, "cannot decode <<0,0,0,0>>", 60, 40}},
		{"publish with a key that is not UTF-8", `003c0028 0000 00 01 ff 00`, Error{501, "Malformed UTF-8 in shortstr", 60, 40}},
		{"text in the dump", `0055000a 01 61`, Error{501, "cannot decode <<1,97>>", 85, 10}},
		{"ack too long", `003c0050 0000000000000001 00 00`, Error{501, "cannot decode <<0,0,0,0,0,0,0,1,0,0>>", 60, 80}},
	} {
		t.Run(c.name, func(t *testing.T) {
			payload := mustHex(t, c.payload)
			mustFail(t, second(DecodeMethod(payload)), c.want)
			if PeekID(payload) == IDBasicPublish {
				mustFail(t, DecodePublish(payload, new(BasicPublishView)), c.want)
			}
			if PeekID(payload) == IDBasicAck {
				mustFail(t, DecodeAck(payload, new(BasicAck)), c.want)
			}
		})
	}
}

// What a huge frame has in excess does not make a huge error.
func TestCannotDecodeIsBounded(t *testing.T) {
	payload := append(mustHex(t, `0055000a`), make([]byte, 1<<20)...)
	_, err := DecodeMethod(payload)
	if e := err.(*Error); len(e.Text) > 4*maxShortstr {
		t.Errorf("text of %d bytes", len(e.Text))
	}
	if n := len(err.Error()); n > maxShortstr {
		t.Errorf("reply text of %d bytes", n)
	}
}

// Bits nobody has defined are ignored, as are reserved arguments.
func TestUnknownBitsAreIgnored(t *testing.T) {
	m, err := DecodeMethod(mustHex(t, `003c0028 abcd 01 65 01 6b fe`))
	if err != nil {
		t.Fatal(err)
	}
	if want := (&BasicPublish{Exchange: "e", RoutingKey: "k", Immediate: true}); !reflect.DeepEqual(m, Method(want)) {
		t.Errorf("decoded %+v, want %+v", m, want)
	}
}

// The hand-written fast codecs agree with the generated ones.
func TestFastCodecsAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		channel := rapid.Uint16().Draw(t, "channel")
		same := func(what string, got, want []byte) {
			t.Helper()
			if !bytes.Equal(got, want) {
				t.Fatalf("%s: % x, want % x", what, got, want)
			}
		}
		var d BasicDeliver
		drawMethod(t, &d)
		same("deliver", AppendDeliver(nil, channel, d.ConsumerTag, d.DeliveryTag, d.Redelivered, []byte(d.Exchange), []byte(d.RoutingKey)), AppendMethod(nil, channel, &d))
		var g BasicGetOK
		drawMethod(t, &g)
		same("get-ok", AppendGetOK(nil, channel, g.DeliveryTag, g.Redelivered, []byte(g.Exchange), []byte(g.RoutingKey), g.MessageCount), AppendMethod(nil, channel, &g))
		var a BasicAck
		drawMethod(t, &a)
		same("ack", AppendAck(nil, channel, a.DeliveryTag, a.Multiple), AppendMethod(nil, channel, &a))
		n := BasicNack{DeliveryTag: a.DeliveryTag, Multiple: a.Multiple}
		same("nack", AppendNack(nil, channel, n.DeliveryTag, n.Multiple), AppendMethod(nil, channel, &n))

		var p BasicPublish
		drawMethod(t, &p)
		var v BasicPublishView
		if err := DecodePublish(AppendMethod(nil, channel, &p)[frameHeadSize:len(AppendMethod(nil, channel, &p))-1], &v); err != nil {
			t.Fatal(err)
		}
		if got := (BasicPublish{string(v.Exchange), string(v.RoutingKey), v.Mandatory, v.Immediate}); got != p {
			t.Fatalf("publish: %+v, want %+v", got, p)
		}
	})
}

// A reused struct keeps nothing of the method read into it before.
func TestReusedStructsAreOverwritten(t *testing.T) {
	payload := func(m Method) []byte { return m.appendArgs(binary.BigEndian.AppendUint32(nil, ID(m))) }
	ack, nack, reject := BasicAck{9, true}, BasicNack{9, true, true}, BasicReject{9, true}
	publish := BasicPublishView{[]byte("x"), []byte("y"), true, true}
	for _, err := range []error{
		DecodeAck(payload(&BasicAck{DeliveryTag: 1}), &ack),
		DecodeNack(payload(&BasicNack{DeliveryTag: 1}), &nack),
		DecodeReject(payload(&BasicReject{DeliveryTag: 1}), &reject),
		DecodePublish(payload(&BasicPublish{}), &publish),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if ack != (BasicAck{DeliveryTag: 1}) || nack != (BasicNack{DeliveryTag: 1}) || reject != (BasicReject{DeliveryTag: 1}) {
		t.Errorf("%+v %+v %+v", ack, nack, reject)
	}
	if len(publish.Exchange)+len(publish.RoutingKey) > 0 || publish.Mandatory || publish.Immediate {
		t.Errorf("%+v", publish)
	}
}

// What the broker has no room to say is cut, never garbled.
func TestLongShortstrIsCut(t *testing.T) {
	text := strings.Repeat("ü", 200) // 400 bytes
	b := AppendMethod(nil, 1, &ChannelClose{ReplyCode: 404, ReplyText: text})
	m, err := DecodeMethod(mustReadFrame(t, b).Payload)
	if err != nil {
		t.Fatal(err)
	}
	if got := m.(*ChannelClose).ReplyText; got != text[:254] {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}

// A decoded method stays as it is when the buffer it came from is reused.
func TestDecodedMethodIsACopy(t *testing.T) {
	want := &QueueDeclare{Queue: "queue", Arguments: Table{{"name", String("text")}}}
	payload := want.appendArgs(binary.BigEndian.AppendUint32(nil, IDQueueDeclare))
	got, err := DecodeMethod(payload)
	if err != nil {
		t.Fatal(err)
	}
	clear(payload)
	if !reflect.DeepEqual(got, Method(want)) {
		t.Errorf("decoded %+v, want %+v", got, want)
	}
}
