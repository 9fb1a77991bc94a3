package traffic

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// Range is a choice of samples: Count of them, Step slots apart.
type Range struct{ Count, Step int }

// within returns a range that the samples kept can serve, whatever another node has sent.
func (r Range) within() Range {
	if r.Count < 1 || r.Step < 1 {
		return Range{0, 1}
	}
	r.Step = min(r.Step, Kept)
	return Range{min(r.Count, Kept/r.Step+1), r.Step}
}

// Query says what a report is about.
type Query struct {
	Of  peerpb.TrafficRequest_Of
	One bool // only the object named below
	// The object.
	Queue    fsm.QueueID
	Exchange Exchange
	Channel  string // see ChannelName
	// Queues are the only queues that are listed; none: all.
	Queues []fsm.QueueID
	// Slot is that of the newest sample. Lists have samples if Listed, and at most MaxListed objects.
	Slot            int64
	Listed          bool
	Forget          bool // drop all samples; the answer is empty
	Pairs           bool // of the one object with others
	Lengths, Counts Range
}

// MaxListed is how many objects a list may have whose samples are asked for. One object has up to
// 20 KiB of them.
const MaxListed = 500

// RangeOf is the range of a counter's samples.
func (q *Query) RangeOf(c Counter) Range {
	if q.Of != peerpb.TrafficRequest_SUMS && !q.One && !q.Listed {
		return Range{0, 1}
	}
	if c.isLength() {
		return q.Lengths
	}
	return q.Counts
}

// Request is the query as it goes to other nodes.
func (q *Query) Request() *peerpb.TrafficRequest {
	var queues []uint64
	for _, id := range q.Queues {
		queues = append(queues, uint64(id))
	}
	return &peerpb.TrafficRequest{
		Queues: queues, Listed: q.Listed, Forget: q.Forget, Pairs: q.Pairs,
		Of: q.Of, One: q.One, Queue: uint64(q.Queue), Vhost: q.Exchange.VHost, Exchange: q.Exchange.Name, Channel: q.Channel, Slot: q.Slot,
		Lengths: uint32(q.Lengths.Count), LengthsStep: uint32(q.Lengths.Step), Counts: uint32(q.Counts.Count), CountsStep: uint32(q.Counts.Step),
	}
}

// QueryOf is the inverse of Request.
func QueryOf(r *peerpb.TrafficRequest) *Query {
	var queues []fsm.QueueID
	for _, id := range r.Queues {
		queues = append(queues, fsm.QueueID(id))
	}
	return &Query{
		Queues: queues, Listed: r.Listed, Forget: r.Forget, Pairs: r.Pairs,
		Of: r.Of, One: r.One, Queue: fsm.QueueID(r.Queue), Exchange: Exchange{r.Vhost, r.Exchange}, Channel: r.Channel, Slot: r.Slot,
		Lengths: Range{int(int32(r.Lengths)), int(int32(r.LengthsStep))}.within(),
		Counts:  Range{int(int32(r.Counts)), int(int32(r.CountsStep))}.within(),
	}
}

// ChannelName names a channel for people.
func ChannelName(connection string, number uint16) string {
	return fmt.Sprintf("%s (%d)", connection, number)
}

// Answer is what the table holds.
func (t *Table) Answer(q *Query) *peerpb.TrafficReply {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &peerpb.TrafficReply{ElapsedMs: uint32(min(t.newest.since.Milliseconds(), math.MaxUint32))}
	if q.Listed && t.listed(q) > MaxListed {
		few := *q
		few.Listed, q = false, &few
	}
	add := func(o *peerpb.ObjectTraffic, s *series) {
		t.describe(o, s, q)
		r.Objects = append(r.Objects, o)
	}
	switch q.Of {
	case peerpb.TrafficRequest_QUEUES:
		ids := q.Queues
		if q.One {
			ids = []fsm.QueueID{q.Queue}
		} else if len(ids) == 0 {
			ids = slices.Collect(maps.Keys(t.queues))
		}
		for _, id := range ids {
			if s := t.queues[id]; s != nil {
				publishers := s.publishers // the answer outlives the lock
				add(&peerpb.ObjectTraffic{Queue: uint64(id), Publishers: &publishers}, &s.series)
			}
		}
	case peerpb.TrafficRequest_EXCHANGES:
		for x, s := range t.exchanges {
			if !q.One || x == q.Exchange {
				add(&peerpb.ObjectTraffic{Vhost: x.VHost, IsExchange: true, Exchange: x.Name}, s)
			}
		}
	case peerpb.TrafficRequest_CHANNELS:
		for ch := range t.channels {
			if ch.origin == nil {
				continue
			}
			if name := ch.name(); !q.One || name == q.Channel {
				add(&peerpb.ObjectTraffic{Channel: name}, &ch.series)
			}
		}
	default:
		add(&peerpb.ObjectTraffic{}, &t.all)
		for name, s := range t.vhosts {
			add(&peerpb.ObjectTraffic{Vhost: name}, s)
		}
	}
	if q.One && q.Pairs {
		r.Pairs = t.answerPairs(q)
	}
	return r
}

// listed is how many objects an answer lists. The lock is held.
func (t *Table) listed(q *Query) int {
	switch {
	case q.Of == peerpb.TrafficRequest_QUEUES && len(q.Queues) > 0:
		return len(q.Queues)
	case q.Of == peerpb.TrafficRequest_QUEUES:
		return len(t.queues)
	case q.Of == peerpb.TrafficRequest_EXCHANGES:
		return len(t.exchanges)
	case q.Of == peerpb.TrafficRequest_CHANNELS:
		return len(t.channels)
	}
	return 0
}

// describe adds what is known of an object. The lock is held.
func (t *Table) describe(o *peerpb.ObjectTraffic, s *series, q *Query) {
	o.Totals = append(o.Totals, s.total[:]...)
	o.Steps = append(o.Steps, s.last[:]...)
	for c := Counter(0); c < counters; c++ {
		o.Samples = s.samples(o.Samples, c, t.newest.slot, q.Slot, q.RangeOf(c))
	}
}

// Activity is what is known of an object, summed up over nodes.
type Activity struct {
	Total Counts
	// Rate is the change in a second, between the newest samples.
	Rate [counters]float64
	// Samples are the newest first.
	Samples [counters][]uint64
	// Publishers are the open channels that have published to the queue. PublishersUnknown: a node
	// that counts for it, of another version, does not say.
	Publishers        uint64
	PublishersUnknown bool
}

// add adds what one node knows, whose newest samples are so far apart. Numbers that this program does
// not know are ignored.
func (a *Activity) add(o *peerpb.ObjectTraffic, q *Query, elapsed time.Duration) {
	a.Publishers += uint64(o.GetPublishers())
	a.PublishersUnknown = a.PublishersUnknown || o.Publishers == nil
	samples := o.Samples
	for c := Counter(0); c < counters; c++ {
		if int(c) < len(o.Totals) {
			a.Total[c] += o.Totals[c]
		}
		if int(c) < len(o.Steps) {
			a.Rate[c] += float64(o.Steps[c]) / elapsed.Seconds()
		}
		n := min(q.RangeOf(c).Count, len(samples))
		if a.Samples[c] == nil && n > 0 {
			a.Samples[c] = make([]uint64, q.RangeOf(c).Count)
		}
		for i, v := range samples[:n] {
			a.Samples[c][i] += v
		}
		samples = samples[n:]
	}
}

// Merge adds another object to a; nil: nothing is known of it.
func (a *Activity) Merge(other *Activity) {
	if other == nil {
		return
	}
	for c := range a.Total {
		a.Total[c] += other.Total[c]
		a.Rate[c] += other.Rate[c]
		if a.Samples[c] == nil {
			a.Samples[c] = make([]uint64, len(other.Samples[c]))
		}
		for i, v := range other.Samples[c] {
			a.Samples[c][i] += v
		}
	}
}

// Report is what all nodes that have answered know.
type Report struct {
	Query     *Query
	All       Activity
	VHosts    map[string]*Activity
	Queues    map[fsm.QueueID]*Activity
	Exchanges map[Exchange]*Activity
	Channels  map[string]*Activity // by name
	Pairs     []*Pair              // of the one object, if the query asks for them
	routes    map[routeOf]*Pair    // those of exchanges and queues
}

// NewReport returns an empty report.
func NewReport(q *Query) *Report {
	return &Report{
		Query: q, VHosts: map[string]*Activity{}, Queues: map[fsm.QueueID]*Activity{}, Exchanges: map[Exchange]*Activity{}, Channels: map[string]*Activity{},
		routes: map[routeOf]*Pair{},
	}
}

// Add adds the answer of a node.
func (r *Report) Add(node string, reply *peerpb.TrafficReply) {
	elapsed := Interval
	if ms := reply.GetElapsedMs(); ms > 0 {
		elapsed = max(time.Duration(ms)*time.Millisecond, shortest)
	}
	for _, o := range reply.GetObjects() {
		a := &r.All
		switch {
		case o.GetQueue() != 0:
			a = at(r.Queues, fsm.QueueID(o.Queue))
		case o.GetIsExchange():
			a = at(r.Exchanges, Exchange{o.Vhost, o.Exchange})
		case o.GetChannel() != "":
			a = at(r.Channels, o.Channel)
		case o.GetVhost() != "":
			a = at(r.VHosts, o.Vhost)
		}
		a.add(o, r.Query, elapsed)
	}
	for _, p := range reply.GetPairs() {
		r.pairFor(node, p).add(&peerpb.ObjectTraffic{Totals: p.Totals, Steps: p.Steps}, r.Query, elapsed)
	}
}

// pairFor finds or adds the pair that a node's answer is about.
func (r *Report) pairFor(node string, p *peerpb.PairTraffic) *Pair {
	var x *Exchange
	if p.IsExchange {
		x = &Exchange{p.Vhost, p.Exchange}
	}
	isRoute := p.Channel == nil && x != nil
	if isRoute && r.routes[routeOf{*x, fsm.QueueID(p.Queue)}] != nil {
		return r.routes[routeOf{*x, fsm.QueueID(p.Queue)}]
	}
	all := &Pair{Node: node, Channel: p.Channel, Exchange: x, Queue: fsm.QueueID(p.Queue)}
	if r.Pairs = append(r.Pairs, all); isRoute {
		r.routes[routeOf{*x, fsm.QueueID(p.Queue)}] = all
	}
	return all
}

func at[K comparable](in map[K]*Activity, key K) *Activity {
	a := in[key]
	if a == nil {
		a = &Activity{}
		in[key] = a
	}
	return a
}
