package broker

import (
	"slices"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
)

// maxUnwritten bounds the weight of what a channel has been given and has not
// written. What comes above it stays with the queue's leader, and is asked for
// as soon as there is room for an answer.
const maxUnwritten = 4 << 20

// consumer is what a session knows of its consumer at a queue; number 0 are gets.
type consumer struct {
	last  uint64 // newest delivery that has arrived, and all before it
	asked int64  // when the leader was asked for more, ms; 0: it has answered
	// behind: the leader has something after last that is not on its way.
	behind bool

	lane      *lane
	noAck     bool
	unsettled int  // deliveries that the channel has and has not settled; noAck: 0
	over      bool // it gets no more; its lane does not know it any longer
	revoked   bool // its queue has been asked to end it, for its user may not read any more
}

// addConsumer makes a consumer known to the session and to its lane. The lock is
// held.
func (s *Session) addConsumer(l *lane, number uint64, noAck bool) {
	c := &consumer{lane: l, noAck: noAck}
	l.consumers[number], s.consumers[number] = c, c
}

// consumerOver ends a consumer. The session knows it until what the channel has
// of it is settled. The lock is held.
func (s *Session) consumerOver(number uint64) {
	c := s.consumers[number]
	if c == nil {
		return
	}
	delete(c.lane.consumers, number)
	c.over = true
	s.forgetSettled(number, c)
}

// forgetSettled forgets a consumer that is over and owes nothing. The lock is
// held.
func (s *Session) forgetSettled(number uint64, c *consumer) {
	if c.over && c.unsettled <= 0 {
		delete(s.consumers, number)
	}
}

// deliver takes messages of one queue.
func (s *Session) deliver(l *lane, d delivered) {
	l.target.ask(s.take(l, d))
}

// take passes on messages of one queue, and lists what is missing.
func (s *Session) take(l *lane, d delivered) []resyncAsk {
	s.mu.Lock()
	defer s.release()
	out := d.messages[:0]
	c := l.consumers[d.who]
	if d.resync && c != nil {
		c.asked, c.behind = 0, false
	}
	full := false
	for i, number := range d.consumer {
		m := d.messages[i]
		m.Local = l.target.local
		switch c := l.consumers[number]; {
		case c == nil:
			l.addSettle(number, []uint64{m.ID}, fsm.Requeue) // cancelled meanwhile
		case m.ID <= c.last:
			// has been delivered
		case number == 0:
			c.last = m.ID
			m.Consumer = getToken | l.index
			l.gotten(m)
		case m.Payload != nil && (d.resync && !full || m.ID == c.last+1) && s.accept(&m):
			c.last = m.ID
			if !c.noAck {
				c.unsettled++
			}
			m.Consumer = number
			out = append(out, m)
		default:
			c.behind = true
			full = full || m.Payload != nil
		}
	}
	if d.resync && c != nil && !full && d.who != 0 {
		c.last = max(c.last, d.upto)
	}
	if len(out) > 0 {
		s.events = append(s.events, event{kind: eventDeliver, messages: out})
	}
	return s.catchUp(l)
}

// accept counts a message for a consumer, if there is room for it.
func (s *Session) accept(m *fsm.Message) bool {
	if s.unwritten.Load() >= maxUnwritten {
		return false
	}
	s.unwritten.Add(int64(len(m.Payload)) + group.DeliveryWeight)
	return true
}

// gotten gives a message to the oldest get that waits. The lock is held.
func (l *lane) gotten(m fsm.Message) {
	for i := l.head; i < len(l.pending); i++ {
		if k := l.pending[i].call; k != nil && k.get && k.got == nil {
			k.got = &m
			return
		}
	}
	l.addSettle(0, []uint64{m.ID}, fsm.Requeue)
}

// catchUp lists what a lane's consumers have to ask for that are behind, as
// far as there is room for the answers. The lock is held.
func (s *Session) catchUp(l *lane) []resyncAsk {
	var asks []resyncAsk
	for number, c := range l.consumers {
		if !c.behind || c.asked != 0 {
			continue
		}
		if !s.mayAsk(len(asks)) {
			break
		}
		c.asked = l.target.broker.now()
		asks = append(asks, resyncAsk{l.id, number, c.last})
	}
	return asks
}

// mayAsk reports whether there is room for one answer more than those that
// are on their way. If not, Written will find somebody hungry.
func (s *Session) mayAsk(asked int) bool {
	most := int64(maxUnwritten - (asked+1)*maxFrameBytes)
	if s.unwritten.Load() <= most {
		return true
	}
	s.hungry.Store(true)
	return s.unwritten.Load() <= most // it may have fallen before hungry was set
}

// Written says that the channel has written messages of consumers, or given
// them back, and how many bytes their payloads had.
func (s *Session) Written(count, bytes int) {
	left := s.unwritten.Add(-int64(bytes + count*group.DeliveryWeight))
	if left > maxUnwritten-maxFrameBytes || !s.hungry.Swap(false) {
		return
	}
	s.mu.Lock()
	lanes := slices.Clone(s.order)
	s.turn++
	first := s.turn
	s.mu.Unlock()
	for i := range lanes {
		s.mu.Lock()
		l := lanes[(first+i)%len(lanes)]
		asks := s.catchUp(l)
		s.mu.Unlock()
		if len(asks) > 0 {
			l.target.ask(asks)
		}
	}
}

// returnUnseen gives back what a consumer that is cancelled holds and what has
// not come here: nobody could settle it. The lock is held.
func (l *lane) returnUnseen(number uint64) {
	if c := l.consumers[number]; c != nil && (c.behind || c.asked != 0) {
		l.unseen = append(l.unseen, settle{number, fsm.Requeue, []uint64{c.last + 1, ^uint64(0) - c.last}})
	}
}
