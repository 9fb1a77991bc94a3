package conform

import (
	"fmt"
	"slices"
	"strings"
)

var sessionRows10 = []row{
	{id: "31-begin", what: "the answer to begin: the channel, the first id, windows, and the lower handle-max", run: func(t *T) {
		c := t.open10()
		s := c.begin()
		t.equal("remote-channel", s.begun.Int("remote-channel"), 0)
		t.equal("next-outgoing-id is there", s.begun["next-outgoing-id"] != nil, true)
		t.equal("incoming-window", s.begun.Int("incoming-window"), 400)
		t.equal("handle-max", s.begun.Int("handle-max"), 255)
		if !t.isPeer() {
			t.equal("next-outgoing-id", s.begun.Int("next-outgoing-id"), 0)
			t.equal("outgoing-window", s.begun.Int("outgoing-window"), 1<<32-1)
		}
		t.equal("handle-max", c.begin(fields{"handle-max": 7}).begun.Int("handle-max"), 7)
	}},
	{id: "32-bad-begin", what: "begin with remote-channel, or twice: an end or a close that says why", peer: "the first: internal-error", why: "the condition says what is wrong", run: func(t *T) {
		s := t.session()
		t.must(s.Send(5, "begin", fields{"remote-channel": 3, "next-outgoing-id": 0, "incoming-window": 1, "outgoing-window": 1}))
		t.failure(s.await2("end", "close").Fields.Of("error"), t.either(invalidField, internalError))
		s = t.session()
		s.sends("begin", fields{"next-outgoing-id": 0, "incoming-window": 1, "outgoing-window": 1})
		if f := s.await2("end", "close"); !t.isPeer() {
			t.failure(f.Fields.Of("error"), illegalState)
		}
	}},
	{id: "33-handles", what: "a handle beyond handle-max: framing-error; in use: handle-in-use; flow and transfer of none: unattached-handle; detach of none: ignored", run: func(t *T) {
		s := t.open10().begin(fields{"handle-max": 3})
		s.sends("attach", merged(asSender(nil), []fields{{"name": "l", "handle": 4, "initial-delivery-count": 0}}))
		s.ended(framingError)
		s = s.ten.begin()
		s.sender(nil)
		s.sends("attach", merged(asSender(nil), []fields{{"name": "other", "handle": 0, "initial-delivery-count": 0}}))
		s.ended(handleInUse)
		s = s.ten.begin()
		s.flow(fields{"handle": 9, "link-credit": 1})
		s.ended(unattached)
		s = s.ten.begin()
		s.sends("transfer", fields{"handle": 9, "delivery-id": 0, "delivery-tag": "t"}, message(data("x"))...)
		s.ended(unattached)
		s = s.ten.begin()
		s.sends("detach", fields{"handle": 9, "closed": true})
		s.lives()
	}},
	{id: "34-ahead", what: "a flow whose next-incoming-id is ahead: window-violation", run: func(t *T) {
		s := t.session()
		s.sends("flow", fields{"next-incoming-id": 77, "incoming-window": 1, "next-outgoing-id": 0, "outgoing-window": 1})
		s.ended(violation)
	}},
	{id: "35-window", what: "a client's window holds messages back, frame by frame", run: func(t *T) {
		q := t.queue("q")
		c := t.open10(fields{"max-frame-size": 512})
		c.begin().sender(at(q)).publishes("a", "b", "c", "d", "e", strings.Repeat("x", 1200)+"e")
		s := c.begin(fields{"incoming-window": 2})
		l := s.receiver(at(q))
		l.grant(10)
		t.equal("in the window", l.takes(2), "a b")
		l.nothing()
		s.flow()
		t.equal("in the window", l.takes(2), "c d")
		l.nothing()
		s.wide = 1
		s.flow()
		t.equal("in the window", l.takes(1), "e")
		for n := range 3 { // frames of one message
			l.nothing()
			s.flow()
			more := s.await("transfer", s.channel, nil).Fields["more"] == true
			t.equal(fmt.Sprint("more after ", n), more, n < 2)
		}
	}},
	{id: "36-many", what: "2000 settled transfers, through windows and credit, all arrive", run: func(t *T) {
		q := t.queue("q")
		l := t.session().sender(at(q))
		for n := range 2000 {
			l.paced()
			l.transfer(message(data(fmt.Sprint(n))), fields{"settled": true})
		}
		t.readyIs(q, 2000)
		in := t.session().receiver(at(q), fields{"snd-settle-mode": 1})
		in.grant(2000)
		for n := range 2000 {
			if d := in.gets(); d.body != fmt.Sprint(n) {
				t.Fatalf("message %d is %s", n, d.body)
			}
		}
	}},
	{id: "37-echo", what: "a session's flow with echo is answered", peer: "it is not", why: "the protocol wants it", run: func(t *T) {
		s := t.session()
		s.flow(fields{"echo": true})
		if t.isPeer() {
			return
		}
		f := s.await("flow", s.channel, nil).Fields
		t.equal("handle", f["handle"], nil)
		t.equal("incoming-window", f.Int("incoming-window"), 400)
	}},
	{id: "38-two", what: "a session that ends with an error leaves the other alone", run: func(t *T) {
		q := t.queue("q")
		c := t.open10()
		good, bad := c.begin(), c.begin()
		l := good.sender(at(q))
		bad.flow(fields{"handle": 9})
		bad.ended(unattached)
		l.publishes("m")
	}},
}

// fourOutcomes are those that a source offers.
var fourOutcomes = []string{"amqp:accepted:list", "amqp:modified:list", "amqp:rejected:list", "amqp:released:list"}

var linkRows10 = []row{
	{id: "39-attach", what: "the answers to attach, for a sender and a receiver", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		l := s.sender(at(q), fields{"snd-settle-mode": 2, "initial-delivery-count": 5})
		t.equal("role", l.attached["role"], true)
		t.equal("address", l.attached.Of("target").Text("address"), at(q))
		t.equal("source", l.attached.Of("source").Text("address"), "here")
		t.equal("snd-settle-mode is mixed", l.attached["snd-settle-mode"] == nil || l.attached.Int("snd-settle-mode") == 2, true)
		t.equal("rcv-settle-mode", max(l.attached.Int("rcv-settle-mode"), 0), 0)
		t.equal("max-message-size", l.attached.Int("max-message-size"), 16<<20)
		f := l.await("flow", s.channel, l.mine).Fields
		t.equal("delivery-count", f.Int("delivery-count"), 5)
		t.equal("link-credit", f.Int("link-credit"), 170)
		for asked, want := range map[any]int{nil: 0, 0: 0, 1: 1, 2: 0} {
			f := fields{"max-message-size": 1 << 20}
			if asked != nil {
				f["snd-settle-mode"] = asked
			}
			l = s.receiver(at(q), f)
			t.equal("role", l.attached["role"] == true, false)
			t.equal(fmt.Sprint("snd-settle-mode for ", asked), l.attached.Int("snd-settle-mode"), want)
			t.equal("rcv-settle-mode", max(l.attached.Int("rcv-settle-mode"), 0), 0)
			t.equal("initial-delivery-count", l.attached.Int("initial-delivery-count"), 0)
			t.equal("max-message-size", l.attached.Int("max-message-size"), 1<<20)
			from := l.attached.Of("source")
			t.equal("address", from.Text("address"), at(q))
			outcome, _ := from["default-outcome"].(composite)
			t.equal("default-outcome", outcome.Name, "released")
			all := from.Symbols("outcomes")
			slices.Sort(all)
			t.equal("outcomes", all, fourOutcomes)
		}
		l = s.receiver(at(q), fields{"source": source(at(q), fields{"outcomes": fourOutcomes[:1]})})
		t.equal("outcomes", l.attached.Of("source").Symbols("outcomes"), fourOutcomes[:1])
	}},
	{id: "40-names", what: "two sessions have a link of the same name: both live", run: func(t *T) {
		q := t.queue("q")
		c := t.open10()
		name := fields{"name": "same"}
		one, two := c.begin().sender(at(q), name), c.begin().sender(at(q), name)
		other := t.session().sender(at(q), name)
		for _, l := range []*link{one, two, other} {
			l.publishes("m")
		}
	}},
	{id: "41-detach", what: "a detach, closing or not, is answered, and the handle may be used again", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		for _, closed := range []bool{true, false} {
			s.sender(at(q), fields{"handle": 3}).detach(closed)
		}
		s.sender(at(q), fields{"handle": 3}).publishes("m")
	}},
	{id: "42-missing", what: "a queue that is missing as source or target, and an exchange: not-found", run: func(t *T) {
		s := t.session()
		t.says(s.refusedLink(notFound, asReceiver("/queues/nope")), "no queue 'nope' in vhost '/'")
		t.says(s.refusedLink(notFound, asSender("/queues/nope")), "no queue 'nope' in vhost '/'")
		t.says(s.refusedLink(notFound, asSender("/exchanges/nope")), "no exchange 'nope' in vhost '/'")
	}},
	{id: "43-old", what: "addresses of version 1, bare names, an empty one, an exchange as source, no source: invalid-field", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		for _, address := range []string{"/queue/" + q, "/amq/queue/" + q, q, "/exchange/amq.direct/k", "/topic/x", ""} {
			s.refusedLink(invalidField, asSender(address))
			s.refusedLink(invalidField, asReceiver(address))
		}
		s.refusedLink(invalidField, asReceiver("/exchanges/amq.direct"))
		s.refusedLink(invalidField, fields{"role": true, "target": target("here")})
	}},
	{id: "44-bad", what: "addresses that are not well made: invalid-field", peer: "`/queues/` as a source is not-found", why: "an address that names nothing is wrong, whoever uses it", run: func(t *T) {
		s := t.session()
		for _, address := range []string{"/exchanges/", "/exchanges//k", "/exchanges/amq.default/k", "/exchanges/a/b/c", "/queues/", "/queues/%zz"} {
			s.refusedLink(invalidField, asSender(address))
		}
		s.refusedLink(t.either(invalidField, notFound), asReceiver("/queues/"))
	}},
	{id: "45-no-target", what: "no target at all: invalid-field", peer: "the session ends with internal-error", why: "a mistake in an attach costs the link", run: func(t *T) {
		s := t.session()
		f := fields{"role": false, "source": source("here")}
		if t.isPeer() {
			s.sends("attach", merged(f, []fields{{"name": "l", "handle": 0, "initial-delivery-count": 0}}))
			s.ended(internalError)
			return
		}
		s.refusedLink(invalidField, f)
	}},
	{id: "46-unknown", what: "a coordinator, unsettled deliveries, incomplete-unsettled, an unknown outcome: not-implemented", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		s.refusedLink(notImplemented, fields{"role": false, "source": source(nil), "target": composite{Name: "coordinator"}})
		s.refusedLink(notImplemented, asReceiver(at(q)), fields{"unsettled": mapping{[]byte("tag"), composite{Name: "accepted"}}})
		s.refusedLink(notImplemented, asReceiver(at(q)), fields{"incomplete-unsettled": true})
		t.says(s.refusedLink(notImplemented, fields{"role": true, "source": source(at(q), fields{"outcomes": []string{"amqp:declared:list"}}), "target": target("here")}), "Outcomes not supported: ")
		s.receiver(at(q), fields{"unsettled": mapping{}})
	}},
	{id: "47-second", what: "rcv-settle-mode second: the outcome is answered with what took effect", peer: "the link is refused: not-implemented", why: "the one way to learn that an acknowledgement took effect", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		if t.isPeer() {
			s.refusedLink(notImplemented, asReceiver(at(q)), fields{"rcv-settle-mode": 1})
			return
		}
		s.sender(at(q)).publishes("a", "b", "c")
		l := s.receiver(at(q), fields{"rcv-settle-mode": 1})
		t.equal("rcv-settle-mode", l.attached.Int("rcv-settle-mode"), 1)
		l.grant(3)
		for _, outcome := range []string{"accepted", "rejected", "released"} {
			d := l.gets()
			s.dispose(d.id, d.id, false, composite{Name: outcome})
			f := s.answered(d.id)
			state, _ := f["state"].(composite)
			t.equal("settled", f["settled"], true)
			t.is(state, outcome)
			s.dispose(d.id, d.id, true, composite{Name: outcome})
		}
		t.readyIs(q, 1)
	}},
	{id: "48-exclusive", what: "an exclusive queue of another connection: resource-locked to receive from, and open to publish to", run: func(t *T) {
		q := t.name("q")
		_, err := t.ch().QueueDeclare(q, false, false, true, false, nil)
		t.must(err)
		s := t.session()
		t.says(s.refusedLink(resourceLocked, asReceiver(at(q))), "cannot obtain exclusive access to locked queue '"+q+"' in vhost '/'")
		s.sender(at(q)).publishes("m")
	}},
	{id: "49-internal", what: "an internal exchange: unauthorized-access", run: func(t *T) {
		x := t.name("x")
		t.must(t.ch().ExchangeDeclare(x, "fanout", true, false, true, false, nil))
		t.says(t.session().refusedLink(unauthorized, asSender("/exchanges/"+x)), "forbidden to publish to internal exchange '"+x+"' in vhost '/'")
	}},
	{id: "50-rights", what: "no right to write or to read: unauthorized-access, which costs the link only", peer: "it costs the session", why: "a right that is missing costs the link", run: func(t *T) {
		q := t.queue("q")
		u := t.user10("u", ".*", "^nothing$", "^nothing$")
		c := t.openAs(u, "p")
		for _, f := range []fields{asSender(at(q)), asSender("/exchanges/amq.direct/k"), asReceiver(at(q))} {
			s := c.begin()
			var words string
			if t.isPeer() {
				s.sends("attach", merged(f, []fields{{"name": "l", "handle": 0, "initial-delivery-count": 0}}))
				words = s.ended(unauthorized)
			} else {
				words = s.refusedLink(unauthorized, f)
			}
			t.says(words, "refused for user '"+u+"'")
		}
	}},
	{id: "51-odd-names", what: "eight odd names of queues, percent-encoded, there and back", run: func(t *T) {
		s := t.session()
		for _, odd := range []string{"a/b", "ü", "a b", "100%", "a+b", "?x=1&y", "#;:'", "日本"} {
			q := t.queue(odd)
			address := "/queues/" + encoded(q)
			s.sender(address).publishes(odd)
			l := s.receiver(address)
			t.equal("address", l.attached.Of("source").Text("address"), address)
			l.grant(1)
			t.equal("body", l.takes(1), odd)
		}
	}},
	{id: "52-keys", what: "an exchange with a key, without one, with an empty one; percent-encoded names", run: func(t *T) {
		x, odd := t.exchange("x", "direct"), t.exchange("ex/ü", "direct")
		q, empty := t.queue("q"), t.queue("empty")
		t.bind(q, "k", x)
		t.bind(empty, "", x)
		t.bind(q, "k/é", odd)
		s := t.session()
		s.sender("/exchanges/" + x + "/k").publishes("1")
		s.sender("/exchanges/" + x).publishes("2")
		s.sender("/exchanges/" + x + "/").publishes("3")
		s.sender("/exchanges/" + encoded(odd) + "/" + encoded("k/é")).publishes("4")
		t.is(s.sender("/exchanges/"+x+"/other").publish(data("5")), "released")
		t.equal("with keys", bodies(t.take(q, 2)), "1 4")
		t.equal("without", bodies(t.take(empty, 2)), "2 3")
	}},
	{id: "53-subject", what: "the subject is no key", run: func(t *T) {
		x, q := t.exchange("x", "direct"), t.queue("q")
		t.bind(q, "k", x)
		t.is(t.session().sender("/exchanges/"+x).publish(properties(fields{"subject": "k"}), data("m")), "released")
	}},
	{id: "54-cc", what: "x-cc adds keys; a text instead of a list: invalid-field", run: func(t *T) {
		x, one, two := t.exchange("x", "direct"), t.queue("one"), t.queue("two")
		t.bind(one, "k", x)
		t.bind(two, "l", x)
		s := t.session()
		l := s.sender("/exchanges/" + x + "/k")
		t.is(l.publish(annotations("x-cc", list{"l"}), data("m")), "accepted")
		t.readyIs(one, 1)
		t.readyIs(two, 1)
		l.transfer(message(annotations("x-cc", "l"), data("m")))
		l.detached(invalidField)
		s.lives()
	}},
	{id: "55-alternate", what: "what an alternate exchange routes is accepted", run: func(t *T) {
		other, q := t.exchange("other", "fanout"), t.queue("q")
		x := t.exchange("x", "direct", "alternate-exchange", other)
		t.bind(q, "", other)
		t.session().sender("/exchanges/" + x + "/nowhere").publishes("m")
		t.equal("body", bodies(t.take(q, 1)), "m")
	}},
	{id: "56-anonymous", what: "a null target: to a queue, an exchange, three queues in turn", run: func(t *T) {
		x := t.exchange("x", "direct")
		all := []string{t.queue("1"), t.queue("2"), t.queue("3")}
		t.bind(all[0], "k", x)
		l := t.session().sender(nil)
		t.is(l.publish(properties(fields{"to": "/exchanges/" + x + "/k"}), data("x")), "accepted")
		t.equal("body", bodies(t.take(all[0], 1)), "x")
		for _, q := range all {
			t.is(l.publish(properties(fields{"to": at(q)}), data(q)), "accepted")
		}
		for _, q := range all {
			t.equal("body", bodies(t.take(q, 1)), q)
		}
	}},
	{id: "57-bad-to", what: "no `to`, or a bad one: rejected with precondition-failed; a missing exchange: not-found; a missing queue: released; the link lives", run: func(t *T) {
		q := t.queue("q")
		l := t.session().sender(nil)
		t.says(t.rejected(l.publish(data("m")), precondition), "anonymous terminus requires 'to' address to be set")
		for _, to := range []string{"", q, "/queue/" + q, "/exchanges/", "/queues/%zz"} {
			t.says(t.rejected(l.publish(properties(fields{"to": to}), data("m")), precondition), "bad 'to' address string: ")
		}
		t.rejected(l.publish(properties(fields{"to": "/exchanges/nope/k"}), data("m")), notFound)
		t.is(l.publish(properties(fields{"to": "/queues/nope"}), data("m")), "released")
		t.is(l.publish(properties(fields{"to": at(q)}), data("m")), "accepted")
	}},
	{id: "58-bad-settled", what: "a bad `to` of a settled message: detach with precondition-failed", run: func(t *T) {
		s := t.session()
		l := s.sender(nil)
		l.transfer(message(properties(fields{"to": "bad"}), data("m")), fields{"settled": true})
		l.detached(precondition)
		s.lives()
	}},
	{id: "59-to-rights", what: "no right for `to`: rejected with unauthorized-access; the link lives", peer: "it costs the session", why: "a right that is missing costs the message", run: func(t *T) {
		x, mine := t.exchange("x", "fanout"), t.exchange("mine", "fanout")
		q := t.queue("q")
		t.bind(q, "", mine)
		u := t.user10("u", ".*", mine+"$", ".*")
		s := t.openAs(u, "p").begin()
		l := s.sender(nil)
		if t.isPeer() {
			l.transfer(message(properties(fields{"to": "/exchanges/" + x}), data("m")))
			s.ended(unauthorized)
			return
		}
		t.rejected(l.publish(properties(fields{"to": "/exchanges/" + x}), data("m")), unauthorized)
		t.is(l.publish(properties(fields{"to": "/exchanges/" + mine}), data("m")), "accepted")
	}},
}

// encoded is a name in an address: everything but letters, digits and four signs is percent-encoded.
func encoded(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
