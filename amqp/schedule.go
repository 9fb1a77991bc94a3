package amqp

import (
	"fmt"
	"strconv"

	"github.com/quorate/quorate/amqp/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Headers that make a message wait in its queues.
const (
	headerDelay    = "x-opt-delivery-delay" // milliseconds from the enqueue on
	headerTime     = "x-opt-delivery-time"  // milliseconds since the epoch; beats the delay
	headerID       = "x-schedule-id"
	headerConflict = "x-schedule-conflict"
)

// schedule reads what the headers say about a time to wait for; nil: nothing.
// The error is a precondition refusal.
func schedule(p *wire.Properties) (*fsm.Schedule, error) {
	delay, delayed := p.Header(headerDelay)
	at, timed := p.Header(headerTime)
	if !delayed && !timed {
		return nil, nil
	}
	s := &fsm.Schedule{Delay: -1}
	if delayed {
		n, err := headerNumber(headerDelay, delay)
		if err == nil && (n < 0 || n > maxTTL) {
			err = fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid %s '%d': it must be from 0 to %d", headerDelay, n, int64(maxTTL)))
		}
		if err != nil {
			return nil, err
		}
		s.Delay = fsm.Millis(n)
	}
	if timed {
		n, err := headerNumber(headerTime, at)
		if err != nil {
			return nil, err
		}
		s.At = fsm.Time(max(n, 1)) // 0 means no time; both are long past
	}
	return s, identify(s, p)
}

// identify reads the name of a scheduled message, and what becomes of an
// earlier one of that name.
func identify(s *fsm.Schedule, p *wire.Properties) error {
	if id, ok := p.Header(headerID); ok {
		if id.Tag != wire.TagString {
			return refuseHeader(headerID, id.Tag)
		}
		if len(id.Str) > 255 {
			return fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid %s: longer than 255 bytes", headerID))
		}
		s.ID = id.Str
	}
	conflict, ok := p.Header(headerConflict)
	if !ok {
		return nil
	}
	if conflict.Tag != wire.TagString {
		return refuseHeader(headerConflict, conflict.Tag)
	}
	switch conflict.Str {
	case "replace":
	case "reject":
		s.Conflict = logpb.Enqueue_REJECT
	case "ignore":
		s.Conflict = logpb.Enqueue_IGNORE
	default:
		return fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid %s '%.100s': replace, reject or ignore", headerConflict, conflict.Str))
	}
	return nil
}

// headerNumber reads a whole number: any integer type, or its decimal digits.
func headerNumber(header string, v wire.Value) (int64, error) {
	switch v.Tag {
	case 'b', 'B', 's', 'u', 'I', 'i', 'l', 'L':
		return v.Int, nil
	case wire.TagString:
		n, err := strconv.ParseInt(v.Str, 10, 64)
		if err != nil {
			return 0, fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid %s '%.100s': no_integer", header, v.Str))
		}
		return n, nil
	}
	return 0, refuseHeader(header, v.Tag)
}
