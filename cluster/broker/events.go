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
	s.routeStrays()
	if s.calling {
		s.mu.Unlock()
		return
	}
	s.calling = true
	for len(s.events) > 0 {
		batch := s.events
		s.events = s.spare[:0]
		s.mu.Unlock()
		for i := range batch {
			s.call(&batch[i])
		}
		clear(batch)
		s.mu.Lock()
		s.spare = batch
	}
	s.calling = false
	s.mu.Unlock()
}

func (s *Session) call(e *event) {
	switch e.kind {
	case eventSettled:
		s.client.Settled(e.first, e.last, e.ok)
	case eventDeliver:
		s.client.Deliver(e.messages)
	case eventCancelled:
		s.client.Cancelled(e.consumer)
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
