// Package traffic counts what the clients of a node do, and keeps samples of the counts, for rates.
//
// It promises: counting a message costs a few additions to memory that its session owns, and
// neither a lock, an atomic operation nor an allocation of its own; what was counted is in a report
// that is asked for afterwards. A Tally is what a session has counted since it was last added to the
// node's Table, which the Table's owner does for each sample and each report. Counts begin with the
// node's process. It knows nothing of sessions, and asks no other node.
package traffic

import (
	"time"

	"github.com/quorate/quorate/fsm"
)

// Tally is what a session has counted since it was last added to the table. The session's lock
// guards it.
type Tally struct {
	confirms  bool   // the session is in confirm mode
	own       Counts // Confirm, Confirmable, and what has no route
	exchanges map[string]*Counts
	recent    *Counts // of the exchange published to last; nil: none
	name      string  // of that exchange
	queues    []QueueCounts
	sizes     Sizes
}

// QueueCounts are counts of a queue. Local: it has one replica, which is not on disk.
type QueueCounts struct {
	VHost  string
	Queue  fsm.QueueID
	Local  bool
	Counts Counts
	routes map[string]*uint64
}

// Routes counts the copies of a session's messages that go to a queue, by the exchange that they were
// published to. The session's lock guards it.
type Routes struct {
	all    map[string]*uint64
	recent *uint64 // of the exchange published to last; nil: none
	name   string  // of that exchange
}

// Count counts a copy of a message that was published to an exchange.
func (r *Routes) Count(exchange string) {
	if r.recent == nil || r.name != exchange {
		r.use(exchange)
	}
	*r.recent++
}

func (r *Routes) use(exchange string) {
	if r.all == nil {
		r.all = map[string]*uint64{}
	}
	if r.recent = r.all[exchange]; r.recent == nil {
		r.recent = new(uint64)
		r.all[exchange] = r.recent
	}
	r.name = exchange
}

// Published counts a message of a size that was published to an exchange and went to this number of
// queues.
func (t *Tally) Published(exchange string, bytes, copies int, confirm bool) {
	t.sizes.count(bytes)
	if t.recent == nil || t.name != exchange {
		t.use(exchange)
	}
	t.recent[Publish]++
	t.recent[PublishOut] += uint64(copies)
	if confirm {
		t.confirms = true
		t.own[Confirmable]++
	}
}

func (t *Tally) use(exchange string) {
	if t.exchanges == nil {
		t.exchanges = map[string]*Counts{}
	}
	if t.recent = t.exchanges[exchange]; t.recent == nil {
		t.recent = &Counts{}
		t.exchanges[exchange] = t.recent
	}
	t.name = exchange
}

// Confirmed counts a message as confirmed, if the session is in confirm mode.
func (t *Tally) Confirmed() {
	if t.confirms {
		t.own[Confirm]++
	}
}

// Count counts something that belongs to neither an exchange nor a queue.
func (t *Tally) Count(c Counter) { t.own[c]++ }

// TakeQueue adds the counts that the session holds of a queue, and sets them to zero.
//
// Requires: routes counts no copy that is not among counts.
func (t *Tally) TakeQueue(q QueueCounts, counts *Counts, routes *Routes) {
	if *counts == (Counts{}) {
		return
	}
	q.Counts, *counts = *counts, Counts{}
	q.routes, *routes = routes.all, Routes{}
	t.queues = append(t.queues, q)
}

// Take returns the tally and leaves an empty one.
func (t *Tally) Take() Tally {
	taken := *t
	*t = Tally{confirms: taken.confirms}
	return taken
}

// Counter is one of the numbers that are kept of an object. Their order is that between nodes: new
// ones come at the end.
type Counter uint8

// The counters. Those down to Ack are named as in the API.
const (
	Publish           Counter = iota // messages that were published; of a queue: that were routed to it
	Confirm                          // and confirmed to their publisher
	ReturnUnroutable                 // those without a route whose publisher is told so
	DropUnroutable                   // others without a route
	Deliver                          // deliveries to consumers that acknowledge
	DeliverNoAck                     // and to those that do not
	Get                              // messages taken by a get that acknowledges
	GetNoAck                         // and by one that does not
	GetEmpty                         // gets that found nothing
	Redeliver                        // of all deliveries and gets: messages that were handed out before
	Ack                              // deliveries and gets that were acknowledged
	PublishOut                       // copies of published messages that went to queues
	Confirmable                      // messages that were published in confirm mode
	Ready                            // messages at present, in queues that the node leads
	Unacknowledged                   // checked-out messages at present, in queues that the node leads
	ConnectionCreated                // connections of clients that were opened; from here on, of the node only
	ConnectionClosed
	ChannelCreated
	ChannelClosed
	QueueDeclared // declares that were not passive, and have succeeded
	QueueCreated  // those of them that created a queue
	QueueDeleted  // on request
	Expired       // messages that expired in queues while the node led them; of queues and vhosts, too
	DeadLettered  // messages that died there, for any reason, and had a dead-letter exchange; likewise
	counters
)

// isLength reports whether a counter is a number at present rather than a count.
func (c Counter) isLength() bool { return c == Ready || c == Unacknowledged }

// Counts has a number for each counter.
type Counts [counters]uint64

// add adds other counts.
func (c *Counts) add(other *Counts) {
	for i, n := range other {
		c[i] += n
	}
}

// Of all counters of a queue, these also count for the channel, the vhost and the node: Publish
// counts copies at a queue, and messages there.
var beyondQueue = [...]Counter{Deliver, DeliverNoAck, Get, GetNoAck, GetEmpty, Redeliver, Ack}

// consume adds what sessions do with a queue's messages.
func (c *Counts) consume(queue *Counts) {
	for _, i := range beyondQueue {
		c[i] += queue[i]
	}
}

// Samples are taken at each slot: a multiple of Interval since 1970. The last Kept are kept.
const (
	Interval = 5 * time.Second
	Kept     = 120
)

// SlotAt is the slot of a time.
func SlotAt(t time.Time) int64 { return t.UnixMilli() / Interval.Milliseconds() }

// TimeOf is the time of a slot, in milliseconds since 1970.
func TimeOf(slot int64) int64 { return slot * Interval.Milliseconds() }

// maxSampled is the number of objects above which new ones have no samples, only a rate.
const maxSampled = 50_000
