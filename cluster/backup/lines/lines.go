// Package lines is the format in which people see the messages of a queue: lines of
// JSON. The first line says of what queue they are, the last one how many there are;
// a file that lacks either end is not whole. A file that somebody has written by hand
// has neither.
//
// A message keeps everything: properties and headers with their types, bytes that are
// no text, instants, counts and its history. What a line shows of properties is what
// they are made of again; properties that would come out with other bytes are kept as
// bytes.
package lines

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/quorate/quorate/cluster/tables"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	// Version is that of the format.
	Version = 1
	// maxLine bounds a line: a body of the largest size, each byte of it escaped, and a head.
	maxLine = 256 << 20
	// maxBody and maxProperties are what any publish can have.
	maxBody       = 32 << 20
	maxProperties = 16 << 20
)

// Properties knows how AMQP encodes properties.
type Properties interface {
	// Describe returns the properties of a message, by name. Nothing in m changes them.
	Describe(m *fsm.Message) *fsm.Table
	// Encode is the inverse for messages of AMQP 0-9-1. The error is a *fsm.Refusal.
	Encode(t *fsm.Table) ([]byte, error)
	// Expiration returns the time-to-live with which a message was published, empty if it
	// has none.
	Expiration(p fsm.Payload) string
	// Property returns the text of one of the properties that the broker asks for, nil if there is none.
	Property(p fsm.Payload, name string) []byte
	// Check reports what is wrong with a payload that no protocol has checked.
	Check(p fsm.Payload) error
}

// Head is the first line.
type Head struct {
	Version int    `json:"quorate_queue_export"`
	Cluster string `json:"cluster_name"`
	Product string `json:"product_version"`
	VHost   text   `json:"vhost"`
	Queue   text   `json:"queue"`
	Begun   when   `json:"begun"`
}

// NewHead returns the first line for a queue.
func NewHead(cluster, product, vhost, queue string, begun int64) Head {
	return Head{Version, cluster, product, text(vhost), text(queue), when(begun)}
}

// End is the content of the last line.
type End struct {
	Messages uint64 `json:"messages"`
	Settled  uint64 `json:"settled"` // messages that had gone before they were read
}

// Message is one message. A State of nil means that it was never in a queue.
type Message struct {
	State   *logpb.MessageState
	Payload fsm.Payload
}

// line is a line of any kind.
type line struct {
	Head
	End    *End   `json:"end,omitempty"`
	Failed string `json:"failed,omitempty"`
	message
}

// message is the line of a message.
type message struct {
	Exchange      text            `json:"exchange"`
	RoutingKey    text            `json:"routing_key"`
	BlindKeys     []text          `json:"blind_keys,omitempty"`
	Properties    json.RawMessage `json:"properties,omitempty"`
	RawProperties []byte          `json:"properties_base64,omitempty"`
	Bare          *bare           `json:"amqp_1_0,omitempty"`
	Body          *string         `json:"body,omitempty"`
	RawBody       []byte          `json:"body_base64,omitempty"`
	State         *state          `json:"state,omitempty"`
}

// bare is what a message that came by AMQP 1.0 has in place of properties. Its body is
// the bare message.
type bare struct {
	Durable     bool    `json:"durable"`
	Priority    *uint8  `json:"priority,omitempty"`
	TTL         *uint32 `json:"ttl,omitempty"`
	Annotations []byte  `json:"annotations_base64,omitempty"` // the map, encoded
}

// bareOf is what a message has there; nil: it came otherwise.
func bareOf(p fsm.Payload) *bare {
	if !p.IsBare() {
		return nil
	}
	h := p.BareHeader()
	x := &bare{Durable: h.Durable, Annotations: p.Annotations()}
	if h.Priority >= 0 {
		x.Priority = new(uint8(h.Priority))
	}
	if h.TTL >= 0 {
		x.TTL = new(uint32(h.TTL))
	}
	return x
}

func (x *bare) header() fsm.BareHeader {
	h := fsm.BareHeader{Durable: x.Durable, Priority: -1, TTL: -1}
	if x.Priority != nil {
		h.Priority = int(*x.Priority)
	}
	if x.TTL != nil {
		h.TTL = fsm.Millis(*x.TTL)
	}
	return h
}

// Writer writes lines.
type Writer struct {
	to         *json.Encoder
	properties Properties
}

// NewWriter returns a writer of lines.
func NewWriter(to io.Writer, p Properties) *Writer {
	w := &Writer{json.NewEncoder(to), p}
	w.to.SetEscapeHTML(false)
	return w
}

// Head writes the first line.
func (w *Writer) Head(h Head) error { return w.to.Encode(h) }

// End writes the last line.
func (w *Writer) End(e End) error {
	return w.to.Encode(struct {
		End End `json:"end"`
	}{e})
}

// Failed writes the last line of a file that is not whole.
func (w *Writer) Failed(why error) error {
	return w.to.Encode(struct {
		Failed string `json:"failed"`
	}{why.Error()})
}

// Message writes the line of a message.
func (w *Writer) Message(m Message) error {
	p := m.Payload
	x := message{Exchange: text(p.Exchange()), RoutingKey: text(p.RoutingKey()), State: stateOf(m.State), Bare: bareOf(p)}
	for _, k := range p.BlindKeys() {
		x.BlindKeys = append(x.BlindKeys, text(k))
	}
	if raw := p.Properties(); len(raw) > 0 {
		shown := tables.Append(nil, tables.Typed(w.properties.Describe(&fsm.Message{Payload: p}), headers))
		if again, err := encode(w.properties, shown); err == nil && bytes.Equal(again, raw) {
			x.Properties = shown
		} else {
			x.RawProperties = raw
		}
	}
	if body := p.Body(); utf8.Valid(body) {
		x.Body = new(string(body))
	} else {
		x.RawBody = body
	}
	return w.to.Encode(x)
}

// headers is the property that is a table.
const headers = "headers"

// encode encodes the properties that a line shows.
func encode(p Properties, shown []byte) ([]byte, error) {
	var o tables.Object
	err := json.Unmarshal(shown, &o)
	var t *fsm.Table
	if err == nil {
		t, err = o.Table(headers)
	}
	if err != nil {
		return nil, fmt.Errorf("properties: %w", err)
	}
	return p.Encode(t)
}

// Errors of a Reader; each is wrapped together with the number of the line.
var (
	// ErrNotWhole says that lines are missing.
	ErrNotWhole = errors.New("the file is incomplete")
	// ErrLine says that a line is none of this format.
	ErrLine = errors.New("not a line of an export")
)

// Reader reads lines.
type Reader struct {
	from       *bufio.Scanner
	properties Properties
	line       int
	messages   uint64
	begun      bool // there is a first line, so there must be a last one
	ended      bool
}

// NewReader returns a reader of lines.
func NewReader(from io.Reader, p Properties) *Reader {
	r := &Reader{from: bufio.NewScanner(from), properties: p}
	r.from.Buffer(nil, maxLine)
	return r
}

// Next returns the next message. io.EOF means that there are no more, and that none is
// missing.
func (r *Reader) Next() (Message, error) {
	for r.from.Scan() {
		r.line++
		raw := bytes.TrimSpace(r.from.Bytes())
		if len(raw) == 0 {
			continue
		}
		m, err := r.parse(raw)
		if err != nil {
			return Message{}, fmt.Errorf("line %d: %w", r.line, err)
		}
		if m != nil {
			r.messages++
			return *m, nil
		}
	}
	switch err := r.from.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return Message{}, fmt.Errorf("line %d: %w: it has more than %d bytes", r.line+1, ErrLine, maxLine)
	case err != nil:
		return Message{}, err
	case r.begun && !r.ended:
		return Message{}, fmt.Errorf("%w: its last line is missing", ErrNotWhole)
	}
	return Message{}, io.EOF
}

// parse reads one line; nil: it is the first or the last one.
func (r *Reader) parse(raw []byte) (*Message, error) {
	if r.ended {
		return nil, fmt.Errorf("%w: it follows the last one", ErrLine)
	}
	var x line
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&x); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLine, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("%w: something follows it", ErrLine)
	}
	switch {
	case x.Failed != "":
		return nil, fmt.Errorf("%w: %s", ErrNotWhole, x.Failed)
	case x.End != nil:
		if r.ended = true; r.begun && x.End.Messages != r.messages {
			return nil, fmt.Errorf("%w: it has %d messages, but %d were announced", ErrNotWhole, r.messages, x.End.Messages)
		}
		return nil, nil
	case x.Version != 0:
		if x.Version != Version || r.begun || r.messages > 0 {
			return nil, fmt.Errorf("%w: its first line has version %d", ErrLine, x.Version)
		}
		r.begun = true
		return nil, nil
	}
	m, err := r.message(&x.message)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLine, err)
	}
	return m, nil
}

var (
	errBodies     = errors.New("either body or body_base64 is required")
	errProperties = errors.New("properties and properties_base64 exclude each other")
	errForms      = errors.New("amqp_1_0 excludes properties")
	errTooLarge   = fmt.Errorf("a body may have at most %d bytes, properties at most %d", maxBody, maxProperties)
)

// head makes all but the body of a message.
func (r *Reader) head(x *message, properties []byte, blind []string) ([]byte, error) {
	switch {
	case x.Bare == nil:
		return fsm.AppendHead(nil, string(x.Exchange), string(x.RoutingKey), properties, blind)
	case properties != nil:
		return nil, errForms
	case len(x.Bare.Annotations) > maxProperties:
		return nil, errTooLarge
	}
	return fsm.AppendBareHead(nil, string(x.Exchange), string(x.RoutingKey), x.Bare.header(), x.Bare.Annotations, blind)
}

// message makes a message of its line.
func (r *Reader) message(x *message) (*Message, error) {
	body := x.RawBody
	switch {
	case (x.Body != nil) == (x.RawBody != nil):
		return nil, errBodies
	case x.Body != nil:
		body = []byte(*x.Body)
	}
	raw := x.RawProperties
	if len(x.Properties) > 0 {
		if raw != nil {
			return nil, errProperties
		}
		var err error
		if raw, err = encode(r.properties, x.Properties); err != nil {
			return nil, err
		}
	}
	if len(body) > maxBody || len(raw) > maxProperties {
		return nil, errTooLarge
	}
	var blind []string
	for _, k := range x.BlindKeys {
		blind = append(blind, string(k))
	}
	head, err := r.head(x, raw, blind)
	if err != nil {
		return nil, err
	}
	m := &Message{Payload: append(fsm.Payload(head), body...)}
	if err := r.properties.Check(m.Payload); err != nil {
		return nil, err
	}
	if x.State != nil {
		m.State, err = x.State.record(r.properties)
	}
	return m, err
}
