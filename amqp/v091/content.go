package v091

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// content assembles the publishes of a channel: basic.publish, then a header,
// then body frames. It belongs to the reader.
//
// Invariants: in contentBody, len(payload) + remaining = total; in contentNone,
// remaining = 0. Before a body arrives no more than eagerBody is allocated for it. counted is 0 for less than
// smallContent.
type content struct {
	user      string        // of the login, for user-id
	maxSize   uint64        // of a body
	maxList   int           // of the properties
	replyName func() string // returns the routing key of replies to the channel
	memory    *amqp.Account // of the channel

	stage     contentStage
	request   request // of kind requestPublish: what is assembled
	remaining uint64  // octets of the body still to come
	total     int     // length of the whole payload
	counted   int64   // of the payload's memory, in memory
	admitted  bool    // the broker has been asked whether it may be published

	// exchange and key are those of the last publish, so that the next one need
	// not allocate.
	exchange, key string
}

type contentStage uint8

const (
	contentNone   contentStage = iota
	contentHeader              // the header is next
	contentBody                // body frames are next
	contentSkip                // the same, for a body that is discarded
)

// message is one publish on its way through the channel.
type message struct {
	publish              fsm.Publish
	mandatory, immediate bool
	size                 uint64 // of the body
	list                 int    // size of the properties
	// fields are the encoded headers as published, if those in the payload
	// differ; else nil.
	fields []byte
	// blind are the routing keys of the header BCC.
	blind []string
}

const basicPublish = uint16(wire.IDBasicPublish & 0xFFFF)

// begin handles basic.publish.
func (c *content) begin(payload []byte) error {
	var v wire.BasicPublishView
	if err := wire.DecodePublish(payload, &v); err != nil {
		return unnamed(err)
	}
	if string(v.Exchange) != c.exchange {
		c.exchange = string(v.Exchange)
	}
	if string(v.RoutingKey) != c.key {
		c.key = string(v.RoutingKey)
	}
	c.request.kind = requestPublish
	c.request.message = message{
		publish:   fsm.Publish{Exchange: c.exchange, RoutingKey: c.key, TTL: -1, Priority: -1},
		mandatory: v.Mandatory, immediate: v.Immediate,
	}
	c.stage = contentHeader
	return nil
}

// header handles the content header. ready: the request must be submitted now,
// and then released.
func (c *content) header(payload []byte) (ready bool, err error) {
	h, err := wire.DecodeHeader(payload, wire.ClassBasic, basicPublish)
	if err != nil {
		return false, err
	}
	properties, err := wire.ParseProperties(h.Properties)
	if err != nil {
		return false, err
	}
	m := &c.request.message
	m.size, m.list = h.BodySize, len(h.Properties)
	c.remaining = h.BodySize
	if m.immediate || m.size > c.maxSize || m.list > c.maxList {
		// It will be refused; until then nothing of it is stored.
		c.stage = contentSkip
		c.endSkipped()
		return true, nil
	}
	encoded := c.readProperties(m, &properties, h.Properties)
	m.publish.MessageID, m.publish.CorrelationID = fsm.Label(properties.MessageID), fsm.Label(properties.CorrelationID)
	c.total = fsm.PayloadSize(len(m.publish.Exchange), len(m.publish.RoutingKey), len(encoded), int(m.size)) + fsm.BlindSize(m.blind)
	size := c.total - int(m.size) + min(int(m.size), eagerBody)
	m.publish.Payload, err = fsm.AppendHead(make([]byte, 0, size), m.publish.Exchange, m.publish.RoutingKey, encoded, m.blind)
	if err != nil {
		return false, err
	}
	c.stage = contentBody
	return c.complete(), nil
}

// body reads the payload of a body frame with size octets. ready is as in header.
func (c *content) body(in *wire.Reader, size int) (ready bool, err error) {
	if uint64(size) > c.remaining {
		return false, wire.BodyTooLong(wire.ClassBasic, basicPublish)
	}
	if c.stage == contentSkip || size == 0 {
		if err := in.SkipPayload(); err != nil || c.stage == contentNone {
			return false, err
		}
		c.remaining -= uint64(size)
		c.endSkipped()
		return false, nil
	}
	p := grow(c.request.message.publish.Payload, size, c.total)
	if err := in.ReadPayloadInto(p[len(p) : len(p)+size]); err != nil {
		return false, err
	}
	if c.stage == contentNone {
		return false, nil // dropped meanwhile
	}
	c.request.message.publish.Payload = p[:len(p)+size]
	c.remaining -= uint64(size)
	return c.complete(), nil
}

// grow returns p with capacity for n more octets, of total in the end. Only a
// body longer than eagerBody is ever moved.
func grow(p fsm.Payload, n, total int) fsm.Payload {
	if cap(p)-len(p) >= n {
		return p
	}
	grown := make(fsm.Payload, len(p), min(max(4*cap(p), len(p)+n), total))
	copy(grown, p)
	return grown
}

// complete ends the assembly if the body is complete.
func (c *content) complete() bool {
	if c.remaining > 0 {
		return false
	}
	c.stage = contentNone
	return true
}

// endSkipped ends a body that was skipped.
func (c *content) endSkipped() {
	if c.remaining == 0 {
		c.stage = contentNone
	}
}

// smallContent is the memory below which an incomplete message counts as part of its channel.
const smallContent = 4 << 10

// count counts the memory of an incomplete message. It returns the account whose bound it exceeds; nil: none, or
// the message may do so.
func (c *content) count(may bool) (over *amqp.Account) {
	n := int64(cap(c.request.message.publish.Payload)) - c.counted
	switch {
	case n == 0 || c.counted+n < smallContent:
		return nil
	case may:
		c.memory.Add(n)
	default:
		if over = c.memory.Take(n); over != nil {
			return over
		}
	}
	c.counted += n
	return nil
}

// release drops the submitted message, which belongs to the broker now.
func (c *content) release() {
	c.request.message, c.admitted = message{}, false
	if c.counted > 0 {
		c.memory.Add(-c.counted)
		c.counted = 0
	}
}

// isPartial reports whether a message is incomplete.
func (c *content) isPartial() bool { return c.stage != contentNone }

// reset drops an incomplete message.
func (c *content) reset() {
	c.release()
	c.stage, c.remaining, c.total = contentNone, 0, 0
}

// readProperties extracts what the broker needs from the properties. It returns
// their encoding for storage: without BCC, and with an expiration in its usual
// form.
func (c *content) readProperties(m *message, p *wire.Properties, encoded []byte) []byte {
	if p.Has(wire.FlagPriority) {
		m.publish.Priority = int(p.Priority)
	}
	if p.Has(wire.FlagUserID) && string(p.UserID) != c.user {
		m.publish.UserError = refuseUserID(p.UserID, c.user)
	}
	changed := false
	if p.Has(wire.FlagReplyTo) && string(p.ReplyTo) == fsm.ReplyQueue {
		m.publish.WantsReply = true
		p.ReplyTo = []byte(c.replyName())
		changed = true
	}
	if p.Has(wire.FlagExpiration) {
		ttl, canonical, err := parseExpiration(p.Expiration)
		m.publish.TTL, m.publish.TTLError, m.publish.HasExpiration = ttl, err, err == nil
		if err == nil && !canonical {
			p.Expiration = appendDecimal(nil, ttl)
			changed = true
		}
	}
	if changed {
		encoded = wire.AppendProperties(nil, p)
	}
	if len(p.Headers) > 0 {
		return c.readHeaders(m, p, encoded)
	}
	return encoded
}

// readHeaders extracts what the broker needs from the headers: more routing
// keys, and a time to wait. It removes from them what receivers must not see,
// and what would take effect again in a dead letter.
func (c *content) readHeaders(m *message, p *wire.Properties, encoded []byte) []byte {
	var err error
	if m.publish.Copies, err = copies(nil, p, headerCC); err == nil {
		m.blind, err = copies(nil, p, headerBCC)
	}
	if err == nil {
		m.publish.Schedule, err = schedule(p)
	}
	delayed, strange := misspelled(p)
	if err == nil {
		err = strange
	}
	if m.publish.HeadersError = err; err != nil {
		return encoded
	}
	if m.publish.Delay = delay(p, m.publish.Schedule != nil); delayed != nil {
		m.publish.Delay = &fsm.Delay{Err: delayed}
	}
	var out []string
	if _, ok := p.Header(headerBCC); ok {
		m.publish.Copies = append(m.publish.Copies, m.blind...)
		out = append(out, headerBCC)
	}
	if m.publish.Schedule != nil {
		out = append(out, headerDelay, headerTime)
	}
	if len(out) == 0 {
		return encoded
	}
	m.fields = append([]byte(nil), p.Headers...)
	if edited, err := wire.EditProperties(nil, encoded, &wire.Edit{RemoveHeaders: out}); err == nil {
		encoded = edited
	}
	return encoded
}

// maxTTL is the longest time-to-live: ten years of 365 days.
const maxTTL = 315_360_000_000

// parseExpiration reads an expiration property: an optional sign and decimal
// digits, 0 ≤ number ≤ maxTTL. canonical reports whether text is already the
// usual decimal form of the number. The error is a precondition refusal.
func parseExpiration(text []byte) (ttl fsm.Millis, canonical bool, err error) {
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
		err = refuseExpiration(text, "{value_negative,"+decimal(digits[:n], negative)+"}")
	case value > maxTTL:
		err = refuseExpiration(text, "{value_too_large,"+decimal(digits[:n], negative)+"}")
	default:
		canonical = !signed && (n == 1 || digits[0] != '0')
		return fsm.Millis(value), canonical, nil
	}
	return -1, false, err
}

func decimal(digits []byte, negative bool) string {
	s := strings.TrimLeft(string(digits), "0")
	if negative {
		return "-" + s
	}
	return s
}

// appendDecimal appends ttl in its usual form.
func appendDecimal(dst []byte, ttl fsm.Millis) []byte {
	return strconv.AppendInt(dst, int64(ttl), 10)
}

// Headers that name more routing keys of a publish. Receivers see the first.
const (
	headerCC  = "CC"
	headerBCC = "BCC"
)

// maxCopies bounds the keys of each header, in bytes plus one per key.
const maxCopies = 1<<16 - 1

// copies appends the routing keys that a header lists. Values that are not text
// are ignored. The error is a precondition refusal: the header has another
// type, a text is too long for a routing key, or there are too many keys.
// Usable keys are appended anyway.
func copies(dst []string, p *wire.Properties, header string) ([]string, error) {
	v, ok := p.Header(header)
	if !ok {
		return dst, nil
	}
	if v.Tag != wire.TagArray {
		return dst, refuseHeader(header, v.Tag)
	}
	size, err := 0, error(nil)
	for _, key := range v.Array {
		switch {
		case key.Tag != wire.TagString:
		case len(key.Str) > fsm.MaxShort:
			err = refuseCopies("routing key of %d bytes in %s exceeds the limit of %d", len(key.Str), header, fsm.MaxShort)
		case size+1+len(key.Str) > maxCopies:
			return dst, refuseCopies("more than %d bytes of routing keys in %s", maxCopies, header)
		default:
			size += 1 + len(key.Str)
			dst = append(dst, key.Str)
		}
	}
	return dst, err
}

func refuseCopies(format string, args ...any) error {
	return fsm.Refuse(fsm.Precondition, "invalid message: "+fmt.Sprintf(format, args...))
}

func refuseHeader(header string, tag byte) error {
	return fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid message: {unacceptable_type_in_header,%q,%s}", header, fsm.TypeName(uint32(tag))))
}

// Headers that make a message wait in its queues.
const (
	headerDelay    = "x-opt-delivery-delay" // milliseconds, counted from the enqueue
	headerTime     = "x-opt-delivery-time"  // milliseconds since the epoch; overrides the delay
	headerID       = "x-schedule-id"
	headerConflict = "x-schedule-conflict"
)

var (
	timeHeaders = []string{headerDelay, headerTime, headerID, headerConflict}
	// missingHeaders will have a meaning in a later version.
	missingHeaders = []string{"x-schedule-count", "x-schedule-repeat"}
)

// misspelled looks for headers that were to be those about a time to wait. err
// is a precondition refusal, delayed one that concerns only delayed exchanges.
// Names are the applications' own, so those of short headers must differ by one
// letter only.
func misspelled(p *wire.Properties) (delayed, err error) {
	for fields := p.Headers; len(fields) > 0; {
		var name []byte
		name, fields = wire.NextField(fields)
		if len(name) < len(headerXDelay)-1 || len(name) > len(headerDelay)+2 || name[0]|0x20 != 'x' || name[1] != '-' ||
			slices.Contains(timeHeaders, string(name)) {
			continue
		}
		if slices.Contains(missingHeaders, string(name)) {
			return nil, fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid %s: not implemented", name))
		}
		if near := fsm.Nearest(string(name), timeHeaders, 2); isMisspelled(p, name, near) {
			return nil, refuseName(name, near)
		}
		if near := fsm.Nearest(string(name), []string{headerXDelay}, 1); isMisspelled(p, name, near) {
			delayed = refuseName(name, near)
		}
	}
	return delayed, nil
}

// isMisspelled reports whether near, if it is not empty, is another name than
// this header's, and one that no header has.
func isMisspelled(p *wire.Properties, name []byte, near string) bool {
	if near == "" || near == string(name) {
		return false
	}
	_, given := p.Header(near)
	return !given
}

func refuseName(name []byte, near string) error {
	return fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid %s: unknown header; did you mean %s?", name, near))
}

// schedule reads the headers about a time to wait; nil: there are none. The
// error is a precondition refusal.
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
			err = fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid %s '%d': must be between 0 and %d", headerDelay, n, int64(maxTTL)))
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

// identify reads the name of a scheduled message, and what happens to an
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

// headerXDelay makes a message wait at a delayed exchange: milliseconds. It is
// negated in messages that have waited.
const headerXDelay = "x-delay"

// delay reads how long a message must wait at a delayed exchange; nil: not at
// all. scheduled says that it must also wait in its queues.
func delay(p *wire.Properties, scheduled bool) *fsm.Delay {
	v, ok := p.Header(headerXDelay)
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
		d.Err = identify(s, p)
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
