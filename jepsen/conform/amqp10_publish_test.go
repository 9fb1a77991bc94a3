package conform

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/internal/frames"
)

// halves sends a message in two frames, with more fields of each.
func (l *link) halves(first, second fields) {
	l.Helper()
	b := message(data("in halves"))
	l.transfer(b[:4], first, fields{"more": true})
	l.sends("transfer", merged(fields{"handle": int(l.handle)}, []fields{second}), b[4:]...)
}

var publishRows10 = []row{
	{id: "60-modes", what: "senders that settle, do not, or do both; a transfer against the mode: invalid-field", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		settled, unsettled, mixed := s.sender(at(q), fields{"snd-settle-mode": 1}), s.sender(at(q), fields{"snd-settle-mode": 0}), s.sender(at(q), fields{"snd-settle-mode": 2})
		settled.transfer(message(data("1")), fields{"settled": true})
		t.readyIs(q, 1)
		unsettled.publishes("2")
		mixed.transfer(message(data("3")), fields{"settled": true})
		mixed.publishes("4")
		t.readyIs(q, 4)
		settled.transfer(message(data("5")))
		settled.detached(invalidField)
		unsettled.transfer(message(data("6")), fields{"settled": true})
		unsettled.detached(invalidField)
		mixed.publishes("7")
		t.readyIs(q, 5)
	}},
	{id: "61-thousand", what: "1000 unsettled transfers: each is settled exactly once, accepted", run: func(t *T) {
		q := t.queue("q")
		l := t.session().sender(at(q))
		for n := range 1000 {
			l.paced()
			l.transfer(message(data(fmt.Sprint(n))))
		}
		for id := range uint32(1000) {
			t.is(l.outcome(id), "accepted")
		}
		l.lives()
		for id, all := range l.outcomes {
			if len(all) != 1 {
				t.Errorf("%d has the outcomes %v", id, all)
			}
		}
		t.readyIs(q, 1000)
	}},
	{id: "62-unroutable", what: "what is not routed: released, or nothing if it is settled", run: func(t *T) {
		x := t.exchange("x", "direct")
		l := t.session().sender("/exchanges/" + x + "/nowhere")
		quiet := l.transfer(message(data("m")), fields{"settled": true})
		t.is(l.publish(data("m")), "released")
		t.equal("outcomes", len(l.outcomes[quiet]), 0)
	}},
	{id: "63-full", what: "a queue that is full and refuses: rejected, and the error names the queue and the reason", run: func(t *T) {
		q := t.queue("q", "x-max-length", int32(1), "x-overflow", "reject-publish")
		l := t.session().sender(at(q))
		var full composite
		t.eventually("the queue refuses", func() error { // the peer's may take one more
			if full = l.publish(data("m")); full.Name == "accepted" {
				return fmt.Errorf("it accepts")
			}
			return nil
		})
		t.says(t.rejected(full, resourceLimit), "queue '"+q+"' exceeded maximum length")
		info := full.Fields.Of("error").Map("info")
		t.equal("queue", frames.Text(info.Get("queue")), q)
		t.equal("reason", info.Get("reason"), any(symbol("maxlen")))
		l.lives()
	}},
	{id: "64-frames", what: "a message in three frames; a last frame without payload; two links take turns; 1 MB", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		one, two := s.sender(at(q)), s.sender(at(q))
		b := message(data("three frames"))
		t.is(s.outcome(one.parts(b, len(b)/3+1)), "accepted")
		id := one.transfer(b, fields{"more": true})
		one.sends("transfer", fields{"handle": int(one.handle)})
		t.is(s.outcome(id), "accepted")
		first := one.transfer(b[:5], fields{"more": true})
		second := two.transfer(b[:7], fields{"more": true})
		one.sends("transfer", fields{"handle": int(one.handle)}, b[5:]...)
		two.sends("transfer", fields{"handle": int(two.handle)}, b[7:]...)
		t.is(s.outcome(first), "accepted")
		t.is(s.outcome(second), "accepted")
		large := strings.Repeat("1 MB", 250_000)
		t.is(s.outcome(one.parts(message(data(large)), 100_000)), "accepted")
		l := s.receiver(at(q))
		l.grant(10)
		t.equal("bodies", l.takes(4), strings.TrimSpace(strings.Repeat("three frames ", 4)))
		t.equal("the large body", l.takes(1) == large, true)
	}},
	{id: "65-continued", what: "a frame that continues with another delivery-id or another settled: invalid-field", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		l := s.sender(at(q))
		l.halves(nil, fields{"delivery-id": 77})
		l.detached(invalidField)
		l = s.sender(at(q))
		l.halves(fields{"settled": false}, fields{"settled": true})
		l.detached(invalidField)
		s.lives()
	}},
	{id: "66-aborted", what: "an aborted delivery is dropped, what follows arrives", peer: "it is published", why: "the protocol says that what was aborted is not delivered", run: func(t *T) {
		q := t.queue("q")
		l := t.session().sender(at(q))
		l.transfer(message(data("aborted")), fields{"more": true})
		l.sends("transfer", fields{"handle": int(l.handle), "aborted": true})
		l.publishes("m")
		want := t.either("m", "aborted m")
		t.equal("bodies", t.taken10(q), want)
	}},
	{id: "67-cut", what: "a detach within a delivery: nothing arrives", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		l := s.sender(at(q))
		l.transfer(message(data("cut")), fields{"more": true})
		l.detach(true)
		s.sender(at(q)).publishes("m")
		t.equal("bodies", t.taken10(q), "m")
	}},
	{id: "68-no-id", what: "a transfer without delivery-id: detach with invalid-field", peer: "the session ends with internal-error", why: "a mistake in a transfer costs the link", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		l := s.sender(at(q))
		l.sends("transfer", fields{"handle": int(l.handle), "delivery-tag": "t"}, message(data("m"))...)
		if t.isPeer() {
			s.ended(internalError)
			return
		}
		l.detached(invalidField)
		s.lives()
	}},
	{id: "69-wrap", what: "delivery-ids around 2^32: accepted", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		s.next = 1<<32 - 3
		l := s.sender(at(q))
		var all []uint32
		for range 6 {
			all = append(all, l.transfer(message(data("m"))))
		}
		for _, id := range all {
			t.is(s.outcome(id), "accepted")
		}
		t.readyIs(q, 6)
	}},
	{id: "70-large", what: "16 MiB and one octet: message-size-exceeded, which costs the link only", peer: "it costs the session", why: "what a message does wrong costs the link", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		l := s.sender(at(q))
		l.parts(message(data(strings.Repeat("x", 16<<20-7))), 120_000)
		f := s.await2("detach", "end")
		t.failure(f.Fields.Of("error"), tooLarge)
		t.equal("it costs", f.Name, t.either("detach", "end"))
		if !t.isPeer() {
			s.sender(at(q)).publishes("m")
		}
	}},
	{id: "71-careless", what: "3000 settled transfers by a client that does not look at credit: taken, or transfer-limit-exceeded", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		l := s.sender(at(q))
		for n := 0; n < 3000; {
			if s.window > 0 {
				l.transfer(message(data("m")), fields{"settled": true})
				n++
				continue
			}
			f, err := s.try(time.Now().Add(answerTime))
			t.must(err)
			if f.Name == "detach" {
				t.failure(f.Fields.Of("error"), tooMany)
				return
			}
		}
		t.eventually("all arrive, or the link ends", func() error {
			f, err := s.try(time.Now().Add(poll))
			if err == nil && f.Name == "detach" {
				t.failure(f.Fields.Of("error"), tooMany)
				return nil
			}
			if n := t.ready(q); n != 3000 {
				return fmt.Errorf("%d are there", n)
			}
			return nil
		})
	}},
	{id: "72-malformed", what: "messages that are not well made: decode-error, and the next link works", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		good := message(data("m"))
		for what, b := range map[string][]byte{
			"no body": message(header10(fields{"durable": true})), "empty": {}, "garbage": []byte("garbage"), "unknown section": slices.Concat(message(described{Descriptor: uint64(0x79), Value: []byte("x")}), good),
			"reserved annotation": message(described{Descriptor: sectionAnnotations, Value: mapping{symbol("reserved"), "x"}}, data("m")),
			"text as key":         message(described{Descriptor: sectionAnnotations, Value: mapping{"x-text", "x"}}, data("m")),
			"truncated":           good[:len(good)-1], "header a map": slices.Concat(message(described{Descriptor: sectionHeader, Value: mapping{}}), good),
		} {
			l := s.sender(at(q))
			l.transfer(b)
			f := l.await("detach", s.channel, l.mine)
			if c := f.Fields.Of("error").Text("condition"); c != decodeError {
				t.Errorf("%s: %v", what, f.Fields)
			}
			s.sends("detach", fields{"handle": int(l.handle), "closed": true})
		}
		s.sender(at(q)).publishes("m")
		t.equal("bodies", t.taken10(q), "m")
	}},
	{id: "73-sections", what: "properties after the body: decode-error", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		l := s.sender(at(q))
		l.transfer(message(data("m"), properties(fields{"subject": "s"})))
		l.detached(decodeError)
		s.lives()
	}},
	{id: "74-deleted", what: "a queue that is deleted under a sender: resource-deleted; an exchange: released, then not-found", peer: "a sender that has not published is not told", why: "an application learns at once that it publishes to nothing", run: func(t *T) {
		q, x := t.queue("q"), t.exchange("x", "fanout")
		s := t.session()
		to, idle, by := s.sender(at(q)), s.sender(at(q)), s.sender("/exchanges/"+x)
		to.publishes("m")
		_, err := t.ch().QueueDelete(q, false, false, false)
		t.must(err)
		to.detached(resourceDeleted)
		if !t.isPeer() {
			idle.detached(resourceDeleted)
		}
		t.must(t.ch().ExchangeDelete(x, false, false))
		t.is(by.publish(data("m")), "released")
		by.detached(notFound)
		s.lives()
	}},
	{id: "75-user-id", what: "user-id: one's own is accepted, another's is unauthorized-access", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		l := s.sender(at(q))
		t.is(l.publish(properties(fields{"user-id": "guest"}), data("m")), "accepted")
		l.transfer(message(properties(fields{"user-id": "bob"}), data("m")))
		t.says(l.detached(unauthorized), "user_id property set to 'bob' but authenticated user was 'guest'")
		s.lives()
	}},
}

// taken10 takes all that a queue has, and returns the bodies.
func (t *T) taken10(queue string) string {
	t.Helper()
	l := t.session().receiver(at(queue))
	var all []string
	for _, d := range l.drained(1 << 10) {
		d.settle("accepted")
		all = append(all, d.body)
	}
	return strings.Join(all, " ")
}

// drained gives credit and takes what is there, until the broker has used the credit up or
// taken it back.
func (l *link) drained(credit int) (all []*received10) {
	l.Helper()
	at := l.count
	l.grant(credit, fields{"drain": true})
	f := l.await("flow", l.channel, func(f fields) bool { // another may be on its way
		return l.mine(f) && f.Int("link-credit") == 0 && uint32(f.Int("delivery-count")) == at+uint32(credit)
	}).Fields
	l.equal("drain", f["drain"], true)
	for slices.ContainsFunc(l.pending, func(f frames.Frame) bool { return f.Name == "transfer" && f.Channel == l.channel && l.mine(f.Fields) }) {
		all = append(all, l.gets())
	}
	l.count = at + uint32(credit)
	return all
}
