package broker

import (
	"slices"
	"sync/atomic"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/stream"
)

// maxUnwritten bounds the weight of what a channel has been given and has not
// written. What comes above it stays with the queue's leader, and is asked for
// as soon as there is room for an answer.
const maxUnwritten = 4 << 20

// window is what a channel has been given of consumers' messages and has not
// written.
//
// Invariant: unwritten ≥ 0, and what is accepted begins below maxUnwritten.
type window struct {
	unwritten atomic.Int64 // weight of the messages
	hungry    atomic.Bool  // somebody is behind and waits for unwritten to fall
}

// accept counts a message, if there is room for it.
func (w *window) accept(bytes int) bool {
	if w.unwritten.Load() >= maxUnwritten {
		return false
	}
	w.unwritten.Add(int64(bytes + group.DeliveryWeight))
	return true
}

// fits reports whether there is room for so many answers of a frame each. If not,
// written will report that somebody is hungry.
func (w *window) fits(answers int) bool {
	most := int64(maxUnwritten - answers*maxFrameBytes)
	if w.unwritten.Load() <= most {
		return true
	}
	w.hungry.Store(true)
	return w.unwritten.Load() <= most // it may have fallen before hungry was set
}

// written takes messages out, and reports whether somebody hungry has room again.
func (w *window) written(count, bytes int) bool {
	left := w.unwritten.Add(-int64(bytes + count*group.DeliveryWeight))
	return left <= maxUnwritten-maxFrameBytes && w.hungry.Swap(false)
}

// consumer is what a session knows of its consumer at a queue.
type consumer struct {
	stream.Consumer
	at      *sessionQueue
	over    bool // it gets no more; its stream does not know it any longer
	revoked bool // its queue has been asked to end it, for its user may not read any more
}

// addConsumer makes a consumer known to the session and to its stream. The lock is
// held.
func (s *Session) addConsumer(q *sessionQueue, number uint64, noAck bool) {
	c := &consumer{at: q, Consumer: stream.Consumer{NoAck: noAck}}
	s.consumers[number] = c
	q.stream.AddConsumer(number, &c.Consumer)
}

// consumerOver ends a consumer. The session knows it until what the channel has
// of it is settled. The lock is held.
func (s *Session) consumerOver(number uint64) {
	c := s.consumers[number]
	if c == nil {
		return
	}
	c.at.stream.RemoveConsumer(number)
	c.over = true
	s.forgetSettled(number, c)
}

// forgetSettled forgets a consumer that is over and owes nothing. The lock is
// held.
func (s *Session) forgetSettled(number uint64, c *consumer) {
	if c.over && c.Unsettled <= 0 {
		delete(s.consumers, number)
	}
}

// Written says that the channel has written messages of consumers, or given
// them back, and how many bytes their payloads had.
func (s *Session) Written(count, bytes int) {
	if !s.written(count, bytes) {
		return
	}
	s.mu.Lock()
	queues := slices.Clone(s.order)
	s.turn++
	first := s.turn
	s.mu.Unlock()
	for i := range queues {
		queues[(first+i)%len(queues)].stream.CatchUp()
	}
}
