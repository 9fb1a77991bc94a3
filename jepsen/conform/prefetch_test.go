package conform

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestPrefetch(t *testing.T) { prefetchRows.run(t) }

var prefetchRows = suite{test: "TestPrefetch", title: "Prefetch of a channel", rows: []row{
	{id: "GP-1", what: "global prefetch 1, consumers of three queues with messages: one delivery at a time, every queue is served", long: true, run: func(t *T) {
		t.bothKinds(func(queue func(string) string) {
			p := t.limited(1)
			total := map[string]int{}
			for _, name := range []string{"a", "b", "c"} {
				q := queue(name)
				t.publishN(q, 5)
				p.consume(q)
			}
			for range 15 {
				d := p.next()
				p.quiet()
				total[d.ConsumerTag]++
				t.must(d.Ack(false))
			}
			t.equal("delivered", len(total), 3)
			p.quiet()
		})
	}},
	{id: "GP-2", what: "global prefetch 10: a busy queue gets all of it while others are empty, and gives it up again", run: func(t *T) {
		t.bothKinds(func(queue func(string) string) {
			p := t.limited(10)
			idle, busy := queue("idle"), queue("busy")
			p.consume(idle)
			p.consume(busy)
			t.publishN(busy, 25)
			var all []amqp.Delivery
			for range 10 {
				all = append(all, p.next())
			}
			p.quiet()
			t.publish(idle)
			for i := range all {
				t.must(all[i].Ack(false))
			}
			from := map[string]int{}
			for range 10 {
				d := p.next()
				from[d.ConsumerTag]++
			}
			p.quiet()
			t.equal("of the other queue", from[idle], 1)
		})
	}},
	{id: "GP-3", what: "the prefetch of each consumer (global false) holds beside that of the channel", run: func(t *T) {
		p := t.limited(5)
		t.must(p.ch.Qos(3, 0, false))
		a, b := t.queue("a"), t.queue("b")
		p.consume(a)
		t.publishN(a, 5)
		p.take(3)
		p.quiet()
		p.consume(b)
		t.publishN(b, 5)
		p.take(2)
		p.quiet()
	}},
	{id: "GP-4", what: "what a channel may not hold goes to other channels at once", run: func(t *T) {
		t.bothKinds(func(queue func(string) string) {
			q := queue("q")
			one, two := t.limited(2), t.limited(2)
			one.consume(q)
			t.publishN(q, 4)
			one.take(2)
			one.quiet()
			two.consume(q)
			two.take(2)
		})
	}},
	{id: "GP-5", what: "set later, raised, lowered, and removed; deliveries that are there stay", run: func(t *T) {
		p := t.limited(0)
		a, b := t.queue("a"), t.queue("b")
		p.consume(a)
		p.consume(b)
		t.publishN(a, 3)
		t.publishN(b, 3)
		all := p.take(6)
		t.must(p.ch.Qos(2, 0, true))
		t.publishN(a, 4)
		p.quiet()
		for i := range 5 {
			t.must(all[i].Ack(false))
		}
		p.take(1)
		p.quiet()
		t.must(p.ch.Qos(4, 0, true))
		p.take(2)
		p.quiet()
		t.must(p.ch.Qos(0, 0, true))
		p.take(1)
	}},
	{id: "GP-9", what: "raised while one of three busy queues has all of it: never more than that, and each queue is served", run: func(t *T) {
		t.bothKinds(func(queue func(string) string) {
			p := t.limited(4)
			for _, name := range []string{"a", "b", "c"} {
				q := queue(name)
				t.publishN(q, 10)
				p.consume(q)
			}
			held := p.take(4)
			p.quiet()
			t.must(p.ch.Qos(6, 0, true))
			held = append(held, p.take(2)...)
			p.quiet()
			from := map[string]int{}
			for n := range 30 {
				from[held[0].ConsumerTag]++
				t.must(held[0].Ack(false))
				if held = held[1:]; n < 24 {
					held = append(held, p.next())
				}
			}
			t.equal("of each queue", fmt.Sprint(len(from), slices.Sorted(maps.Values(from))), "3 [10 10 10]")
		})
	}},
	{id: "GP-6", what: "gets and consumers without acknowledgements do not count", run: func(t *T) {
		p := t.limited(1)
		q, free := t.queue("q"), t.queue("free")
		t.publishN(q, 3)
		p.consume(q)
		p.take(1)
		_, ok, err := p.ch.Get(q, false)
		t.must(err)
		t.equal("got", ok, true)
		from, err := p.ch.Consume(free, "", true, false, false, false, nil)
		t.must(err)
		t.publishN(free, 3)
		for range 3 {
			t.next(from)
		}
		p.quiet()
	}},
	{id: "GP-7", what: "a consumer that is cancelled keeps its part until it has settled; then others have it", run: func(t *T) {
		p := t.limited(2)
		a, b := t.queue("a"), t.queue("b")
		t.publishN(a, 2)
		p.consume(a)
		all := p.take(2)
		t.must(p.ch.Cancel(a, false))
		p.consume(b)
		t.publishN(b, 3)
		p.quiet()
		t.must(all[0].Ack(false))
		p.take(1)
		p.quiet()
	}},
	{id: "GP-8", what: "100 consumers of one channel with prefetch 3: never more than 3, and every message", run: func(t *T) {
		p := t.limited(3)
		queues := make([]string, 20)
		for i := range queues {
			queues[i] = t.name(fmt.Sprint("q", i))
			t.declare(t.ch(), queues[i], flags{}, nil)
			for range 5 {
				p.consumeAs(queues[i], "")
			}
		}
		for i := range queues {
			t.publishN(queues[i], 3)
		}
		var held []amqp.Delivery
		for range 60 {
			if held = append(held, p.next()); len(held) > 3 {
				t.Fatalf("%d deliveries", len(held))
			}
			if len(held) == 3 {
				t.must(held[0].Ack(false))
				held = held[1:]
			}
		}
	}},
}}

// bothKinds runs with replicated queues and with queues of one node.
func (t *T) bothKinds(run func(queue func(string) string)) {
	t.Helper()
	run(func(name string) string { return t.queue(name) })
	run(func(name string) string {
		return t.declare(t.ch(), t.name("local-"+name), flags{}, nil)
	})
}

// limited is a channel with a limit for all its consumers.
type limited struct {
	t    *T
	ch   *amqp.Channel
	from chan amqp.Delivery
}

func (t *T) limited(limit int) *limited {
	t.Helper()
	p := &limited{t: t, ch: t.open(), from: make(chan amqp.Delivery, 1000)}
	t.must(p.ch.Qos(limit, 0, true))
	return p
}

func (p *limited) consume(queue string) { p.t.Helper(); p.consumeAs(queue, queue) }

func (p *limited) consumeAs(queue, tag string) {
	p.t.Helper()
	from, err := p.ch.Consume(queue, tag, false, false, false, false, nil)
	p.t.must(err)
	go func() {
		for d := range from {
			p.from <- d
		}
	}()
}

func (p *limited) next() amqp.Delivery { p.t.Helper(); return p.t.next(p.from) }

func (p *limited) take(n int) (all []amqp.Delivery) {
	p.t.Helper()
	for range n {
		all = append(all, p.next())
	}
	return all
}

// quiet checks that nothing comes for a while.
func (p *limited) quiet() {
	p.t.Helper()
	p.t.nothingNext(p.from, time.Now().Add(ms(150)))
}
