package wire

import "encoding/binary"

// Class access has left the specification, but old clients still ask for a
// ticket before they do anything else.
const (
	ClassAccess uint16 = 30

	IDAccessRequest   uint32 = 30<<16 | 10
	IDAccessRequestOK uint32 = 30<<16 | 11
)

// AccessRequest is access.request.
type AccessRequest struct {
	Realm     string
	Exclusive bool
	Passive   bool
	Active    bool
	Write     bool
	Read      bool
}

// ClassID returns 30.
func (*AccessRequest) ClassID() uint16 { return 30 }

// MethodID returns 10.
func (*AccessRequest) MethodID() uint16 { return 10 }

func (m *AccessRequest) readArgs(a *arguments) {
	m.Realm = a.shortstr()
	bits := a.octet()
	m.Exclusive = bits&1 != 0
	m.Passive = bits&2 != 0
	m.Active = bits&4 != 0
	m.Write = bits&8 != 0
	m.Read = bits&16 != 0
}

func (m *AccessRequest) appendArgs(b []byte) []byte {
	b = appendShortstr(b, m.Realm)
	return append(b, bit(m.Exclusive, 0)|bit(m.Passive, 1)|bit(m.Active, 2)|bit(m.Write, 3)|bit(m.Read, 4))
}

// AccessRequestOK is access.request-ok.
type AccessRequestOK struct {
	Ticket uint16
}

// ClassID returns 30.
func (*AccessRequestOK) ClassID() uint16 { return 30 }

// MethodID returns 11.
func (*AccessRequestOK) MethodID() uint16 { return 11 }

func (m *AccessRequestOK) readArgs(a *arguments) { m.Ticket = a.short() }

func (m *AccessRequestOK) appendArgs(b []byte) []byte {
	return binary.BigEndian.AppendUint16(b, m.Ticket)
}
