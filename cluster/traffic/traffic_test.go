package traffic

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

var all = Exists{
	VHost: func(string) bool { return true }, Exchange: func(Exchange) bool { return true }, Queue: func(fsm.QueueID) bool { return true },
}

// publish makes a channel publish so many messages to a queue.
func publish(t *Table, ch *Channel, id fsm.QueueID, n int) {
	var more Tally
	for range n {
		more.Published("x", 1500, 2, false)
	}
	more.TakeQueue(QueueCounts{VHost: ch.vhost, Queue: id}, &Counts{Publish: uint64(n), DeliverNoAck: uint64(n)}, &Routes{})
	t.Add(ch, &more)
}

// client is where the client of a channel is.
func client(connection string, number uint32) func() *peerpb.ConsumingSession {
	return func() *peerpb.ConsumingSession {
		return &peerpb.ConsumingSession{Connection: connection, Channel: number}
	}
}

// report is what a query about one queue gives.
func report(t *Table, slot int64, r Range) *Activity {
	q := QueryOf((&Query{Of: peerpb.TrafficRequest_QUEUES, One: true, Queue: 7, Slot: slot, Counts: r, Lengths: r}).Request())
	all := NewReport(q)
	all.Add("n1", t.Answer(q))
	if all.Queues[7] == nil {
		return &Activity{}
	}
	return all.Queues[7]
}

// TestSums: what sessions count is in the sums of all objects that it belongs to, once, also after
// they have ended.
func TestSums(t *testing.T) {
	table := NewTable()
	a, b := table.Open("/", AMQP091, client("c", 1)), table.Open("other", AMQP091, nil)
	publish(table, a, 7, 3)
	publish(table, b, 8, 4)
	publish(table, a, 7, 1)
	table.Close(b)
	for of, want := range map[peerpb.TrafficRequest_Of]string{
		peerpb.TrafficRequest_SUMS:      "{vhost:, queue:0, channel:} 8 8 16; {vhost:/, queue:0, channel:} 4 4 8; {vhost:other, queue:0, channel:} 4 4 8",
		peerpb.TrafficRequest_QUEUES:    "{vhost:, queue:7, channel:} 4 4 0; {vhost:, queue:8, channel:} 4 4 0",
		peerpb.TrafficRequest_EXCHANGES: "{vhost:/, queue:0, channel:} 4 0 8; {vhost:other, queue:0, channel:} 4 0 8",
		peerpb.TrafficRequest_CHANNELS:  "{vhost:, queue:0, channel:c (1)} 4 4 8",
	} {
		var rows []string
		for _, o := range table.Answer(&Query{Of: of}).Objects {
			rows = append(rows, fmt.Sprintf("{vhost:%s, queue:%d, channel:%s} %d %d %d", o.Vhost, o.Queue, o.Channel, o.Totals[Publish], o.Totals[DeliverNoAck], o.Totals[PublishOut]))
		}
		slices.Sort(rows)
		if got := fmt.Sprint(rows); got != "["+strings.ReplaceAll(want, ";", "")+"]" {
			t.Errorf("%v: %s, want %s", of, got, want)
		}
	}
	if s := table.Totals(); s.By[AMQP091].Replicated[DeliverNoAck] != 8 || s.By[AMQP091].Local[DeliverNoAck] != 0 || s.All[ChannelCreated] != 1 {
		t.Errorf("totals %+v", s)
	}
}

// TestSamples: samples go back to the beginning, through slots in which nothing was sampled, and no
// further than they are kept; a rate is that since the sample before.
func TestSamples(t *testing.T) {
	table := NewTable()
	ch := table.Open("/", AMQP091, nil)
	history := map[int64]uint64{} // by slot
	total := uint64(0)
	slot := int64(500)
	for i := range 300 {
		n := i * 7 % 5
		if i > 100 && i < 110 || i > 150 && i < 290 {
			n = 0
		}
		seconds := 5.0
		if i == 121 {
			slot, seconds = slot+10, 55 // the process stood still
		}
		slot++
		publish(table, ch, 7, n)
		total += uint64(n)
		table.Sample(slotTime(slot), nil, all)
		table.Sample(slotTime(slot), nil, all) // no second one
		history[slot] = total
		if got := report(table, slot, Range{}).Rate[Publish]; got != float64(n)/seconds {
			t.Fatalf("slot %d: rate %v after %d in %v s", slot, got, n, seconds)
		}
	}
	a := report(table, slot, Range{Count: 1 << 20, Step: 1})
	if len(a.Samples[Publish]) != Kept+1 {
		t.Fatalf("%d samples", len(a.Samples[Publish]))
	}
	for i, n := range a.Samples[Publish] {
		if i < Kept && n != history[slot-int64(i)] {
			t.Errorf("slot %d: %d, want %d", slot-int64(i), n, history[slot-int64(i)])
		}
	}
	if s := report(table, slot, Range{Count: 3, Step: 4}).Samples[Publish]; len(s) != 3 || s[1] != history[slot-4] || s[2] != history[slot-8] {
		t.Errorf("each fourth: %v", s)
	}
	if s := report(table, slot+2, Range{Count: 2, Step: 1}).Samples[Publish]; s[0] != total || s[1] != total {
		t.Errorf("beyond the newest: %v, want %d", s, total)
	}
	for range Kept {
		slot++
		table.Sample(slotTime(slot), nil, all)
	}
	if s := table.queues[7].steps[Publish]; s != nil {
		t.Error("an idle queue keeps samples")
	}
}

// TestListed: lists have samples of the objects that they are about, unless these are too many.
func TestListed(t *testing.T) {
	table := NewTable()
	ch := table.Open("/", AMQP091, nil)
	for id := range fsm.QueueID(3) {
		publish(table, ch, id+7, 1)
	}
	table.Sample(slotTime(5), nil, all)
	ask := func(q Query) *Report {
		q.Of, q.Slot, q.Listed, q.Counts = peerpb.TrafficRequest_QUEUES, 5, true, Range{2, 1}
		clean := QueryOf(q.Request())
		r := NewReport(clean)
		r.Add("n1", table.Answer(clean))
		return r
	}
	if r := ask(Query{}); len(r.Queues) != 3 || fmt.Sprint(r.Queues[8].Samples[Publish]) != "[1 0]" {
		t.Errorf("all: %+v", r.Queues)
	}
	if r := ask(Query{Queues: []fsm.QueueID{9, 100}}); len(r.Queues) != 1 || fmt.Sprint(r.Queues[9].Samples[Publish]) != "[1 0]" {
		t.Errorf("two, one of which is unknown: %+v", r.Queues)
	}
	for id := range fsm.QueueID(MaxListed) {
		publish(table, ch, id+100, 1)
	}
	table.Sample(slotTime(6), nil, all)
	if r := ask(Query{}); len(r.Queues) != MaxListed+3 || r.Queues[8].Samples[Publish] != nil || r.Queues[8].Total[Publish] != 1 {
		t.Errorf("too many: %d, %+v", len(r.Queues), r.Queues[8])
	}
	if r := ask(Query{Queues: []fsm.QueueID{8}}); r.Queues[8].Samples[Publish] == nil {
		t.Error("one of many has no samples")
	}
}

// TestLengths: lengths go up and down, and stay while nothing is heard of them; they are gone with the leadership.
func TestLengths(t *testing.T) {
	table := NewTable()
	for slot, list := range [][]Length{
		{{VHost: "/", Queue: 9}},
		{{VHost: "/", Queue: 7, Ready: 10, Unacknowledged: 1}, {VHost: "/", Queue: 8, Ready: 100}},
		{{VHost: "/", Queue: 7, Ready: 4, Unacknowledged: 1}},
		{},
		{{Queue: 7}},
	} {
		table.Sample(slotTime(int64(slot)+1), list, all)
	}
	a := report(table, 5, Range{Count: 5, Step: 1})
	if fmt.Sprint(a.Samples[Ready]) != "[0 4 4 10 0]" || a.Rate[Ready] != -0.8 || a.Total[Ready] != 0 {
		t.Errorf("ready: %v at %v", a.Samples[Ready], a.Rate[Ready])
	}
	if s := table.Totals().All; s[Ready] != 100 || s[Unacknowledged] != 0 || table.vhosts["/"].total[Ready] != 100 || table.queues[9] != nil {
		t.Errorf("of the node: %d and %d, of its vhost: %d", s[Ready], s[Unacknowledged], table.vhosts["/"].total[Ready])
	}
	table.Sample(slotTime(5), []Length{{VHost: "/", Queue: 8, Ready: 99}}, all)
	if table.all.total[Ready] != 99 {
		t.Error("a change that came twice in a slot is lost")
	}
	gone := Exists{Of: 1, VHost: all.VHost, Exchange: all.Exchange, Queue: func(fsm.QueueID) bool { return false }}
	table.Sample(slotTime(6), nil, gone)
	table.Sample(slotTime(6), []Length{{Queue: 8}}, gone)
	if s := table.Totals().All; s[Ready] != 0 || table.vhosts["/"].total[Ready] != 0 {
		t.Errorf("without queues %d messages are left", s[Ready])
	}
}

// TestUnused: of objects that nobody uses samples cost nothing, and they have the same samples as if they did.
func TestUnused(t *testing.T) {
	table := NewTable()
	ch := table.Open("/", AMQP091, nil)
	publish(table, ch, 7, 3)
	publish(table, ch, 8, 5)
	slot := int64(1)
	for range Kept {
		publish(table, ch, 8, 1)
		slot++
		table.Sample(slotTime(slot), nil, all)
	}
	queues := func() (ids []fsm.QueueID) {
		for _, o := range table.busy {
			for id, q := range table.queues {
				if o == object(q) {
					ids = append(ids, id)
				}
			}
		}
		return ids
	}
	slot++
	table.Sample(slotTime(slot), nil, all)
	if got := queues(); !slices.Equal(got, []fsm.QueueID{8}) {
		t.Fatalf("sampled: %v", got)
	}
	slot += 3
	publish(table, ch, 7, 2)
	table.Sample(slotTime(slot), nil, all)
	if a := report(table, slot, Range{Count: 6, Step: 1}); fmt.Sprint(a.Samples[Publish]) != "[5 3 3 3 3 3]" {
		t.Errorf("samples %v", a.Samples[Publish])
	}
	if got := queues(); len(got) != 2 {
		t.Errorf("used again: %v", got)
	}
	table.Close(ch)
	slot++
	table.Sample(slotTime(slot), nil, all)
	if slices.Contains(table.busy, object(ch)) {
		t.Error("a closed channel is kept")
	}
}

// TestCheckedSeldom: whether objects exist is asked when something has changed, and of many objects not in each slot.
func TestCheckedSeldom(t *testing.T) {
	table, asked, slot := NewTable(), 0, int64(100)
	sample := func(of any) int {
		asked = 0
		slot++
		table.Sample(slotTime(slot), nil, Exists{
			Of: of, VHost: all.VHost, Exchange: all.Exchange, Queue: func(fsm.QueueID) bool { asked++; return true },
		})
		return asked
	}
	set := func(queues int) {
		for id := range fsm.QueueID(queues) {
			table.Died("/", id+1, 1, 0)
		}
	}
	set(3)
	if first, same, changed := sample(1), sample(1), sample(2); first != 3 || same != 0 || changed != 3 {
		t.Errorf("asked %d, %d without a change, %d after one", first, same, changed)
	}
	if set(4); sample(2) != 4 {
		t.Error("an object that is new may be gone from the cluster already")
	}
	set(3 * dropAtOnce)
	if a, b, c, d := sample(3), sample(3), sample(3), sample(3); a+b+c+d != 3*dropAtOnce {
		t.Errorf("of many: %d, %d, %d, %d", a, b, c, d)
	} else if e := sample(4); e != 0 {
		t.Errorf("%d at once again", e)
	}
}

// TestDropped: what the cluster does not have any more is forgotten, and the sums are kept.
func TestDropped(t *testing.T) {
	table := NewTable()
	ch := table.Open("/", AMQP091, nil)
	publish(table, ch, 7, 3)
	none := Exists{VHost: func(string) bool { return false }, Exchange: func(Exchange) bool { return false }, Queue: func(fsm.QueueID) bool { return false }}
	table.Sample(slotTime(1), nil, none)
	if len(table.queues)+len(table.exchanges)+len(table.vhosts) != 0 || table.Totals().All[Publish] != 3 {
		t.Errorf("left: %v, %v, %v", table.queues, table.exchanges, table.vhosts)
	}
}

// TestForeign: an answer of another program, with other counters or fewer samples, is taken as far
// as it goes, and a request for anything costs no more than what is kept.
func TestForeign(t *testing.T) {
	q := QueryOf(&peerpb.TrafficRequest{Of: peerpb.TrafficRequest_QUEUES, One: true, Queue: 7, Counts: 1 << 31, CountsStep: 1 << 30, Lengths: 1 << 20, LengthsStep: 1})
	if q.Counts != (Range{0, 1}) || q.Lengths != (Range{Kept + 1, 1}) {
		t.Errorf("ranges %v, %v", q.Counts, q.Lengths)
	}
	q.Counts = Range{2, 1}
	r := NewReport(q)
	r.Add("n1", &peerpb.TrafficReply{Objects: []*peerpb.ObjectTraffic{
		{Queue: 7, Totals: []uint64{1}, Samples: []uint64{5}},
		{Queue: 7, Totals: make([]uint64, 100), Steps: make([]int32, 100), Samples: make([]uint64, 10000)},
	}})
	if a := r.Queues[7]; a.Total[Publish] != 1 || fmt.Sprint(a.Samples[Publish]) != "[5 0]" {
		t.Errorf("%+v", a)
	}
}

// BenchmarkTally is what counting one message costs, without its delivery.
func BenchmarkTally(b *testing.B) {
	var t Tally
	var q Counts
	var routes Routes
	b.ReportAllocs()
	for b.Loop() {
		t.Published("x", 1500, 1, true)
		q[Publish]++
		routes.Count("x")
		t.Confirmed()
	}
}
