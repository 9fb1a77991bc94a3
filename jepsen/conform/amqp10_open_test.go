package conform

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/jepsen/internal/frames"
)

// Conditions of errors.
const (
	framingError    = "amqp:connection:framing-error"
	decodeError     = "amqp:decode-error"
	illegalState    = "amqp:illegal-state"
	internalError   = "amqp:internal-error"
	invalidField    = "amqp:invalid-field"
	notAllowed      = "amqp:not-allowed"
	notFound        = "amqp:not-found"
	notImplemented  = "amqp:not-implemented"
	precondition    = "amqp:precondition-failed"
	resourceDeleted = "amqp:resource-deleted"
	resourceLimit   = "amqp:resource-limit-exceeded"
	resourceLocked  = "amqp:resource-locked"
	unauthorized    = "amqp:unauthorized-access"
	forced          = "amqp:connection:forced"
	tooLarge        = "amqp:link:message-size-exceeded"
	tooMany         = "amqp:link:transfer-limit-exceeded"
	violation       = "amqp:session:window-violation"
	handleInUse     = "amqp:session:handle-in-use"
	unattached      = "amqp:session:unattached-handle"
	smallFrames     = "amqp:frame-size-too-small"
)

// either is the first condition, or at RabbitMQ the second.
func (t *T) either(here, there string) string {
	if t.isPeer() {
		return there
	}
	return here
}

// refusedLogin checks that a client is not let in; it returns the code of the outcome, -1: none.
func (t *T) refusedLogin(mechanism string, response any) (code int) {
	t.Helper()
	c := t.ten()
	if code = c.login(mechanism, response); code == 0 {
		t.Errorf("%s %v is let in", mechanism, response)
	}
	c.gone(time.Now().Add(answerTime))
	return code
}

// notOpened checks that a connection ends without an open, by a framing error if by a frame.
func (c *ten) notOpened() {
	c.Helper()
	for _, f := range c.gone(time.Now().Add(answerTime)) {
		switch f.Name {
		case "close":
			c.failure(f.Fields.Of("error"), framingError)
		case "begin":
			c.Errorf("it serves %v", f.Composite)
		}
	}
}

// refusedOpen checks that an open is answered by an open and a close with an error.
func (c *ten) refusedOpen(f fields, condition, words string) {
	c.Helper()
	c.must(c.Send(0, "open", merged(fields{"container-id": c.row}, []fields{f})))
	if c.isPeer() {
		for _, f := range c.gone(time.Now().Add(answerTime)) {
			if f.Name == "begin" {
				c.Errorf("it serves %v", f.Composite)
			}
		}
		return
	}
	c.await("open", 0, nil)
	c.says(c.closed(condition), words)
}

// frameOf is a frame on the first channel.
func frameOf(body ...byte) []byte { return frames.AppendFrame(nil, frames.TypeAMQP, 0, body) }

const (
	openedLate = "the socket is reset, at the latest after 3 s, without a frame"
	smallWhy   = "every refusal after the login is told by a frame"
)

var openRows10 = []row{
	{id: "1-headers", what: "the headers of AMQP 1.0 without SASL, of TLS in band and of another version are answered with that of SASL, and closed", run: func(t *T) {
		for _, h := range []string{"AMQP\x00\x01\x00\x00", "AMQP\x02\x01\x00\x00", "AMQP\x03\x01\x01\x00"} {
			c := t.ten()
			c.writes([]byte(h))
			c.header(3)
			if b, err := c.Rest(); len(b) > 0 {
				t.Errorf("%q: then %q, %v", h, b, err)
			}
		}
	}},
	{id: "2-both", what: "0-9-1 is served on the same port", run: func(t *T) {
		q := t.queue("q")
		t.publish(q, body("m"))
		t.equal("body", string(t.mustGet(q).Body), "m")
	}},
	{id: "3-pieces", what: "the header comes octet by octet; header, login, header, open and begin come at once: served, in order", run: func(t *T) {
		c := t.ten()
		for _, octet := range frames.Header(3) {
			c.writes([]byte{octet})
		}
		c.header(3)
		c = t.ten()
		c.writes(frames.Header(3), frames.Encode(0, "sasl-init", fields{"mechanism": "PLAIN", "initial-response": "\x00guest\x00guest"}),
			frames.Header(0), frames.Encode(0, "open", fields{"container-id": t.row}), frames.Encode(3, "begin", fields{"next-outgoing-id": 0, "incoming-window": 1, "outgoing-window": 1}))
		c.header(3)
		c.await("sasl-mechanisms", 0, nil)
		c.await("sasl-outcome", 0, nil)
		c.header(0)
		c.await("open", 0, nil)
		t.equal("channel", c.await("begin", 3, nil).Fields.Int("remote-channel"), 3)
	}},
	{id: "4-silence", what: "a client that is silent from the beginning, or from the end of its login, is dropped after 10 s", long: true, run: func(t *T) {
		at := time.Now()
		mute, logged := t.ten(), t.logged("guest", "guest")
		for _, c := range []*ten{mute, logged} {
			if all := c.gone(at.Add(ms(30000))); len(all) > 0 && !(len(all) == 1 && all[0].Name == "close") {
				t.Errorf("it says %v", all)
			}
			if early := time.Until(at.Add(ms(10000))); early > slack {
				t.Errorf("it is dropped %v too early", early)
			}
		}
	}},
	{id: "5-mechanisms", what: "PLAIN is offered, and EXTERNAL is not on a plain port", run: func(t *T) {
		all := t.mechanisms()
		t.equal("PLAIN", slices.Contains(all, "PLAIN"), true)
		t.equal("EXTERNAL", slices.Contains(all, "EXTERNAL"), false)
	}},
	{id: "6-amqplain", what: "AMQPLAIN is not offered", peer: "it is", why: "its response is a table of 0-9-1", run: func(t *T) {
		t.equal("AMQPLAIN", slices.Contains(t.mechanisms(), "AMQPLAIN"), t.isPeer())
	}},
	{id: "7-plain", what: "PLAIN: the right password is let in; a wrong one, or an unknown user, is told so, and closed", run: func(t *T) {
		t.open10()
		t.equal("wrong password", t.refusedLogin("PLAIN", "\x00guest\x00wrong"), 1)
		t.equal("unknown user", t.refusedLogin("PLAIN", "\x00nobody\x00guest"), 1)
	}},
	{id: "8-responses", what: "PLAIN without NUL or without a response, and ANONYMOUS when it is not offered, are not let in", run: func(t *T) {
		t.refusedLogin("PLAIN", "guest")
		t.refusedLogin("PLAIN", nil)
		if !slices.Contains(t.mechanisms(), "ANONYMOUS") {
			t.refusedLogin("ANONYMOUS", nil)
		}
	}},
	{id: "9-mechanism", what: "an unknown mechanism is told so by outcome 1", peer: openedLate, why: smallWhy, run: func(t *T) {
		code := t.refusedLogin("NOPE", "x")
		if !t.isPeer() {
			t.equal("outcome", code, 1)
		}
	}},
	{id: "10-order", what: "a frame of AMQP during the login, open before its outcome, a frame of SASL after it, or the header of 0-9-1 after it: not opened", run: func(t *T) {
		open := frames.Encode(0, "open", fields{"container-id": t.row})
		begin := frames.Encode(0, "begin", fields{"next-outgoing-id": 0, "incoming-window": 1, "outgoing-window": 1})
		c := t.ten()
		c.writes(frames.Header(3), open, begin)
		c.header(3)
		c.notOpened()
		c = t.ten()
		c.writes(frames.Header(3), frames.Header(0), open, begin)
		c.header(3)
		c.notOpened()
		c = t.logged("guest", "guest")
		c.writes(frames.Encode(0, "sasl-init", fields{"mechanism": "PLAIN"}), open, begin)
		c.notOpened()
		c = t.ten()
		t.equal("outcome", c.login("PLAIN", "\x00guest\x00guest"), 0)
		c.writes([]byte("AMQP\x00\x00\x09\x01"), open, begin)
		c.expectsNoOpen()
	}},
	{id: "11-open", what: "the answer to open: container-id, sizes, half a heartbeat as idle time, capabilities and properties", run: func(t *T) {
		o := t.open10().opened
		t.equal("container-id is empty", o.Text("container-id") == "", false)
		t.equal("max-frame-size", o.Int("max-frame-size"), 131072)
		t.equal("channel-max", o.Int("channel-max"), 63)
		t.equal("idle-time-out", o.Int("idle-time-out"), 30000)
		for _, name := range []string{"LINK_PAIR_V1_0", "ANONYMOUS-RELAY"} {
			t.equal(name, slices.Contains(o.Symbols("offered-capabilities"), name), true)
		}
		for _, name := range []string{"product", "version", "cluster_name", "platform"} {
			t.equal(name+" is empty", frames.Text(o.Map("properties").Get(name)) == "", false)
		}
		if !t.isPeer() {
			t.equal("product", o.Map("properties").Get("product"), any("quorate"))
		}
	}},
	{id: "12-version", what: "the version begins with a number from 4 on, as clients look for it", run: func(t *T) {
		v := frames.Text(t.open10().opened.Map("properties").Get("version"))
		if v == "" || v[0] < '4' || v[0] > '9' || strings.Count(v, ".") < 2 {
			t.Errorf("version %q", v)
		}
	}},
	{id: "13-fields", what: "open with only a container-id, with a symbol as descriptor, and with a hostname", run: func(t *T) {
		t.open10().begin()
		t.open10(fields{"hostname": "broker.example.org"}).begin()
		c := t.logged("guest", "guest")
		c.writes(frameOf(frames.Append(nil, described{Descriptor: symbol("amqp:open:list"), Value: list{t.row}})...))
		c.await("open", 0, nil)
		c.begin()
	}},
	{id: "14-vhost", what: "a hostname vhost:NAME is that vhost", run: func(t *T) {
		v := t.vhost("v")
		t.put("permissions/"+v+"/guest", map[string]any{"configure": ".*", "write": ".*", "read": ".*"})
		q := t.queue("q")
		s := t.open10(fields{"hostname": "vhost:" + v}).begin()
		t.says(s.refusedLink(notFound, asSender(at(q))), fmt.Sprintf("no queue '%s' in vhost '%s'", q, v))
		t.session().sender(at(q))
	}},
	{id: "15-refused", what: "an unknown vhost, no permission, a full vhost or user, frames of 511, an idle time of 500 ms: open and a close that says why", peer: openedLate, why: smallWhy, run: func(t *T) {
		t.logged("guest", "guest").refusedOpen(fields{"hostname": "vhost:nope"}, unauthorized, "virtual host 'nope' does not exist")
		none := t.name("none")
		t.must(t.Nodes[0].SetUser(t.ctx, none, "p", ""))
		t.logged(none, "p").refusedOpen(nil, unauthorized, fmt.Sprintf("Access for user '%s' was refused", none))
		v := t.vhost("v")
		t.put("permissions/"+v+"/guest", map[string]any{"configure": ".*", "write": ".*", "read": ".*"})
		t.limit("vhost-limits/"+v+"/max-connections", 0)
		t.logged("guest", "guest").refusedOpen(fields{"hostname": "vhost:" + v}, resourceLimit, "vhost connection limit (0) is reached")
		one := t.user10("one", ".*", ".*", ".*")
		t.limit("user-limits/"+one+"/max-connections", 1)
		t.openAs(one, "p")
		t.logged(one, "p").refusedOpen(nil, resourceLimit, "user connection limit (1) is reached")
		t.logged("guest", "guest").refusedOpen(fields{"max-frame-size": 511}, smallFrames, "")
		t.logged("guest", "guest").refusedOpen(fields{"idle-time-out": 500}, notAllowed, "")
	}},
	{id: "16-frames", what: "frames of 512: 8 kB in and out, and no frame is longer", run: func(t *T) {
		q := t.queue("q")
		s := t.open10(fields{"max-frame-size": 512}).begin()
		out, in := s.sender(at(q)), s.receiver(at(q))
		t.is(s.outcome(out.parts(message(data(strings.Repeat("x", 8192))), 400)), "accepted")
		in.grant(1)
		d := in.gets()
		t.equal("body", d.body, strings.Repeat("x", 8192))
		if d.largest > 512 {
			t.Errorf("a frame of %d octets", d.largest)
		}
	}},
	{id: "17-heartbeat", what: "an idle time of 2 s: a frame comes at least every 2.5 s", long: true, run: func(t *T) {
		c := t.open10(fields{"idle-time-out": 2000})
		for range 3 {
			at := time.Now()
			_, err := c.ReadFrame()
			t.must(err)
			t.inTimeOf("a frame", time.Since(at), ms(2500))
		}
	}},
	{id: "18-silent", what: "a client that goes silent is told resource-limit-exceeded, and not before the time that was announced", long: true, run: func(t *T) {
		if !t.isPeer() { // its heartbeat is as configured
			t = newT(t.T, mustNodes(t.T, 1, "--set=heartbeat=2"), t.row)
			t.must(serves10(t.Cluster))
		}
		c := t.open10()
		at, idle := time.Now(), ms(c.opened.Int("idle-time-out"))
		all := c.gone(at.Add(8*idle + ms(30000)))
		if early := time.Until(at.Add(idle)); early > slack {
			t.Errorf("%v too early", early)
		}
		if len(all) == 0 || all[len(all)-1].Name != "close" {
			t.Fatalf("before the end: %v", all)
		}
		t.failure(all[len(all)-1].Fields.Of("error"), resourceLimit)
	}},
	{id: "19-twice", what: "open twice: illegal-state", peer: "internal-error", why: "the condition says what is wrong", run: func(t *T) {
		c := t.open10()
		t.must(c.Send(0, "open", fields{"container-id": t.row}))
		c.closed(t.either(illegalState, internalError))
	}},
	{id: "20-listed", what: "a connection is listed with its container-id and protocol", run: func(t *T) {
		id := t.name("id")
		t.open10(fields{"container-id": id})
		t.listed10(id)
	}},
	{id: "21-close", what: "a close, with or without an error, is answered; one through the API says connection:forced", peer: "internal-error", why: "the protocol has a condition for it", run: func(t *T) {
		for _, f := range []fields{{}, {"error": composite{Name: "error", Fields: fields{"condition": "some:thing", "description": "bye"}}}} {
			c := t.open10()
			t.must(c.Send(0, "close", f))
			if f := c.await("close", 0, nil); f.Fields["error"] != nil {
				t.Errorf("it is answered with %v", f.Fields)
			}
			c.over()
		}
		id := t.name("id")
		c := t.open10(fields{"container-id": id})
		r, err := http.NewRequestWithContext(t.ctx, http.MethodDelete, "http://"+t.Nodes[0].HTTP+"/api/connections/"+urlPath(t.listed10(id)), nil)
		t.must(err)
		r.SetBasicAuth("guest", "guest")
		r.Header.Set("X-Reason", "the reason")
		answer, err := http.DefaultClient.Do(r)
		t.must(err)
		t.must(answer.Body.Close())
		t.says(c.closed(t.either(forced, internalError)), "the reason")
	}},
	{id: "22-unsettled", what: "a close or an end with unsettled deliveries: they are ready again", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		s.sender(at(q)).publishes("a", "b")
		in := s.begin().receiver(at(q))
		in.grant(2)
		in.gets()
		in.gets()
		in.ends()
		t.readyIs(q, 2)
		c := t.open10()
		in = c.begin().receiver(at(q))
		in.grant(1)
		t.equal("body", in.gets().body, "a")
		t.must(c.Send(0, "close", fields{}))
		c.await("close", 0, nil)
		t.readyIs(q, 2)
	}},
	{id: "23-ignored", what: "heartbeats on any channel, and the extended header of a frame, are ignored", run: func(t *T) {
		c := t.open10()
		for _, channel := range []uint16{0, 9, 999} {
			c.writes(frames.AppendFrame(nil, frames.TypeAMQP, channel, nil))
		}
		b := frames.Encode(0, "begin", fields{"next-outgoing-id": 0, "incoming-window": 1, "outgoing-window": 1})
		b = slices.Concat(b[:8], []byte("extended"), b[8:])
		b[3] += 8
		b[4] = 4
		c.writes(b)
		c.await("begin", 0, nil)
	}},
	{id: "24-framing", what: "a frame longer than agreed, of 4 GiB or of 7 octets, an offset of 1 or beyond the frame, type 9: framing-error", run: func(t *T) {
		for _, head := range [][]byte{
			{0, 2, 0, 1, 2, 0, 0, 0}, {0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0}, {0, 0, 0, 7, 2, 0, 0, 0}, {0, 0, 0, 9, 1, 0, 0, 0, 0x40}, {0, 0, 0, 9, 3, 0, 0, 0, 0x40}, {0, 0, 0, 9, 2, 9, 0, 0, 0x40},
		} {
			c := t.open10()
			c.writes(head)
			c.closed(framingError)
		}
	}},
	{id: "25-undecodable", what: "an unknown constructor, a list without mandatory fields, an unknown descriptor: decode-error", peer: "internal-error", why: "the condition says what is wrong", run: func(t *T) {
		for _, b := range [][]byte{{0, 0x53, 0x11, 0xc0, 3, 1, 0x0f, 0}, {0, 0x53, 0x14, 0x45}, {0, 0x53, 0x0f, 0x45}} {
			c := t.open10().begin()
			c.writes(frameOf(b...))
			if f := c.await2("close", "end"); f.Name == "end" {
				t.failure(f.Fields.Of("error"), t.either("", internalError))
			} else {
				t.failure(f.Fields.Of("error"), t.either(decodeError, internalError))
			}
		}
	}},
	{id: "26-no-type", what: "a body that is no described type, and 6000 lists in each other: decode-error", peer: "the first is ignored", why: "what cannot be read must not be passed over", run: func(t *T) {
		c := t.open10()
		c.writes(frameOf(0x41))
		if t.isPeer() {
			c.begin()
		} else {
			c.closed(decodeError)
		}
		c = t.open10()
		c.writes(frameOf(deepLists(6000)...))
		if !t.isPeer() {
			c.closed(decodeError)
		}
		t.open10()
	}},
	{id: "27-channel", what: "a channel above channel-max: framing-error", run: func(t *T) {
		c := t.open10()
		t.must(c.Send(64, "begin", fields{"next-outgoing-id": 0, "incoming-window": 1, "outgoing-window": 1}))
		t.says(c.closed(framingError), "channel number (64) exceeds maximum channel number (63)")
	}},
	{id: "28-no-session", what: "a flow on a channel without session is ignored", run: func(t *T) {
		c := t.open10()
		t.must(c.Send(7, "flow", fields{"incoming-window": 1, "next-outgoing-id": 0, "outgoing-window": 1}))
		c.begin()
	}},
	{id: "29-begin-first", what: "begin before open: no session", run: func(t *T) {
		c := t.logged("guest", "guest")
		t.must(c.Send(0, "begin", fields{"next-outgoing-id": 0, "incoming-window": 1, "outgoing-window": 1}))
		for _, f := range c.gone(time.Now().Add(answerTime)) {
			if f.Name == "begin" {
				t.Errorf("it serves %v", f.Composite)
			}
		}
	}},
	{id: "30-random", what: "50 connections with random frames: the server lives", run: func(t *T) {
		var all sync.WaitGroup
		defer all.Wait()
		for seed := range uint64(50) {
			c := t.open10()
			all.Go(func() { c.rants(rand.New(rand.NewPCG(seed, 1))) })
		}
		all.Wait()
		q := t.queue("q")
		t.session().sender(at(q)).publishes("m")
	}},
}

// mechanisms are what is offered.
func (t *T) mechanisms() []string {
	t.Helper()
	c := t.ten()
	c.writes(frames.Header(3))
	c.header(3)
	return c.await("sasl-mechanisms", 0, nil).Fields.Symbols("sasl-server-mechanisms")
}

// expectsNoOpen checks that the broker hangs up, whatever octets it sends.
func (c *ten) expectsNoOpen() {
	c.Helper()
	b, _ := c.Rest()
	if bytes.Contains(b, []byte{0, 0x53, 0x11}) {
		c.Errorf("it serves % x", b)
	}
}

// inTimeOf checks that something did not take longer than it may, and a stall of the machine.
func (t *T) inTimeOf(what string, took, most time.Duration) {
	t.Helper()
	if most += t.allowed(); took > most {
		t.Errorf("%s took %v, not %v", what, took, most)
	}
}

// listed10 waits until a connection is listed by its container-id, and returns its name.
func (t *T) listed10(id string) (name string) {
	t.Helper()
	t.eventually(id+" is listed", func() error {
		var all []map[string]any
		if err := t.Nodes[0].Call(t.ctx, http.MethodGet, "/api/connections", nil, &all); err != nil {
			return err
		}
		for _, c := range all {
			if c["container_id"] == id {
				name, _ = c["name"].(string)
				t.equal("protocol", strings.ReplaceAll(fmt.Sprint(c["protocol"]), "-", " "), "AMQP 1 0")
				return nil
			}
		}
		return fmt.Errorf("%d others are", len(all))
	})
	return name
}

// await2 waits for a frame of one of two kinds.
func (s *session) await2(one, other string) frames.Frame {
	s.Helper()
	for until := time.Now().Add(answerTime); ; {
		f, err := s.try(until)
		s.must(err)
		if f.Name == one || f.Name == other {
			return f
		}
	}
}

// deepLists are lists in each other.
func deepLists(levels int) []byte {
	b := []byte{0x45}
	for range levels {
		size := binary.BigEndian.AppendUint32(nil, uint32(len(b)+4))
		b = slices.Concat([]byte{0xd0}, size, []byte{0, 0, 0, 1}, b)
	}
	return slices.Concat([]byte{0, 0x53, 0x11}, b)
}

// rants sends a session's frames with random octets in them, until the broker hangs up or
// there are no more.
func (c *ten) rants(random *rand.Rand) {
	shapes := [][]byte{
		frames.Encode(0, "begin", fields{"next-outgoing-id": 0, "incoming-window": 1, "outgoing-window": 1}), frames.Encode(0, "attach", fields{"name": "l", "handle": 0, "role": true, "source": source("/queues/x")}),
		frames.Encode(0, "flow", fields{"incoming-window": 9, "next-outgoing-id": 0, "outgoing-window": 9, "handle": 0, "link-credit": 9}),
		frames.Encode(0, "transfer", fields{"handle": 0, "delivery-id": 0}, message(data("x"))...), frames.Encode(0, "disposition", fields{"role": true, "first": 0}), frames.Encode(0, "detach", fields{"handle": 0}),
	}
	for range 50 {
		b := slices.Clone(shapes[random.IntN(len(shapes))])
		for range random.IntN(4) {
			b[8+random.IntN(len(b)-8)] = byte(random.Uint32())
		}
		if _, err := c.Write(b); err != nil {
			return
		}
	}
	c.Close()
}

// urlPath escapes a segment of a path.
func urlPath(s string) string {
	return strings.NewReplacer("%", "%25", " ", "%20", ">", "%3E", ":", "%3A", "/", "%2F").Replace(s)
}
