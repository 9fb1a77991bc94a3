package conform

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/internal/frames"
)

// pair is the two links of management.
type pair struct {
	requests, answers *link
	made              int
}

var paired = mapping{symbol("paired"), true}

// pair attaches the two links, in either order.
func (s *session) pair(name string, answersFirst bool) *pair {
	s.Helper()
	p := &pair{}
	half := fields{"name": name, "properties": paired}
	if answersFirst {
		p.answers = s.receiver("/management", half, fields{"snd-settle-mode": 1, "target": target("/client")})
	}
	p.requests = s.sender("/management", half, fields{"snd-settle-mode": 1, "source": source("/client"), "target": target("/management")})
	if !answersFirst {
		p.answers = s.receiver("/management", half, fields{"snd-settle-mode": 1, "target": target("/client")})
	}
	p.answers.grant(100)
	return p
}

// asks sends a request.
func (p *pair) asks(id any, method, path string, body any, more ...fields) {
	p.requests.Helper()
	p.requests.paced()
	p.requests.transfer(message(properties(merged(fields{"message-id": id, "to": path, "subject": method, "reply-to": "$me"}, more)), value(body)), fields{"settled": true})
}

// does makes a request, and returns the status and the body of the answer.
func (p *pair) does(method, path string, body any) (status int, answer any) {
	p.requests.Helper()
	p.made++
	id := uint64(p.made)
	p.asks(id, method, path, body)
	d := p.answers.gets()
	p.requests.same("correlation-id", d.properties["correlation-id"], any(id))
	p.requests.equal("http:response", d.application.Get("http:response"), any("1.1"))
	p.requests.equal("settled", d.settled, true)
	status, err := strconv.Atoi(d.properties.Text("subject"))
	p.requests.must(err)
	return status, d.value
}

// must makes a request that must have a status.
func (p *pair) must(status int, method, path string, body any) (answer any) {
	p.requests.Helper()
	have, answer := p.does(method, path, body)
	if have != status {
		p.requests.Errorf("%s %s %v: %d %v, not %d", method, path, body, have, answer, status)
	}
	return answer
}

func (t *T) mapOf(v any) mapping {
	t.Helper()
	m, ok := v.(mapping)
	if !ok {
		t.Fatalf("%T %v is no map", v, v)
	}
	return m
}

// mode10 is the body that declares a durable queue with arguments.
func mode10(pairs ...any) mapping { return mapping{"durable", true, "arguments", mapping(pairs)} }

var quorum10 = []any{"x-queue-type", "quorum"}

// managesQueues makes the requests about queues.
func (t *T) managesQueues(p *pair) {
	t.Helper()
	q := t.name("q/ü")
	path := "/queues/" + encoded(q)
	m := t.mapOf(p.must(201, "PUT", path, mode10(quorum10...)))
	for key, want := range map[string]any{"name": q, "vhost": "/", "durable": true, "exclusive": false, "auto_delete": false, "type": "quorum", "message_count": 0, "consumer_count": 0} {
		if n, ok := want.(int); ok {
			t.equal(key, frames.Int(m.Get(key)), n)
		} else {
			t.same(key, m.Get(key), want)
		}
	}
	t.same("arguments", frames.Text(t.mapOf(m.Get("arguments")).Get("x-queue-type")), "quorum")
	p.must(200, "PUT", path, mode10(quorum10...))
	p.must(409, "PUT", path, mode10(append(slices.Clone(quorum10), "x-max-length", int64(3))...))
	t.mapOf(p.must(200, "GET", path, nil))
	t.fill(t.queue("full"), 3)
	full := "/queues/" + encoded(t.name("full"))
	t.equal("purged", frames.Int(t.mapOf(p.must(200, "DELETE", full+"/messages", nil)).Get("message_count")), 3)
	t.fill(t.name("full"), 2)
	t.equal("deleted", frames.Int(t.mapOf(p.must(200, "DELETE", full, nil)).Get("message_count")), 2)
	t.equal("deleted", frames.Int(t.mapOf(p.must(200, "DELETE", full, nil)).Get("message_count")), 0)
	p.must(404, "GET", full, nil)
	p.must(404, "DELETE", full+"/messages", nil)
	p.must(409, "PUT", full, mode10("x-queue-type", "nope"))
	p.must(403, "PUT", "/queues/amq.mine", mode10(quorum10...))
	p.must(400, "PUT", "/queues/"+encoded("a\nb"), mode10(quorum10...))
	p.must(400, "PUT", full, mapping{"colour", "red"})
	_, err := t.ch().QueueDeclare(t.name("exclusive"), false, false, true, false, nil)
	t.must(err)
	p.must(400, "DELETE", "/queues/"+encoded(t.name("exclusive")), nil)
}

// managesExchanges makes the requests about exchanges and bindings.
func (t *T) managesExchanges(p *pair) {
	t.Helper()
	x, q := t.name("x/ü"), t.queue("bound/ü")
	path := "/exchanges/" + encoded(x)
	p.must(204, "PUT", path, mapping{"type", "topic", "durable", true})
	p.must(204, "PUT", path, mapping{"type", "topic", "durable", true})
	p.must(409, "PUT", path, mapping{"type", "fanout", "durable", true})
	p.must(400, "PUT", "/exchanges/"+encoded(t.name("other")), mapping{"type", "nope"})
	p.must(400, "PUT", "/exchanges/"+encoded(t.name("other")), mapping{"colour", "red"})
	p.must(403, "PUT", "/exchanges/amq.mine", mapping{})
	p.must(403, "DELETE", "/exchanges/amq.direct", nil)
	bind := mapping{"source", x, "destination_queue", q, "binding_key", "k/é", "arguments", mapping{}}
	p.must(204, "POST", "/bindings", bind)
	p.must(204, "POST", "/bindings", mapping{"source", x, "destination_queue", q, "binding_key", "k/é", "arguments", mapping{"x-own", "a"}})
	query := "/bindings?src=" + encoded(x) + "&dstq=" + encoded(q) + "&key=" + encoded("k/é")
	all, _ := p.must(200, "GET", query, nil).(list)
	t.equal("bindings", len(all), 2)
	for _, b := range all {
		m := t.mapOf(b)
		t.same("source", m.Get("source"), any(x))
		t.same("destination_queue", m.Get("destination_queue"), any(q))
		t.same("binding_key", m.Get("binding_key"), any("k/é"))
		location := frames.Text(m.Get("location"))
		t.says(location, "/bindings/src=")
		p.must(204, "DELETE", location, nil)
	}
	p.must(204, "DELETE", "/bindings/src="+encoded(x)+";dstq="+encoded(q)+";key=k;args=", nil)
	all, _ = p.must(200, "GET", query, nil).(list)
	t.equal("bindings", len(all), 0)
	p.must(400, "GET", "/bindings?src="+encoded(x)+"&key=k", nil)
	p.must(400, "DELETE", "/bindings/nothing", nil)
	to := t.exchange("to", "fanout")
	p.must(204, "POST", "/bindings", mapping{"source", x, "destination_exchange", to, "binding_key", "e", "arguments", mapping{}})
	all, _ = p.must(200, "GET", "/bindings?src="+encoded(x)+"&dste="+encoded(to)+"&key=e", nil).(list)
	t.equal("bindings", len(all), 1)
	p.must(204, "DELETE", path, nil)
	p.must(204, "DELETE", path, nil)
}

var manageRows10 = []row{
	{id: "110-manage", what: "management: every request, every error, ids of four types, percent-encoding, 30 in a row, half a pair, unpaired, again after a detach", run: func(t *T) {
		s := t.session()
		p := s.pair("pair", false)
		t.managesQueues(p)
		t.managesExchanges(p)
		for _, id := range []any{uint64(1), "text", []byte{1, 2}, frames.UUID{5, 15: 6}} {
			p.asks(id, "GET", "/queues/nope", nil)
			d := p.answers.gets()
			t.same("correlation-id", d.properties["correlation-id"], id)
			t.equal("status", d.properties.Text("subject"), "404")
		}
		for n := range 30 {
			p.asks(fmt.Sprint(n), "GET", "/queues/nope", nil)
		}
		for n := range 30 {
			t.same("correlation-id", p.answers.gets().properties["correlation-id"], any(fmt.Sprint(n)))
		}
		p.requests.detach(true)
		p.answers.detach(true)
		s.pair("pair", true).must(404, "GET", "/queues/nope", nil)
		other := s.ten.begin()
		other.refusedLink10(t, invalidField, asSender("/management"), fields{"snd-settle-mode": 1})
		half := s.ten.begin()
		l := half.sender("/management", fields{"name": "half", "properties": paired, "snd-settle-mode": 1})
		l.transfer(message(properties(fields{"message-id": "id", "to": "/queues/nope", "subject": "GET", "reply-to": "$me"}), value(nil)), fields{"settled": true})
		half.ended(precondition)
	}},
	{id: "111-beyond", what: "management: no right is 403, an unknown path 404, an unknown method 405; no body is null; without reply-to it is ignored or 400; unsettled is settled", peer: "the session ends", why: "a request that is wrong is answered", run: func(t *T) {
		u := t.user10("u", "^$", "^$", "^$")
		if t.isPeer() {
			p := t.openAs(u, "p").begin().pair("pair", false)
			p.asks("id", "GET", "/nope", nil)
			p.requests.ended(internalError, notImplemented, precondition, invalidField)
			return
		}
		p := t.openAs(u, "p").begin().pair("pair", false)
		t.says(fmt.Sprint(p.must(403, "PUT", "/queues/"+t.name("q"), mode10(quorum10...))), "refused for user '"+u+"'")
		p = t.session().pair("all", false)
		p.must(404, "GET", "/nope", nil)
		p.must(405, "POST", "/queues/"+t.name("q"), nil)
		request := fields{"message-id": "no body", "to": "/queues/nope", "subject": "GET", "reply-to": "$me"}
		p.requests.transfer(message(properties(request)), fields{"settled": true})
		t.equal("status", p.answers.gets().properties.Text("subject"), "404")
		p.requests.transfer(message(properties(fields{"to": "/queues/nope", "subject": "GET"}), value(nil)), fields{"settled": true})
		p.asks("unknown", "GET", "/queues/nope", nil, fields{"reply-to": "elsewhere"})
		d := p.answers.gets()
		t.same("correlation-id", d.properties["correlation-id"], any("unknown"))
		t.equal("status", d.properties.Text("subject"), "400")
		p.must(404, "GET", "/nope", nil)
		s := t.session()
		s.pair("guest", false).must(400, "POST", "/bindings", mapping{"binding_key", "k", "arguments", mapping{}})
		l := s.sender("/management", fields{"name": "unsettled", "properties": paired, "source": source("/client")})
		answers := s.receiver("/management", fields{"name": "unsettled", "properties": paired, "snd-settle-mode": 1, "target": target("/client")})
		answers.grant(5)
		id := l.transfer(message(properties(request), value(nil)))
		t.equal("status", answers.gets().properties.Text("subject"), "404")
		t.is(s.outcome(id), "accepted")
	}},
	{id: "112-priority", what: "rabbitmq:priority 10 goes before 0, until its credit is used up; of a wrong type it is ignored", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		low, high := s.receiver(at(q), priority10(int32(0))), s.receiver(at(q), priority10(int32(10)))
		low.grant(10)
		high.grant(3)
		t.fill(q, 5)
		t.equal("high", high.takes(3), "1 2 3")
		t.equal("low", low.takes(2), "4 5")
		s.receiver(at(q), priority10("high"))
	}},
	{id: "113-active", what: "a single active consumer: rabbitmq:active says who, and its successor", run: func(t *T) {
		q := t.queue("q", "x-single-active-consumer", true)
		s := t.session()
		one, two := s.receiver(at(q)), s.receiver(at(q))
		one.grant(5)
		t.equal("one", one.active(), true)
		two.grant(5)
		t.equal("two", two.active(), false)
		t.fill(q, 2)
		t.equal("messages", one.takes(2), "1 2")
		two.nothing()
		one.detach(true)
		t.equal("two", two.active(), true)
		t.fill(q, 1)
		t.equal("messages", two.takes(1), "1")
	}},
	{id: "114-filter", what: "an unknown filter is not in the answer", run: func(t *T) {
		q := t.filled(1)
		filter := symbols([]any{"own:filter", described{Descriptor: symbol("own:filter"), Value: "x"}})
		l := t.session().receiver(at(q), fields{"source": source(at(q), fields{"filter": filter})})
		t.equal("filters", len(l.attached.Of("source").Map("filter")), 0)
		l.grant(1)
		t.equal("body", l.takes(1), "1")
	}},
	{id: "115-selector", what: "a selector is in force; distribution-mode copy shows all, and leaves them there", peer: "neither is, and the answer says so", why: "beyond it", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		out := s.sender(at(q))
		for _, colour := range []string{"red", "blue", "red"} {
			t.is(out.publish(applications("colour", colour), data(colour)), "accepted")
		}
		for name, filter := range map[string]described{
			"apache.org:selector-filter:string": {Descriptor: symbol("apache.org:selector-filter:string"), Value: "colour = 'blue'"}, "amqp:sql-filter": {Descriptor: symbol("amqp:sql-filter"), Value: "colour = 'blue'"},
		} {
			l := s.receiver(at(q), fields{"source": source(at(q), fields{"filter": symbols([]any{name, filter})})})
			if t.isPeer() {
				t.equal("filters", len(l.attached.Of("source").Map("filter")), 0)
				continue
			}
			t.equal(name, l.attached.Of("source").Map("filter").Get(name) != nil, true)
			l.grant(5)
			d := l.gets()
			t.equal("body", d.body, "blue")
			l.nothing()
			d.settle("released")
			l.detach(true)
		}
		if t.isPeer() {
			return
		}
		t.readyIs(q, 3)
		t.says(s.refusedLink(invalidField, fields{"role": true, "source": source(at(q), fields{"filter": symbols([]any{"f", described{Descriptor: symbol("apache.org:selector-filter:string"), Value: "colour = "}})}), "target": target("here")}), "")
		l := s.receiver(at(q), fields{"source": source(at(q), fields{"distribution-mode": "copy"})})
		t.equal("distribution-mode", l.attached.Of("source").Text("distribution-mode"), "copy")
		l.grant(10)
		t.equal("browsed", l.takes(3), "red blue red")
		l.nothing()
		t.readyIs(q, 3)
	}},
	{id: "116-temporary", what: "temporary queues as source and as target: used by others as resource-locked, not-found after the detach", run: func(t *T) {
		s := t.session()
		for _, receives := range []bool{true, false} {
			l := s.dynamic(receives, fields{"capabilities": []string{"temporary-queue"}})
			address := l.dynamicAddress()
			if receives {
				l.grant(1)
				s.sender(nil).publishTo(address)
				t.equal("body", l.takes(1), "m")
			} else {
				l.publishes("m")
				in := s.receiver(address)
				in.grant(1)
				t.equal("body", in.takes(1), "m")
				in.detach(true)
			}
			t.session().refusedLink(resourceLocked, asReceiver(address))
			l.detach(true)
			s.refusedLink(notFound, asReceiver(address))
		}
	}},
	{id: "117-dynamic", what: "dynamic without a capability: a temporary queue", peer: "the link is refused", why: "it is what the protocol means by it", run: func(t *T) {
		s := t.session()
		if t.isPeer() {
			s.refusedLink(notImplemented, fields{"role": true, "source": source(nil, fields{"dynamic": true}), "target": target("here")})
			return
		}
		l := s.dynamic(true, nil)
		l.grant(1)
		s.sender(nil).publishTo(l.dynamicAddress())
		t.equal("body", l.takes(1), "m")
	}},
	{id: "118-volatile", what: "volatile queues: replies of AMQP 1.0 and of 0-9-1; direct reply-to of 0-9-1 is answered by AMQP 1.0", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		l := s.receiver(nil, fields{"snd-settle-mode": 1, "source": source(nil, fields{
			"dynamic": true, "durable": 0, "expiry-policy": "link-detach", "timeout": 0, "capabilities": []string{"rabbitmq:volatile-queue"},
		})})
		address := l.dynamicAddress()
		l.grant(10)
		s.sender(nil).publishTo(address)
		t.equal("of AMQP 1.0", l.gets().body, "m")
		t.is(s.sender(at(q)).publish(properties(fields{"reply-to": address}), data("request")), "accepted")
		m := t.take1(q)
		t.must(t.ch().PublishWithContext(t.ctx, "", m.ReplyTo, false, false, amqp.Publishing{Body: []byte("of 0-9-1")}))
		t.equal("body", l.gets().body, "of 0-9-1")
		ch := t.open()
		answers, err := ch.Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil)
		t.must(err)
		t.must(ch.PublishWithContext(t.ctx, "", q, false, false, amqp.Publishing{ReplyTo: "amq.rabbitmq.reply-to", Body: []byte("request")}))
		in := s.receiver(at(q))
		in.grant(1)
		d := in.gets()
		t.is(s.sender(nil).publish(properties(fields{"to": d.properties.Text("reply-to")}), data("answer")), "accepted")
		t.equal("body", string(t.next(answers).Body), "answer")
	}},
}

func priority10(v any) fields {
	return fields{"properties": symbols([]any{"rabbitmq:priority", v})}
}

// refusedLink10 is refusedLink for a session that is used for nothing else.
func (s *session) refusedLink10(t *T, condition string, f ...fields) {
	t.Helper()
	s.sends("attach", merged(fields{"name": "l", "handle": 0, "initial-delivery-count": 0}, f))
	for until := time.Now().Add(answerTime); ; {
		have, err := s.try(until)
		t.must(err)
		if have.Channel == s.channel && (have.Name == "detach" || have.Name == "end") {
			t.failure(have.Fields.Of("error"), condition)
			return
		}
	}
}

// active waits for what the next flow with it says.
func (l *link) active() bool {
	l.Helper()
	f := l.await("flow", l.channel, func(f fields) bool {
		return l.mine(f) && f.Map("properties").Get("rabbitmq:active") != nil
	}).Fields
	return f.Map("properties").Get("rabbitmq:active") == true
}

// dynamic attaches a link whose node the broker makes.
func (s *session) dynamic(receives bool, more fields) *link {
	s.Helper()
	f := merged(fields{"dynamic": true}, []fields{more})
	if receives {
		return s.receiver(nil, fields{"source": source(nil, f)})
	}
	return s.sender(nil, fields{"target": target(nil, f)})
}

// dynamicAddress is the address of a link's node.
func (l *link) dynamicAddress() string {
	l.Helper()
	terminus := map[bool]string{true: "source", false: "target"}[l.receiver]
	address := l.attached.Of(terminus).Text("address")
	if !strings.HasPrefix(address, "/queues/") {
		l.Fatalf("address %q", address)
	}
	return address
}

// publishTo publishes a message to an address.
func (l *link) publishTo(address string) {
	l.Helper()
	l.is(l.publish(properties(fields{"to": address}), data("m")), "accepted")
}
