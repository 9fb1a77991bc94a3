package conform

import (
	"fmt"
	"net/http"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestDispatch(t *testing.T) { dispatchRows.run(t) }

var dispatchRows = suite{test: "TestDispatch", title: "The least loaded consumer first", rows: []row{
	{id: "Q-LL1", what: "`x-dispatch` = `least-loaded`: two consumers with a prefetch of 100, one of which never settles: each message goes to the one that holds fewer; what both hold is even while neither settles", run: func(t *T) {
		q := t.queue("q", "x-dispatch", "least-loaded")
		p := t.twoConsumers(0, q)
		for i := range 20 {
			p.settle(p.least(), i < 10)
		}
		t.equal("held by the first", len(p.held[0]), 6)
		t.equal("held by the second", len(p.held[1]), 5)
		p.settleAll(0)
		for range 5 {
			t.equal("the next one's", p.least(), 0)
		}
	}},
	{id: "Q-LL2", what: "`dispatch` by policy: it counts before the argument, for consumers that are there, and so does its end; wrong values are refused", run: func(t *T) {
		q := t.queue("q", "x-dispatch", "round-robin")
		p := t.twoConsumers(0, q)
		for i := range 6 {
			p.settle(p.next(), true)
			t.equal("the slow one's share", len(p.held[0]), 1+i/2)
		}
		t.policyAgain("p", q, 0, definition{"dispatch": "least-loaded"})
		last := 0
		t.eventually("loads count", func() error {
			got := p.next()
			p.settle(got, true)
			if last += got; got == 0 || last < 2 {
				last = got
				return fmt.Errorf("they take turns")
			}
			return nil
		})
		slow := len(p.held[0])
		for range 6 {
			p.settle(p.least(), true)
		}
		t.equal("held by the slow one", len(p.held[0]), slow)
		t.clearPolicy("p", q)
		t.eventually("turns count again", func() error {
			if p.settle(p.next(), true); len(p.held[0]) == slow {
				return fmt.Errorf("the slow one gets nothing")
			}
			return nil
		})
		t.refuseDeclare("refused", "invalid_dispatch", "x-dispatch", "fair")
		t.refuseDeclare("q", "inequivalent arg 'x-dispatch'", "x-dispatch", "least-loaded")
		for _, kind := range []string{"policies", "operator-policies"} {
			status, _, err := t.Nodes[0].Do(t.ctx, http.MethodPut, "/api/"+kind+"/%2F/"+t.name("wrong"), map[string]any{"pattern": "^none$", "definition": map[string]any{"dispatch": "fair"}})
			t.must(err)
			t.equal("status", status, http.StatusBadRequest)
		}
	}},
}}

// dispatchKillRows are rows of queues with loads that lose their leader.
var dispatchKillRows = []row{
	{id: "Q-LL1K", what: "a slow consumer with a prefetch of 100 and a quick one, 60 messages, and the leader is killed in the middle: each message comes once, to the one that holds fewer; the slow one gets no more than it is to get", run: func(t *T) {
		q := t.queue("q", "x-dispatch", "least-loaded")
		n, others := t.followers(q)
		leader, p := t.Nodes[others[0]], t.twoConsumers(n, q)
		for i := range 60 {
			if i == 30 {
				t.must(leader.Kill(t.ctx))
			}
			p.settle(p.least(), i%20 < 15)
		}
		t.must(leader.Restart())
		t.must(leader.AwaitReady(t.ctx))
		t.equal("messages", len(p.seen), 60)
		p.settleAll(0)
		p.settleAll(1)
		t.lostConnections()
		t.settled(q)
	}},
}

// rivals are two consumers of one channel, the first of which settles nothing.
type rivals struct {
	*T
	queue string
	ch    *amqp.Channel
	from  [2]<-chan amqp.Delivery
	held  [2][]amqp.Delivery
	seen  map[string]bool
}

func (t *T) twoConsumers(n int, queue string) *rivals {
	t.Helper()
	p := &rivals{T: t, queue: queue, ch: t.openAt(n), seen: map[string]bool{}}
	t.must(p.ch.Qos(100, 0, false))
	for i := range p.from {
		from, err := p.ch.Consume(queue, "", false, false, false, false, nil)
		t.must(err)
		p.from[i] = from
	}
	return p
}

// next publishes a message, behind what was settled before, and returns who gets it.
func (p *rivals) next() int {
	p.Helper()
	b := fmt.Sprint(len(p.seen) + 1)
	p.must(p.ch.PublishWithContext(p.ctx, "", p.queue, false, false, amqp.Publishing{Body: []byte(b), DeliveryMode: amqp.Persistent}))
	var d amqp.Delivery
	to := 0
	select {
	case d = <-p.from[0]:
	case d = <-p.from[1]:
		to = 1
	case <-p.ctx.Done():
		p.Fatalf("message %s comes to nobody", b)
	}
	if string(d.Body) != b || p.seen[b] {
		p.Fatalf("message %q comes instead of %s", d.Body, b)
	}
	p.seen[b] = true
	p.held[to] = append(p.held[to], d)
	return to
}

// least is next, and checks that nobody held less than who gets it.
func (p *rivals) least() int {
	p.Helper()
	to := p.next()
	if mine, other := len(p.held[to])-1, len(p.held[1-to]); mine > other {
		p.Errorf("consumer %d holds %d, the other one %d, and gets message %d", to, mine, other, len(p.seen))
	}
	return to
}

// settle has the quick one settle what it holds, if it is who got the last message.
func (p *rivals) settle(got int, settles bool) {
	p.Helper()
	if got == 1 && settles {
		p.settleAll(1)
	}
}

func (p *rivals) settleAll(n int) {
	p.Helper()
	for _, d := range p.held[n] {
		p.must(d.Ack(false))
	}
	p.held[n] = nil
}
