package traffic

import (
	"sync"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// Exchange names an exchange.
type Exchange struct{ VHost, Name string }

// Totals are sums over all clients of a node since its process began.
type Totals struct {
	All               Counts // deliveries, gets and acks of both kinds of queues included
	Replicated, Local Counts // those of queues with replicas, and without
	Publishers        int    // open channels that have published
	Sizes             Sizes  // of messages that were published
}

// Table holds the counts of a node.
type Table struct {
	mu     sync.Mutex
	newest moment // of the samples
	count  int    // objects, at the newest sample
	pairs  int    // of channels, exchanges and queues that are counted; ≤ maxPairs

	all               series
	replicated, local Counts
	sizes             Sizes
	vhosts            map[string]*series
	exchanges         map[Exchange]*series
	queues            map[fsm.QueueID]*queueSeries
	channels          map[*Channel]struct{}
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
	vhost string
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

// Open adds a channel.
func (t *Table) Open(vhost string, origin func() *peerpb.ConsumingSession) *Channel {
	ch := &Channel{vhost: vhost, origin: origin}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.channels[ch] = struct{}{}
	if origin != nil {
		t.all.total[ChannelCreated]++
	}
	return ch
}

// Close removes a channel. What it has counted stays in the sums.
func (t *Table) Close(ch *Channel) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.channels, ch)
	if t.closePairs(ch); ch.origin != nil {
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
		add(entry(t.vhosts, vhost))
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
	t.sizes.add(&more.sizes)
	sum := more.own
	for name, c := range more.exchanges {
		entry(t.exchanges, Exchange{ch.vhost, name}).total.add(c)
		sum.add(c)
	}
	for i := range more.queues {
		q := &more.queues[i]
		s := t.queue(q.Queue, q.VHost)
		s.total.add(&q.Counts)
		sum.consume(&q.Counts)
		kind := &t.replicated
		if q.Local {
			kind = &t.local
		}
		kind.consume(&q.Counts)
	}
	ch.total.add(&sum)
	entry(t.vhosts, ch.vhost).total.add(&sum)
	t.all.total.add(&sum)
	t.addPairs(ch, more)
}

func entry[K comparable](in map[K]*series, key K) *series {
	s := in[key]
	if s == nil {
		s = &series{}
		in[key] = s
	}
	return s
}

func (t *Table) queue(id fsm.QueueID, vhost string) *queueSeries {
	s := t.queues[id]
	if s == nil {
		s = &queueSeries{vhost: vhost}
		t.queues[id] = s
	}
	return s
}

// Totals returns the sums of what has been added.
func (t *Table) Totals() Totals {
	t.mu.Lock()
	defer t.mu.Unlock()
	sums := Totals{All: t.all.total, Replicated: t.replicated, Local: t.local, Sizes: t.sizes}
	for ch := range t.channels {
		if ch.total[Publish] > 0 {
			sums.Publishers++
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

// Length is how many messages a queue that the node leads has.
type Length struct {
	VHost                 string
	Queue                 fsm.QueueID
	Ready, Unacknowledged uint64
}

// Exists reports which objects the cluster has.
type Exists struct {
	VHost    func(string) bool
	Exchange func(Exchange) bool
	Queue    func(fsm.QueueID) bool
}

// Sample takes the samples of a time's slot: of what has been added, and of the lengths of all queues
// that the node leads. Objects that the cluster does not have any more are dropped. Nothing happens
// unless the slot is above that of the samples before.
func (t *Table) Sample(at time.Time, lengths []Length, has Exists) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, due := t.newest.next(at)
	if !due {
		return
	}
	t.drop(has)
	t.setLengths(lengths)
	gap, keep := now.slot-t.newest.slot, t.count <= maxSampled
	if t.newest.slot == 0 {
		gap = 1
	}
	t.newest = now
	t.count = 0
	t.each(func(s *series) {
		t.count++
		s.sample(now.slot, gap, keep)
	})
	t.eachStep((*step).sample)
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
	for name := range t.vhosts {
		if !has.VHost(name) {
			delete(t.vhosts, name)
		}
	}
	gone := false // an exchange or a queue
	for x := range t.exchanges {
		if !has.Exchange(x) {
			delete(t.exchanges, x)
			gone = true
		}
	}
	for id, q := range t.queues {
		if !has.Queue(id) {
			t.pairs -= len(q.exchanges)
			delete(t.queues, id)
			gone = true
		}
	}
	if gone {
		t.dropPairs(has)
	}
}

// setLengths sets the lengths of queues, and of vhosts and the node as their sums. Queues that are
// not listed have none.
func (t *Table) setLengths(list []Length) {
	t.each(func(s *series) { s.total[Ready], s.total[Unacknowledged] = 0, 0 })
	for i := range list {
		l := &list[i]
		if l.Ready == 0 && l.Unacknowledged == 0 {
			continue
		}
		for _, s := range [...]*series{&t.queue(l.Queue, l.VHost).series, entry(t.vhosts, l.VHost), &t.all} {
			s.total[Ready] += l.Ready
			s.total[Unacknowledged] += l.Unacknowledged
		}
	}
}
