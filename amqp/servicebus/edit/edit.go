// Package edit is what changes a stored message without touching its bytes: an overlay of properties and application
// properties. Settlements and the actions of rules make edits, a queue keeps the encoded form with the message as opaque
// bytes, and a delivery shows the message with it.
//
// It promises: what Parse accepts can be applied to every message that can be read, and the result can be read; whatever
// bytes are given to Parse, it does not panic. Names are compared exactly: who compares them otherwise says the name that
// the message has.
package edit

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/quorate/quorate/amqp/v10/wire"
)

// MaxSize bounds an encoded edit.
const MaxSize = 32 << 10

// Errors.
var (
	// ErrFormat is returned by Parse for what is no edit.
	ErrFormat = errors.New("not an edit")
	// ErrValue is returned for a value that a property cannot have.
	ErrValue = errors.New("a value that the property cannot have")
	// ErrTooLarge is returned by Append.
	ErrTooLarge = errors.New("an edit of more than 32 KiB")
)

// Field is a property of a message, or all application properties.
type Field byte

// Fields. Their numbers are stored.
const (
	Application Field = iota // the application property that is named with it
	MessageID
	To
	Subject
	ReplyTo
	CorrelationID
	ContentType
	GroupID
	ReplyToGroupID
	fieldEnd
)

// Edit is a set of changes. The zero Edit changes nothing.
//
// Invariant: no two changes have the same field and name; values fit their fields.
type Edit struct{ changes []change }

// change sets a property, or removes it if value is empty. name is empty unless field is Application.
type change struct {
	field Field
	name  string
	value wire.RawValue
}

// Set sets an application property. value is encoded; an edit keeps it. It may be of any type but list, map and array.
func (e *Edit) Set(name string, value wire.RawValue) error {
	return e.put(change{Application, name, value})
}

// SetField sets a property. An id may be a ulong, a UUID, a binary or a string, the others are strings.
func (e *Edit) SetField(f Field, value wire.RawValue) error { return e.put(change{f, "", value}) }

// Remove removes an application property, if the message has it.
func (e *Edit) Remove(name string) { e.add(change{Application, name, nil}) }

// RemoveField removes a property.
func (e *Edit) RemoveField(f Field) { e.add(change{f, "", nil}) }

func (e *Edit) put(c change) error {
	if !c.fits() {
		return ErrValue
	}
	e.add(c)
	return nil
}

// add replaces the change of the same property.
func (e *Edit) add(c change) {
	if i := e.find(c.field, c.name); i >= 0 {
		e.changes[i] = c
		return
	}
	e.changes = append(e.changes, c)
}

func (e *Edit) find(f Field, name string) int {
	return slices.IndexFunc(e.changes, func(c change) bool { return c.field == f && c.name == name })
}

// fits reports whether the property can have the value.
func (c change) fits() bool {
	v, rest, err := wire.ReadValue(c.value)
	if err != nil || len(rest) > 0 {
		return false
	}
	switch c.field {
	case Application:
		return v.Type != wire.List && v.Type != wire.Map && v.Type != wire.Array
	case MessageID, CorrelationID:
		return v.Type == wire.String || v.Type == wire.Ulong || v.Type == wire.UUID || v.Type == wire.Binary
	}
	return v.Type == wire.String
}

// Then returns the edit that has the effect of e and then of another one.
func (e Edit) Then(later Edit) Edit {
	both := Edit{slices.Clone(e.changes)}
	for _, c := range later.changes {
		both.add(c)
	}
	return both
}

// Empty reports whether the edit changes nothing.
func (e Edit) Empty() bool { return len(e.changes) == 0 }

// Property returns what the edit makes of an application property. changed false: it leaves it as it is; an empty value:
// it removes it.
func (e Edit) Property(name string) (value wire.RawValue, changed bool) {
	return e.value(e.find(Application, name))
}

// Names gives the application properties that the edit sets or removes, in the order in which it first did.
func (e Edit) Names(yield func(string) bool) {
	for _, c := range e.changes {
		if c.field == Application && !yield(c.name) {
			return
		}
	}
}

// Field returns what the edit makes of a property, as Property does.
func (e Edit) Field(f Field) (value wire.RawValue, changed bool) { return e.value(e.find(f, "")) }

func (e Edit) value(i int) (value wire.RawValue, changed bool) {
	if i < 0 {
		return nil, false
	}
	return e.changes[i].value, true
}

// The encoded form is a list of changes, each
//
//	what    1 byte: set or removed
//	field   1 byte
//	name    length (uvarint), bytes; of application properties only
//	value   encoded as AMQP 1.0 does; of set ones only
const (
	set = 1 + iota
	removed
)

// Append appends the encoded form, which is empty if nothing is changed.
func (e Edit) Append(b []byte) ([]byte, error) {
	at := len(b)
	for _, c := range e.changes {
		what := byte(set)
		if len(c.value) == 0 {
			what = removed
		}
		b = append(b, what, byte(c.field))
		if c.field == Application {
			b = append(binary.AppendUvarint(b, uint64(len(c.name))), c.name...)
		}
		b = append(b, c.value...)
	}
	if len(b)-at > MaxSize {
		return b[:at], ErrTooLarge
	}
	return b, nil
}

// Parse reads an encoded edit. Values are views of b.
func Parse(b []byte) (e Edit, err error) {
	if len(b) > MaxSize {
		return Edit{}, ErrFormat
	}
	for len(b) > 0 {
		if len(b) < 2 || b[0] != set && b[0] != removed || Field(b[1]) >= fieldEnd {
			return Edit{}, ErrFormat
		}
		what, c := b[0], change{field: Field(b[1])}
		b = b[2:]
		if c.field == Application {
			n, size := binary.Uvarint(b)
			if size <= 0 || n > uint64(len(b)-size) {
				return Edit{}, ErrFormat
			}
			c.name, b = string(b[size:size+int(n)]), b[size+int(n):]
		}
		if what == set {
			_, rest, err := wire.ReadValue(b)
			if err != nil {
				return Edit{}, ErrFormat
			}
			c.value, b = wire.RawValue(b[:len(b)-len(rest)]), rest
			if !c.fits() {
				return Edit{}, ErrFormat
			}
		}
		e.add(c)
	}
	return e, nil
}
