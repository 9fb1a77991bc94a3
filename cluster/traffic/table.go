package traffic

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// Exchange names an exchange.
type Exchange struct{ VHost, Name string }

// Protocol is how a client is connected. What is done over HTTP, and by the node itself, counts as AMQP091.
type Protocol uint8

// The protocols.
const (
	AMQP091 Protocol = iota
	AMQP10
	Protocols // how many there are
)

// String is the name that RabbitMQ gives the protocol in its metrics.
func (p Protocol) String() string { return [Protocols]string{"amqp091", "amqp10"}[p] }

// ProtocolOf returns the protocol of a name; AMQP091 for an unknown one.
func ProtocolOf(name string) Protocol {
	if name == AMQP10.String() {
		return AMQP10
	}
	return AMQP091
}

// Totals are sums over all clients of a node since its process began.
type Totals struct {
	All Counts // deliveries, gets and acks of both kinds of queues included
	By  [Protocols]Sums
}

// Sums are those of the clients with one protocol.
type Sums struct {
	All               Counts // of messages
	Replicated, Local Counts // deliveries, gets and acks of queues with replicas, and without
	Publishers        int    // open channels that have published
	Sizes             Sizes  // of messages that were published
}

// Table holds the counts of a node.
//
// Invariant: busy has each object once that has a sample other than the newest one or an unsampled count, so
// that samples of the others would change nothing. Objects that have been dropped may be in it.
type Table struct {
	mu      sync.Mutex
	newest  moment // of the samples
	checked any    // Exists.Of when it was last checked what the cluster has; nil: an object has come since
	at      int64  // slot in which that was
	busy    []object
	pairs   int // of channels, exchanges and queues that are counted; ≤ maxPairs

	all       series
	by        [Protocols]Sums // without Publishers
	vhosts    map[string]*series
	exchanges map[Exchange]*series
	queues    map[fsm.QueueID]*queueSeries
	channels  map[*Channel]struct{}
}

// object is what has samples.
type object interface {
	counted() *series
	// eachStep calls f for the counts of the pairs that the object holds.
	eachStep(f func(*step))
}

type queueSeries struct {
	series
	vhost      string
	exchanges  map[string]*step // copies that came from exchanges of the vhost
	publishers uint32           // open channels whose pair with the queue has publishes
}

// Channel is a channel of a client, or another session, as long as it is open.
type Channel struct {
	series
	vhost    string
	protocol Protocol
	// origin describes where its client is; nil: it has none.
	origin func() *peerpb.ConsumingSession
	pairs  channelPairs
}

// name names a channel with an origin for people.
func (ch *Channel) name() string {
	at := ch.origin()
	return ChannelName(at.Connection, uint16(at.Channel))
}

// NewTable returns an empty table.
func NewTable() *Table {
	return &Table{
		vhosts: map[string]*series{}, exchanges: map[Exchange]*series{}, queues: map[fsm.QueueID]*queueSeries{},
		channels: map[*Channel]struct{}{},
	}
}

// isCounted reports whether the channel counts among those that clients open and close: sessions of AMQP 1.0 are none.
func (ch *Channel) isCounted() bool { return ch.origin != nil && ch.protocol == AMQP091 }

// Open adds a channel.
func (t *Table) Open(vhost string, p Protocol, origin func() *peerpb.ConsumingSession) *Channel {
	ch := &Channel{vhost: vhost, protocol: p, origin: origin}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.channels[ch] = struct{}{}
	if ch.isCounted() {
		t.all.total[ChannelCreated]++
	}
	return ch
}

// Close removes a channel. What it has counted stays in the sums.
func (t *Table) Close(ch *Channel) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.channels, ch)
	ch.dropped = true
	if t.closePairs(ch); ch.isCounted() {
		t.all.total[ChannelClosed]++
	}
}

// Count counts something that belongs to the node only.
func (t *Table) Count(c Counter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all.total[c]++
}

// Died counts messages of a queue that expired, and that were dead-lettered, while the node led it. vhost
// empty: there is no such queue any more.
func (t *Table) Died(vhost string, id fsm.QueueID, expired, deadLettered uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	add := func(s *series) {
		s.total[Expired] += expired
		s.total[DeadLettered] += deadLettered
	}
	if add(&t.all); vhost != "" {
		add(entry(t, t.vhosts, vhost))
		add(&t.queue(id, vhost).series)
	}
}

// Add adds what a channel has counted.
func (t *Table) Add(ch *Channel, more *Tally) {
	if more.own == (Counts{}) && len(more.exchanges) == 0 && len(more.queues) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	by := &t.by[ch.protocol]
	by.Sizes.add(&more.sizes)
	sum := more.own
	for name, c := range more.exchanges {
		entry(t, t.exchanges, Exchange{ch.vhost, name}).total.add(c)
		sum.add(c)
	}
	for i := range more.queues {
		q := &more.queues[i]
		s := t.queue(q.Queue, q.VHost)
		s.total.add(&q.Counts)
		sum.consume(&q.Counts)
		kind := &by.Replicated
		if q.Local {
			kind = &by.Local
		}
		kind.consume(&q.Counts)
	}
	t.use(ch)
	ch.total.add(&sum)
	entry(t, t.vhosts, ch.vhost).total.add(&sum)
	by.All.add(&sum)
	t.all.total.add(&sum)
	t.addPairs(ch, more)
}

// entry finds or makes the series of an object that is about to count something. The lock is held.
func entry[K comparable](t *Table, in map[K]*series, key K) *series {
	s := in[key]
	if s == nil {
		s = &series{}
		in[key], t.checked = s, nil
	}
	t.use(s)
	return s
}

// queue is entry for a queue.
func (t *Table) queue(id fsm.QueueID, vhost string) *queueSeries {
	s := t.queues[id]
	if s == nil {
		s = &queueSeries{vhost: vhost}
		t.queues[id], t.checked = s, nil
	}
	t.use(s)
	return s
}

// use has the next samples include an object.
func (t *Table) use(o object) {
	if s := o.counted(); !s.busy {
		s.busy = true
		t.busy = append(t.busy, o)
	}
}

// Totals returns the sums of what has been added.
func (t *Table) Totals() Totals {
	t.mu.Lock()
	defer t.mu.Unlock()
	sums := Totals{All: t.all.total, By: t.by}
	for ch := range t.channels {
		if ch.total[Publish] > 0 {
			sums.By[ch.protocol].Publishers++
		}
	}
	return sums
}

// Each calls f for the counts of each queue, exchange and channel; one of the first three is set.
// The counts are f's.
func (t *Table) Each(f func(q fsm.QueueID, x *Exchange, channel string, c *Counts)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, s := range t.queues {
		c := s.total
		f(id, nil, "", &c)
	}
	for x, s := range t.exchanges {
		c := s.total
		f(0, &x, "", &c)
	}
	for ch := range t.channels {
		if ch.origin != nil {
			c := ch.total
			f(0, nil, ch.name(), &c)
		}
	}
}

// Length is how many messages a queue has that the node leads; of one that it does not lead any more, none.
type Length struct {
	VHost                 string
	Queue                 fsm.QueueID
	Ready, Unacknowledged uint64
}

// Exists reports which objects the cluster has.
type Exists struct {
	Of       any // what it reports of: if that is the same as at a check, so is what it reports
	VHost    func(string) bool
	Exchange func(Exchange) bool
	Queue    func(fsm.QueueID) bool
}

// Sample takes the samples of a time's slot: of what has been added, and of the lengths of queues, of which
// those are listed that have changed. Objects that the cluster does not have any more are dropped, many of
// them somewhat later. There are no samples unless the slot is above that of the samples before.
func (t *Table) Sample(at time.Time, changed []Length, has Exists) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setLengths(changed)
	now, due := t.newest.next(at)
	if !due {
		return
	}
	if (t.checked == nil || has.Of != t.checked) && now.slot-t.at >= int64(t.count()/dropAtOnce) {
		t.drop(has)
		t.checked, t.at = has.Of, now.slot
	}
	gap, keep := now.slot-t.newest.slot, t.count() <= maxSampled
	if t.newest.slot == 0 {
		gap = 1
	}
	t.newest = now
	t.all.sample(now.slot, gap, keep)
	t.busy = slices.DeleteFunc(t.busy, func(o object) bool {
		s := o.counted()
		if s.dropped {
			return true
		}
		s.sample(now.slot, gap, keep)
		o.eachStep((*step).sample)
		s.busy = s.idle < Kept
		return !s.busy
	})
}

// dropAtOnce bounds how many objects are checked per slot, on average, whether the cluster still has them.
const dropAtOnce = 5000

// count is how many objects there are.
func (t *Table) count() int {
	return 1 + len(t.vhosts) + len(t.exchanges) + len(t.queues) + len(t.channels)
}

// ForgetSamples drops all samples and rates, at a time from which the next rates count. The counts stay.
func (t *Table) ForgetSamples(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.newest.slot > 0 {
		t.newest.at = at
	}
	t.each((*series).forget)
	t.eachStep((*step).forget)
}

// each calls f for all series. The lock is held.
func (t *Table) each(f func(*series)) {
	f(&t.all)
	for _, s := range t.vhosts {
		f(s)
	}
	for _, s := range t.exchanges {
		f(s)
	}
	for _, s := range t.queues {
		f(&s.series)
	}
	for ch := range t.channels {
		f(&ch.series)
	}
}

// drop forgets what does not exist any more.
func (t *Table) drop(has Exists) {
	gone := false // an exchange or a queue
	for x, s := range t.exchanges {
		if !has.Exchange(x) {
			delete(t.exchanges, x)
			s.dropped, gone = true, true
		}
	}
	for id, q := range t.queues {
		if !has.Queue(id) {
			t.setLength(q, Length{})
			t.pairs -= len(q.exchanges)
			delete(t.queues, id)
			q.dropped, gone = true, true
		}
	}
	for name, s := range t.vhosts {
		if !has.VHost(name) {
			delete(t.vhosts, name)
			s.dropped = true
		}
	}
	if gone {
		t.dropPairs(has)
	}
}

// setLengths sets the lengths of queues, and those of vhosts and the node, which are their sums.
func (t *Table) setLengths(list []Length) {
	for _, l := range list {
		q := t.queues[l.Queue]
		if q == nil && (l.Ready > 0 || l.Unacknowledged > 0) {
			q = t.queue(l.Queue, l.VHost)
		}
		if q != nil {
			t.setLength(q, l)
		}
	}
}

func (t *Table) setLength(q *queueSeries, l Length) {
	ready, held := l.Ready-q.total[Ready], l.Unacknowledged-q.total[Unacknowledged]
	if ready == 0 && held == 0 {
		return
	}
	t.use(q)
	for _, s := range [...]*series{&q.series, entry(t, t.vhosts, q.vhost), &t.all} {
		s.total[Ready] += ready
		s.total[Unacknowledged] += held
	}
}

// maxPairs is how many pairs a node counts: more are not. Each takes up to 200 B.
const maxPairs = 50_000

// maxListedPairs is how many pairs of one object a node lists: those with the highest counts.
const maxListedPairs = 500

// step is a count of a pair. The table's lock guards it.
type step struct {
	total, sampled uint64
	last           int32 // to the newest sample, from the one before
}

func (s *series) counted() *series     { return s }
func (s *series) eachStep(func(*step)) {}

func (q *queueSeries) eachStep(f func(*step)) {
	for _, s := range q.exchanges {
		f(s)
	}
}

func (ch *Channel) eachStep(f func(*step)) {
	for _, s := range ch.pairs.exchanges {
		f(s)
	}
	for _, u := range ch.pairs.queues {
		for i := range u {
			f(&u[i])
		}
	}
}

func (s *step) sample() { s.last, s.sampled = clamp(int64(s.total-s.sampled)), s.total }
func (s *step) forget() { s.last, s.sampled = 0, s.total }

// used is what a channel does with a queue: the counters of usedCounters.
type used [1 + len(beyondQueue)]step

// usedCounters are Publish and those of beyondQueue.
var usedCounters = append([]Counter{Publish}, beyondQueue[:]...)

// channelPairs are the pairs of an open channel, by the other one.
type channelPairs struct {
	exchanges map[string]*step // messages that it published there
	queues    map[fsm.QueueID]*used
}

// spare reports whether another pair may be counted, and counts it. The lock is held.
func (t *Table) spare() bool {
	if t.pairs >= maxPairs {
		return false
	}
	t.pairs++
	return true
}

// addPairs adds what a channel has counted to its pairs. The lock is held.
func (t *Table) addPairs(ch *Channel, more *Tally) {
	for i := range more.queues {
		t.addRoutes(t.queue(more.queues[i].Queue, more.queues[i].VHost), more.queues[i].routes)
	}
	if _, open := t.channels[ch]; !open || ch.origin == nil {
		return
	}
	for name, c := range more.exchanges {
		if s := pairOf(t, &ch.pairs.exchanges, name); s != nil {
			s.total += c[Publish]
		}
	}
	for i := range more.queues {
		q := &more.queues[i]
		u := pairOf(t, &ch.pairs.queues, q.Queue)
		if u == nil {
			continue
		}
		if u[0].total == 0 && q.Counts[Publish] > 0 {
			t.queue(q.Queue, q.VHost).publishers++
		}
		for k, c := range usedCounters {
			u[k].total += q.Counts[c]
		}
	}
}

// addRoutes adds the copies that came to a queue from exchanges. The lock is held.
func (t *Table) addRoutes(q *queueSeries, routes map[string]*uint64) {
	for name, n := range routes {
		if s := pairOf(t, &q.exchanges, name); s != nil {
			s.total += *n
		}
	}
}

// pairOf finds or adds a pair; nil: there are too many. The lock is held.
func pairOf[K comparable, V any](t *Table, in *map[K]*V, key K) *V {
	v := (*in)[key]
	if v == nil && t.spare() {
		if *in == nil {
			*in = map[K]*V{}
		}
		v = new(V)
		(*in)[key] = v
	}
	return v
}

// closePairs forgets the pairs of a channel. The lock is held.
func (t *Table) closePairs(ch *Channel) {
	t.pairs -= len(ch.pairs.exchanges) + len(ch.pairs.queues)
	for id, u := range ch.pairs.queues {
		if q := t.queues[id]; q != nil && u[0].total > 0 {
			q.publishers--
		}
	}
	ch.pairs = channelPairs{}
}

// dropPairs forgets the pairs of objects that the cluster does not have any more. The lock is held.
func (t *Table) dropPairs(has Exists) {
	for _, q := range t.queues {
		for name := range q.exchanges {
			if !has.Exchange(Exchange{q.vhost, name}) {
				delete(q.exchanges, name)
				t.pairs--
			}
		}
	}
	for ch := range t.channels {
		for name := range ch.pairs.exchanges {
			if !has.Exchange(Exchange{ch.vhost, name}) {
				delete(ch.pairs.exchanges, name)
				t.pairs--
			}
		}
		for id := range ch.pairs.queues {
			if !has.Queue(id) {
				delete(ch.pairs.queues, id)
				t.pairs--
			}
		}
	}
}

// eachStep calls f for the counts of all pairs. The lock is held.
func (t *Table) eachStep(f func(*step)) {
	for _, q := range t.queues {
		q.eachStep(f)
	}
	for ch := range t.channels {
		ch.eachStep(f)
	}
}

// answerPairs lists the pairs of the one object that a query is about. The lock is held.
func (t *Table) answerPairs(q *Query) (list []*peerpb.PairTraffic) {
	published := func(p *peerpb.PairTraffic, s *step) {
		p.Totals, p.Steps = make([]uint64, Publish+1), make([]int32, Publish+1)
		p.Totals[Publish], p.Steps[Publish] = s.total, s.last
		list = append(list, p)
	}
	uses := func(p *peerpb.PairTraffic, u *used) {
		p.Totals, p.Steps = make([]uint64, Ack+1), make([]int32, Ack+1)
		for k, c := range usedCounters {
			p.Totals[c], p.Steps[c] = u[k].total, u[k].last
		}
		list = append(list, p)
	}
	switch q.Of {
	case peerpb.TrafficRequest_QUEUES:
		if of := t.queues[q.Queue]; of != nil {
			for name, s := range of.exchanges {
				published(&peerpb.PairTraffic{Vhost: of.vhost, IsExchange: true, Exchange: name, Queue: uint64(q.Queue)}, s)
			}
		}
		for ch := range t.channels {
			if u := ch.pairs.queues[q.Queue]; u != nil {
				uses(&peerpb.PairTraffic{Channel: ch.origin(), Queue: uint64(q.Queue)}, u)
			}
		}
	case peerpb.TrafficRequest_EXCHANGES:
		x := q.Exchange
		for id, of := range t.queues {
			if s := of.exchanges[x.Name]; s != nil && of.vhost == x.VHost {
				published(&peerpb.PairTraffic{Vhost: x.VHost, IsExchange: true, Exchange: x.Name, Queue: uint64(id)}, s)
			}
		}
		for ch := range t.channels {
			if s := ch.pairs.exchanges[x.Name]; s != nil && ch.vhost == x.VHost {
				published(&peerpb.PairTraffic{Vhost: x.VHost, IsExchange: true, Exchange: x.Name, Channel: ch.origin()}, s)
			}
		}
	case peerpb.TrafficRequest_CHANNELS:
		for ch := range t.channels {
			if ch.origin == nil || ch.name() != q.Channel {
				continue
			}
			at := ch.origin()
			for name, s := range ch.pairs.exchanges {
				published(&peerpb.PairTraffic{Channel: at, Vhost: ch.vhost, IsExchange: true, Exchange: name}, s)
			}
			for id, u := range ch.pairs.queues {
				uses(&peerpb.PairTraffic{Channel: at, Queue: uint64(id)}, u)
			}
		}
	}
	sum := func(p *peerpb.PairTraffic) (n uint64) {
		for _, x := range p.Totals {
			n += x
		}
		return n
	}
	slices.SortFunc(list, func(a, b *peerpb.PairTraffic) int { return cmp.Compare(sum(b), sum(a)) })
	return list[:min(len(list), maxListedPairs)]
}

// Pair is what is known of two of a channel, an exchange and a queue. Of an exchange and a queue there
// is one, summed up over nodes.
type Pair struct {
	Node     string                   // of the channel
	Channel  *peerpb.ConsumingSession // nil: it is about the other two
	Exchange *Exchange                // nil: likewise
	Queue    fsm.QueueID              // 0: likewise
	Activity
}

// routeOf names the pair of an exchange and a queue.
type routeOf struct {
	exchange Exchange
	queue    fsm.QueueID
}
