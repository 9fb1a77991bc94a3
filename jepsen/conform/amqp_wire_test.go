package conform

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/internal/await"
)

func TestAMQP(t *testing.T) { amqpRows.run(t) }

// amqpRows are the rows of the protocol, in the order of its layers.
var amqpRows = suite{test: "TestAMQP", title: "AMQP 0-9-1", rows: slices.Concat(
	handshakeRows, frameRows, exchangeRows, publishRows, queueRows, consumeRows, boundaryRows,
)}

// Methods as the raw client names them: class<<16 | method.
const (
	methodTune          = 10<<16 | 30
	methodUpdateSecret  = 10<<16 | 70
	methodChannelOpen   = 20<<16 | 10
	methodChannelFlow   = 20<<16 | 20
	methodChannelClose  = 20<<16 | 40
	methodQueueDeclare  = 50<<16 | 10
	methodQueueDeclared = 50<<16 | 11
	methodConsume       = 60<<16 | 20
	methodPublish       = 60<<16 | 40
	methodGet           = 60<<16 | 70
	methodGetOK         = 60<<16 | 71
)

// ok is the method that answers a method.
func ok(method uint32) uint32 { return method + 1 }

// dial opens a raw connection that says nothing yet.
func (t *T) dial() *client.Raw {
	t.Helper()
	r, err := client.Dial(t.ctx, t.Nodes[0].AMQP)
	t.must(err)
	t.Cleanup(func() { r.Close() })
	return r
}

// raw opens a raw connection with channel 1 open.
func (t *T) raw() *client.Raw { t.Helper(); return t.rawWith(client.DefaultTune) }

func (t *T) rawWith(tune client.Tune) *client.Raw {
	t.Helper()
	r := t.dial()
	t.must(r.Login("/", tune))
	t.must(r.OpenChannel(1))
	return r
}

// closes checks that the broker closes the connection with a code, a text that
// holds the words, and the method at fault as "class,method".
func (t *T) closes(r *client.Raw, code int, words, method string) {
	t.Helper()
	t.closesWith(r, true, code, words, method)
}

// closesChannel is closes for a channel.
func (t *T) closesChannel(r *client.Raw, code int, words, method string) {
	t.Helper()
	t.closesWith(r, false, code, words, method)
}

func (t *T) closesWith(r *client.Raw, connection bool, code int, words, method string) {
	t.Helper()
	_, err := r.Expect(0)
	var c *client.Closed
	if !errors.As(err, &c) {
		t.Fatalf("want a close with %d %s, got %v", code, words, err)
	}
	if c.Connection != connection || c.Code != code || !strings.Contains(c.Text, words) || fmt.Sprintf("%d,%d", c.Class, c.Method) != method {
		t.Fatalf("want connection %v, %d %q (%s), got %v %v", connection, code, words, method, c.Connection, c)
	}
}

// answersWith checks the bytes that a broker sends before it hangs up.
func (t *T) answersWith(sent, want string) {
	t.Helper()
	r := t.dial()
	t.must(r.Write([]byte(sent)))
	got, err := r.Bytes(patience)
	t.must(err)
	if !strings.HasPrefix(string(got), want) || want == client.ProtocolHeader && string(got) != want {
		t.Errorf("%q is answered with %q, not %q", sent, got, want)
	}
}

// quietUntil checks that the broker sends nothing and hangs up, not before an
// instant.
func (t *T) quietUntil(r *client.Raw, at time.Time) {
	t.Helper()
	got, err := r.Bytes(patience + time.Until(at))
	t.must(err)
	if len(got) > 0 {
		t.Errorf("it sends %q", got)
	}
	if early := time.Until(at); early > slack {
		t.Errorf("it hangs up %v too early", early)
	}
}

// started sends the protocol header and reads start.
func (t *T) started(mechanism, response string, capabilities ...string) *client.Raw {
	t.Helper()
	r := t.dial()
	_, err := r.Start(mechanism, response, capabilities...)
	t.must(err)
	return r
}

const loginRefused = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile."

// newestHeader is that of AMQP 1.0, which begins with a login.
const newestHeader = "AMQP\x03\x01\x00\x00"

var handshakeRows = []row{
	{id: "A001", what: "the header is answered with connection.start and all its properties", run: func(t *T) {
		r := t.dial()
		start, err := r.Start("PLAIN", "\x00guest\x00guest")
		t.must(err)
		if start[0] != 0 || start[1] != 9 || !bytes.HasSuffix(start, client.LongString("en_US")) {
			t.Errorf("version %d.%d, or other locales: %q", start[0], start[1], start)
		}
		for _, name := range []string{"publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify",
			"connection.blocked", "consumer_priorities", "authentication_failure_close", "per_consumer_qos"} {
			if !bytes.Contains(start, client.Field(name, 't', 1)) {
				t.Errorf("%s is not announced", name)
			}
		}
		for _, name := range []string{"product", "version", "platform", "copyright", "information", "cluster_name"} {
			if !bytes.Contains(start, client.Field(name, 'S')) {
				t.Errorf("%s is missing", name)
			}
		}
	}},
	{id: "A002", what: "the header of AMQP 0-9 is accepted", run: func(t *T) {
		r := t.dial()
		t.must(r.Write([]byte("AMQP\x01\x01\x00\x09")))
		_, err := r.Expect(10<<16 | 10)
		t.must(err)
	}},
	{id: "A003", what: "a later version is answered with the newest that is spoken, then closed", run: func(t *T) { t.answersWith("AMQP\x00\x00\x0a\x00", newestHeader) }},
	{id: "A004", what: "other protocols are answered with the newest version; HTTP is told the HTTP port", run: func(t *T) {
		for _, sent := range []string{"AMQP\x01\x01\x08\x00", "AMQP\x00\x01\x00\x00", "HELLOxyz", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc"} {
			t.answersWith(sent, newestHeader)
		}
		t.answersWith("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 400 ")
	}},
	{id: "A005", what: "a client that sends nothing is dropped after 10 s", long: true, run: func(t *T) {
		at := time.Now()
		mute, r := t.dial(), t.dial()
		t.must(r.Write([]byte(client.ProtocolHeader)))
		_, err := r.Expect(10<<16 | 10)
		t.must(err)
		t.quietUntil(mute, at.Add(ms(10000)))
		t.quietUntil(r, at.Add(ms(10000)))
	}},
	{id: "A006", what: "so is a client that sends nothing after start", in: "A005"},
	{id: "A007", what: "a wrong password: 403 at once, if the client has announced authentication_failure_close", run: func(t *T) {
		r := t.started("PLAIN", "\x00guest\x00wrong", "authentication_failure_close")
		t.closes(r, amqp.AccessRefused, loginRefused, "0,0")
		r = t.started("PLAIN", "\x00nobody\x00guest", "authentication_failure_close")
		t.closes(r, amqp.AccessRefused, loginRefused, "0,0")
	}},
	{id: "A008", what: "otherwise the connection is closed after 3 s without an answer", long: true, run: func(t *T) {
		at := time.Now()
		t.quietUntil(t.started("PLAIN", "\x00guest\x00wrong"), at.Add(ms(3000)))
	}},
	{id: "A009", what: "AMQPLAIN", run: func(t *T) {
		login := client.Join(client.Field("LOGIN", 'S', client.LongString("guest")...), client.Field("PASSWORD", 'S', client.LongString("guest")...))
		_, err := t.started("AMQPLAIN", string(login)).Expect(methodTune)
		t.must(err)
	}},
	{id: "A010", what: "malformed responses: 502", run: func(t *T) {
		login := client.Field("LOGIN", 'S', client.LongString("guest")...)
		t.closes(t.started("AMQPLAIN", string(login)), amqp.SyntaxError, "is missing LOGIN or PASSWORD field", "0,0")
		t.closes(t.started("AMQPLAIN", "\x05LO"), amqp.SyntaxError, "invalid", "0,0")
		t.closes(t.started("PLAIN", "guest"), amqp.SyntaxError, "invalid", "0,0")
		t.closes(t.started("PLAIN", "other\x00guest\x00guest"), amqp.SyntaxError, "invalid", "0,0")
	}},
	{id: "A011", what: "an unknown mechanism: 503", run: func(t *T) {
		t.closes(t.started("FOO", ""), amqp.CommandInvalid, "COMMAND_INVALID - unknown authentication mechanism 'FOO'", "0,0")
	}},
	{id: "A012", what: "guest from another address than loopback", test: "cluster/session: TestLoopbackUsers"},
	{id: "A013", what: "tune: 2047 channels, frames of 131072, heartbeat 60 s", run: func(t *T) {
		args, err := t.started("PLAIN", "\x00guest\x00guest").Expect(methodTune)
		t.must(err)
		t.equal("tune", args, []byte{7, 255, 0, 2, 0, 0, 0, 60})
	}},
	{id: "A014", what: "tune-ok beyond what was offered: 530", run: func(t *T) {
		for words, tune := range map[string]client.Tune{
			"negotiated channel_max = 2048 is higher than the maximum allowed value (2047)":         {Channels: 2048, Frame: 131072},
			"negotiated channel_max = 0 (no limit) is higher than the maximum allowed value (2047)": {Frame: 131072},
			"negotiated frame_max = 131073 is higher than the maximum allowed value (131072)":       {Channels: 1, Frame: 131073},
			"negotiated frame_max = 4095 is lower than the minimum allowed value (4096)":            {Channels: 1, Frame: 4095},
		} {
			r := t.started("PLAIN", "\x00guest\x00guest")
			_, err := r.Expect(methodTune)
			t.must(err)
			t.must(r.TuneOK(tune))
			t.closes(r, amqp.NotAllowed, words, "10,30")
		}
	}},
	{id: "A015", what: "frames of 4096: 10 kB in and out, no frame is larger", run: func(t *T) {
		q := t.queue("q")
		r := t.rawWith(client.Tune{Channels: 1, Frame: 4096})
		t.must(r.Method(1, methodPublish, client.Join([]byte{0, 0}, client.ShortString(""), client.ShortString(q), []byte{0})))
		t.must(r.Frame(client.FrameHeader, 1, client.Join([]byte{0, 60, 0, 0}, binary.BigEndian.AppendUint64(nil, 10_000), []byte{0, 0})))
		for left := 10_000; left > 0; left -= 4000 {
			t.must(r.Frame(client.FrameBody, 1, bytes.Repeat([]byte("x"), min(left, 4000))))
		}
		t.must(r.Consume(q))
		for got := 0; got < 10_000; {
			kind, _, payload, err := r.Read()
			t.must(err)
			if len(payload)+8 > 4096 {
				t.Errorf("a frame of %d octets", len(payload)+8)
			}
			if kind == client.FrameBody {
				got += len(payload)
			}
		}
	}},
	{id: "A016", what: "an unknown vhost: 530", run: func(t *T) {
		t.mustRefuseOpen(t.dial().Login("nope", client.DefaultTune), "NOT_ALLOWED - vhost nope not found")
	}},
	{id: "A017", what: "a user without permissions: 530", run: func(t *T) {
		user := t.name("u")
		t.must(t.Nodes[0].SetUser(t.ctx, user, "p", ""))
		_, err := client.Connect(t.ctx, fmt.Sprintf("amqp://%s:p@%s/", user, t.Nodes[0].AMQP))
		t.mustBe(err, amqp.NotAllowed, fmt.Sprintf("access to vhost '/' refused for user '%s'", user))
	}},
}

func (t *T) mustRefuseOpen(err error, words string) {
	t.Helper()
	var c *client.Closed
	if !errors.As(err, &c) || c.Code != amqp.NotAllowed || c.Text != words || c.Class != 10 || c.Method != 40 {
		t.Fatalf("want 530 %s (10,40), got %v", words, err)
	}
}

// declareArgs are those of a durable queue.declare.
func declareArgs(queue string, table []byte) []byte {
	return client.Join([]byte{0, 0}, client.ShortString(queue), []byte{2}, client.LongString(string(table)))
}

// header is a content header of class basic.
func header(size uint64, properties ...byte) []byte {
	return client.Join([]byte{0, 60, 0, 0}, binary.BigEndian.AppendUint64(nil, size), properties)
}

// withHeaders are properties: these headers only.
func withHeaders(table []byte) []byte {
	return append([]byte{0x20, 0}, client.LongString(string(table))...)
}

// nested is a table in a table and so on.
func nested(levels int) []byte {
	var table []byte
	for range levels {
		table = client.Field("t", 'F', client.LongString(string(table))...)
	}
	return table
}

// beginPublish sends basic.publish without content.
func (t *T) beginPublish(r *client.Raw, exchange, key string) {
	t.Helper()
	t.must(r.Method(1, methodPublish, client.Join([]byte{0, 0}, client.ShortString(exchange), client.ShortString(key), []byte{0})))
}

var frameRows = []row{
	{id: "A018", what: "channel.open before connection.open: 505 with the octets", run: func(t *T) {
		r := t.started("PLAIN", "\x00guest\x00guest")
		_, err := r.Expect(methodTune)
		t.must(err)
		t.must(r.Method(1, methodChannelOpen, client.ShortString("")))
		t.closes(r, amqp.UnexpectedFrame, "type 1, all octets = <<0,20,0,10,0>>", "0,0")
	}},
	{id: "A019", what: "queue.declare on channel 0: 504", run: func(t *T) {
		r := t.raw()
		t.must(r.Method(0, methodQueueDeclare, declareArgs(t.name("q"), nil)))
		t.closes(r, amqp.ChannelError, "unexpected method in connection state running", "50,10")
	}},
	{id: "A020", what: "connection.close on channel 1: 503", run: func(t *T) {
		r := t.raw()
		t.must(r.Method(1, 10<<16|50, client.Join([]byte{0, 200}, client.ShortString(""), []byte{0, 0, 0, 0})))
		t.closes(r, amqp.CommandInvalid, "unimplemented method", "10,50")
	}},
	{id: "A021", what: "class 99, method 99: 503", run: func(t *T) {
		for channel := range uint16(2) {
			r := t.raw()
			t.must(r.Method(channel, 99<<16|99, nil))
			_, err := r.Expect(0)
			var c *client.Closed
			if !errors.As(err, &c) || c.Code != amqp.CommandInvalid || !c.Connection {
				t.Errorf("channel %d: %v", channel, err)
			}
		}
	}},
	{id: "A022", what: "a method on a channel that is not open: 504", run: func(t *T) {
		r := t.raw()
		t.must(r.Method(3, methodQueueDeclare, declareArgs(t.name("q"), nil)))
		t.closes(r, amqp.ChannelError, "expected 'channel.open'", "50,10")
	}},
	{id: "A023", what: "channel.open twice: 504", run: func(t *T) {
		r := t.raw()
		t.must(r.Method(1, methodChannelOpen, client.ShortString("")))
		t.closes(r, amqp.ChannelError, "second 'channel.open' seen", "20,10")
	}},
	{id: "A024", what: "one channel more than agreed: 530; any channel numbers may be used", run: func(t *T) {
		r := t.rawWith(client.Tune{Channels: 2, Frame: 131072})
		t.must(r.OpenChannel(9))
		t.must(r.Method(3, methodChannelOpen, client.ShortString("")))
		t.closes(r, amqp.NotAllowed, "number of channels opened (2) has reached the negotiated channel_max (2)", "0,0")
	}},
	{id: "A025", what: "a heartbeat on channel 1: 505", run: func(t *T) {
		r := t.raw()
		t.must(r.Frame(8, 1, nil))
		t.closes(r, amqp.UnexpectedFrame, "type 8, all octets = <<>>", "0,0")
	}},
	{id: "A026", what: "a heartbeat with a payload, a frame of type 9: 501", run: func(t *T) {
		for _, kind := range []byte{8, 9} {
			r := t.raw()
			t.must(r.Frame(kind, 0, []byte("abc")))
			t.closes(r, amqp.FrameError, fmt.Sprintf("type %d, all octets = <<\"abc\">>: unknown_frame", kind), "0,0")
		}
	}},
	{id: "A027", what: "a wrong end octet: 501", run: func(t *T) {
		r := t.raw()
		t.must(r.Write([]byte{1, 0, 1, 0, 0, 0, 4, 0, 20, 0, 10, 0}))
		t.closes(r, amqp.FrameError, "type 1, all octets = <<0,20,0,10>>: {invalid_frame_end_marker,0}", "0,0")
	}},
	{id: "A028", what: "a frame above frame_max: 501 before its payload", run: func(t *T) {
		r := t.rawWith(client.Tune{Channels: 1, Frame: 8192})
		t.must(r.Write([]byte{3, 0, 1, 0, 0, 0x20, 1}))
		t.closes(r, amqp.FrameError, "type 3, all octets = <<>>: {frame_too_large,8193,8184}", "0,0")
	}},
	{id: "A029", what: "a frame of 4 GiB before tune: 501 before its payload", run: func(t *T) {
		r := t.dial()
		t.must(r.Write([]byte(client.ProtocolHeader)))
		_, err := r.Expect(10<<16 | 10)
		t.must(err)
		t.must(r.Write([]byte{1, 0, 0, 255, 255, 255, 255}))
		t.closes(r, amqp.FrameError, "{frame_too_large,4294967295,8184}", "0,0")
	}},
	{id: "A030", what: "heartbeat 1, a client that sends nothing: dropped after 2 s", long: true, run: func(t *T) {
		r := t.rawWith(client.Tune{Channels: 1, Frame: 131072, Heartbeat: 1})
		at := time.Now()
		for {
			kind, _, _, err := r.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			t.must(err)
			t.equal("frame type", kind, byte(8))
		}
		t.notBefore(at, 2000)
		t.notLate("the end", at.Add(ms(3000))) // two to three silent seconds
	}},
	{id: "A031", what: "heartbeat 2: the server sends one each second, and keeps a client that does", long: true, run: func(t *T) {
		r := t.rawWith(client.Tune{Channels: 1, Frame: 131072, Heartbeat: 2})
		at := time.Now()
		const beats = 5
		for range beats {
			kind, channel, payload, err := r.Read()
			t.must(err)
			t.equal("heartbeat", []int{int(kind), int(channel), len(payload)}, []int{8, 0, 0})
			t.must(r.Frame(8, 0, nil))
		}
		t.notBefore(at, 1000*(beats-1))
		t.notLate("the last heartbeat", at.Add(ms(1000*(beats+1)))) // the first second had other frames
	}},
	{id: "A032", what: "arguments cut short, or too long: 501", run: func(t *T) {
		for _, args := range [][]byte{{0, 0, 200, 'q'}, append(declareArgs("q", nil), 0)} {
			r := t.raw()
			t.must(r.Method(1, methodQueueDeclare, args))
			t.closes(r, amqp.FrameError, "cannot decode", "0,0")
		}
	}},
	{id: "A033", what: "a name that is no UTF-8: 501", run: func(t *T) {
		r := t.raw()
		t.must(r.Method(1, methodQueueDeclare, declareArgs("\xff\xfe", nil)))
		t.closes(r, amqp.FrameError, "Malformed UTF-8 in shortstr", "0,0")
	}},
	{id: "A034", what: "an unknown type letter in a table: 502", run: func(t *T) {
		r := t.raw()
		t.must(r.Method(1, methodQueueDeclare, declareArgs(t.name("q"), client.Field("a", 'Z', 0))))
		t.closes(r, amqp.SyntaxError, "malformed field table", "0,0")
		r = t.raw()
		t.must(r.Publish("", t.name("q"), withHeaders(client.Field("a", 'Z', 0)), nil))
		t.closes(r, amqp.SyntaxError, "malformed field table", "0,0")
	}},
	{id: "A035", what: "200 nested tables: 502; 64 are accepted", run: func(t *T) {
		r := t.raw()
		t.must(r.Publish("", t.name("q"), withHeaders(nested(64)), nil))
		t.must(r.Publish("", t.name("q"), withHeaders(nested(200)), nil))
		t.closes(r, amqp.SyntaxError, "malformed field table", "0,0")
	}},
	{id: "A036", what: "values of all 18 types are delivered byte for byte", run: allTypes},
	{id: "A037", what: "contents that do not match their announcement: 505 and 501", run: badContents},
	{id: "A038", what: "a body of 600 MiB: 501 with the header", run: func(t *T) {
		r := t.raw()
		t.beginPublish(r, "", t.name("q"))
		t.must(r.Frame(client.FrameHeader, 1, header(600<<20, 0, 0)))
		t.closes(r, amqp.FrameError, "content body size 629145600 exceeds maximum allowed size 536870912", "60,40")
	}},
	{id: "A039", what: "16 MiB are accepted, one octet more is 406", run: func(t *T) {
		q := t.queue("q", "x-max-length-bytes", int32(1))
		t.must(t.ch().PublishWithContext(t.ctx, "", q, false, false, amqp.Publishing{Body: make([]byte, 16<<20)}))
		if !t.send("", q) {
			t.Error("the next one is not confirmed")
		}
		t.refusePublish(amqp.PreconditionFailed, "message size 16777217 is larger than configured max size 16777216", "", q,
			func(p *amqp.Publishing) { p.Body = make([]byte, 16<<20+1) })
	}},
	{id: "A040", what: "exclusive queues are gone when close-ok comes", run: func(t *T) {
		conn, err := client.Connect(t.ctx, t.Nodes[0].URI())
		t.must(err)
		ch, err := conn.Channel()
		t.must(err)
		q := t.name("q")
		_, err = ch.QueueDeclare(q, false, false, true, false, nil)
		t.must(err)
		t.must(conn.Close())
		if t.exists(q) {
			t.Error("it is there")
		}
	}},
	{id: "A041", what: "a channel number that is reused: a new channel", run: func(t *T) {
		r := t.raw()
		for range 2 {
			t.must(r.Method(1, 85<<16|10, []byte{0}))
			_, err := r.Expect(85<<16 | 11)
			t.must(err)
			t.must(r.Publish("", t.name("nowhere"), []byte{0, 0}, []byte("x")))
			args, err := r.Expect(60<<16 | 80)
			t.must(err)
			t.equal("confirm", args, []byte{0, 0, 0, 0, 0, 0, 0, 1, 0})
			t.must(r.Method(1, methodChannelClose, client.Join([]byte{0, 200}, client.ShortString(""), []byte{0, 0, 0, 0})))
			_, err = r.Expect(ok(methodChannelClose))
			t.must(err)
			t.must(r.OpenChannel(1))
		}
	}},
	{id: "A042", what: "what follows a channel error has no effect", run: func(t *T) {
		r := t.raw()
		q := t.name("q")
		t.must(r.Method(1, methodGet, client.Join([]byte{0, 0}, client.ShortString(t.name("none")), []byte{1})))
		t.must(r.Declare(q, nil))
		t.must(r.Method(1, methodGet, client.Join([]byte{0, 0}, client.ShortString(t.name("none")), []byte{1})))
		t.closesChannel(r, amqp.NotFound, "no queue", "60,70")
		t.must(r.Method(1, ok(methodChannelClose), nil))
		t.must(r.OpenChannel(1))
		if t.exists(q) {
			t.Error("the queue was declared")
		}
	}},
	{id: "A043", what: "update-secret", run: func(t *T) {
		t.must(t.conn(0).UpdateSecret("new", "because"))
		t.must(t.open().Close())
	}},
	{id: "A044", what: "connection.blocked and unblocked", test: "jepsen/conform: TestCluster/C31"},
	{id: "A045", what: "a connection is closed through the HTTP API of another node", run: func(t *T) {
		conn := t.connect(1)
		closed := conn.NotifyClose(make(chan *amqp.Error, 1))
		name := conn.LocalAddr().String() + " -> " + conn.RemoteAddr().String()
		remove := func() int {
			status, _, err := t.Nodes[0].Do(t.ctx, http.MethodDelete, "/api/connections/"+url.PathEscape(name), nil)
			t.must(err)
			return status
		}
		t.equal("status", remove(), http.StatusNoContent)
		if e := <-closed; e == nil || e.Code != amqp.ConnectionForced || e.Reason != "CONNECTION_FORCED - Closed via management plugin" {
			t.Errorf("%v", e)
		}
		t.must(await.Until(t.ctx, poll, "the connection to be gone", func() (bool, error) { return remove() == http.StatusNotFound, nil }))
	}},
}

// allTypes sends one value of each type.
func allTypes(t *T) {
	eight := []byte{0x81, 2, 3, 4, 5, 6, 7, 8}
	text := client.LongString("a\x00\xff")
	var table []byte
	for _, v := range []struct {
		kind  byte
		value []byte
	}{
		{'t', eight[:1]}, {'b', eight[:1]}, {'B', eight[:1]}, {'s', eight[:2]}, {'u', eight[:2]}, {'I', eight[:4]}, {'i', eight[:4]},
		{'l', eight}, {'L', eight}, {'f', eight[:4]}, {'d', eight}, {'D', eight[:5]}, {'S', text}, {'x', text}, {'T', eight}, {'V', nil},
		{'A', client.LongString("V" + "I\x00\x00\x00\x01")}, {'F', client.LongString(string(client.Field("n", 'V')))},
	} {
		table = append(table, client.Field("name-"+string(v.kind), v.kind, v.value...)...)
	}
	table = append(table, client.Field("name-t", 'V')...) // a name once more
	q, r, properties := t.queue("q"), t.raw(), withHeaders(table)
	t.must(r.Publish("", q, properties, []byte("x")))
	t.eventually("the message in "+q, func() error {
		if n := t.ready(q); n != 1 {
			return fmt.Errorf("%d messages", n)
		}
		return nil
	})
	t.must(r.Method(1, methodGet, client.Join([]byte{0, 0}, client.ShortString(q), []byte{1})))
	_, err := r.Expect(methodGetOK)
	t.must(err)
	_, _, payload, err := r.Read()
	t.must(err)
	if !bytes.Equal(payload[12:], properties) {
		t.Errorf("sent %q\ngot  %q", properties, payload[12:])
	}
}

// badContents are the mistakes around method, header and body.
func badContents(t *T) {
	const expectedHeader = "expected content header for class 60, got "
	for _, c := range []struct {
		what, words, method string
		code                int
		send                func(r *client.Raw) error
	}{
		{"a header alone", "expected method frame, got non method frame instead", "0,0", amqp.UnexpectedFrame, func(r *client.Raw) error {
			return r.Frame(client.FrameHeader, 1, header(1, 0, 0))
		}},
		{"a body alone", "expected method frame, got non method frame instead", "0,0", amqp.UnexpectedFrame, func(r *client.Raw) error {
			return r.Frame(client.FrameBody, 1, []byte("x"))
		}},
		{"a body for a header", expectedHeader + "non content header frame instead", "60,40", amqp.UnexpectedFrame, func(r *client.Raw) error {
			t.beginPublish(r, "", "q")
			return r.Frame(client.FrameBody, 1, []byte("x"))
		}},
		{"a method for a header", expectedHeader + "non content header frame instead", "60,40", amqp.UnexpectedFrame, func(r *client.Raw) error {
			t.beginPublish(r, "", "q")
			return r.Method(1, methodChannelFlow, []byte{1})
		}},
		{"another class", expectedHeader + "one for class 50 instead", "60,40", amqp.UnexpectedFrame, func(r *client.Raw) error {
			t.beginPublish(r, "", "q")
			return r.Frame(client.FrameHeader, 1, append([]byte{0, 50}, header(1, 0, 0)[2:]...))
		}},
		{"a weight", expectedHeader + "non content header frame instead", "60,40", amqp.UnexpectedFrame, func(r *client.Raw) error {
			t.beginPublish(r, "", "q")
			return r.Frame(client.FrameHeader, 1, append([]byte{0, 60, 0, 1}, header(1, 0, 0)[4:]...))
		}},
		{"too long", "content body frame exceeds remaining content size", "60,40", amqp.FrameError, func(r *client.Raw) error {
			t.beginPublish(r, "", "q")
			t.must(r.Frame(client.FrameHeader, 1, header(2, 0, 0)))
			return r.Frame(client.FrameBody, 1, []byte("xyz"))
		}},
		{"a method for a body", "expected content body, got non content body frame instead", "60,40", amqp.UnexpectedFrame, func(r *client.Raw) error {
			t.beginPublish(r, "", "q")
			t.must(r.Frame(client.FrameHeader, 1, header(2, 0, 0)))
			return r.Method(1, methodChannelFlow, []byte{1})
		}},
		{"unknown flags", "malformed content properties", "0,0", amqp.SyntaxError, func(r *client.Raw) error {
			t.beginPublish(r, "", "q")
			return r.Frame(client.FrameHeader, 1, header(0, 0, 2))
		}},
	} {
		t.Log(c.what)
		r := t.raw()
		t.must(c.send(r))
		t.closes(r, c.code, c.words, c.method)
	}
	// Empty body frames are nothing; other channels may come between.
	q, r := t.queue("q"), t.raw()
	t.must(r.OpenChannel(2))
	t.beginPublish(r, "", q)
	t.must(r.Frame(client.FrameHeader, 1, header(2, 0, 0)))
	for _, part := range []string{"", "x", "", "y"} {
		t.must(r.Frame(8, 0, nil))
		t.must(r.Method(2, methodChannelFlow, []byte{1}))
		t.must(r.Frame(client.FrameBody, 1, []byte(part)))
	}
	t.equal("body", bodies(t.take(q, 1)), "xy")
}
