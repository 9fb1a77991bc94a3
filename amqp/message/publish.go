package message

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// maxTTL is the longest time-to-live: ten years of 365 days.
const maxTTL = 315_360_000_000

// ParseExpiration reads an expiration property: an optional sign and decimal
// digits, 0 ≤ number ≤ maxTTL. canonical reports whether text is already the
// usual decimal form of the number. The error is a precondition refusal.
func ParseExpiration(text []byte) (ttl fsm.Millis, canonical bool, err error) {
	digits, negative, signed := text, false, false
	if len(digits) > 0 && (digits[0] == '+' || digits[0] == '-') {
		negative, signed = digits[0] == '-', true
		digits = digits[1:]
	}
	n, value := 0, uint64(0)
	for n < len(digits) && '0' <= digits[n] && digits[n] <= '9' {
		value = min(value*10+uint64(digits[n]-'0'), maxTTL+1)
		n++
	}
	switch {
	case n == 0:
		err = refuseExpiration(text, "no_integer")
	case n < len(digits):
		err = refuseExpiration(text, fmt.Sprintf("{leftover_string,%s}", strconv.Quote(string(digits[n:]))))
	case negative && value > 0:
		err = refuseExpiration(text, "{value_negative,"+withSign(digits[:n], negative)+"}")
	case value > maxTTL:
		err = refuseExpiration(text, "{value_too_large,"+withSign(digits[:n], negative)+"}")
	default:
		canonical = !signed && (n == 1 || digits[0] != '0')
		return fsm.Millis(value), canonical, nil
	}
	return -1, false, err
}

func refuseExpiration(text []byte, reason string) error {
	return fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid expiration '%s': %s", text, reason))
}

func withSign(digits []byte, negative bool) string {
	s := strings.TrimLeft(string(digits), "0")
	if negative {
		return "-" + s
	}
	return s
}

// Headers that name more routing keys of a publish. Receivers see the first.
const (
	HeaderCC  = "CC"
	HeaderBCC = "BCC"
)

// maxCopies bounds the keys of each header, in bytes plus one per key.
const maxCopies = 1<<16 - 1

// Copies returns the routing keys that a header lists. Values that are not text
// are ignored. The error is a precondition refusal: the header has another
// type, a text is too long for a routing key, or there are too many keys.
// Usable keys are returned anyway.
func Copies(p *wire.Properties, header string) (keys []string, err error) {
	v, ok := p.Header(header)
	if !ok {
		return nil, nil
	}
	if v.Tag != wire.TagArray {
		return nil, refuseHeader(header, v.Tag)
	}
	size := 0
	for _, key := range v.Array {
		switch {
		case key.Tag != wire.TagString:
		case len(key.Str) > fsm.MaxShort:
			err = refuseCopies("routing key of %d bytes in %s exceeds the limit of %d", len(key.Str), header, fsm.MaxShort)
		case size+1+len(key.Str) > maxCopies:
			return keys, refuseCopies("more than %d bytes of routing keys in %s", maxCopies, header)
		default:
			size += 1 + len(key.Str)
			keys = append(keys, key.Str)
		}
	}
	return keys, err
}

func refuseCopies(format string, args ...any) error {
	return fsm.Refuse(fsm.Precondition, "invalid message: "+fmt.Sprintf(format, args...))
}

func refuseHeader(header string, tag byte) error {
	return fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid message: {unacceptable_type_in_header,%q,%s}", header, fsm.TypeName(uint32(tag))))
}

// Headers and annotations that make a message wait in its queues.
const (
	headerDelay    = "x-opt-delivery-delay" // milliseconds, counted from the enqueue
	headerTime     = "x-opt-delivery-time"  // milliseconds since the epoch; overrides the delay
	headerID       = "x-schedule-id"
	headerConflict = "x-schedule-conflict"
)

// headerXDelay makes a message wait at a delayed exchange: milliseconds. It is
// negated in messages that have waited.
const headerXDelay = "x-delay"

// DueHeaders are those that would take effect again in a dead letter.
var DueHeaders = []string{headerDelay, headerTime}

var (
	timeHeaders = []string{headerDelay, headerTime, headerID, headerConflict}
	// missingHeaders will have a meaning in a later version.
	missingHeaders = []string{"x-schedule-count", "x-schedule-repeat"}
)

// source is where a publisher has put what it asks for: the headers of 0-9-1, the
// annotations of 1.0. Methods of slices are called without allocating anything.
type source interface {
	~[]byte
	// get returns the first value with this name, as 0-9-1 has it.
	get(name string) (wire.Value, bool)
}

// fields are encoded headers that are valid.
type fields []byte

func (f fields) get(name string) (wire.Value, bool) { return wire.LookupField(f, name) }

// Times reads from encoded headers how long a message must wait: in its queues,
// and at a delayed exchange; nil: not at all. The error is a precondition refusal.
func Times(headers []byte) (*fsm.Schedule, *fsm.Delay, error) {
	from := fields(headers)
	s, err := schedule(from, headerTime)
	if err != nil {
		return nil, nil, err
	}
	d := delay(from, s != nil)
	names := spelling[fields]{from: from, known: timeHeaders}
	for rest := headers; len(rest) > 0; {
		var name []byte
		name, rest = wire.NextField(rest)
		delayed, err := names.misspelled(name)
		if err != nil {
			return nil, nil, err
		}
		if delayed != nil {
			d = &fsm.Delay{Err: delayed}
		}
	}
	return s, d, nil
}

// spelling finds misspelled names. It remembers which of the right ones are there: a message may have very many
// annotations.
type spelling[S source] struct {
	from          S
	known         []string
	sought, given uint8 // a bit for each of known, and one for headerXDelay
}

// misspelled reports whether a name was to be one of those about a time to wait,
// known or that of the delay. err is a precondition refusal, delayed one that
// concerns only delayed exchanges. Names are the applications' own, so those of
// short headers must differ by one letter only.
func (x *spelling[S]) misspelled(name []byte) (delayed, err error) {
	if len(name) < len(headerXDelay)-1 || name[0]|0x20 != 'x' || name[1] != '-' || slices.Contains(x.known, string(name)) {
		return nil, nil
	}
	if slices.Contains(missingHeaders, string(name)) {
		return nil, fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid %s: not implemented", name))
	}
	if near := fsm.Nearest(string(name), x.known, 2); x.isMisspelled(name, near) {
		return nil, refuseName(name, near)
	}
	if near := fsm.Nearest(string(name), []string{headerXDelay}, 1); x.isMisspelled(name, near) {
		delayed = refuseName(name, near)
	}
	return delayed, nil
}

// isMisspelled reports whether near, if it is not empty, is another name than
// this one, and one that is not there.
func (x *spelling[S]) isMisspelled(name []byte, near string) bool {
	if near == "" || near == string(name) {
		return false
	}
	bit := uint8(1) << (1 + slices.Index(x.known, near))
	if x.sought&bit == 0 {
		x.sought |= bit
		if _, given := x.from.get(near); given {
			x.given |= bit
		}
	}
	return x.given&bit == 0
}

func refuseName(name []byte, near string) error {
	return fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid %s: unknown header; did you mean %s?", name, near))
}

// schedule reads how long a message must wait in its queues, until the time with
// this name; nil: it need not. The error is a precondition refusal.
func schedule[S source](from S, until string) (*fsm.Schedule, error) {
	delay, delayed := from.get(headerDelay)
	at, timed := from.get(until)
	if !delayed && !timed {
		return nil, nil
	}
	s := &fsm.Schedule{Delay: -1}
	if delayed {
		n, err := headerNumber(headerDelay, delay)
		if err == nil && (n < 0 || n > maxTTL) {
			err = fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid %s '%d': must be between 0 and %d", headerDelay, n, int64(maxTTL)))
		}
		if err != nil {
			return nil, err
		}
		s.Delay = fsm.Millis(n)
	}
	if timed {
		n, err := headerNumber(until, at)
		if err != nil {
			return nil, err
		}
		s.At = fsm.Time(max(n, 1)) // 0 means no time; both are long past
	}
	return s, identify(s, from)
}

// identify reads the name of a scheduled message, and what happens to an
// earlier one of that name.
func identify[S source](s *fsm.Schedule, from S) error {
	if id, ok := from.get(headerID); ok {
		if id.Tag != wire.TagString {
			return refuseHeader(headerID, id.Tag)
		}
		if len(id.Str) > 255 {
			return fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid %s: longer than 255 bytes", headerID))
		}
		s.ID = id.Str
	}
	conflict, ok := from.get(headerConflict)
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
		return fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid %s '%.100s': must be replace, reject or ignore", headerConflict, conflict.Str))
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

// delay reads how long a message must wait at a delayed exchange; nil: not at
// all. scheduled says that it must also wait in its queues.
func delay[S source](from S, scheduled bool) *fsm.Delay {
	v, ok := from.get(headerXDelay)
	if !ok {
		return nil
	}
	n, err := delayMillis(v)
	if err == nil && n <= 0 {
		return nil
	}
	d := &fsm.Delay{For: fsm.Millis(n), Err: err}
	if err == nil && scheduled {
		d.Err = fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid %s: cannot be combined with %s or %s", headerXDelay, headerDelay, headerTime))
	}
	if d.Err == nil {
		s := &fsm.Schedule{}
		d.Err = identify(s, from)
		d.ID, d.Conflict = s.ID, s.Conflict
	}
	return d
}

// delayMillis reads a number of milliseconds: any integer type, a fraction,
// whose fractional digits are ignored, or decimal digits.
func delayMillis(v wire.Value) (int64, error) {
	var f float64
	switch v.Tag {
	case wire.TagFloat32:
		f = float64(math.Float32frombits(uint32(v.Int)))
	case wire.TagFloat64:
		f = math.Float64frombits(uint64(v.Int))
	case 'L':
		if v.Int < 0 {
			return math.MaxInt64, nil // it has no sign
		}
		return v.Int, nil
	default:
		return headerNumber(headerXDelay, v)
	}
	switch {
	case f != f:
		return 0, fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid %s 'NaN': no_integer", headerXDelay))
	case f >= math.MaxInt64:
		return math.MaxInt64, nil
	case f <= math.MinInt64:
		return math.MinInt64, nil
	}
	return int64(f), nil
}
