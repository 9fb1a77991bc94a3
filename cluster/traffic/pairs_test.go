package traffic

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// pairsOf are the pairs of one object, as two nodes tell them.
func pairsOf(t *testing.T, q Query, tables ...*Table) string {
	t.Helper()
	q.One, q.Pairs = true, true
	clean := QueryOf(q.Request())
	r := NewReport(clean)
	for i, table := range tables {
		r.Add(fmt.Sprint("n", i+1), table.Answer(clean))
	}
	var rows []string
	for _, p := range r.Pairs {
		row := fmt.Sprintf("%d/%v+%d", p.Total[Publish], p.Rate[Publish], p.Total[DeliverNoAck])
		if p.Exchange != nil {
			row += " " + p.Exchange.VHost + p.Exchange.Name
		}
		if p.Queue != 0 {
			row += fmt.Sprint(" q", p.Queue)
		}
		if p.Channel != nil {
			row += fmt.Sprint(" ", p.Node, ":", p.Channel.Connection, p.Channel.Channel)
		}
		rows = append(rows, row)
	}
	slices.Sort(rows)
	if r.Queues[7] != nil && q.Queue == 7 {
		rows = append(rows, fmt.Sprint(r.Queues[7].Publishers, " publish"))
	}
	return strings.Join(rows, "; ")
}

// move makes a channel publish to an exchange, from where all goes to a queue and is taken by it.
func move(table *Table, ch *Channel, exchange string, id fsm.QueueID, n int) {
	var more Tally
	var routes Routes
	for range n {
		more.Published(exchange, 10, 1, false)
		routes.Count(exchange)
	}
	more.TakeQueue(QueueCounts{VHost: ch.vhost, Queue: id}, &Counts{Publish: uint64(n), DeliverNoAck: uint64(n)}, &routes)
	table.Add(ch, &more)
}

// TestPairs: pairs are those in use, at all nodes, and go with what they are about; what a channel has
// brought to a queue stays with the exchange.
func TestPairs(t *testing.T) {
	one, two := NewTable(), NewTable()
	a, b, c := one.Open("/", AMQP091, client("a", 1)), one.Open("/", AMQP091, client("b", 2)), two.Open("/", AMQP091, client("c", 1))
	move(one, a, "x", 7, 3)
	one.Sample(slotTime(1), nil, all)
	move(one, a, "x", 7, 10)
	move(one, a, "y", 8, 1)
	move(one, b, "x", 8, 2)
	move(two, c, "x", 7, 5)
	move(one, one.Open("other", AMQP091, nil), "x", 7, 1) // over HTTP: no channel
	one.Sample(slotTime(2), nil, all)
	queue, exchange := Query{Of: peerpb.TrafficRequest_QUEUES, Queue: 7}, Query{Of: peerpb.TrafficRequest_EXCHANGES, Exchange: Exchange{"/", "x"}}
	channel := Query{Of: peerpb.TrafficRequest_CHANNELS, Channel: "a (1)"}
	check := func(when string, q Query, want string) {
		t.Helper()
		if got := pairsOf(t, q, one, two); got != want {
			t.Errorf("%s:\n%s, want\n%s", when, got, want)
		}
	}
	check("a queue", queue, "13/2+13 q7 n1:a1; 19/2.2+0 /x q7; 5/0+5 q7 n2:c1; 2 publish")
	check("an exchange", exchange, "13/2+0 /x n1:a1; 19/2.2+0 /x q7; 2/0.4+0 /x n1:b2; 2/0.4+0 /x q8; 5/0+0 /x n2:c1")
	check("a channel", channel, "1/0.2+0 /y n1:a1; 1/0.2+1 q8 n1:a1; 13/2+0 /x n1:a1; 13/2+13 q7 n1:a1")
	one.ForgetSamples(slotTime(2))
	check("after a reset", channel, "1/0+0 /y n1:a1; 1/0+1 q8 n1:a1; 13/0+0 /x n1:a1; 13/0+13 q7 n1:a1")
	one.Close(a)
	move(one, a, "x", 7, 1) // counted late
	check("closed", queue, "20/0+0 /x q7; 5/0+5 q7 n2:c1; 1 publish")
	if n := len("xyx") + len(b.pairs.exchanges) + len(b.pairs.queues); one.pairs != n {
		t.Errorf("%d pairs are left, want %d", one.pairs, n)
	}
	one.Sample(slotTime(3), nil, Exists{
		VHost: all.VHost, Queue: func(id fsm.QueueID) bool { return id != 7 }, Exchange: func(x Exchange) bool { return x.Name != "y" },
	})
	check("without the queue and y", exchange, "2/0+0 /x n1:b2; 2/0+0 /x q8; 5/0+0 /x n2:c1; 5/0+0 /x q7")
	if one.pairs != 3 {
		t.Errorf("%d pairs are left, want 3", one.pairs)
	}
	one.Close(b)
	one.Sample(slotTime(4), nil, Exists{VHost: all.VHost, Queue: all.Queue, Exchange: func(Exchange) bool { return false }})
	if one.pairs != 0 {
		t.Errorf("%d pairs are left, want none", one.pairs)
	}
}

// TestAnswerIsACopy: what an answer says does not change with the table.
func TestAnswerIsACopy(t *testing.T) {
	table := NewTable()
	ch := table.Open("/", AMQP091, client("a", 1))
	move(table, ch, "x", 7, 1)
	r := table.Answer(&Query{Of: peerpb.TrafficRequest_QUEUES, One: true, Pairs: true, Queue: 7})
	move(table, ch, "x", 7, 1)
	table.Close(ch)
	if n := r.Objects[0].GetPublishers(); n != 1 || r.Objects[0].Totals[Publish] != 1 || r.Pairs[0].Totals[Publish] != 1 {
		t.Errorf("%d publishers, %v, %v", n, r.Objects, r.Pairs)
	}
}

// TestTooManyPairs: a node counts only so many pairs and lists fewer: those with the most messages.
func TestTooManyPairs(t *testing.T) {
	table := NewTable()
	ch := table.Open("/", AMQP091, client("a", 1))
	for id := range fsm.QueueID(maxPairs/2 + 100) {
		move(table, ch, "x", id+1, int(id%7)+1)
	}
	if n := len(ch.pairs.queues); table.pairs != maxPairs || n < maxPairs/2-1 || n > maxPairs/2+1 {
		t.Errorf("%d pairs, %d of queues", table.pairs, n)
	}
	q := &Query{Of: peerpb.TrafficRequest_EXCHANGES, One: true, Pairs: true, Exchange: Exchange{"/", "x"}}
	list := table.Answer(q).Pairs
	if len(list) != maxListedPairs || list[1].Totals[Publish] != 7 || list[maxListedPairs-1].Totals[Publish] != 7 {
		t.Errorf("%d are listed", len(list))
	}
	table.Close(ch)
	if table.pairs >= maxPairs/2+1 {
		t.Errorf("%d pairs are left", table.pairs)
	}
}
