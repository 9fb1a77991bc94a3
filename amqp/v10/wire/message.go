package wire

import (
	"bytes"
	"encoding/binary"
)

// BodyKind says of what a message's body is made.
type BodyKind byte

// Kinds of bodies.
const (
	BodyData BodyKind = iota + 1
	BodySequence
	BodyValue
)

// Message is where the sections of an encoded message lie. All slices are views.
type Message struct {
	Header    Header // its defaults if there is none
	HasHeader bool

	// DeliveryAnnotations are those for the receiver of this delivery alone.
	DeliveryAnnotations MapBytes
	Annotations         MapBytes // of the message
	// Bare are the bare message and the footer: all from the properties on.
	Bare []byte
	// Properties is the section with its descriptor, of which only the extents of the fields and
	// their constructors have been checked; empty: there is none.
	Properties            []byte
	ApplicationProperties MapBytes
	Kind                  BodyKind
	Body                  []byte // all sections of the body
	Footer                []byte
}

// Descriptors of sections.
const (
	sectionHeader = 0x70 + iota
	sectionDeliveryAnnotations
	sectionAnnotations
	sectionProperties
	sectionApplication
	sectionData
	sectionSequence
	sectionValue
	sectionFooter
)

// Parse finds the sections of b, a whole message. Errors are amqp:decode-error.
func (m *Message) Parse(b []byte) error {
	err := m.ParseRequest(b)
	switch {
	case err != nil:
	case !m.DeliveryAnnotations.areExtensions() || !m.Annotations.areExtensions():
		return decodeError("failed to parse message: an annotation's key is not a symbol that begins with x-")
	case m.Kind == 0:
		return decodeError("failed to parse message: no body")
	}
	return err
}

// areExtensions reports whether all keys of annotations, which are symbols, begin with x-: others are reserved.
func (b MapBytes) areExtensions() bool {
	for w := b.Walk(); w.NextPair(); {
		if !bytes.HasPrefix(w.Key.bytes, []byte("x-")) {
			return false
		}
	}
	return true
}

// ParseRequest is Parse for a message that need not have a body, and whose annotations have any names.
func (m *Message) ParseRequest(b []byte) error {
	*m = Message{}
	p := parser{m: m, whole: b, rest: b}
	for len(p.rest) > 0 {
		if why := p.section(); why != "" {
			return decodeError("failed to parse message: %s", why)
		}
	}
	m.Bare = b[p.bare:]
	return nil
}

// parser walks over the sections of a message.
//
// Invariant: sections come with descriptors that do not fall; last is that of the latest, 0 if there
// was none.
type parser struct {
	m     *Message
	whole []byte
	rest  []byte
	at    int // position of rest
	bare  int // where the bare message begins
	body  int // where the body begins
	last  uint64
}

// section reads one section.
func (p *parser) section() (why string) {
	code, value, why := readDescriptor(p.rest, maxMessageDepth)
	if why != "" {
		return why
	}
	n, why := extent(value, maxMessageDepth)
	if why != "" {
		return why
	}
	if why := p.order(code); why != "" {
		return why
	}
	size := len(p.rest) - len(value) + n
	whole := p.rest[:size:size]
	value = value[:n:n]
	p.last = code
	if code < sectionProperties {
		p.bare = p.at + size
	}
	p.rest, p.at = p.rest[size:], p.at+size
	return p.store(code, whole, value)
}

// order reports what is wrong with a section after the latest.
func (p *parser) order(code uint64) (why string) {
	switch {
	case code < sectionHeader || code > sectionFooter:
		return "unknown section"
	case code < p.last:
		return "sections out of order"
	case code == p.last && code != sectionData && code != sectionSequence:
		return "repeated section"
	case p.m.Kind != 0 && code != p.last && code != sectionFooter:
		return "a body of two kinds"
	}
	return ""
}

// store notes where a section lies. whole has its descriptor.
func (p *parser) store(code uint64, whole, value []byte) (why string) {
	m := p.m
	switch code {
	case sectionHeader:
		m.HasHeader = true
		if _, err := m.Header.read(value, maxMessageDepth); err != nil {
			return err.Description
		}
	case sectionDeliveryAnnotations:
		m.DeliveryAnnotations = value
		return checkAnnotations(value)
	case sectionAnnotations:
		m.Annotations = value
		return checkAnnotations(value)
	case sectionProperties:
		m.Properties = whole
		return checkProperties(value)
	case sectionApplication:
		m.ApplicationProperties = value
		return checkApplication(value)
	case sectionFooter:
		m.Footer = whole
		return expect(Map, value)
	default:
		return p.storeBody(code, len(whole), value)
	}
	return ""
}

// storeBody notes a section of the body.
func (p *parser) storeBody(code uint64, size int, value []byte) (why string) {
	m := p.m
	if m.Kind == 0 {
		p.body = p.at - size
	}
	m.Body = p.whole[p.body:p.at:p.at]
	switch code {
	case sectionData:
		m.Kind = BodyData
		return expect(Binary, value)
	case sectionSequence:
		m.Kind = BodySequence
		return expect(List, value)
	}
	m.Kind = BodyValue
	return ""
}

func expect(t Type, value []byte) (why string) {
	if typeOf[value[0]] != t {
		return "a section has the wrong type"
	}
	return ""
}

// checkMap checks a map and all that is in it.
func checkMap(value []byte) (why string) {
	if why := expect(Map, value); why != "" {
		return why
	}
	_, why = check(value, maxMessageDepth)
	return why
}

// checkAnnotations checks a map whose keys are symbols.
func checkAnnotations(value []byte) (why string) {
	if why := checkMap(value); why != "" {
		return why
	}
	for w := MapBytes(value).Walk(); w.NextPair(); {
		if w.Key.Type != Symbol {
			return "an annotation's key is not a symbol that begins with x-"
		}
	}
	return ""
}

// checkApplication checks a map whose keys are strings, and whose values are simple.
func checkApplication(value []byte) (why string) {
	if why := checkMap(value); why != "" {
		return why
	}
	for w := MapBytes(value).Walk(); w.NextPair(); {
		if w.Key.Type != String {
			return "the key of an application property is not a string"
		}
		switch w.Value.Type {
		case List, Map, Array:
			return "an application property is not simple"
		}
	}
	return ""
}

// checkProperties checks the extents of the fields.
func checkProperties(value []byte) (why string) {
	if why := expect(List, value); why != "" {
		return why
	}
	if _, why := check(value, maxMessageDepth); why != "" {
		return why
	}
	if v, _ := readElement(value[:1], value[1:]); v.count > len(factsOfProperties.fields) {
		return whyCount
	}
	return ""
}

// ReadProperties decodes the properties of a message into p, which is a view. Errors are amqp:decode-error.
func (m *Message) ReadProperties(p *Properties) error {
	if len(m.Properties) == 0 {
		*p = Properties{}
		return nil
	}
	_, list, _ := readDescriptor(m.Properties, maxMessageDepth)
	if _, err := p.read(list, maxMessageDepth); err != nil {
		return err
	}
	return nil
}

// Data gives the contents of the data sections one after the other. A body of another kind has none.
func (m *Message) Data(yield func([]byte) bool) {
	for rest := m.Body; m.Kind == BodyData && len(rest) > 0; {
		_, value, _ := readDescriptor(rest, maxMessageDepth)
		v, after := readElement(value[:1], value[1:])
		if !yield(v.bytes) {
			return
		}
		rest = after
	}
}

// BodyValue returns the value of an amqp-value, and checks all that is in it. A body of another kind is null.
func (m *Message) BodyValue() (Value, error) {
	if m.Kind != BodyValue {
		return Value{Type: Null}, nil
	}
	_, value, _ := readDescriptor(m.Body, maxMessageDepth)
	v, _, err := ReadValue(value)
	return v, err
}

// BodyMap returns the map that is an amqp-value, and checks all that is in it. A body of another kind has none.
func (m *Message) BodyMap() MapBytes {
	if v, err := m.BodyValue(); err != nil || v.Type != Map {
		return nil
	}
	_, value, _ := readDescriptor(m.Body, maxMessageDepth)
	return value
}

// IsBody reports whether b is the body of a message, perhaps with a footer, and can be read down to its last value.
func IsBody(b []byte) bool {
	kind := uint64(0)
	for len(b) > 0 {
		code, value, why := readDescriptor(b, maxMessageDepth)
		if why != "" {
			return false
		}
		n, why := check(value, maxMessageDepth)
		switch {
		case why != "":
			return false
		case code == sectionFooter:
			return kind != 0 && n == len(value) && expect(Map, value) == ""
		case kind != 0 && (code != kind || code == sectionValue) || !fitsBody(code, value):
			return false
		}
		kind, b = code, value[n:]
	}
	return kind != 0
}

// fitsBody reports whether a section of a body has the right type.
func fitsBody(code uint64, value []byte) bool {
	switch code {
	case sectionData:
		return expect(Binary, value) == ""
	case sectionSequence:
		return expect(List, value) == ""
	}
	return code == sectionValue
}

// StartData appends the start of a data section of this size; its contents follow.
func StartData(b []byte, size int) []byte {
	return binary.BigEndian.AppendUint32(append(AppendDescriptor(b, sectionData), cBinary32), uint32(size))
}

// AppendData appends a data section.
func AppendData(b, data []byte) []byte { return AppendBinary(AppendDescriptor(b, sectionData), data) }

// StartProperties appends the descriptor of the properties; a list follows.
func StartProperties(b []byte) []byte { return AppendDescriptor(b, sectionProperties) }

// StartApplicationProperties appends the descriptor of application properties; a map follows.
func StartApplicationProperties(b []byte) []byte { return AppendDescriptor(b, sectionApplication) }

// StartDeliveryAnnotations appends the descriptor of annotations for the receiver; a map follows.
func StartDeliveryAnnotations(b []byte) []byte {
	return AppendDescriptor(b, sectionDeliveryAnnotations)
}

// StartAnnotations appends the descriptor of message annotations; a map follows.
func StartAnnotations(b []byte) []byte { return AppendDescriptor(b, sectionAnnotations) }

// StartValue appends the descriptor of an amqp-value; a value follows.
func StartValue(b []byte) []byte { return AppendDescriptor(b, sectionValue) }
