package broker

import (
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
)

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
	call        *stream.Call
	result      fsm.Result
	payload     fsm.Payload
}

// eventQueue holds the events of a session. Session.mu guards it.
type eventQueue struct {
	events  []event
	spare   []event // for reuse
	calling bool    // a goroutine makes the calls of events
}

type eventKind uint8

const (
	eventConfirmed eventKind = iota
	eventDeliver
	eventCancelled
	eventRevoked
	eventTimedOut
	eventLost
	eventAnswered
	eventRefused
	eventReturned
)

// confirmedEvent joins a publish to the last event if it continues its run.
func (s *Session) confirmedEvent(number uint64, ok bool) {
	if n := len(s.events); n > 0 {
		if e := &s.events[n-1]; e.kind == eventConfirmed && e.ok == ok && e.last+1 == number {
			e.last = number
			return
		}
	}
	s.events = append(s.events, event{kind: eventConfirmed, first: number, last: number, ok: ok})
}

// lock takes the session's lock, for what may have something to tell the client.
func (s *Session) lock() { s.mu.Lock() }

// unlock ends what lock began. Publishes that have lost their queue are routed
// again; then the calls that wait are made, without the lock, unless another
// goroutine is at it: that one makes these, too. A call that panics ends the
// session; those behind it are made all the same, for others wait for them.
func (s *Session) unlock() {
	if len(s.strays) > 0 && !s.broker().guard("route publishes again", s.routeStrays) {
		s.strays = nil
		s.lose(errFault)
	}
	if s.calling {
		s.mu.Unlock()
		return
	}
	s.calling = true
	for len(s.events) > 0 {
		batch := s.events
		s.events = s.spare[:0]
		s.mu.Unlock()
		whole := s.callAll(batch)
		clear(batch)
		s.mu.Lock()
		s.spare = batch
		if !whole {
			s.lose(errFault)
		}
	}
	s.calling = false
	s.mu.Unlock()
}

// callAll tells the client of events, and reports whether no call has panicked.
func (s *Session) callAll(batch []event) (whole bool) {
	whole = true
	for told := 0; told < len(batch); {
		if !s.broker().guard("tell a client", func() {
			for told < len(batch) {
				told++
				s.call(&batch[told-1])
			}
		}) {
			whole = false
		}
	}
	return whole
}

func (s *Session) call(e *event) {
	switch e.kind {
	case eventConfirmed:
		s.client.Confirmed(e.first, e.last, e.ok)
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
		e.call.Finish(e.result)
	case eventRefused:
		refusal, _ := e.err.(*fsm.Refusal)
		s.client.Refused(e.payload, refusal)
	case eventReturned:
		s.client.Returned(e.payload)
	}
}
