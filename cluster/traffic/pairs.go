package traffic

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// maxPairs is how many pairs a node counts: more are not. Each takes up to 200 B.
const maxPairs = 50_000

// maxListedPairs is how many pairs of one object a node lists: those with the highest counts.
const maxListedPairs = 500

// step is a count of a pair. The table's lock guards it.
type step struct {
	total, sampled uint64
	last           int32 // to the newest sample, from the one before
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
		for _, s := range q.exchanges {
			f(s)
		}
	}
	for ch := range t.channels {
		for _, s := range ch.pairs.exchanges {
			f(s)
		}
		for _, u := range ch.pairs.queues {
			for i := range u {
				f(&u[i])
			}
		}
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
