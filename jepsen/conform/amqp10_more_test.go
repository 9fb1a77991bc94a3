package conform

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/internal/frames"
)

const beyond = "beyond it"

// command runs a command of quorate's, and returns its outcome.
func (s *session) command(verb string, arguments ...any) composite {
	s.Helper()
	return s.sender("/exchanges/amq.quorate.command/"+verb).publish(applications(arguments...), data(""))
}

var moreRows10 = []row{
	{id: "119-delays", what: "x-opt-delivery-delay, x-opt-delivery-time, x-opt-scheduled-enqueue-time: on time; the ttl begins then", peer: "delivered at once", why: beyond, long: true, run: func(t *T) {
		const later = 700
		for name, at := range map[string]func(time.Time) any{
			"x-opt-delivery-delay":         func(time.Time) any { return int64(later) },
			"x-opt-delivery-time":          func(began time.Time) any { return began.UnixMilli() + later },
			"x-opt-scheduled-enqueue-time": func(began time.Time) any { return frames.Timestamp(began.UnixMilli() + later) },
		} {
			t.Log(name)
			q, s := t.queue(name), t.session()
			out, in := s.sender("/queues/"+q), s.receiver("/queues/"+q)
			began := time.Now()
			t.is(out.publish(annotations(name, at(began)), data("m")), "accepted")
			if t.isPeer() {
				in.grant(1)
				in.gets()
				continue
			}
			(&received10{link: in}).comesAt(began.Add(ms(later)))
		}
		if t.isPeer() {
			return
		}
		q, dead := t.deadly10()
		began := time.Now()
		t.is(t.session().sender(at(q)).publish(header10(fields{"ttl": later}), annotations("x-opt-delivery-delay", int64(later)), data("m")), "accepted")
		l := t.session().receiver(at(dead))
		(&received10{link: l}).comesAt(began.Add(ms(2 * later)))
	}},
	{id: "120-capabilities", what: "the answer to open names the commands, locks, deferral and scheduling", peer: "it does not", why: beyond, run: func(t *T) {
		all := t.open10().opened.Symbols("offered-capabilities")
		for _, name := range []string{"quorate_commands", "message_lock_renewal", "message_deferral", "message_scheduling"} {
			t.equal(name, slices.Contains(all, name), !t.isPeer())
		}
	}},
	{id: "120-locks", what: "a lock: its annotations, its end is a release that is not settled, after which the link is served; received renews it", peer: "there are none", why: beyond, long: true, run: func(t *T) {
		if t.isPeer() {
			return
		}
		const lock = 1500
		q := t.filled(2, "x-dead-letter-exchange", "")
		s := t.session()
		l := s.receiver(at(q), fields{"properties": symbols([]any{"x-lock-duration", int32(lock)})})
		l.grant(1)
		before := time.Now()
		d := l.gets()
		began := time.Now()
		until := time.UnixMilli(int64(frames.Int(d.annotations.Get("x-opt-locked-until"))))
		if until.Before(before.Add(ms(lock-200))) || until.After(began.Add(ms(lock+200))) {
			t.Errorf("locked until %v, asked for between %v and %v", until, before, began)
		}
		t.equal("x-opt-lock-token is empty", frames.Text(d.annotations.Get("x-opt-lock-token")) == "", false)
		_, isTime := d.annotations.Get("x-opt-enqueued-time").(frames.Timestamp)
		t.equal("x-opt-enqueued-time is a time", isTime, true)
		_, isNumber := d.annotations.Get("x-opt-sequence-number").(int64)
		t.equal("x-opt-sequence-number is a long", isNumber, true)
		for range 4 { // twice as long as the lock
			l.nothingUntil(time.Now().Add(ms(lock / 2)))
			s.dispose(d.id, d.id, false, composite{Name: "received", Fields: fields{"section-number": 0, "section-offset": 0}})
		}
		if f := l.disposed(); f != nil {
			t.Fatalf("although it was renewed: %v", f)
		}
		d.timesOut(time.Now())
		l.grant(2)
		t.equal("the link is served", len(strings.Fields(l.takes(2))), 2)
		d.settle("accepted") // which has no effect
		s.lives()
	}},
	{id: "120-groups", what: "groups by group-id: one receiver each, in order; the flow tells the group", peer: "there are none", why: beyond, run: func(t *T) {
		if t.isPeer() {
			return
		}
		q := t.queue("q", "x-message-groups", true)
		s := t.session()
		out := s.sender(at(q))
		for n := range 3 {
			for _, g := range []string{"a", "b"} {
				t.is(out.publish(properties(fields{"group-id": g}), data(fmt.Sprint(g, n))), "accepted")
			}
		}
		of := func(g string) *link {
			l := s.receiver(at(q), fields{"properties": symbols([]any{"x-group-id", g})})
			l.grant(3)
			return l
		}
		a, b := of("a"), of("b")
		for g, l := range map[string]*link{"a": a, "b": b} {
			f := l.await("flow", l.channel, func(f fields) bool { return l.mine(f) && f.Map("properties").Get("x-group-id") != nil }).Fields
			t.equal("group", f.Map("properties").Get("x-group-id"), any(g))
			for n := range 3 {
				d := l.gets()
				t.equal("body", d.body, fmt.Sprint(g, n))
				t.equal("group-id", d.properties.Text("group-id"), g)
				d.settle("accepted")
			}
		}
	}},
	{id: "120-deferral", what: "modified with x-opt-deferral-token: not delivered, until message.receive-deferred asks for it", peer: "the token is kept, and cannot be used", why: beyond, run: func(t *T) {
		if t.isPeer() {
			return
		}
		q := t.queue("q")
		d := t.one(q)
		l := d.link
		l.grant(2)
		d.settle("modified", fields{"message-annotations": symbols([]any{"x-opt-deferral-token", "t"})})
		l.nothing()
		t.rejected(l.command("message.receive-deferred", "x-queue", q, "x-consumer-tag", l.name, "x-deferral-token", "other"), notFound)
		t.is(l.command("message.receive-deferred", "x-queue", q, "x-consumer-tag", l.name, "x-deferral-token", "t"), "accepted")
		t.equal("body", l.takes(1), "m")
	}},
	{id: "120-reason", what: "rejected with an error: its condition and description are with the dead letter", peer: "they are not", why: beyond, run: func(t *T) {
		q, dead := t.deadly10()
		t.one(q).settle("rejected", fields{"error": composite{Name: "error", Fields: fields{"condition": "own:reason", "description": "no such customer"}}})
		d := t.letter(dead, q, "rejected")
		if t.isPeer() {
			return
		}
		t.equal("condition", frames.Text(d.annotations.Get("x-dead-letter-reason")), "own:reason")
		t.equal("description", frames.Text(d.annotations.Get("x-dead-letter-description")), "no such customer")
	}},
	{id: "120-commands", what: "commands: accepted once in effect; an unknown verb not-implemented, a foreign token not-found, a bad argument precondition-failed; the link lives", peer: "there are none", why: beyond, lives: true, run: func(t *T) {
		if t.isPeer() {
			return
		}
		q := t.filled(1)
		s := t.session()
		l := s.receiver(at(q), fields{"properties": symbols([]any{"x-lock-duration", int32(60_000)})})
		l.grant(1)
		d := l.gets()
		token := frames.Text(d.annotations.Get("x-opt-lock-token"))
		t.is(s.command("lock.renew", "x-delivery-tag", int64(d.id)), "accepted")
		t.is(s.command("lock.renew", "x-lock-token", token, "x-queue", q), "accepted")
		t.is(t.session().command("lock.renew", "x-lock-token", token, "x-queue", q), "accepted")
		t.rejected(s.command("lock.renewed"), notImplemented)
		t.rejected(s.command("lock.renew", "x-lock-token", "A"+token, "x-queue", q), notFound)
		t.rejected(s.command("lock.renew", "x-delivery-tag", "text"), precondition)
		by := s.sender("/exchanges/amq.quorate.command/lock.renew")
		t.rejected(by.publish(applications("x-delivery-tag", "text"), data("")), precondition)
		t.is(by.publish(applications("x-delivery-tag", int64(d.id)), data("")), "accepted")
		t.is(t.session().command("message.settle", "x-lock-token", token, "x-queue", q, "x-outcome", "ack"), "accepted")
		t.eventually("it is settled", func() error { return t.hasNone(q) })
	}},
	{id: "121-nodes", what: "published at one of three nodes, received at another", run: func(t *T) {
		if !t.isPeer() { // of which there is one node
			t = newT(t.T, shared.mustGet(t.T), t.row)
			t.must(serves10(t.Cluster))
		}
		q := t.queue("q")
		last := len(t.Nodes) - 1
		l := t.sessionAt(last).receiver(at(q))
		l.grant(10)
		t.session().sender(at(q)).publishes("a", "b", "c")
		t.equal("bodies", l.takes(3), "a b c")
		t.eventually("it is empty", func() error { return t.hasNone(q) })
	}},
	{id: "122-clients", what: "scenarios with go-amqp, rhea and proton", test: "jepsen/clients: TestAMQP10"},
}

// sessionAt is a session at node n.
func (t *T) sessionAt(n int) *session {
	t.Helper()
	c := t.tenAt(n)
	c.in("guest", "guest")
	c.opens()
	return c.begin()
}

func TestAMQP10Kill(t *testing.T) { amqp10KillRows.run(t) }

// amqp10KillRows are rows of AMQP 1.0 whose queue loses its leader meanwhile.
var amqp10KillRows = suite{test: "TestAMQP10Kill", title: "AMQP 1.0 while nodes die", rough: true, rows: []row{
	{id: "121-kill", what: "the leader is killed under load: every message that was accepted is there, in order, once or again", run: func(t *T) {
		t.must(serves10(t.Cluster))
		const n = 2000
		q := t.queue("q")
		at0, others := t.followers(q)
		s := t.sessionAt(at0)
		l := s.sender(at(q))
		for i := range n {
			if i == n/2 {
				t.must(t.Nodes[others[0]].Kill(t.ctx))
			}
			l.paced()
			l.transfer(message(data(fmt.Sprintf("%06d", i))))
		}
		accepted := map[string]bool{}
		for id := range uint32(n) {
			if s.outcome(id).Name == "accepted" {
				accepted[fmt.Sprintf("%06d", id)] = true
			}
		}
		if len(accepted) < n/2 {
			t.Errorf("%d are accepted", len(accepted))
		}
		in := t.sessionAt(others[1]).receiver(at(q))
		last := ""
		for _, d := range in.drained(math.MaxInt32 / 2) {
			if d.body <= last && d.header["first-acquirer"] == true {
				t.Errorf("%s comes after %s", d.body, last)
			}
			last = max(last, d.body)
			delete(accepted, d.body)
			d.settle("accepted")
		}
		if len(accepted) > 0 {
			t.Errorf("%d accepted messages are lost", len(accepted))
		}
		t.backAgain(others[0])
		t.settled(q)
	}},
	{id: "96-kill", what: "the leader is killed while a consumer timeout runs: released, not early, and another gets it", run: func(t *T) {
		t.must(serves10(t.Cluster))
		q := t.queue("q", "x-consumer-timeout", int32(late10))
		n, others := t.followers(q)
		s := t.sessionAt(n)
		s.sender(at(q)).publishes("m")
		l := s.receiver(at(q))
		l.grant(1)
		began := time.Now()
		d := l.gets()
		t.must(t.Nodes[others[0]].Kill(t.ctx))
		d.timesOut(began)
		other := t.sessionAt(others[1]).receiver(at(q))
		other.grant(1)
		t.equal("body", other.takes(1), "m")
		d.settle("accepted")
		t.backAgain(others[0])
		t.settled(q)
	}},
	{id: "120-kill", what: "the leader is killed while a lock is held: it is kept, renewed, and the outcome takes effect", run: func(t *T) {
		t.must(serves10(t.Cluster))
		const lock = 5000
		q := t.queue("q")
		n, others := t.followers(q)
		s := t.sessionAt(n)
		s.sender(at(q)).publishes("m")
		l := s.receiver(at(q), fields{"properties": symbols([]any{"x-lock-duration", int32(lock)}), "rcv-settle-mode": 1})
		l.grant(1)
		d := l.gets()
		t.must(t.Nodes[others[0]].Kill(t.ctx))
		for range 3 { // for longer than the lock
			s.dispose(d.id, d.id, false, composite{Name: "received", Fields: fields{"section-number": 0, "section-offset": 0}})
			l.nothingUntil(time.Now().Add(ms(lock / 2)))
		}
		s.dispose(d.id, d.id, false, composite{Name: "accepted"})
		state, _ := s.answered(d.id)["state"].(composite)
		t.is(state, "accepted")
		t.backAgain(others[0])
		t.settled(q)
	}, lives: true},
}}
