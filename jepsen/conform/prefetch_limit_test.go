package conform

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestPrefetchLimit(t *testing.T) { prefetchLimitRows.run(t) }

var prefetchLimitRows = suite{test: "TestPrefetchLimit", title: "A prefetch limit of the queue", rows: []row{
	{id: "Q-MP1", what: "`x-max-prefetch`: a consumer without a prefetch holds so many, another one gets the rest; each ack brings the next; gets and consumers without acks are not limited", run: func(t *T) {
		q := t.queue("q", "x-max-prefetch", int32(2))
		_, greedy := t.consume(q, 0)
		for i := range 4 {
			t.publish(q, body(fmt.Sprint(i)))
		}
		held := []*amqp.Delivery{t.nextP(greedy), t.nextP(greedy)}
		t.equal("held", bodies(held), "0 1")
		t.nothingNext(greedy, time.Now().Add(ms(200)))
		t.must(held[0].Ack(false))
		held = append(held, t.nextP(greedy))
		t.equal("the next", string(held[2].Body), "2")
		_, other := t.consume(q, 1)
		t.equal("the other one's", string(t.next(other).Body), "3")
		free := t.queue("free", "x-max-prefetch", int32(1))
		for range 6 {
			t.publish(free)
		}
		for range 3 {
			t.mustGet(free)
		}
		all, err := t.open().Consume(free, "", true, false, false, false, nil)
		t.must(err)
		for range 3 {
			t.next(all)
		}
	}},
	{id: "Q-MP2", what: "`max-prefetch` by policy: it counts for consumers that are there, and so does its end; a lower one takes nothing back; the smallest counts, an operator's too; wrong values are refused", run: func(t *T) {
		q := t.queue("q", "x-max-prefetch", int32(3))
		_, from := t.consume(q, 10)
		t.policyAgain("p", q, 0, definition{"max-prefetch": 1})
		for range 6 {
			t.publish(q)
		}
		first := t.next(from)
		t.nothingNext(from, time.Now().Add(ms(200)))
		t.clearPolicy("p", q)
		t.next(from)
		last := t.next(from)
		t.nothingNext(from, time.Now().Add(ms(200)))
		t.policyAgain("p", q, 0, definition{"max-prefetch": 2})
		t.must(first.Ack(false))
		t.nothingNext(from, time.Now().Add(ms(200)))
		t.must(last.Ack(true))
		t.next(from)
		t.next(from)
		t.refuseDeclare("refused", "value_zero", "x-max-prefetch", int32(0))
		t.refuseDeclare("refused", "expected integer", "x-max-prefetch", "5")
		t.refuseDeclare("q", "inequivalent arg 'x-max-prefetch'", "x-max-prefetch", int32(4))
		status, _, err := t.Nodes[0].Do(t.ctx, http.MethodPut, "/api/policies/%2F/"+t.name("wrong"), map[string]any{"pattern": "^none$", "definition": map[string]any{"max-prefetch": 0}})
		t.must(err)
		t.equal("status", status, http.StatusBadRequest)
	}},
}}

// prefetchLimitKillRows are rows of limited queues that lose their leader.
var prefetchLimitKillRows = []row{
	{id: "Q-MP1K", what: "100 messages for a consumer without a prefetch, at most 5 at a time, and the leader is killed: never more than 5 are held, each comes once, none is lost", run: func(t *T) {
		q := t.queue("q", "x-max-prefetch", int32(5))
		t.publishN(q, 100)
		t.killLeader(q)
		_, from := t.consume(q, 0)
		seen := map[string]bool{}
		for len(seen) < 100 {
			var last amqp.Delivery
			for range min(5, 100-len(seen)) {
				last = t.next(from)
				if seen[string(last.Body)] {
					t.Fatalf("%s comes twice", last.Body)
				}
				seen[string(last.Body)] = true
			}
			if len(from) > 0 {
				t.Fatalf("more than 5 are held")
			}
			t.must(last.Ack(true))
		}
		t.settled(q)
	}},
}
