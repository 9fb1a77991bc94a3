package broker

import "github.com/quorate/quorate/fsm"

// event is one call of SessionEvents that waits to be made. Calls are made
// without the session's lock, one at a time, in the order of the events.
type event struct {
	kind        eventKind
	first, last uint64
	ok          bool
	messages    []fsm.Message
	consumer    uint64
	ids         []uint64
	limit       fsm.Millis
	err         error
	call        *call
	result      fsm.Result
	payload     fsm.Payload
}

type eventKind uint8

const (
	eventSettled eventKind = iota
	eventDeliver
	eventCancelled
	eventRevoked
	eventTimedOut
	eventLost
	eventAnswered
	eventRefused
	eventReturned
)

// settledEvent joins a publish to the last event if it continues its run.
func (s *Session) settledEvent(number uint64, ok bool) {
	if n := len(s.events); n > 0 {
		if e := &s.events[n-1]; e.kind == eventSettled && e.ok == ok && e.last+1 == number {
			e.last = number
			return
		}
	}
	s.events = append(s.events, event{kind: eventSettled, first: number, last: number, ok: ok})
}

// release unlocks the session and makes the calls that wait, unless another
// goroutine is at it: that one will make these, too.
func (s *Session) release() {
	defer s.mu.Unlock()
	if len(s.strays) > 0 && !s.broker().guard("route publishes again", s.routeStrays) {
		s.strays = nil
		s.fault()
	}
	if s.calling {
		return
	}
	s.calling = true
	defer func() { s.calling = false }()
	for len(s.events) > 0 {
		s.callAll()
	}
}

// callAll tells the client of the events there are. One that panics ends the
// session; those behind it are told all the same, for others wait for them. The
// lock is held, but not while the client is told.
func (s *Session) callAll() {
	batch, told, ok := s.events, 0, true
	s.events = s.spare[:0]
	s.mu.Unlock()
	defer func() {
		clear(batch)
		s.mu.Lock()
		s.spare = batch
		if !ok {
			s.fault()
		}
	}()
	for told < len(batch) {
		if !s.broker().guard("tell a client", func() {
			for told < len(batch) {
				told++
				s.call(&batch[told-1])
			}
		}) {
			ok = false
		}
	}
}

func (s *Session) call(e *event) {
	switch e.kind {
	case eventSettled:
		s.client.Settled(e.first, e.last, e.ok)
	case eventDeliver:
		s.client.Deliver(e.messages)
	case eventCancelled:
		s.client.Cancelled(e.consumer)
	case eventRevoked:
		s.client.Revoked(e.consumer, e.err)
	case eventTimedOut:
		s.client.TimedOut(e.consumer, e.ids, e.limit)
	case eventLost:
		s.client.Lost(e.err)
	case eventAnswered:
		e.call.answered(e.result)
	case eventRefused:
		refusal, _ := e.err.(*fsm.Refusal)
		s.client.Refused(e.payload, refusal)
	case eventReturned:
		s.client.Returned(e.payload)
	}
}
