package conform

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/internal/frames"
)

// values10 are values of all types that an application property may have, by name.
var values10 = map[string]any{
	"null": nil, "true": true, "false": false, "ubyte": uint8(200), "ushort": uint16(60000), "uint": uint32(4e9), "ulong": uint64(1 << 60),
	"byte": int8(-5), "short": int16(-500), "int": int32(-70000), "long": int64(-1 << 40), "float": float32(1.5), "double": float64(2.25),
	"timestamp": frames.Timestamp(1_700_000_000_000), "uuid": frames.UUID{1, 2, 15: 9}, "binary": []byte{0, 255}, "string": "ü", "symbol": symbol("sym"),
	"char": frames.Char('ß'), "decimal": frames.Raw{0x74, 1, 2, 3, 4},
}

// values10Map is values10 as a map, in order.
func values10Map() (m mapping) {
	var keys []string
	for key := range values10 {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		m = append(m, key, values10[key])
	}
	return m
}

// allProperties are the thirteen.
var allProperties = fields{
	"message-id": "id", "user-id": "guest", "to": "/queues/somewhere", "subject": "subject", "reply-to": "/queues/back", "correlation-id": frames.UUID{3, 15: 4},
	"content-type": "text/plain", "content-encoding": "gzip", "absolute-expiry-time": frames.Timestamp(4_000_000_000_000), "creation-time": frames.Timestamp(1_700_000_000_000),
	"group-id": "group", "group-sequence": 7, "reply-to-group-id": "back",
}

// bare10 are bare messages, by what is special about them.
func bare10() map[string][]byte {
	footer := described{Descriptor: sectionFooter, Value: symbols([]any{"x-sum", []byte{1, 2}})}
	all := map[string][]byte{
		"types":            message(described{Descriptor: sectionApplication, Value: values10Map()}, data("m")),
		"properties":       message(properties(allProperties), data("m")),
		"several data":     message(data("a"), data("b"), data("")),
		"empty data":       message(data("")),
		"sequences":        message(described{Descriptor: sectionSequence, Value: list{"a", int32(1)}}, described{Descriptor: sectionSequence, Value: list{}}),
		"footer":           message(data("m"), footer),
		"empty properties": message(properties(fields{}), data("m")),
		"long encodings":   slices.Concat([]byte{0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x73, 0xd0, 0, 0, 0, 7, 0, 0, 0, 1, 0xa1, 1, 'i', 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x75, 0xb0, 0, 0, 0, 1, 'm'}),
		"symbolic":         message(described{Descriptor: symbol("amqp:data:binary"), Value: []byte("m")}),
	}
	for name, v := range map[string]any{
		"null": nil, "string": "text", "uint": uint32(0), "boolean": true, "list": list{"a", nil, list{}}, "map": mapping{"k", int64(1), "l", mapping{}}, "array": frames.Array{Code: 0x71, Values: []any{int32(1)}},
		"described": described{Descriptor: symbol("own"), Value: "v"}, "binary": []byte{0}, "all types": values10Map(),
	} {
		all["value "+name] = message(value(v))
	}
	return all
}

var messageRows10 = []row{
	{id: "102-bare", what: "the bare message comes back byte for byte: 20 types, 13 properties, bodies of all kinds, a footer, unusual encodings", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		out, in := s.sender(at(q)), s.receiver(at(q))
		for name, b := range bare10() {
			t.is(s.outcome(out.transfer(b)), "accepted")
			in.grant(1)
			d := in.gets()
			have := d.bare
			if d.bare == nil {
				have = d.payload
			}
			if !bytes.Equal(have, b) {
				t.Errorf("%s: % x comes back as % x", name, b, have)
			}
			d.settle("accepted")
		}
	}},
	{id: "103-head", what: "the header comes back; a sender's counts are ignored, its delivery annotations dropped, x-exchange replaced; the order of sections", run: func(t *T) {
		x, q := t.exchange("x", "direct"), t.queue("q")
		t.bind(q, "k", x)
		s := t.session()
		t.is(s.sender("/exchanges/"+x+"/k").publish(
			header10(fields{"durable": true, "priority": 5, "ttl": 100_000, "first-acquirer": false, "delivery-count": 7}),
			described{Descriptor: sectionDelivery, Value: symbols([]any{"x-hop", "gone"})}, annotations("x-exchange", "false", "x-own", int32(-1)), properties(fields{"subject": "s"}),
			applications("k", "v"), data("m"), described{Descriptor: sectionFooter, Value: symbols([]any{"x-sum", uint32(1)})}), "accepted")
		l := s.receiver(at(q))
		l.grant(1)
		d := l.gets()
		t.equal("durable", d.header["durable"], true)
		t.equal("priority", d.header.Int("priority"), 5)
		t.equal("ttl", d.header.Int("ttl"), 100_000)
		d.counted10(0, true)
		t.equal("sections", d.order, []any{sectionHeader, sectionAnnotations, sectionProperties, sectionApplication, sectionData, sectionFooter})
		t.equal("x-own", d.annotations.Get("x-own"), any(int32(-1)))
		t.equal("x-exchange", frames.Text(d.annotations.Get("x-exchange")), x)
		t.equal("x-routing-key", frames.Text(d.annotations.Get("x-routing-key")), "k")
		t.equal("keys are there once", len(slices.Compact(slices.Sorted(slices.Values(d.annotations.Keys())))), len(d.annotations.Keys()))
		d.settle("accepted")
		s.sender(at(q)).publishes("plain")
		l.grant(1)
		t.equal("durable", l.gets().header["durable"] == true, false)
	}},
	{id: "104-headers", what: "a headers exchange routes by application properties; priority 9 comes first", run: func(t *T) {
		x, q := t.exchange("x", "headers"), t.queue("q")
		t.bind(q, "", x, "x-match", "all", "colour", "red", "size", int64(3))
		s := t.session()
		l := s.sender("/exchanges/" + x)
		t.is(l.publish(applications("colour", "red", "size", int64(3), "more", true), data("red")), "accepted")
		t.is(l.publish(applications("colour", "blue", "size", int64(3)), data("blue")), "released")
		l = s.sender(at(q))
		for _, p := range []int{0, 9} {
			t.is(l.publish(header10(fields{"priority": p}), data(fmt.Sprint(p))), "accepted")
		}
		in := s.receiver(at(q))
		in.grant(3)
		t.equal("first", in.takes(1), "9")
	}},
}

// from091 publishes a message of 0-9-1, and gets it by AMQP 1.0.
func (t *T) from091(q string, p amqp.Publishing) *received10 {
	t.Helper()
	c, err := t.ch().PublishWithDeferredConfirmWithContext(t.ctx, "", q, false, false, p)
	t.must(err)
	acked, err := c.WaitContext(t.ctx)
	t.must(err)
	t.equal("acked", acked, true)
	l := t.session().receiver(at(q))
	l.grant(1)
	d := l.gets()
	d.settle("accepted")
	return d
}

// to091 publishes a message of AMQP 1.0, and gets it by 0-9-1.
func (t *T) to091(q string, sections ...any) *amqp.Delivery {
	t.Helper()
	t.is(t.session().sender(at(q)).publish(sections...), "accepted")
	return t.take1(q)
}

// same compares values of any types.
func (t *T) same(what string, have, want any) {
	t.Helper()
	if !reflect.DeepEqual(have, want) {
		t.Errorf("%s is %T %v, not %T %v", what, have, have, want, want)
	}
}

var headers091 = amqp.Table{
	"bool": true, "byte": int8(-1), "ubyte": byte(200), "short": int16(-2), "int": int32(-3), "long": int64(-4), "float": float32(1.5), "double": float64(2.25),
	"text": "ü", "binary": []byte{0, 255}, "time": time.Unix(1_700_000_000, 0), "nil": nil, "table": amqp.Table{"a": "b"}, "array": []any{"a", int32(1)},
	"x-table": amqp.Table{"a": int32(1)}, "x-array": []any{"a", int32(1)}, "x-text": "t",
}

var convertRows10 = []row{
	{id: "105-from-0-9-1", what: "0-9-1 to AMQP 1.0: bodies, all properties, transient, a uuid, headers of 11 types, tables and arrays, CC and BCC", run: func(t *T) {
		q, other := t.queue("q"), t.queue("other")
		d := t.from091(q, amqp.Publishing{
			ContentType: "text/plain", ContentEncoding: "gzip", DeliveryMode: amqp.Persistent, Priority: 3, CorrelationId: "c", ReplyTo: "back/é", Expiration: "100000", MessageId: "m",
			Timestamp: time.Unix(1_700_000_000, 0), Type: "kind", UserId: "guest", AppId: "app", Headers: headers091, Body: []byte("body"),
		})
		t.equal("body", d.body, "body")
		t.same("header", fields{"durable": d.header["durable"], "priority": d.header["priority"], "ttl": d.header["ttl"]}, fields{"durable": true, "priority": uint8(3), "ttl": uint32(100_000)})
		t.same("properties", d.properties, fields{
			"content-type": symbol("text/plain"), "content-encoding": symbol("gzip"), "correlation-id": "c", "reply-to": "/queues/back%2F%C3%A9", "message-id": "m",
			"creation-time": frames.Timestamp(1_700_000_000_000), "user-id": []byte("guest"), "group-id": "app",
		})
		for name, want := range map[string]any{
			"bool": true, "byte": int8(-1), "ubyte": uint8(200), "short": int16(-2), "int": int32(-3), "long": int64(-4), "float": float32(1.5), "double": float64(2.25), "text": "ü", "binary": []byte{0, 255},
			"time": frames.Timestamp(1_700_000_000_000), "table": nil, "array": nil,
		} {
			t.same(name, d.application.Get(name), want)
		}
		t.equal("nil is there", slices.Contains(d.application.Keys(), "nil"), true)
		t.equal("x-basic-type", frames.Text(d.annotations.Get("x-basic-type")), "kind")
		t.same("x-array", d.annotations.Get("x-array"), any(list{"a", int32(1)}))
		t.same("x-table", d.annotations.Get("x-table"), any(mapping{symbol("a"), int32(1)}))
		t.same("x-text", d.annotations.Get("x-text"), any("t"))
		d = t.from091(q, amqp.Publishing{MessageId: "urn:uuid:01020000-0000-0000-0000-000000000009", CorrelationId: "urn:uuid:no", Headers: amqp.Table{"CC": []any{other}, "BCC": []any{other}}})
		t.equal("an empty body is one section", d.order[len(d.order)-1], any(sectionData))
		t.equal("body", d.body, "")
		t.equal("durable", d.header["durable"] == true, false)
		t.same("message-id", d.properties["message-id"], frames.UUID{1, 2, 15: 9})
		t.same("correlation-id", d.properties["correlation-id"], "urn:uuid:no")
		t.same("x-cc", d.annotations.Get("x-cc"), any(list{other}))
		t.equal("BCC is there", strings.Contains(fmt.Sprint(d.annotations.Keys(), d.application.Keys()), "BCC"), false)
	}},
	{id: "106-to-0-9-1", peer: "bodies that are no data are encoded anew on their way back", why: "they are passed on as they came", what: "AMQP 1.0 to 0-9-1, and back: bodies of all kinds, all properties, ids of four types and of 300 octets, property types, annotations, x-cc", run: func(t *T) {
		q := t.queue("q")
		d := t.to091(q, header10(fields{"durable": true, "priority": 3, "ttl": 100_000}), annotations("x-basic-type", "kind", "x-own", int64(7), "x-list", list{"a"}), properties(allProperties), applications(slices.Collect(known091())...), data("body"))
		t.equal("body", string(d.Body), "body")
		t.same("properties", []any{
			d.DeliveryMode, d.Priority, d.Expiration, d.MessageId, d.UserId, d.ReplyTo, d.CorrelationId, d.ContentType, d.ContentEncoding, d.Timestamp.Unix(), d.AppId, d.Type,
		}, []any{
			amqp.Persistent, uint8(3), "100000", "id", "guest", "back", "urn:uuid:03000000-0000-0000-0000-000000000004", "text/plain", "gzip", int64(1_700_000_000), "group", "kind",
		})
		for name, want := range map[string]any{
			"true": true, "false": false, "null": nil, "ubyte": uint8(200), "ushort": uint16(60000), "uint": uint32(4e9), "ulong": int64(1 << 60), "byte": int8(-5), "short": int16(-500), "int": int32(-70000),
			"long": int64(-1 << 40), "float": float32(1.5), "double": float64(2.25), "timestamp": time.Unix(1_700_000_000, 0), "binary": "\x00\xff", "string": "ü", "symbol": "sym", "x-own": int64(7), "x-list": []any{"a"},
		} {
			have, ok := d.Headers[name]
			if at, ok := have.(time.Time); ok {
				have = time.Unix(at.Unix(), 0)
			}
			if !ok {
				t.Errorf("%s is missing", name)
			}
			t.same(name, have, want)
		}
		t.ids091(q)
		d = t.to091(q, annotations("x-cc", list{t.queue("cc")}), data("a"), data("b"))
		t.equal("two sections", string(d.Body), "ab")
		t.equal("delivery mode", d.DeliveryMode == amqp.Persistent, false)
		t.same("CC", d.Headers["CC"], any([]any{t.name("cc")}))
		t.andBack(q)
	}},
	{id: "107-poison", what: "0-9-1 with type amqp-1.0 and a body that is none is one data section; a uuid, a char, a ulong in a list come to 0-9-1", peer: "the first closes each connection that receives it, the others are answered with 541", why: "who may write to a queue must not keep its readers away", run: func(t *T) {
		if t.isPeer() {
			return
		}
		q := t.queue("q")
		d := t.from091(q, amqp.Publishing{Type: "amqp-1.0", Body: []byte("no sections")})
		t.same("sections", d.order[len(d.order)-1], any(sectionData))
		t.equal("body", d.body, "no sections")
		m := t.to091(q, annotations("x-list", list{uint64(1 << 60)}), applications("uuid", frames.UUID{1, 2, 15: 9}, "char", frames.Char('ß'), "decimal", frames.Raw{0x74, 1, 2, 3, 4}), data("m"))
		t.same("uuid", m.Headers["uuid"], any("urn:uuid:01020000-0000-0000-0000-000000000009"))
		t.same("char", m.Headers["char"], any("ß"))
		t.same("list", m.Headers["x-list"], any([]any{int64(1 << 60)}))
		t.absent(m.Headers, "decimal")
	}},
	{id: "108-deaths", what: "deaths in both protocols; what 0-9-1 rejects, and modified, count in the other", run: func(t *T) {
		q, dead := t.deadly10()
		t.one(q).settle("rejected")
		m := t.take1(dead)
		t.deaths(m, 1)
		t.same("reason", t.death(m, 0)["reason"], any("rejected"))
		t.same("queue", t.death(m, 0)["queue"], any(q))
		t.same("x-first-death-queue", m.Headers["x-first-death-queue"], any(q))
		t.publish(q, body("m"))
		t.must(t.mustGet(q).Reject(false))
		t.letter(dead, q, "rejected")
		plain := t.queue("plain")
		t.publish(plain, body("m"))
		t.must(t.mustGet(plain).Reject(true))
		t.must(t.comesBack(plain).Reject(true))
		l := t.session().receiver(at(plain))
		l.grant(1)
		d := l.gets()
		t.equal("delivery-count", d.header.Int("delivery-count"), 2)
		d.settle("accepted")
		d = t.one(plain)
		d = d.again("modified", fields{"delivery-failed": true})
		d.settle("modified", fields{"delivery-failed": true})
		m = t.comesBack(plain)
		t.equal("x-delivery-count", fmt.Sprint(m.Headers["x-delivery-count"]), "2")
	}},
	{id: "109-both", what: "order, fanout and a shared queue over both protocols", run: func(t *T) {
		x, one, two := t.exchange("x", "fanout"), t.queue("one"), t.queue("two")
		t.bind(one, "", x)
		t.bind(two, "", x)
		s := t.session()
		l := s.sender("/exchanges/" + x)
		for n := range 10 {
			if n%2 == 0 {
				l.publishes(fmt.Sprint(n))
			} else {
				t.send(x, "", body(fmt.Sprint(n)))
			}
		}
		in := s.receiver(at(one))
		in.grant(10)
		t.equal("order", in.takes(10), numbersTo(0, 9))
		t.equal("order", bodies(t.take(two, 10)), numbersTo(0, 9))
		shared := t.queue("shared")
		_, from := t.consume(shared, 5)
		in = s.receiver(at(shared))
		in.grant(5)
		t.fill(shared, 10)
		for range 5 {
			in.gets()
			t.next(from)
		}
	}},
}

// known091 are the application properties that RabbitMQ, too, gives to 0-9-1, in turn with their names.
func known091() func(yield func(any) bool) {
	return func(yield func(any) bool) {
		for key, v := range values10 {
			if key == "uuid" || key == "char" || key == "decimal" {
				continue
			}
			if !yield(key) || !yield(v) {
				return
			}
		}
	}
}

// ids091 checks what becomes of ids.
func (t *T) ids091(q string) {
	t.Helper()
	for _, c := range []struct {
		id       any
		property string
		header   any
	}{
		{uint64(77), "77", nil}, {frames.UUID{1, 2, 15: 9}, "urn:uuid:01020000-0000-0000-0000-000000000009", nil}, {"text", "text", nil},
		{[]byte{0, 255}, "", []byte{0, 255}}, {strings.Repeat("i", 300), "", strings.Repeat("i", 300)},
	} {
		d := t.to091(q, properties(fields{"message-id": c.id, "correlation-id": c.id}), data("m"))
		t.equal("message-id", d.MessageId, c.property)
		t.equal("correlation-id", d.CorrelationId, c.property)
		t.same("x-message-id", d.Headers["x-message-id"], c.header)
		t.same("x-correlation-id", d.Headers["x-correlation-id"], c.header)
	}
}

// andBack publishes what came to 0-9-1 again: bodies that are no data come back as they were.
func (t *T) andBack(q string) {
	t.Helper()
	for _, body := range [][]any{
		{value("text")}, {value(mapping{"k", int64(1)})}, {described{Descriptor: sectionSequence, Value: list{"a"}}, described{Descriptor: sectionSequence, Value: list{int32(1)}}},
	} {
		d := t.to091(q, body...)
		t.equal("type", d.Type, "amqp-1.0")
		t.equal("body", d.Body, message(body...))
		back := t.from091(q, amqp.Publishing{Type: d.Type, Body: d.Body})
		if t.isPeer() { // which encodes them anew
			_, rest, err := frames.Parse(message(body...))
			t.must(err)
			t.equal("sections", len(back.order), 3+len(rest)/max(len(rest), 1))
		} else if !bytes.HasSuffix(back.payload, message(body...)) {
			t.Errorf("% x comes back as % x", message(body...), back.payload)
		}
	}
}
