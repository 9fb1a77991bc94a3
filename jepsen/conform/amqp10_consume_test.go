package conform

import (
	"fmt"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/internal/frames"
)

// filled declares a queue with messages 1 … n.
func (t *T) filled(n int, pairs ...any) (q string) {
	t.Helper()
	q = t.queue("q", pairs...)
	t.fill(q, n)
	return q
}

func (t *T) fill(q string, n int) {
	t.Helper()
	l := t.session().sender(at(q))
	for i := range n {
		l.paced()
		l.transfer(message(data(fmt.Sprint(i + 1))))
	}
	for id := range uint32(n) {
		t.is(l.outcome(id), "accepted")
	}
}

// numbers are "from … to".
func numbersTo(from, to int) string {
	var all []string
	for n := from; n <= to; n++ {
		all = append(all, fmt.Sprint(n))
	}
	return strings.Join(all, " ")
}

// counted10 checks the two fields of the header that say how often a message has come.
func (d *received10) counted10(count int, first bool) {
	d.link.Helper()
	d.link.equal("delivery-count", max(d.header.Int("delivery-count"), 0), count)
	d.link.equal("first-acquirer", d.header["first-acquirer"] == true, first)
}

var creditRows10 = []row{
	{id: "76-credit", what: "no credit, 3 of 5, none by settling, more, by delivery-count, taken away: exactly the credit", run: func(t *T) {
		q := t.filled(5)
		l := t.session().receiver(at(q))
		l.nothing()
		l.grant(3)
		first := l.gets()
		l.gets()
		l.gets()
		first.settle("accepted")
		l.nothing()
		l.flow(fields{"handle": int(l.handle), "delivery-count": 0, "link-credit": 4}) // as of then: one more
		t.equal("body", l.gets().body, "4")
		l.nothing()
		l.grant(5)
		t.equal("body", l.gets().body, "5")
		l.grant(0)
		l.flow(fields{"handle": int(l.handle), "delivery-count": int(l.count), "link-credit": 0, "echo": true})
		l.await("flow", l.channel, func(f fields) bool { return l.mine(f) && f.Int("link-credit") == 0 })
		l.sender(at(q)).publishes("6")
		l.nothing()
	}},
	{id: "77-available", what: "a link's flow with echo: available 3, credit 0", run: func(t *T) {
		q := t.filled(3)
		l := t.session().receiver(at(q))
		l.grant(0, fields{"echo": true})
		f := l.await("flow", l.channel, l.mine).Fields
		t.equal("available", f.Int("available"), 3)
		t.equal("link-credit", f.Int("link-credit"), 0)
		t.equal("delivery-count", f.Int("delivery-count"), 0)
	}},
	{id: "78-drain", what: "a drain of an empty queue, of fewer and of more than the credit, credit after it, of 1000, behind a shut window: its flow is last", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		l := s.receiver(at(q))
		t.equal("empty", len(l.drained(5)), 0)
		t.fill(q, 3)
		t.equal("fewer", len(l.drained(10)), 3)
		t.fill(q, 4)
		t.equal("more", len(l.drained(2)), 2)
		l.grant(2)
		t.equal("after it", l.takes(2), "3 4")
		t.fill(q, 1000)
		t.equal("1000", len(l.drained(1000)), 1000)
		l.detach(true)
		narrow := t.open10().begin(fields{"incoming-window": 2})
		l = narrow.receiver(at(t.filled2(5)))
		l.grant(10, fields{"drain": true})
		for _, want := range []string{"1", "2"} {
			t.equal("in the window", l.gets().body, want)
		}
		l.nothing()
		if f := l.flowOf(); f != nil {
			t.Errorf("the flow overtakes messages: %v", f)
		}
		narrow.wide = 100
		narrow.flow()
		for n := 3; n <= 5; n++ {
			t.equal("behind it", l.gets().body, fmt.Sprint(n))
			if f := l.flowOf(); f != nil && n < 5 {
				t.Errorf("the flow overtakes messages: %v", f)
			}
		}
		f := l.await("flow", l.channel, l.mine).Fields
		t.equal("delivery-count", f.Int("delivery-count"), 10)
	}},
	{id: "79-shared", what: "two links share a queue, which is filled later", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		one, two := s.receiver(at(q)), s.receiver(at(q))
		one.grant(5)
		two.grant(5)
		t.fill(q, 10)
		t.equal("messages", len(strings.Fields(one.takes(5)+" "+two.takes(5))), 10)
	}},
	{id: "80-deleted", what: "a queue that is deleted under a receiver: resource-deleted", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		l := s.receiver(at(q))
		l.grant(1)
		_, err := t.ch().QueueDelete(q, false, false, false)
		t.must(err)
		l.detached(resourceDeleted)
		s.lives()
	}},
	{id: "81-small", what: "a message above a receiver's max-message-size: message-size-exceeded, the message is ready, and the session goes on", peer: "it costs the session, and counts as a failure", why: "the client has done nothing wrong with the message", run: func(t *T) {
		q := t.queue("q")
		s := t.session()
		s.sender(at(q)).publishes(strings.Repeat("x", 200))
		l := s.receiver(at(q), fields{"max-message-size": 100})
		l.grant(1)
		if t.isPeer() {
			s.ended(tooLarge)
		} else {
			l.detached(tooLarge)
			s.lives()
		}
		t.readyIs(q, 1)
		l = t.session().receiver(at(q))
		l.grant(1)
		t.equal("delivery-count", max(l.gets().header.Int("delivery-count"), 0), map[bool]int{true: 1}[t.isPeer()])
	}},
	{id: "82-ids", what: "delivery-tags are unique, and delivery-ids rise by one over all links", run: func(t *T) {
		q := t.filled(10)
		s := t.session()
		one, two := s.receiver(at(q)), s.receiver(at(q))
		tags := map[string]bool{}
		at := -1
		for n := range 10 {
			l := []*link{one, two}[n%2]
			l.grant(1)
			d := l.gets()
			if at >= 0 && int(d.id) != at+1 {
				t.Errorf("%d comes after %d", d.id, at)
			}
			at = int(d.id)
			if tag := fmt.Sprint(l.handle, string(d.tag)); tags[tag] || len(d.tag) > 32 {
				t.Errorf("tag %q", tag)
			} else {
				tags[tag] = true
			}
		}
	}},
}

// filled2 is a second queue with messages 1 … n.
func (t *T) filled2(n int) (q string) {
	t.Helper()
	q = t.queue("q2")
	t.fill(q, n)
	return q
}

// flowOf is a flow of the link that has come and that nobody has waited for.
func (l *link) flowOf() fields {
	for _, f := range l.pending {
		if f.Name == "flow" && f.Channel == l.channel && l.mine(f.Fields) {
			return f.Fields
		}
	}
	return nil
}

// one publishes a message, and gets it.
func (t *T) one(q string, sections ...any) *received10 {
	t.Helper()
	s := t.session()
	t.is(s.sender(at(q)).publish(append(sections, data("m"))...), "accepted")
	l := s.receiver(at(q))
	l.grant(1)
	return l.gets()
}

// again settles a delivery, and gets the message that comes back.
func (d *received10) again(outcome string, more ...fields) *received10 {
	d.link.Helper()
	d.settle(outcome, more...)
	d.link.grant(1)
	return d.link.gets()
}

// deadly10 is a queue whose dead letters go to another.
func (t *T) deadly10(pairs ...any) (q, dead string) {
	t.Helper()
	x, dead := t.dead()
	return t.queue("q", append(pairs, "x-dead-letter-exchange", x)...), dead
}

// deaths10 are the deaths of a message, newest first.
func (t *T) deaths10(d *received10) (all []mapping) {
	t.Helper()
	a, _ := d.annotations.Get("x-opt-deaths").(frames.Array)
	for _, m := range a.Values {
		all = append(all, m.(mapping))
	}
	return all
}

// letter gets a dead letter, and checks its reason and the annotations about its first death.
func (t *T) letter(dead, queue, reason string) *received10 {
	t.Helper()
	l := t.session().receiver(at(dead))
	l.grant(1)
	d := l.gets()
	all := t.deaths10(d)
	if len(all) == 0 {
		t.Fatalf("no deaths: %v", d.annotations)
	}
	t.equal("reason", frames.Text(all[0].Get("reason")), reason)
	t.equal("queue", frames.Text(all[0].Get("queue")), queue)
	t.equal("count", frames.Int(all[0].Get("count")), 1)
	t.equal("first reason", frames.Text(d.annotations.Get("x-first-death-reason")), reason)
	t.equal("first queue", frames.Text(d.annotations.Get("x-first-death-queue")), queue)
	d.settle("accepted")
	return d
}

var settleRows10 = []row{
	{id: "83-counts", what: "delivery-count and first-acquirer: first, after released, after modified, after three failures", run: func(t *T) {
		d := t.one(t.queue("q"))
		d.counted10(0, true)
		d = d.again("released")
		d.counted10(0, false)
		d = d.again("modified")
		d.counted10(0, false)
		for n := range 3 {
			d = d.again("modified", fields{"delivery-failed": true})
			d.counted10(n+1, false)
		}
	}},
	{id: "84-modified", what: "annotations of modified, twice: merged, with their types", peer: "numbers become long, symbols string", why: "what a client has said is kept as it was said", run: func(t *T) {
		d := t.one(t.queue("q"), annotations("x-a", "old", "x-own", uint32(1)))
		d = d.again("modified", fields{"message-annotations": symbols([]any{"x-a", uint32(7), "x-b", "one", "x-s", symbol("sym")})})
		d = d.again("modified", fields{"message-annotations": symbols([]any{"x-b", "two"})})
		t.equal("x-own", d.annotations.Get("x-own"), any(uint32(1)))
		t.equal("x-b", d.annotations.Get("x-b"), any("two"))
		if t.isPeer() {
			t.equal("x-a", frames.Int(d.annotations.Get("x-a")), 7)
			t.equal("x-s", frames.Text(d.annotations.Get("x-s")), "sym")
			return
		}
		t.equal("x-a", d.annotations.Get("x-a"), any(uint32(7)))
		t.equal("x-s", d.annotations.Get("x-s"), any(symbol("sym")))
	}},
	{id: "85-reserved", what: "modified with an annotation that does not begin with x-: detach with invalid-field", peer: "the session ends with internal-error", why: "a mistake in an outcome costs the link", run: func(t *T) {
		d := t.one(t.queue("q"))
		d.settle("modified", fields{"message-annotations": symbols([]any{"reserved", "x"})})
		if t.isPeer() {
			d.link.ended(internalError)
			return
		}
		d.link.detached(invalidField)
		d.link.lives()
	}},
	{id: "86-dead", what: "undeliverable-here and rejected: dead letters that say why; without an exchange for them: dropped", run: func(t *T) {
		q, dead := t.deadly10()
		t.one(q).settle("modified", fields{"undeliverable-here": true, "delivery-failed": true})
		t.letter(dead, q, "rejected")
		t.one(q).settle("rejected")
		t.letter(dead, q, "rejected")
		t.readyIs(q, 0)
		plain := t.queue("plain")
		t.one(plain).settle("rejected")
		t.eventually("it is dropped", func() error { return t.hasNone(plain) })
	}},
	{id: "87-limit", what: "a delivery limit of 2: dead after three failures; six releases do not count", run: func(t *T) {
		q, dead := t.deadly10("x-delivery-limit", int32(2))
		d := t.one(q)
		for range 6 {
			d = d.again("released")
		}
		for range 2 {
			d = d.again("modified", fields{"delivery-failed": true})
		}
		d.settle("modified", fields{"delivery-failed": true})
		t.letter(dead, q, "delivery_limit")
	}},
	{id: "88-settles", what: "an outcome that is not settled is settled by the server", run: func(t *T) {
		q := t.queue("q")
		d := t.one(q)
		d.link.dispose(d.id, d.id, false, composite{Name: "accepted"})
		f := d.link.answered(d.id)
		state, _ := f["state"].(composite)
		t.equal("settled", f["settled"], true)
		t.is(state, "accepted")
		t.eventually("it is gone", func() error { return t.hasNone(q) })
	}},
	{id: "89-ranges", what: "a range of 80, over two links, with holes and up to 10^6, and of unknown ids: settled, without an error", run: func(t *T) {
		q := t.filled(200)
		s := t.session()
		one, two := s.receiver(at(q)), s.receiver(at(q))
		one.grant(80)
		first := one.gets()
		for range 79 {
			one.gets()
		}
		s.dispose(first.id, first.id+79, true, composite{Name: "accepted"})
		t.unsettled10(q, 120, 0)
		one.grant(20)
		two.grant(20)
		first = one.gets()
		for range 19 {
			one.gets()
		}
		for range 20 {
			two.gets()
		}
		s.dispose(first.id+5, first.id+7, true, composite{Name: "accepted"})
		s.dispose(first.id, first.id+1_000_000, true, composite{Name: "accepted"})
		t.unsettled10(q, 80, 0)
		for range 2 {
			s.dispose(first.id+500, first.id+600, true, composite{Name: "accepted"})
		}
		s.lives()
		t.unsettled10(q, 80, 0)
	}},
	{id: "90-order", what: "the order after a link is lost", run: func(t *T) {
		q := t.filled(6)
		s := t.session()
		l := s.receiver(at(q))
		l.grant(4)
		for range 4 {
			l.gets()
		}
		l.detach(true)
		l = s.receiver(at(q))
		l.grant(6)
		t.equal("order", l.takes(6), numbersTo(1, 6))
	}},
	{id: "91-stateless", what: "settled without an outcome: released, the default", peer: "the session ends with invalid-field", why: "the source has a default outcome for it", run: func(t *T) {
		q := t.queue("q")
		d := t.one(q)
		d.link.dispose(d.id, d.id, true, nil)
		if t.isPeer() {
			d.link.ended(invalidField)
			return
		}
		d.link.lives()
		t.readyIs(q, 1)
	}},
	{id: "92-transaction", what: "a transactional state: the session ends", run: func(t *T) {
		d := t.one(t.queue("q"))
		d.link.dispose(d.id, d.id, true, composite{Name: "transactional-state", Fields: fields{"txn-id": "t", "outcome": composite{Name: "accepted"}}})
		d.link.ended(notImplemented, invalidField)
	}},
	{id: "93-modes", what: "receivers that are sent settled messages, and mixed ones, which are not", run: func(t *T) {
		q := t.filled(4)
		s := t.session()
		settled, mixed := s.receiver(at(q), fields{"snd-settle-mode": 1}), s.receiver(at(q), fields{"snd-settle-mode": 2})
		settled.grant(2)
		t.equal("settled", settled.gets().settled, true)
		t.equal("settled", settled.gets().settled, true)
		t.unsettled10(q, 2, 0)
		mixed.grant(1)
		d := mixed.gets()
		t.equal("settled", d.settled, false)
		d.settle("released")
		t.readyIs(q, 2)
	}},
	{id: "94-later", what: "modified with x-opt-delivery-time in 1.5 s, and a delayed retry of 1 s: then, and not before", long: true, run: func(t *T) {
		d := t.one(t.queue("q"))
		due := time.Now().Add(ms(1500))
		d.settle("modified", fields{"message-annotations": symbols([]any{"x-opt-delivery-time", due.UnixMilli()})})
		d.comesAt(due)
		d = t.one(t.queue("retried", "x-delayed-retry-type", "all", "x-delayed-retry-min", int32(1000)))
		began := time.Now()
		d.settle("modified", fields{"delivery-failed": true})
		d.comesAt(began.Add(ms(1000)))
	}},
	{id: "95-expired", what: "a ttl of 500 ms: a death that says expired, with the ttl, which the dead letter has not", run: func(t *T) {
		q, dead := t.deadly10()
		t.is(t.session().sender(at(q)).publish(header10(fields{"ttl": 500}), data("m")), "accepted")
		d := t.letter(dead, q, "expired")
		t.equal("ttl of the death", frames.Int(t.deaths10(d)[0].Get("ttl")), 500)
		t.equal("ttl", d.header["ttl"], nil)
	}},
}

// comesAt gives credit, and checks that the message comes not before its instant, and soon after.
func (d *received10) comesAt(due time.Time) {
	l := d.link
	l.Helper()
	l.now()
	l.grant(1)
	l.nothingUntil(due.Add(-slack))
	l.gets()
	if late := time.Since(due) - l.allowed(); late > 0 {
		l.Errorf("it comes %v too late", late)
	}
}

// unsettled10 waits until a queue has so many messages that are ready and so many that are not
// settled.
func (t *T) unsettled10(queue string, ready, unsettled int) {
	t.Helper()
	t.eventually(fmt.Sprintf("%d ready and %d unsettled in %s", ready, unsettled, queue), func() error {
		r, u, err := t.counts10(queue)
		if err == nil && (r != ready || u != unsettled) {
			err = fmt.Errorf("%d and %d are", r, u)
		}
		return err
	})
}

func (t *T) counts10(queue string) (ready, unsettled int, err error) {
	var q struct {
		Ready     *int `json:"messages_ready"`
		Unsettled *int `json:"messages_unacknowledged"`
	}
	if err = t.Nodes[0].Call(t.ctx, "GET", "/api/queues/%2F/"+urlPath(queue), nil, &q); err == nil && (q.Ready == nil || q.Unsettled == nil) {
		err = fmt.Errorf("%s has no counts yet", queue)
	}
	if err != nil {
		return 0, 0, err
	}
	return *q.Ready, *q.Unsettled, nil
}

// hasNone says that a queue has no message at all.
func (t *T) hasNone(queue string) error {
	r, u, err := t.counts10(queue)
	if err == nil && r+u > 0 {
		err = fmt.Errorf("%d ready, %d unsettled", r, u)
	}
	return err
}

// late is what the rows of consumer timeouts wait for: 1.5 s, as the queue or the link says.
const late10 = 1500

// timesOut waits for the disposition that takes a delivery back, which must come in its time.
func (d *received10) timesOut(began time.Time) {
	l := d.link
	l.Helper()
	l.now()
	f := l.answered(d.id)
	took := time.Since(began)
	state, _ := f["state"].(composite)
	l.is(state, "released")
	l.equal("settled", f["settled"] == true, false)
	l.equal("role", f["role"] == true, false)
	if took < ms(late10-200) {
		l.Errorf("it is taken back after %v", took)
	}
	l.inTimeOf("the release", took, ms(late10*2))
}

var timeoutRows10 = []row{
	{id: "96-timeout", what: "a consumer timeout, of the queue or of the link: released, not settled, in time", long: true, run: func(t *T) {
		for name, of := range t.timeouts10() {
			t.Logf("as the %s says", name)
			d := of()
			d.timesOut(time.Now())
		}
	}},
	{id: "97-partly", what: "another link gets it; only what is due is taken back; what is settled in time is not; a late outcome has no effect", long: true, run: func(t *T) {
		q := t.filled(3, "x-consumer-timeout", int32(late10))
		s := t.session()
		l, other := s.receiver(at(q)), s.receiver(at(q))
		l.grant(2)
		began := time.Now()
		first, settled := l.gets(), l.gets()
		settled.settle("accepted")
		t.waitUntil(began.Add(ms(late10 / 2)))
		l.grant(1)
		later := l.gets()
		other.grant(1)
		first.timesOut(began)
		d := other.gets()
		t.equal("the other gets", d.body, first.body)
		t.equal("delivery-count", max(d.header.Int("delivery-count"), 0), 0)
		first.settle("accepted")
		d.settle("released") // so it is the other's
		later.timesOut(began.Add(ms(late10 / 2)))
		later.settle("accepted")
		t.readyIs(q, 2)
	}},
	{id: "98-goes-on", what: "the release is settled with released: the link is served again, without a flow", peer: "not before its next flow", why: "a link with credit that gets nothing looks like an empty queue", long: true, run: func(t *T) {
		q := t.filled(1, "x-consumer-timeout", int32(late10))
		l := t.session().receiver(at(q))
		l.grant(5)
		d := l.gets()
		d.timesOut(time.Now())
		l.nothing() // it is held back until then
		d.settle("released")
		if t.isPeer() {
			l.nothing()
			l.grant(5)
		}
		t.equal("body", l.takes(1), "1")
	}},
	{id: "99-detached", what: "a link that does not know released: detach with precondition-failed", peer: "it is sent released all the same", why: "an outcome that the link does not know means nothing to it", long: true, run: func(t *T) {
		q := t.filled(1, "x-consumer-timeout", int32(late10))
		s := t.session()
		l := s.receiver(at(q), fields{"source": source(at(q), fields{"outcomes": []string{"amqp:accepted:list"}})})
		l.grant(1)
		d := l.gets()
		if t.isPeer() {
			d.timesOut(time.Now())
			return
		}
		t.now()
		t.says(l.detached(precondition), fmt.Sprintf("timed out. Timeout value used: %d ms", late10))
		s.lives()
		t.readyIs(q, 1)
	}},
	{id: "100-renewed", what: "received every 0.6 s, also for a range, for what is settled, and with settled: renewed, no error; the last is a release", peer: "the session ends", why: "a client that works for long says so", long: true, lives: true, run: func(t *T) {
		q := t.filled(2, "x-consumer-timeout", int32(late10))
		s := t.session()
		l := s.receiver(at(q))
		l.grant(2)
		first, second := l.gets(), l.gets()
		renew := func(settled bool) {
			s.dispose(first.id, second.id, settled, composite{Name: "received", Fields: fields{"section-number": 0, "section-offset": 0}})
		}
		if t.isPeer() {
			renew(false)
			s.ended(invalidField)
			return
		}
		for range 6 {
			renew(false)
			l.nothingUntil(time.Now().Add(ms(600)))
			if f := l.disposed(); f != nil {
				t.Fatalf("it is answered with %v", f)
			}
		}
		second.settle("accepted")
		renew(false)
		t.unsettled10(q, 0, 1)
		renew(true)
		t.unsettled10(q, 1, 0)
		s.lives()
	}},
	{id: "101-late", what: "rcv-settle-mode second: an outcome that comes too late is answered with released", peer: "the mode is refused", why: "row 47", long: true, run: func(t *T) {
		if t.isPeer() {
			return
		}
		q := t.filled(1, "x-consumer-timeout", int32(late10))
		s := t.session()
		l := s.receiver(at(q), fields{"rcv-settle-mode": 1})
		l.grant(1)
		d := l.gets()
		d.timesOut(time.Now())
		t.readyIs(q, 1)
		s.dispose(d.id, d.id, false, composite{Name: "accepted"})
		f := s.answered(d.id)
		state, _ := f["state"].(composite)
		t.is(state, "released")
		t.equal("settled", f["settled"], true)
	}},
}

// timeouts10 are deliveries on links with a consumer timeout.
func (t *T) timeouts10() map[string]func() *received10 {
	get := func(q string, f ...fields) *received10 {
		l := t.session().receiver(at(q), f...)
		l.grant(1)
		return l.gets()
	}
	return map[string]func() *received10{
		"queue": func() *received10 { return get(t.filled(1, "x-consumer-timeout", int32(late10))) },
		"link": func() *received10 {
			return get(t.filled2(1), fields{"properties": symbols([]any{"rabbitmq:consumer-timeout", uint32(late10)})})
		},
	}
}

// disposed is a disposition that has come and that nobody has waited for.
func (l *link) disposed() fields {
	for _, f := range l.pending {
		if f.Name == "disposition" && f.Channel == l.channel && f.Fields["role"] != true {
			return f.Fields
		}
	}
	return nil
}
