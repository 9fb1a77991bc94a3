package session

import (
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
)

// openTraffic opens the session's record in the table.
func (s *Session) openTraffic() {
	origin := s.origin
	if _, ok := s.client.(located); !ok {
		origin = nil
	}
	s.traffic = s.conn.in.Traffic.Open(s.conn.vhost, origin)
}

// addTraffic adds what the session has counted to the table.
func (s *Session) addTraffic() {
	s.mu.Lock()
	for _, q := range s.order {
		s.tally.TakeQueue(q.of, &q.counts, &q.routes)
	}
	t := s.tally.Take()
	s.mu.Unlock()
	s.conn.in.Traffic.Add(s.traffic, &t)
}

// closeTraffic adds what is left and ends the session's record.
func (s *Session) closeTraffic() {
	s.addTraffic()
	s.conn.in.Traffic.Close(s.traffic)
}

// countDelivered counts messages for consumers. The lock is held.
func (q *sessionQueue) countDelivered(messages []fsm.Message) {
	var of *consumer
	number := uint64(0)
	for i := range messages {
		m := &messages[i]
		if of == nil || m.Consumer != number {
			of, number = q.session.known[m.Consumer], m.Consumer
		}
		what := traffic.Deliver
		if of != nil && of.NoAck {
			what = traffic.DeliverNoAck
		}
		q.counts[what]++
		if m.Acquired > 0 {
			q.counts[traffic.Redeliver]++
		}
	}
}

// countGet counts a get from a queue. m nil: it found nothing.
func (x *consumers) countGet(id fsm.QueueID, m *fsm.Message, noAck bool) {
	x.calls.mu.Lock()
	defer x.calls.mu.Unlock()
	q := x.streams.queues[id]
	if q == nil {
		return // the queue is gone, and so are its counts
	}
	switch {
	case m == nil:
		q.counts[traffic.GetEmpty]++
		return
	case noAck:
		q.counts[traffic.GetNoAck]++
	default:
		q.counts[traffic.Get]++
	}
	if m.Acquired > 0 {
		q.counts[traffic.Redeliver]++
	}
}

// countSettled counts what a client has settled. The lock is held.
func (q *sessionQueue) countSettled(count int, outcome fsm.Outcome) {
	if outcome == fsm.Ack {
		q.counts[traffic.Ack] += uint64(count)
	}
}
