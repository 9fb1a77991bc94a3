package v10_test

import (
	"bytes"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	client "github.com/Azure/go-amqp"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// manager is a management link pair as RabbitMQ's clients use it.
type manager struct {
	t        testing.TB
	sender   *client.Sender
	receiver *client.Receiver
	last     int
}

// mustManage opens a connection with a session and a pair. There is credit for answers when it returns, as a client has to
// make sure before it makes requests.
func (s *server) mustManage(t testing.TB) (*manager, *client.Session) {
	t.Helper()
	socket, err := net.Dial("tcp", s.addr)
	must(t, err)
	tapped := &flowTap{Conn: socket, flows: make(chan struct{}, 100)}
	c, err := client.NewConn(t.Context(), tapped, &client.ConnOptions{SASLType: client.SASLTypePlain("guest", "guest"), ContainerID: "test"})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	x := mustSession(t, c)
	paired := map[string]any{"paired": true}
	sender, err := x.NewSender(t.Context(), "/management", &client.SenderOptions{
		SourceAddress: "/management", ExpiryPolicy: client.ExpiryPolicyLinkDetach, Name: "management-link-pair", Properties: paired,
		SettlementMode: client.SenderSettleModeSettled.Ptr(), RequestedReceiverSettleMode: client.ReceiverSettleModeFirst.Ptr(),
	})
	must(t, err)
	receiver, err := x.NewReceiver(t.Context(), "/management", &client.ReceiverOptions{
		TargetAddress: "/management", Name: "management-link-pair", Properties: paired, ExpiryPolicy: client.ExpiryPolicyLinkDetach,
		SettlementMode: client.ReceiverSettleModeFirst.Ptr(), RequestedSenderSettleMode: client.SenderSettleModeSettled.Ptr(), Credit: 100,
	})
	must(t, err)
	<-tapped.flows
	return &manager{t: t, sender: sender, receiver: receiver}, x
}

// flowTap tells of each flow that a client has written.
type flowTap struct {
	net.Conn
	flows chan struct{}
}

func (c *flowTap) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if bytes.Contains(b, []byte("\x00S\x13")) {
		select {
		case c.flows <- struct{}{}:
		default:
		}
	}
	return n, err
}

// do makes a request.
func (m *manager) do(method, path string, body any) (status string, value any) {
	m.t.Helper()
	m.last++
	me, id := "$me", fmt.Sprint(m.last)
	must(m.t, m.sender.Send(m.t.Context(), &client.Message{
		Value: body, Properties: &client.MessageProperties{ReplyTo: &me, To: &path, Subject: &method, MessageID: id},
	}, &client.SendOptions{Settled: true}))
	a := mustReceive(m.t, m.receiver)
	if a.Properties == nil || a.Properties.CorrelationID != id || a.Properties.Subject == nil || a.ApplicationProperties["http:response"] != "1.1" {
		m.t.Fatalf("%+v %v is no answer to %s", a.Properties, a.ApplicationProperties, id)
	}
	return *a.Properties.Subject, a.Value
}

// must makes a request that has this status and this body; nil: any.
func (m *manager) must(method, path string, body any, status string, value any) any {
	m.t.Helper()
	got, v := m.do(method, path, body)
	text, isText := v.(string)
	want, wantsText := value.(string)
	if ok := value == nil || reflect.DeepEqual(v, value) || isText && wantsText && strings.Contains(text, want); got != status || !ok {
		m.t.Fatalf("%s %s is answered %s %#v, want %s %#v", method, path, got, v, status, value)
	}
	return v
}

type object = map[string]any

var null = client.Null{}

func TestManagementOfQueues(t *testing.T) {
	s := mustServe(t, nil)
	m, x := s.mustManage(t)
	const name = "a/ü %;"
	path := "/queues/" + url.PathEscape(name)
	q := object{
		"name": name, "vhost": "/", "type": "quorum", "durable": true, "exclusive": false, "auto_delete": false, "leader": "n1", "replicas": []string{"n1"},
		"message_count": uint64(0), "consumer_count": uint32(0), "arguments": object{"x-max-length": int64(5), "x-queue-type": "quorum"},
	}
	declared := object{"durable": true, "exclusive": false, "auto_delete": false, "arguments": object{"x-max-length": int64(5), "x-queue-type": "quorum"}}
	m.must("GET", path, null, "404", "no queue '"+name+"' in vhost '/'")
	m.must("PUT", path, declared, "201", q)
	m.must("PUT", path, declared, "200", q)

	l := mustSender(t, x, path)
	for range 3 {
		must(t, l.Send(t.Context(), client.NewMessage([]byte("x")), nil))
	}
	q["message_count"] = uint64(3)
	m.must("GET", path, null, "200", q)
	m.must("DELETE", path+"/messages", null, "200", object{"message_count": uint64(3)})
	r := mustReceiver(t, x, path, nil)
	q["message_count"], q["consumer_count"] = uint64(0), uint32(1)
	m.must("GET", path, null, "200", q)
	must(t, r.Close(t.Context()))
	must(t, l.Close(t.Context()))
	m.must("DELETE", path, null, "200", object{"message_count": uint64(0)})
	m.must("DELETE", path, null, "200", object{"message_count": uint64(0)})
	m.must("DELETE", path+"/messages", null, "404", "no queue")

	// Arguments show the type at least: a client may not be able to read an empty map.
	v := m.must("PUT", "/queues/mine", object{"exclusive": true}, "201", nil)
	if got, ok := v.(object); !ok || got["type"] != "classic" || got["exclusive"] != true || !reflect.DeepEqual(got["arguments"], object{"x-queue-type": "classic"}) {
		t.Errorf("%#v", v)
	}
	for _, c := range []struct {
		method, path string
		body         any
		status, text string
	}{
		{"PUT", "/queues/", object{}, "400", "a queue with an empty name is not allowed"},
		{"PUT", "/queues/a%0Ab", object{}, "400", "line feed and carriage return characters not allowed"},
		{"PUT", "/queues/%zz", object{}, "400", "bad name '%zz'"},
		{"PUT", "/queues/" + strings.Repeat("a", 256), object{}, "400", "bad name"},
		{"PUT", "/queues/q", object{"what": true}, "400", "bad queue property 'what'"},
		{"PUT", "/queues/q", object{"durable": "yes"}, "400", "bad queue property 'durable'"},
		{"PUT", "/queues/q", object{"arguments": "yes"}, "400", "bad queue property 'arguments'"},
		{"PUT", "/queues/q", object{"arguments": map[any]any{int32(1): 1}}, "400", "unsupported argument"},
		{"PUT", "/queues/q", map[any]any{client.Symbol("durable"): true, int8(1): 1}, "400", "bad queue property"},
		{"PUT", "/queues/q", null, "400", "the body is not a map"},
		{"PUT", "/queues/amq.rabbitmq.reply-to.x", object{}, "403", "reserved prefix"},
		{"GET", "/queues/q", object{}, "400", "the body of a GET must be null"},
		{"DELETE", "/queues/", null, "400", "empty name"},
		{"POST", "/queues/q", object{}, "405", "method POST is not allowed on /queues/q"},
		{"get", "/queues/q", null, "405", ""},
		{"GET", "/queues/q/messages", null, "405", ""},
		{"GET", "/queues", null, "404", "there is no resource '/queues'"},
		{"GET", "/queues/a/b", null, "404", ""},
		{"GET", "queues/a", null, "404", ""},
		{"GET", "", null, "404", ""},
		{"GET", "/", null, "404", ""},
	} {
		m.must(c.method, c.path, c.body, c.status, c.text)
	}
}

// What the broker refuses has a status by its kind; a declare that is refused for what it asks for is a conflict.
func TestStatusesOfRefusals(t *testing.T) {
	refused := make(chan amqp.Refusal, 10)
	s := mustServe(t, func(c *amqp.Config) { c.Refused = func(r amqp.Refusal) { refused <- r } })
	s.mustDeclare("q")
	m, _ := s.mustManage(t)
	put := func(refusal error, status, text string) {
		t.Helper()
		s.broker.Fail("DeclareQueue", refusal)
		m.must("PUT", "/queues/q", object{}, status, text)
	}
	put(fsm.Refuse(fsm.Precondition, "inequivalent arg 'durable'"), "409", "inequivalent arg 'durable'")
	put(fsm.Refuse(fsm.Precondition, "queue limit in vhost '/' (3)"+fsm.LimitText), "403", "queue limit")
	put(fsm.Refuse(fsm.AccessRefused, "reserved prefix 'amq.*'"), "403", "reserved prefix")
	if r := <-refused; r.Method != "queue.declare" || r.Text != "reserved prefix 'amq.*'" {
		t.Errorf("refusal %+v", r)
	}
	put(fsm.Refuse(fsm.Locked, "cannot obtain exclusive access"), "400", "cannot obtain exclusive access")
	put(fsm.Refuse(fsm.Unavailable, "queue 'q' in vhost '/' has no leader"), "503", "has no leader")
	put(fsm.Refuse(fsm.Internal, "the metadata store operation timed out"), "503", "timed out")
	put(fmt.Errorf("disk on fire"), "500", "internal error")
	s.broker.Fail("DescribeQueue", fsm.Refuse(fsm.AccessRefused, "read access to queue 'q' in vhost '/' refused for user 'guest'"))
	m.must("GET", "/queues/q", null, "403", "read access to queue 'q'")
	s.broker.Fail("PurgeQueue", fsm.Refuse(fsm.Precondition, "it is a store"))
	m.must("DELETE", "/queues/q/messages", null, "400", "it is a store")
	s.broker.Fail("Renew", fsm.Refuse(fsm.AccessRefused, "no access"))
	m.must("PUT", "/auth/tokens", []byte("token"), "400", "no access")
	m.must("PUT", "/auth/tokens", []byte("token"), "204", nil)
	m.must("PUT", "/auth/tokens", "token", "400", "the body is not a binary")
	m.must("GET", "/auth/tokens", null, "405", nil)
}

// An operation that the cluster does not finish within 15 s is not available, and the session lives.
func TestRequestWithoutQuorum(t *testing.T) {
	b := amqptest.NewBroker()
	inTimeWith(t, b, func(t *testing.T, _ *amqp.Server, r *raw) {
		r.opened(anOpen())
		r.begin()
		r.mustPair(5)
		put := wire.StartValue(aRequest(text("a"), "PUT", "/queues/q", nil))
		put = wire.EndMap(wire.StartMap(put), len(put), 0)
		b.Block("DeclareQueue")
		r.ask(0, put)
		elapsed(t, 15*time.Second, 15*time.Second+10*time.Millisecond, func() { r.answer(text("a"), "503") })
		b.Unblock("DeclareQueue")
		r.ask(1, put)
		r.answer(text("a"), "201")
	})
}

func TestManagementOfExchanges(t *testing.T) {
	s := mustServe(t, nil)
	m, _ := s.mustManage(t)
	m.must("PUT", "/exchanges/e%2Fx", object{"type": "fanout", "durable": true, "auto_delete": false, "internal": true, "arguments": object{}}, "204", nil)
	m.must("PUT", "/exchanges/e", object{}, "204", nil)
	m.must("PUT", "/exchanges/other", object{"type": "nosuch"}, "400", "unknown exchange type 'nosuch'")
	m.must("PUT", "/exchanges/e", object{"type": true}, "400", "bad exchange property 'type'")
	m.must("PUT", "/exchanges/e", object{"what": "x"}, "400", "bad exchange property 'what'")
	m.must("PUT", "/exchanges/a%0D", object{}, "400", "line feed")
	m.must("DELETE", "/exchanges/a%0D", null, "400", "line feed")
	s.broker.Fail("DeclareExchange", fsm.Refuse(fsm.Precondition, "inequivalent arg 'type'"))
	m.must("PUT", "/exchanges/e", object{}, "409", "inequivalent arg 'type'")
	s.broker.Fail("DeclareExchange", fsm.Refuse(fsm.AccessRefused, "operation not permitted on the default exchange"))
	m.must("PUT", "/exchanges/", object{}, "403", "default exchange")
	m.must("DELETE", "/exchanges/e", null, "204", nil)
	m.must("DELETE", "/exchanges/e", null, "204", nil)
	m.must("GET", "/exchanges/e", null, "405", nil)
}

func TestManagementOfBindings(t *testing.T) {
	s := mustServe(t, nil)
	s.mustDeclare("q/1", "other")
	m, _ := s.mustManage(t)
	bind := func(key string, arguments object) {
		t.Helper()
		m.must("POST", "/bindings", object{"source": "amq.direct", "destination_queue": "q/1", "binding_key": key, "arguments": arguments}, "204", nil)
	}
	list := func(query string) (locations []string) {
		t.Helper()
		v := m.must("GET", "/bindings?"+query, null, "200", nil)
		all, ok := v.([]any)
		if !ok {
			t.Fatalf("%#v", v)
		}
		for _, b := range all {
			locations = append(locations, b.(object)["location"].(string))
		}
		return locations
	}
	bind("k ü", nil)
	bind("k ü", object{"a": "b", "n": int64(1)})
	bind("k ü", object{"n": int64(2), "a": "b"})
	bind("another", nil)
	m.must("POST", "/bindings", object{"source": "amq.direct", "destination_exchange": "amq.fanout", "binding_key": "k"}, "204", nil)

	const query = "src=amq.direct&dstq=q%2F1&key=k+%C3%BC"
	v := m.must("GET", "/bindings?"+query, null, "200", nil).([]any)
	first := v[0].(object)
	args := first["arguments"]
	delete(first, "arguments")
	if want := (object{
		"source": "amq.direct", "destination_queue": "q/1", "binding_key": "k ü", "location": "/bindings/src=amq.direct;dstq=q%2F1;key=k%20%C3%BC;args=",
	}); len(v) != 3 || !reflect.DeepEqual(first, want) || !reflect.DeepEqual(args, map[any]any{}) {
		t.Fatalf("%#v", v)
	}
	if second := v[1].(object); !reflect.DeepEqual(second["arguments"], object{"a": "b", "n": int64(1)}) {
		t.Fatalf("%#v", second)
	}
	all := list(query)
	if again := list(query); !reflect.DeepEqual(again, all) || all[1] == all[2] || !strings.HasPrefix(all[1], strings.TrimSuffix(all[0], "")) {
		t.Fatalf("locations %q, then %q", all, again)
	}
	m.must("DELETE", all[1], null, "204", nil)
	m.must("DELETE", all[1], null, "204", nil)
	if left := list(query); !reflect.DeepEqual(left, []string{all[0], all[2]}) {
		t.Fatalf("%q are left of %q", left, all)
	}
	m.must("DELETE", all[0], null, "204", nil)
	if left := list(query); !reflect.DeepEqual(left, []string{all[2]}) {
		t.Fatalf("%q are left of %q", left, all)
	}
	if e := list("src=amq.direct&dste=amq.fanout&key=k"); !reflect.DeepEqual(e, []string{"/bindings/src=amq.direct;dste=amq.fanout;key=k;args="}) {
		t.Fatalf("%q", e)
	}
	for _, c := range []struct {
		method, path string
		body         any
		status, text string
	}{
		{"GET", "/bindings?src=amq.direct&key=k", null, "400", "missing 'dste' or 'dstq'"},
		{"GET", "/bindings", null, "400", "missing 'dste' or 'dstq'"},
		{"GET", "/bindings?src=amq.direct&dstq=q", null, "400", "missing 'key'"},
		{"GET", "/bindings?dstq=q&key=k", null, "400", "the source is missing"},
		{"GET", "/bindings?src=%zz&dstq=q&key=k", null, "400", "bad query"},
		{"GET", "/bindings?src=a&dstq=q&dste=e&key=k", null, "400", "two destinations"},
		{"POST", "/bindings", object{"destination_queue": "q"}, "400", "the source is missing"},
		{"POST", "/bindings", object{"source": "amq.direct"}, "400", "the destination is missing"},
		{"POST", "/bindings", object{"source": "amq.direct", "destination_queue": "q", "key": "k"}, "400", "bad binding field 'key'"},
		{"POST", "/bindings", object{"source": "amq.direct", "destination_queue": "nope"}, "400", "no queue 'nope' in vhost '/'"},
		{"POST", "/bindings", object{"source": "nope", "destination_queue": "other"}, "400", "no exchange 'nope' in vhost '/'"},
		{"POST", "/bindings", object{"source": "amq.direct", "destination_queue": "other", "binding_key": strings.Repeat("k", 256)}, "400", "more than 255"},
		{"DELETE", "/bindings/src=a;dstq=q;key=k", null, "400", "bad binding path segment"},
		{"DELETE", "/bindings/src=a;dstx=q;key=k;args=", null, "400", "bad binding path segment"},
		{"DELETE", "/bindings/src=a;dstq=%zz;key=k;args=", null, "400", "bad name '%zz'"},
		{"DELETE", "/bindings/src=amq.direct;dstq=q;key=k;args=none", null, "204", ""},
		{"PUT", "/bindings", object{}, "405", ""},
	} {
		if c.status == "204" {
			m.must(c.method, c.path, c.body, c.status, nil)
		} else {
			m.must(c.method, c.path, c.body, c.status, c.text)
		}
	}
	s.broker.Fail("Bind", fsm.Refuse(fsm.AccessRefused, "operation not permitted on the default exchange"))
	m.must("POST", "/bindings", object{"source": "", "destination_queue": "other"}, "403", "default exchange")
}

// Arguments come back as what they were, or as what 0-9-1 makes of them.
func TestArgumentsThereAndBack(t *testing.T) {
	s := mustServe(t, nil)
	m, _ := s.mustManage(t)
	binary := bytes.Repeat([]byte("x"), 5000)
	v := m.must("PUT", "/queues/q", object{"arguments": object{
		"string": "ü", "symbol": client.Symbol("s"), "true": true, "byte": int8(-1), "ubyte": uint8(200), "short": int16(-2), "ushort": uint16(60000),
		"int": int32(-3), "uint": uint32(4e9), "long": int64(-5), "ulong": uint64(6), "float": float32(1.5), "double": 2.5, "null": nil,
		"list": []any{int32(1), "a"}, "map": object{"k": object{"deep": true}}, "long text": string(binary), "binary": []byte{0xff},
	}}, "201", nil)
	want := object{
		"string": "ü", "symbol": "s", "true": true, "byte": int8(-1), "ubyte": uint8(200), "short": int16(-2), "ushort": uint16(60000),
		"int": int32(-3), "uint": uint32(4e9), "long": int64(-5), "ulong": int64(6), "float": float32(1.5), "double": 2.5, "null": nil,
		"list": []any{int32(1), "a"}, "map": object{"k": object{"deep": true}}, "long text": binary, "binary": []byte{0xff}, "x-queue-type": "quorum",
	}
	if got := v.(object)["arguments"]; !reflect.DeepEqual(got, want) {
		t.Errorf("%#v", got)
	}
}

// aHalf is one half of a pair, with the handle 0 for the one that carries requests and 1 for the other.
func aHalf(answers bool) *wire.Attach {
	properties := wire.MapBytes(wire.EndMap(wire.AppendBool(wire.AppendSymbol(wire.StartMap(nil), "paired"), true), 0, 1))
	a := aSender("/management")
	if answers {
		a = aReceiver("/management")
		a.Handle = 1
	}
	a.SndSettleMode, a.Properties = 1, properties
	return a
}

// mustPair attaches both halves and gives credit for answers.
func (r *raw) mustPair(credit uint32) {
	r.t.Helper()
	r.mustAttach(aHalf(false))
	r.mustAttach(aHalf(true))
	r.send(channel, &wire.Flow{
		NextIncomingID: wire.Some[uint32](0), IncomingWindow: 100, Handle: wire.Some[uint32](1), DeliveryCount: wire.Some[uint32](0), LinkCredit: wire.Some(credit),
	})
	if credit > 0 {
		expect[*wire.Flow](r)
	}
}

// request renders a request.
func aRequest(id wire.RawValue, method, path string, change func(*wire.Properties)) []byte {
	p := &wire.Properties{MessageID: id, To: []byte(path), Subject: []byte(method), ReplyTo: []byte("$me")}
	if change != nil {
		change(p)
	}
	return wire.Append(nil, p)
}

func text(s string) wire.RawValue { return wire.AppendString(nil, s) }

// ask sends a request.
func (r *raw) ask(delivery uint32, encoded []byte) {
	r.t.Helper()
	r.transfer(&wire.Transfer{DeliveryID: wire.Some(delivery), Settled: wire.Some(true)}, encoded)
}

// answer expects an answer.
func (r *raw) answer(id wire.RawValue, status string) wire.Value {
	r.t.Helper()
	tr, payload := expectPayload[*wire.Transfer](r, &wire.Flow{}, &wire.Disposition{})
	var m wire.Message
	must(r.t, m.Parse(payload))
	var p wire.Properties
	must(r.t, m.ReadProperties(&p))
	v, err := m.BodyValue()
	must(r.t, err)
	if !tr.Settled.Value || tr.Handle != 1 || string(p.Subject) != status || !bytes.Equal(p.CorrelationID, id) {
		r.t.Fatalf("transfer %+v, answer %+v with %q, want %s", tr, p, v.Bytes(), status)
	}
	return v
}

// A request need not have a body, its id may be of any type that an id may have, and it is settled if it was not.
func TestRequestsOfAnyClient(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustOpen()
	r.send(channel, aHalf(true))
	if a := expect[*wire.Attach](r); a.Role || a.Source == nil || a.Source.Address.Value != "/management" || a.SndSettleMode != 1 || len(a.Properties) == 0 || a.InitialDeliveryCount != wire.Some[uint32](0) {
		t.Fatalf("%+v", a)
	}
	r.send(channel, aHalf(false))
	if a := expect[*wire.Attach](r); !a.Role || a.Target.(*wire.Target).Address.Value != "/management" || len(a.Properties) == 0 {
		t.Fatalf("%+v", a)
	}
	third := aHalf(true)
	third.Handle = 2
	r.send(channel, third)
	expect[*wire.Attach](r)
	mustCondition(t, expect[*wire.Detach](r).Error, wire.ConditionPreconditionFailed, "both halves of the link pair 'l' are attached")
	r.send(channel, &wire.Flow{
		NextIncomingID: wire.Some[uint32](0), IncomingWindow: 100, Handle: wire.Some[uint32](1), DeliveryCount: wire.Some[uint32](0), LinkCredit: wire.Some[uint32](100),
	})
	if f := expect[*wire.Flow](r); f.Handle.Value != 0 || f.LinkCredit.Value != 8 {
		t.Fatalf("%+v", f)
	}
	id := uint32(0)
	for _, raw := range []wire.RawValue{
		text("a"), text(strings.Repeat("a", 300)), wire.AppendUlong(nil, 0), wire.AppendUlong(nil, 1<<40), wire.AppendBinary(nil, "b"),
		append([]byte{0x98}, "0123456789abcdef"...),
	} {
		r.ask(id, aRequest(raw, "GET", "/queues/q", nil))
		r.answer(raw, "404")
		id++
	}
	// What is malformed is answered if that can be.
	r.ask(id, aRequest(text("x"), "GET", "/queues/q", func(p *wire.Properties) { p.ReplyTo = []byte("q") }))
	r.answer(text("x"), "400")
	r.ask(id+1, aRequest(text("x"), "GET", "/queues/q", func(p *wire.Properties) { p.To = nil }))
	r.answer(text("x"), "400")
	r.ask(id+2, aRequest(text("x"), "GET", "/queues/q", func(p *wire.Properties) { p.Subject = nil }))
	r.answer(text("x"), "400")
	r.ask(id+3, aRequest(nil, "PUT", "/queues/q", nil))
	r.ask(id+4, []byte{})
	r.ask(id+5, wire.AppendData(aRequest(text("x"), "PUT", "/queues/q", nil), []byte("x")))
	r.answer(text("x"), "400")
	// In several frames.
	whole := wire.AppendNull(wire.StartValue(aRequest(text("y"), "GET", "/queues/q", nil)))
	r.transfer(&wire.Transfer{DeliveryID: wire.Some(id + 6), Settled: wire.Some(true), More: true}, whole[:10])
	r.transfer(&wire.Transfer{}, whole[10:])
	r.answer(text("y"), "404")

	// A client that does not settle its requests is told.
	u := s.mustOpen()
	half := aHalf(false)
	half.SndSettleMode = 0
	u.mustAttach(half)
	u.mustAttach(aHalf(true))
	u.send(channel, &wire.Flow{
		NextIncomingID: wire.Some[uint32](0), IncomingWindow: 100, Handle: wire.Some[uint32](1), DeliveryCount: wire.Some[uint32](0), LinkCredit: wire.Some[uint32](1),
	})
	u.transfer(&wire.Transfer{DeliveryID: wire.Some[uint32](3)}, whole)
	told, answered := false, false
	for !told || !answered {
		_, body := u.next()
		switch code, _ := wire.Peek(body); code {
		case wire.CodeDisposition:
			var d wire.Disposition
			_, err := wire.Decode(body, &d)
			must(t, err)
			told = d.First == 3 && d.Settled && d.State.Kind == wire.StateAccepted
		case wire.CodeTransfer:
			answered = true
		}
	}
}

// Requests come back in their order, however many are sent at once; credit is 8, and given anew at 4.
func TestManyRequests(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustOpen()
	r.mustPair(2000)
	left, next, credit := uint32(1000), uint32(0), uint32(8)
	answered := uint32(0)
	for answered < 1000 {
		for ; credit > 0 && left > 0; credit, left = credit-1, left-1 {
			r.ask(next, aRequest(wire.AppendUlong(nil, uint64(next)), "GET", "/queues/q", nil))
			next++
		}
		_, body := r.next()
		switch code, _ := wire.Peek(body); code {
		case wire.CodeFlow:
			var f wire.Flow
			_, err := wire.Decode(body, &f)
			must(t, err)
			if f.Handle.Present {
				credit = f.DeliveryCount.Value + f.LinkCredit.Value - next
				if f.LinkCredit.Value != 8 {
					t.Fatalf("%+v", f)
				}
			}
		case wire.CodeTransfer:
			var tr wire.Transfer
			payload, err := wire.Decode(body, &tr)
			must(t, err)
			var m wire.Message
			must(t, m.Parse(payload))
			var p wire.Properties
			must(t, m.ReadProperties(&p))
			if id := p.CorrelationID.Value().Unsigned(); id != uint64(answered) {
				t.Fatalf("answer to %d, want %d", id, answered)
			}
			answered++
			if answered%50 == 0 {
				r.send(channel, &wire.Flow{NextIncomingID: wire.Some(answered), IncomingWindow: 100})
			}
		}
	}
}

// A request that cannot be answered ends the session.
func TestRequestsWithoutAnswer(t *testing.T) {
	s := mustServe(t, nil)
	get := aRequest(text("a"), "GET", "/queues/q", nil)
	for name, prepare := range map[string]func(*raw){
		"no other half": func(r *raw) { r.mustAttach(aHalf(false)) },
		"no credit":     func(r *raw) { r.mustPair(0) },
		"credit used up": func(r *raw) {
			r.mustPair(1)
			r.ask(0, get)
			r.answer(text("a"), "404")
		},
		"the other half is gone": func(r *raw) {
			r.mustPair(9)
			r.send(channel, &wire.Detach{Handle: 1, Closed: true})
			expect[*wire.Detach](r, &wire.Flow{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.mustOpen()
			prepare(r)
			r.ask(1, get)
			mustCondition(t, expect[*wire.End](r, &wire.Flow{}).Error, wire.ConditionPreconditionFailed, "cannot be answered")
		})
	}
}

// A client has credit for requests once their answers have some, whichever half comes first.
func TestRequestsWaitForCredit(t *testing.T) {
	s := mustServe(t, nil)
	flow := func(credit uint32) *wire.Flow {
		return &wire.Flow{NextIncomingID: wire.Some[uint32](0), IncomingWindow: 100, Handle: wire.Some[uint32](1), DeliveryCount: wire.Some[uint32](0), LinkCredit: wire.Some(credit)}
	}
	attach := func(r *raw, receives bool) {
		r.send(channel, aHalf(receives))
		expect[*wire.Attach](r) // and no flow before it
	}
	for name, open := range map[string]func(*raw){
		"requests first": func(r *raw) {
			attach(r, false)
			attach(r, true)
			r.send(channel, flow(0))
			r.send(channel, flow(3))
		},
		"answers first": func(r *raw) {
			attach(r, true)
			r.send(channel, flow(3))
			attach(r, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.mustOpen()
			open(r)
			if f := expect[*wire.Flow](r); f.Handle.Or(9) != 0 || f.LinkCredit.Value != 8 {
				t.Errorf("%+v", f)
			}
		})
	}
}

// A half may come back, and the pair serves again.
func TestPairAgain(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustOpen()
	r.mustPair(9)
	for handle := range uint32(2) {
		r.send(channel, &wire.Detach{Handle: handle, Closed: true})
		expect[*wire.Detach](r, &wire.Flow{})
	}
	r.mustPair(9)
	r.ask(0, aRequest(text("a"), "GET", "/queues/q", nil))
	r.answer(text("a"), "404")
}

// A pair publishes nothing: a right to publish that is taken away does not end it.
func TestPairWithoutRightToPublish(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustOpen()
	r.mustPair(9)
	s.broker.Forbid("")
	s.Renew()
	r.ask(0, aRequest(text("a"), "GET", "/queues/q", nil))
	r.answer(text("a"), "404")
	s.Renew()
	r.ask(1, aRequest(text("b"), "GET", "/queues/q", nil))
	r.answer(text("b"), "404")
}

// A client that goes in the middle of a request leaves nothing behind.
func TestEndWithinARequest(t *testing.T) {
	s := mustServe(t, nil)
	for name, last := range map[string]wire.Composite{
		"end": &wire.End{}, "detach": &wire.Detach{Handle: 0, Closed: true}, "detach of the answers": &wire.Detach{Handle: 1, Closed: true}, "close": nil,
	} {
		t.Run(name, func(t *testing.T) {
			r := s.mustOpen()
			r.mustPair(100)
			s.broker.Block("DeclareQueue")
			put := wire.EndMap(wire.StartMap(wire.StartValue(aRequest(text("a"), "PUT", "/queues/q", nil))), len(aRequest(text("a"), "PUT", "/queues/q", nil))+3, 0)
			for i := range uint32(5) {
				r.ask(i, put)
			}
			s.broker.AwaitBlocked("DeclareQueue")
			if last == nil {
				r.conn.Close()
				s.broker.Unblock("DeclareQueue")
				return
			}
			r.send(channel, last)
			s.broker.Unblock("DeclareQueue")
			switch last.(type) {
			case *wire.End:
				expect[*wire.End](r, &wire.Flow{}, &wire.Transfer{})
			case *wire.Detach:
				expect[*wire.Detach](r, &wire.Flow{}, &wire.Transfer{})
			}
		})
	}
}

// What a client asks for costs no more than it sends, and what it is answered no more than its share.
func TestHostileRequests(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustOpen()
	r.mustPair(100)
	put := func(arguments []byte) []byte {
		b := wire.StartValue(aRequest(text("a"), "PUT", "/queues/q", nil))
		at := len(b)
		b = append(wire.AppendString(wire.StartMap(b), "arguments"), arguments...)
		return wire.EndMap(b, at, 1)
	}
	within1 := func(value []byte) []byte {
		return wire.EndMap(append(wire.AppendString(wire.StartMap(nil), "a"), value...), 0, 1)
	}
	deep := []byte{0x40}
	for range 70 {
		deep = within1(deep)
	}
	// 1000 arrays of 65,536 values that take no room.
	wide := wire.StartList(nil)
	for range 1000 {
		wide = append(wide, 0xf0, 0, 0, 0, 5, 0, 1, 0, 0, 0x40)
	}
	wide = wire.EndList(wide, 0, 1000)
	for i, arguments := range [][]byte{
		within1(deep), within1(wide), {0xf0, 0, 0, 0, 5, 0xff, 0xff, 0xff, 0xff, 0x40}, {0xd1, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xfe}, {0xff}, {},
	} {
		r.ask(uint32(i), put(arguments))
		r.answer(text("a"), "400")
	}
	// A body that is too large ends the link.
	large := put(within1(wire.AppendBinary(nil, make([]byte, 200<<10))))
	r.transfer(&wire.Transfer{DeliveryID: wire.Some[uint32](20), Settled: wire.Some(true), More: true}, large[:100<<10])
	r.transfer(&wire.Transfer{}, large[100<<10:])
	d := expect[*wire.Detach](r, &wire.Flow{})
	mustCondition(t, d.Error, wire.ConditionMessageSize, "exceeds maximum message size")
	r.send(channel, &wire.Detach{Handle: 0, Closed: true})
	// So does what is no message; the session serves on.
	r.mustAttach(aHalf(false))
	r.ask(21, []byte("garbage"))
	mustCondition(t, expect[*wire.Detach](r, &wire.Flow{}).Error, wire.ConditionDecode, "")
	r.send(channel, &wire.Detach{Handle: 0, Closed: true})
	r.mustAttach(aHalf(false))
	r.ask(22, aRequest(text("b"), "GET", "/queues/q", nil))
	r.answer(text("b"), "404")
}

// A session has as many pairs as it may have links, and they do not disturb each other.
func TestManyPairs(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustRaw()
	r.login(anOpen())
	expect[*wire.Open](r)
	r.send(channel, &wire.Begin{IncomingWindow: 1000, OutgoingWindow: 1000, HandleMax: 1000})
	expect[*wire.Begin](r)
	for i := range uint32(256) {
		a := aHalf(i%2 == 1)
		a.Handle, a.Name = i, fmt.Sprint(i/2)
		r.send(channel, a)
		expect[*wire.Attach](r, &wire.Flow{})
	}
	for round := range uint32(3) {
		for i := range uint32(128) {
			r.send(channel, &wire.Flow{
				NextIncomingID: wire.Some[uint32](0), IncomingWindow: 1000, Handle: wire.Some(2*i + 1), DeliveryCount: wire.Some(round), LinkCredit: wire.Some[uint32](1),
			})
			r.transfer(&wire.Transfer{Handle: 2 * i, DeliveryID: wire.Some(i), Settled: wire.Some(true)}, aRequest(wire.AppendUlong(nil, uint64(i)), "GET", "/queues/q", nil))
			tr := expect[*wire.Transfer](r, &wire.Flow{})
			if tr.Handle != 2*i+1 {
				t.Fatalf("answered on handle %d, want %d", tr.Handle, 2*i+1)
			}
		}
	}
	// On as many sessions as there may be, the connection ends with all of them.
	for number := uint16(20); number < 40; number++ {
		r.send(number, &wire.Begin{IncomingWindow: 1000, OutgoingWindow: 1000, HandleMax: 1000})
		expect[*wire.Begin](r, &wire.Flow{})
		for i := range uint32(256) {
			a := aHalf(i%2 == 1)
			a.Handle, a.Name = i, fmt.Sprint(i/2)
			r.send(number, a)
			expect[*wire.Attach](r, &wire.Flow{})
		}
	}
	r.send(channel, &wire.End{})
	expect[*wire.End](r, &wire.Flow{})
	r.send(0, &wire.Close{})
	expect[*wire.Close](r, &wire.Flow{})
}

// Answers wait for the client's window, are cut into its frames, and count as memory that it holds.
func TestAnswersWaitForTheWindow(t *testing.T) {
	s := mustServe(t, nil)
	r := s.mustRaw()
	r.login(&wire.Open{ContainerID: "c", MaxFrameSize: 512, ChannelMax: 10})
	expect[*wire.Open](r)
	r.send(channel, &wire.Begin{IncomingWindow: 0, OutgoingWindow: 1000, HandleMax: 10})
	expect[*wire.Begin](r)
	r.mustAttach(aHalf(false))
	r.mustAttach(aHalf(true))
	flow := &wire.Flow{
		NextIncomingID: wire.Some[uint32](0), IncomingWindow: 0, Handle: wire.Some[uint32](1), DeliveryCount: wire.Some[uint32](0), LinkCredit: wire.Some[uint32](2), Echo: true,
	}
	r.send(channel, flow)
	expect[*wire.Flow](r)
	put := wire.StartValue(aRequest(text("a"), "PUT", "/queues/q", nil))
	at := len(put)
	put = wire.AppendString(wire.StartMap(put), "arguments")
	inner := len(put)
	put = wire.EndMap(wire.AppendString(wire.AppendString(wire.StartMap(put), "a"), strings.Repeat("a", 100<<10)), inner, 1)
	r.ask(0, wire.EndMap(put, at, 1))
	r.send(channel, &wire.Flow{NextIncomingID: wire.Some[uint32](0), IncomingWindow: 0, Echo: true})
	for expect[*wire.Flow](r).Handle.Present { // it has been performed, and waits
	}
	if s.Held() < 64<<10 {
		t.Errorf("%d octets are held", s.Held())
	}
	flow.IncomingWindow, flow.Echo = 1000, false
	r.send(channel, flow)
	var whole []byte
	frames := uint32(0)
	for more := true; more; frames++ {
		tr, payload := expectPayload[*wire.Transfer](r, &wire.Flow{})
		whole, more = append(whole, payload...), tr.More
		if len(payload) > 512 {
			t.Fatalf("a frame of %d octets", len(payload))
		}
	}
	var m wire.Message
	must(t, m.Parse(whole))
	// A drain uses the rest up.
	flow.Drain, flow.DeliveryCount, flow.NextIncomingID = true, wire.Some[uint32](1), wire.Some(frames)
	r.send(channel, flow)
	if f := expect[*wire.Flow](r); !f.Drain || f.LinkCredit.Value != 0 || f.DeliveryCount.Value != 3 {
		t.Fatalf("%+v", f)
	}
}
