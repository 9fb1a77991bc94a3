package stream

import "github.com/quorate/quorate/fsm"

// Consumer is how far the deliveries of a queue to one consumer have come; of
// number 0, those to gets.
type Consumer struct {
	NoAck     bool
	Unsettled int // deliveries that the receiver has and has not settled; NoAck: 0

	last        uint64 // newest delivery that has arrived, and all before it
	requestedAt int64  // when the leader was asked for more, ms; 0: it has answered
	// behind: the leader has something after last that is not on its way.
	behind bool
}

// Position says which delivery is the last one that has arrived in order, whether
// the leader has been asked for more, and whether it has something that is not on
// its way.
func (c *Consumer) Position() (last uint64, waiting, behind bool) {
	return c.last, c.requestedAt != 0, c.behind
}

// AddConsumer makes a consumer known. The lock is held.
func (s *Stream) AddConsumer(number uint64, c *Consumer) { s.consumers[number] = c }

// RemoveConsumer forgets a consumer: what comes for it goes back. The lock is held.
func (s *Stream) RemoveConsumer(number uint64) { delete(s.consumers, number) }

// Receive takes messages of the queue. It takes the owner's lock.
func (s *Stream) Receive(d DeliveryBatch) {
	if s != nil && s.receiver != nil {
		s.route.ask(s.take(d))
	}
}

// take passes on messages, and lists what is missing.
func (s *Stream) take(d DeliveryBatch) []Resync {
	s.owner.Lock()
	defer s.owner.Unlock()
	out := d.Messages[:0]
	c := s.consumers[d.Consumer]
	if d.Resync && c != nil {
		c.requestedAt, c.behind = 0, false
	}
	full := false
	for _, m := range d.Messages {
		m.Classic = s.route.classic
		switch c := s.consumers[m.Consumer]; {
		case c == nil:
			s.AddSettle(m.Consumer, []uint64{m.ID}, fsm.Requeue) // cancelled meanwhile
		case m.ID <= c.last:
			// has been delivered
		case m.Consumer == 0:
			c.last = m.ID
			s.gotten(m)
		case m.Payload != nil && (d.Resync && !full || m.ID == c.last+1) && s.receiver.Accept(len(m.Payload)):
			s.settleSkipped(m.Consumer, c.last+1, m.ID)
			c.last = m.ID
			if !c.NoAck {
				c.Unsettled++
			}
			out = append(out, m)
		default:
			c.behind = true
			full = full || m.Payload != nil
		}
	}
	if len(out) > 0 {
		s.receiver.Deliver(out)
	}
	if d.Resync && c != nil && !full && d.Consumer != 0 && c.last < d.Last {
		s.settleSkipped(d.Consumer, c.last+1, d.Last+1)
		c.last = d.Last
		s.receiver.Passed(d.Consumer)
	}
	return s.catchUp()
}

// settleSkipped settles what the leader does not have for a consumer any more and has never come here: first and what
// follows, before end. A timeout may have taken it back, and the consumer gets nothing until all of that is settled;
// the receiver knows nothing of it.
func (s *Stream) settleSkipped(number, first, end uint64) {
	if first < end && !s.Over() {
		s.push(Pending{settle: settlement{number, fsm.Requeue, []uint64{first, end - first}}})
	}
}

// gotten gives a message to the oldest get that waits. The lock is held.
func (s *Stream) gotten(m fsm.Message) {
	for p := range s.Unanswered() {
		switch k := p.Call; {
		case k == nil:
		case k.takes:
			k.Taken = append(k.Taken, m)
			return
		case k.get && k.Got == nil:
			k.Got = &m
			return
		}
	}
	s.AddSettle(0, []uint64{m.ID}, fsm.Requeue)
}

// CatchUp asks for what consumers are behind with, as far as the receiver has
// room for the answers. It takes the owner's lock.
func (s *Stream) CatchUp() {
	s.owner.Lock()
	asks := s.catchUp()
	s.owner.Unlock()
	s.route.ask(asks)
}

func (s *Stream) catchUp() []Resync {
	var asks []Resync
	for number, c := range s.consumers {
		if !c.behind || c.requestedAt != 0 {
			continue
		}
		if !s.receiver.CanTake(len(asks) + 1) {
			break
		}
		c.requestedAt = s.route.host.Now()
		asks = append(asks, Resync{Session: s.id, Consumer: number, After: c.last})
	}
	return asks
}

// ReturnUnseen gives back what a consumer that is cancelled holds and what has
// not come here: nobody could settle it. It is called by Answered.
func (s *Stream) ReturnUnseen(number uint64) {
	if c := s.consumers[number]; c != nil && (c.behind || c.requestedAt != 0) {
		s.unseen = append(s.unseen, settlement{number, fsm.Requeue, []uint64{c.last + 1, ^uint64(0) - c.last}})
	}
}

// restart sends all again to a new leader, or lists what to ask the one there was about the commands; and
// what to ask about consumers.
func (s *Stream) restart(isNew bool) (asks []Resync) {
	s.owner.Lock()
	defer s.owner.Unlock()
	if isNew {
		s.resend()
	} else {
		asks = s.question()
	}
	for number, c := range s.consumers {
		if number != 0 || c.last != 0 {
			c.requestedAt = s.route.host.Now()
			asks = append(asks, s.askFor(number, c))
		}
	}
	return asks
}

// resume lists what to ask after a pause.
func (s *Stream) resume() []Resync {
	s.owner.Lock()
	defer s.owner.Unlock()
	return s.question()
}

// askFor asks what a consumer has missed. Gets miss notices only: one whose
// message got lost is repeated.
func (s *Stream) askFor(number uint64, c *Consumer) Resync {
	if number == 0 {
		return Resync{Session: s.id, After: ^uint64(0)}
	}
	return Resync{Session: s.id, Consumer: number, After: c.last}
}

// overdue lists what to ask, or to ask again, if that has taken too long.
func (s *Stream) overdue(now int64) []Resync {
	s.owner.Lock()
	defer s.owner.Unlock()
	return append(s.overdueCommands(now), s.unanswered(now, stuckAfter)...)
}

// unanswered lists what was asked longer than limit ago and has to be asked
// again. The lock is held.
func (s *Stream) unanswered(now, limit int64) []Resync {
	var asks []Resync
	for number, c := range s.consumers {
		if c.requestedAt != 0 && now-c.requestedAt > limit {
			c.requestedAt = now
			asks = append(asks, s.askFor(number, c))
		}
	}
	return asks
}
