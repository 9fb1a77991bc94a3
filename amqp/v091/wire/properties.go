package wire

import "encoding/binary"

// PropertyFlags says which properties of a list are present.
type PropertyFlags uint16

// The flags of the properties, in the order of their values. The two lowest
// bits are no property and are refused.
const (
	FlagContentType PropertyFlags = 1 << (15 - iota)
	FlagContentEncoding
	FlagHeaders
	FlagDeliveryMode
	FlagPriority
	FlagCorrelationID
	FlagReplyTo
	FlagExpiration
	FlagMessageID
	FlagTimestamp
	FlagType
	FlagUserID
	FlagAppID
	FlagClusterID

	unknownFlags PropertyFlags = 1<<2 - 1
)

var noProperties = []byte{0, 0}

// Properties is a property list of class basic, as a view of its encoding:
// nothing is copied, and it is valid as long as the encoding is. A property
// whose flag is not in Present is zero. Strings can contain any bytes.
type Properties struct {
	Present         PropertyFlags
	DeliveryMode    byte
	Priority        byte
	Timestamp       uint64 // seconds since the epoch
	ContentType     []byte
	ContentEncoding []byte
	Headers         []byte // valid encoded fields, for LookupField and DecodeFields
	CorrelationID   []byte
	ReplyTo         []byte
	Expiration      []byte
	MessageID       []byte
	Type            []byte
	UserID          []byte
	AppID           []byte
	ClusterID       []byte
}

// Has reports whether all properties of f are present.
func (p *Properties) Has(f PropertyFlags) bool { return p.Present&f == f }

// Header finds the first header with this name.
func (p *Properties) Header(name string) (Value, bool) { return LookupField(p.Headers, name) }

// ParseProperties decodes an encoded property list, as in a header frame. It
// checks everything, including headers, and allocates nothing. Errors are 502.
func ParseProperties(raw []byte) (Properties, error) {
	var p Properties
	if len(raw) < 2 {
		return p, malformedProperties()
	}
	p.Present = PropertyFlags(binary.BigEndian.Uint16(raw))
	if p.Present&unknownFlags != 0 {
		return Properties{}, malformedProperties()
	}
	a := arguments{rest: raw[2:]}
	for f := FlagContentType; f >= FlagClusterID; f >>= 1 {
		if p.Present&f != 0 {
			p.read(&a, f)
		}
	}
	switch {
	case a.bad == badTable:
		return Properties{}, malformedTable()
	case a.bad != fine, len(a.rest) > 0:
		return Properties{}, malformedProperties()
	}
	return p, nil
}

// read decodes the value of the property f.
func (p *Properties) read(a *arguments, f PropertyFlags) {
	switch f {
	case FlagHeaders:
		p.Headers = a.fields(maxTableValues)
	case FlagDeliveryMode:
		p.DeliveryMode = a.octet()
	case FlagPriority:
		p.Priority = a.octet()
	case FlagTimestamp:
		p.Timestamp = a.longlong()
	default:
		*p.text(f) = a.take(uint64(a.octet()))
	}
}

// text returns the field that stores the short string f.
func (p *Properties) text(f PropertyFlags) *[]byte {
	switch f {
	case FlagContentType:
		return &p.ContentType
	case FlagContentEncoding:
		return &p.ContentEncoding
	case FlagCorrelationID:
		return &p.CorrelationID
	case FlagReplyTo:
		return &p.ReplyTo
	case FlagExpiration:
		return &p.Expiration
	case FlagMessageID:
		return &p.MessageID
	case FlagType:
		return &p.Type
	case FlagUserID:
		return &p.UserID
	case FlagAppID:
		return &p.AppID
	}
	return &p.ClusterID
}

func malformedProperties() *Error {
	return &Error{Code: CodeSyntaxError, Text: "malformed content properties"}
}

// AppendProperties appends the encoding of p: the properties that are Present.
// Headers must be valid. Short strings longer than 255 bytes are truncated.
func AppendProperties(dst []byte, p *Properties) []byte {
	dst, rest := appendUpToHeaders(dst, p)
	if p.Has(FlagHeaders) {
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(p.Headers)))
		dst = append(dst, p.Headers...)
	}
	return appendBehindHeaders(dst, p, rest)
}

// appendUpToHeaders appends the flags and the values before the headers. rest
// is what follows them.
func appendUpToHeaders(dst []byte, p *Properties) (out []byte, rest PropertyFlags) {
	present := p.Present &^ unknownFlags
	dst = binary.BigEndian.AppendUint16(dst, uint16(present))
	for f := FlagContentType; f > FlagHeaders; f >>= 1 {
		if present&f != 0 {
			dst = appendShortstr(dst, *p.text(f))
		}
	}
	return dst, present & (FlagHeaders - 1)
}

func appendBehindHeaders(dst []byte, p *Properties, rest PropertyFlags) []byte {
	for f := FlagDeliveryMode; f >= FlagClusterID; f >>= 1 {
		switch {
		case rest&f == 0:
		case f == FlagDeliveryMode:
			dst = append(dst, p.DeliveryMode)
		case f == FlagPriority:
			dst = append(dst, p.Priority)
		case f == FlagTimestamp:
			dst = binary.BigEndian.AppendUint64(dst, p.Timestamp)
		default:
			dst = appendShortstr(dst, *p.text(f))
		}
	}
	return dst
}

// Edit is a change of a property list.
type Edit struct {
	// Remove are the properties to remove.
	Remove PropertyFlags
	// RemoveHeaders are the names of headers to remove, every occurrence. If
	// all headers are removed, an empty table remains.
	RemoveHeaders []string
	// SetHeaders are headers to set exactly once, with distinct names. An
	// existing header keeps its position and gets the new value; the others
	// follow all existing ones. It applies after the removals.
	SetHeaders Table
}

// EditProperties appends the encoded property list raw as changed by e.
// Everything that e does not name keeps its order and its bytes. dst and raw
// must not overlap. Errors are those of ParseProperties.
func EditProperties(dst, raw []byte, e *Edit) ([]byte, error) {
	p, err := ParseProperties(raw)
	if err != nil {
		return dst, err
	}
	p.Present &^= e.Remove
	if e.Remove&FlagHeaders != 0 {
		p.Headers = nil
	}
	if len(e.SetHeaders) > 0 {
		p.Present |= FlagHeaders
	}
	if !p.Has(FlagHeaders) || len(e.SetHeaders)+len(e.RemoveHeaders) == 0 {
		return AppendProperties(dst, &p), nil
	}
	dst, rest := appendUpToHeaders(dst, &p)
	at := len(dst)
	dst = editFields(append(dst, 0, 0, 0, 0), p.Headers, e)
	return appendBehindHeaders(setLength(dst, at), &p, rest), nil
}

// editFields appends the valid fields as changed by e.
func editFields(dst, fields []byte, e *Edit) []byte {
	var few [16]bool
	written := few[:] // which of SetHeaders are
	if n := len(e.SetHeaders); n > len(few) {
		written = make([]bool, n)
	}
	for len(fields) > 0 {
		at := 1 + int(fields[0])
		end := at + valueSize(fields[at:])
		name := fields[1:at]
		set := e.SetHeaders.find(name)
		switch {
		case containsName(e.RemoveHeaders, name):
		case set < 0:
			dst = append(dst, fields[:end]...)
		case !written[set]:
			written[set] = true
			dst = append(dst, fields[:at]...)
			dst = appendValue(dst, &e.SetHeaders[set].Value)
		}
		fields = fields[end:]
	}
	for i := range e.SetHeaders {
		if !written[i] {
			dst = appendShortstr(dst, e.SetHeaders[i].Name)
			dst = appendValue(dst, &e.SetHeaders[i].Value)
		}
	}
	return dst
}

// find returns the position of the first field of that name, or -1.
func (t Table) find(name []byte) int {
	for i := range t {
		if t[i].Name == string(name) {
			return i
		}
	}
	return -1
}

func containsName(names []string, name []byte) bool {
	for _, n := range names {
		if n == string(name) {
			return true
		}
	}
	return false
}
