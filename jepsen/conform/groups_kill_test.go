package conform

import (
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// groupKillRows are rows of groups whose queue loses its leader meanwhile.
var groupKillRows = []row{
	{id: "T-144K", what: "groups a, b, c, the leader is killed while each is at a consumer: it stays there, in order, each message once", run: func(t *T) {
		q := t.queue("q", "x-message-groups", true)
		for i := range 6 {
			for _, g := range []string{"a", "b", "c"} {
				t.publish(q, grouped(g), body(fmt.Sprint(g, i)))
			}
		}
		n, others := t.followers(q)
		holders := map[string]<-chan amqp.Delivery{}
		held := map[string]amqp.Delivery{}
		for range 3 {
			ch := t.openAt(n)
			t.must(ch.Qos(1, 0, false))
			from, err := ch.Consume(q, "", false, false, false, false, nil)
			t.must(err)
			d := t.now().next(from)
			g := string(d.Body[:1])
			t.equal("message", string(d.Body), g+"0")
			holders[g], held[g] = from, d
		}
		t.equal("groups held", len(holders), 3)
		t.must(t.Nodes[others[0]].Kill(t.ctx))
		for i := range 6 {
			for g, from := range holders {
				if i > 0 {
					held[g] = t.now().next(from)
				}
				d := held[g]
				t.equal("message", string(d.Body), fmt.Sprint(g, i))
				t.equal("redelivered", d.Redelivered, false)
				t.must(d.Ack(false))
			}
		}
		t.backAgain(others[0])
		t.settled(q)
	}},
	{id: "T-145K", what: "the holder of a group dies with the leader: the group moves, in order", run: func(t *T) {
		q := t.queue("q", "x-message-groups", true)
		for i := range 4 {
			t.publish(q, grouped("a"), body(fmt.Sprint(i)))
		}
		n, others := t.followers(q)
		holder := t.openAt(others[0])
		t.must(holder.Qos(2, 0, false))
		from, err := holder.Consume(q, "", false, false, false, false, nil)
		t.must(err)
		for i := range 2 {
			t.equal("message", string(t.now().next(from).Body), fmt.Sprint(i))
		}
		ch := t.openAt(n)
		t.must(ch.Qos(1, 0, false))
		other, err := ch.Consume(q, "", false, false, false, false, nil)
		t.must(err)
		t.nothingNext(other, time.Now().Add(ms(300)))
		t.must(t.Nodes[others[0]].Kill(t.ctx))
		t.must(t.Nodes[others[0]].Restart()) // which proves that the earlier run is over
		t.must(t.Nodes[others[0]].AwaitReady(t.ctx))
		for i := range 4 {
			d := t.now().next(other)
			t.equal("message", string(d.Body), fmt.Sprint(i))
			t.equal("redelivered", d.Redelivered, i < 2)
			t.must(d.Ack(false))
		}
		t.nothingNext(other, time.Now().Add(ms(300)))
		t.lostConnections()
		t.settled(q)
	}},
	{id: "T-146K", what: "x-group-expiry: group, the leader is killed before one of three expires: all die once, in order, others live", run: func(t *T) {
		const life = 3000
		x, d := t.dead()
		q := t.queue("q", "x-message-groups", true, "x-group-expiry", "group", "x-dead-letter-exchange", x)
		t.publish(q, grouped("a"), body("0"))
		at := t.publish(q, grouped("a"), body("1"), expiration(fmt.Sprint(life)))
		t.publish(q, grouped("a"), body("2"))
		t.publish(q, grouped("b"), body("b"))
		_, others := t.followers(q)
		t.must(t.Nodes[others[0]].Kill(t.ctx))
		t.backAgain(others[0])
		t.readyUntil(d, 0, at.Add(ms(life)))
		t.soonReady(d, 3, at.Add(ms(life)))
		for i, reason := range []string{"group_expired", "expired", "group_expired"} {
			l := t.mustGet(d)
			t.equal("letter", string(l.Body), fmt.Sprint(i))
			t.equal("reason", t.death(l, 0)["reason"], any(reason))
		}
		t.mustNotGet(d)
		t.equal("left", bodies(t.take(q, 1)), "b")
	}},
	{id: "T-147K", what: "the same while the group is held and a new leader does not hand it out: acked, none dies; released, all do", run: func(t *T) {
		const life = 1500
		x, d := t.dead()
		q := t.queue("q", "x-message-groups", true, "x-group-expiry", "group", "x-dead-letter-exchange", x)
		n, others := t.followers(q)
		a, b := t.memberAt(n, q), t.memberAt(n, q)
		held := map[*member]amqp.Delivery{}
		var at time.Time
		for _, g := range []string{"a", "b"} {
			for i := range 3 {
				at = t.publish(q, grouped(g), body(fmt.Sprint(g, i)), expiration(fmt.Sprint(life)))
			}
		}
		for _, m := range []*member{a, b} {
			held[m] = t.now().next(m.from)
		}
		if string(held[a].Body) == "b0" {
			a, b = b, a
		}
		t.must(t.Nodes[others[0]].Kill(t.ctx))
		t.waitUntil(at.Add(ms(life + 500)))
		for i := range 3 {
			m := held[a]
			if i > 0 {
				m = t.now().next(a.from)
			}
			t.equal("message", string(m.Body), fmt.Sprint("a", i))
			t.must(m.Ack(false))
		}
		t.equal("message", string(held[b].Body), "b0")
		dead, err := t.openAt(n).QueueDeclarePassive(d, true, false, false, false, nil)
		t.must(err)
		t.equal("dead", dead.Messages, 0)
		t.must(b.ch.Close())
		t.backAgain(others[0])
		t.soonReady(d, 3, time.Now())
		t.equal("dead", bodies(t.take(d, 3)), "b0 b1 b2")
		t.settled(q)
	}},
	{id: "T-148K", what: "the state of a group outlives its leader and its holder: the next holder reads the same bytes", run: func(t *T) {
		q := t.queue("q", "x-message-groups", true)
		t.publish(q, grouped("a"), body("0"))
		n, others := t.followers(q)
		first, second := t.memberAt(others[0], q), t.memberAt(n, q)
		t.now().next(first.from)
		state := "\x00\x01\xffx"
		t.equal("answer", first.ask("group.set-state", state).OK, true)
		t.must(t.Nodes[others[0]].Kill(t.ctx))
		t.must(t.Nodes[others[0]].Restart())
		t.must(t.Nodes[others[0]].AwaitReady(t.ctx))
		d := t.now().next(second.from)
		t.equal("redelivered", d.Redelivered, true)
		answer := second.ask("group.get-state", "")
		t.equal("parts", len(answer.Results), 1)
		t.equal("state", string(answer.Results[0].State), state)
		t.must(d.Ack(false))
		t.lostConnections()
		t.settled(q)
	}},
}

// backAgain starts a node that was killed, and waits until it serves.
func (t *T) backAgain(n int) {
	t.Helper()
	t.must(t.Nodes[n].Restart())
	t.lostConnections()
	t.must(t.Nodes[n].AwaitReady(t.ctx))
}
