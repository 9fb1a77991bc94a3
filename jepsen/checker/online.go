package checker

import (
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// Online checks messages while a run goes on. It keeps five bits and four bytes of each, so
// that a run can have tens of millions. Its verdicts are those of Lost, Unanswered, Ghosts,
// Doubled and Disorder, with two differences: order is checked for each consumer, so that a
// queue can have several; and a delivery after an ack that was known to hold counts only if
// its subscription began after that, as what came before may have been on its way.
//
// It records what clients do and see, as a history does, and counts it in one.
type Online struct {
	h   *history.History
	now func() time.Duration

	mu       sync.Mutex
	messages uint64                        // so far
	missing  int                           // confirmed and not received
	streams  []*stream                     // by their numbers; the first is nil
	numbers  map[origin]int                // of streams
	attempts map[uint64]uint64             // message that is not confirmed → key of its newest attempt
	calls    map[uint64]call               // key without an answer → its publish
	sessions map[session]time.Duration     // when each was about to subscribe
	newest   map[string]map[channel]uint64 // consumer → the newest first delivery of each channel
	ghosts   problems
	doubled  problems
	disorder problems
}

// origin is who has published a message, and where it must arrive.
type origin struct{ publisher, queue string }

// session is a subscription of a consumer.
type session struct {
	consumer string
	epoch    int
}

// channel is what a stream has published on one connection.
type channel struct{ stream, epoch int }

type call struct {
	message uint64
	at      time.Duration
}

// stream is all that one publisher has published to one queue. Its attempts are numbered:
// 1 ≤ number ≤ published.
type stream struct {
	origin
	published uint64
	first     []uint64 // number on each connection; first[i] ≤ first[i+1]
	confirmed bits
	refused   bits
	repeated  bits     // there is a later attempt at the same message
	received  bits     // unmarked ⊆ received
	unmarked  bits     // received without being marked as redelivered
	settled   []uint32 // millisecond after that in which an ack was known to hold; 0: none was
}

// numberBits are the bits of a key that number an attempt of its stream. The others are the
// stream's own number.
const numberBits = 40

// bits is a set of numbers.
type bits []uint64

func (b bits) has(n uint64) bool { return n/64 < uint64(len(b)) && b[n/64]&(1<<(n%64)) != 0 }

func (b *bits) set(n uint64) {
	for n/64 >= uint64(len(*b)) {
		*b = append(*b, 0)
	}
	(*b)[n/64] |= 1 << (n % 64)
}

// NewOnline returns a checker that counts in a history, whose clock it has.
func NewOnline(h *history.History) *Online {
	return &Online{
		h: h, now: h.Now, streams: []*stream{nil}, numbers: map[origin]int{}, attempts: map[uint64]uint64{}, calls: map[uint64]call{},
		sessions: map[session]time.Duration{}, newest: map[string]map[channel]uint64{},
		ghosts: problems{name: "ghost"}, doubled: problems{name: "doubled"}, disorder: problems{name: "disorder"},
	}
}

// NextMessage returns a number for a message that a client is going to publish.
func (o *Online) NextMessage() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.messages++
	return o.messages
}

// Begin records that a publish is about to be called, and returns its key, which is not 0.
// Another attempt at a message means that there will be no answer to the one before, or that
// it was refused.
func (o *Online) Begin(a history.Attempt) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	from := origin{a.Publisher, a.Queue}
	n := o.numbers[from]
	if n == 0 {
		n = len(o.streams)
		o.numbers[from] = n
		o.streams = append(o.streams, &stream{origin: from})
	}
	s := o.streams[n]
	s.published++
	for len(s.first) < a.Epoch {
		s.first = append(s.first, s.published)
	}
	if before, again := o.attempts[a.Message]; again {
		old, number := o.find(before)
		old.repeated.set(number)
		delete(o.calls, before)
	}
	key := uint64(n)<<numberBits | s.published
	o.attempts[a.Message], o.calls[key] = key, call{a.Message, o.now()}
	o.h.CountPublish()
	return key
}

// find returns the stream of a key, and the attempt's number; nil: no such attempt was made.
func (o *Online) find(key uint64) (s *stream, number uint64) {
	n := key >> numberBits
	if n == 0 || n >= uint64(len(o.streams)) {
		return nil, 0
	}
	s, number = o.streams[n], key&(1<<numberBits-1)
	if number == 0 || number > s.published {
		return nil, 0
	}
	return s, number
}

// End records the answer to a publish.
func (o *Online) End(key uint64, r history.Result) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s, number := o.find(key)
	published := o.calls[key]
	switch delete(o.calls, key); r {
	case history.OK:
		s.confirmed.set(number)
		if !s.received.has(number) {
			o.missing++
		}
		delete(o.attempts, published.message)
		o.h.CountConfirm(s.queue, o.now()-published.at)
	case history.No:
		s.refused.set(number)
		if s.received.has(number) {
			o.ghosts.add("message %d of %s came from queue %s and was refused", number, s.publisher, s.queue)
		}
	}
}

// Subscribes records that a consumer is about to subscribe.
func (o *Online) Subscribes(consumer string, epoch int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sessions[session{consumer, epoch}] = o.now()
	delete(o.sessions, session{consumer, epoch - 1})
}

// Deliver records a delivery and returns its key.
func (o *Online) Deliver(d history.Delivery) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.h.CountDelivery(d.Redelivered)
	s, number := o.find(d.Key)
	switch {
	case d.Key == 0:
		o.ghosts.add("a damaged body from queue %s at %v", d.Queue, o.now())
	case s == nil:
		o.ghosts.add("what nobody has published (key %d) from queue %s at %v", d.Key, d.Queue, o.now())
	case s.queue != d.Queue:
		o.ghosts.add("message %d of %s to queue %s came from %s", number, s.publisher, s.queue, d.Queue)
	default:
		if s.refused.has(number) {
			o.ghosts.add("message %d of %s was refused and came from queue %s at %v", number, s.publisher, s.queue, o.now())
		}
		o.again(s, number, d)
		if !d.Redelivered {
			o.order(s, number, d)
			s.unmarked.set(number)
		}
		if s.confirmed.has(number) && !s.received.has(number) {
			o.missing--
		}
		s.received.set(number)
	}
	return int(d.Key)
}

// again finds deliveries that should not have come again.
func (o *Online) again(s *stream, number uint64, d history.Delivery) {
	if s.unmarked.has(number) && !d.Redelivered {
		o.doubled.add("message %d of %s came from queue %s again at %v, not marked as redelivered", number, s.publisher, s.queue, o.now())
		return
	}
	began, known := o.sessions[session{d.Consumer, d.Epoch}]
	if !known || number >= uint64(len(s.settled)) || s.settled[number] == 0 {
		return
	}
	if by := time.Duration(s.settled[number]) * time.Millisecond; began >= by {
		o.doubled.add("message %d of %s in queue %s was acked for certain by %v and came again at %v to a subscription of %v", number, s.publisher, s.queue, by, o.now(), began)
	}
}

// order finds first deliveries to a consumer in another order than that in which a
// connection published them.
func (o *Online) order(s *stream, number uint64, d history.Delivery) {
	epoch, _ := slices.BinarySearch(s.first, number+1)
	on := channel{o.numbers[s.origin], epoch}
	last := o.newest[d.Consumer]
	if last == nil {
		last = map[channel]uint64{}
		o.newest[d.Consumer] = last
	}
	if before := last[on]; before > number {
		o.disorder.add("message %d of %s came from queue %s at %v behind message %d of the same channel", number, s.publisher, s.queue, o.now(), before)
	}
	last[on] = number
}

// Acked records that acks of deliveries were sent, which proves nothing.
func (o *Online) Acked([]int) {}

// Settled records that the acks of these deliveries, identified by their keys, are known to
// hold.
func (o *Online) Settled(keys []int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := uint32(o.now()/time.Millisecond) + 1
	for _, key := range keys {
		s, number := o.find(uint64(key))
		if s == nil {
			continue
		}
		for uint64(len(s.settled)) <= number {
			s.settled = append(s.settled, 0)
		}
		if s.settled[number] == 0 {
			s.settled[number] = now
		}
	}
}

// Missing counts confirmed attempts that no consumer has received yet.
func (o *Online) Missing() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.missing
}

// OnlineVerdicts is how many verdicts an Online checker has.
const OnlineVerdicts = 5

// Verdicts returns what was found, once the run is over.
func (o *Online) Verdicts() []Verdict {
	o.mu.Lock()
	defer o.mu.Unlock()
	lost, unanswered := problems{name: "lost"}, problems{name: "unanswered"}
	for _, s := range o.streams[1:] {
		for n := uint64(1); n <= s.published; n++ {
			if s.confirmed.has(n) && !s.received.has(n) {
				lost.add("message %d of %s was confirmed and never reached queue %s", n, s.publisher, s.queue)
			}
			if !s.confirmed.has(n) && !s.repeated.has(n) {
				unanswered.add("message %d of %s to queue %s was not confirmed, and not published again", n, s.publisher, s.queue)
			}
		}
	}
	return []Verdict{lost.found(), unanswered.found(), o.ghosts.found(), o.doubled.found(), o.disorder.found()}
}
