package route

import (
	"bytes"
	"strings"
)

// Class is the sort of a header value. Values of different classes are never
// equal; integers of all widths are one class, and so are both floats.
type Class uint8

// The classes. Void is the class of a value that says only that it is there.
const (
	Void Class = iota
	Bool
	Int
	Float
	String
	Bytes
	Timestamp
	Decimal
	Array
	Nested // a table in a table
)

// Value is a header value. Num holds a Bool (0, 1), an Int, a Timestamp, or
// the bits of a Float as float64, with one form for each number. Text holds
// what is left: the bytes, or an encoding that is equal for equal values. It
// belongs to whoever made the Value.
type Value struct {
	Class Class
	// Num is 0 for the classes that do not use it: Equal compares it for all classes
	Num int64
	// Text is empty for the classes that do not use it
	Text []byte
}

// Equal reports whether v and o are of one class and equal. Two NaNs with the
// same bits are equal, and 0 equals -0 only if the maker gave both one form.
func (v Value) Equal(o Value) bool {
	return v.Class == o.Class && v.Num == o.Num && bytes.Equal(v.Text, o.Text)
}

// Field is a named value.
type Field struct {
	Name  string
	Value Value
}

// Lookup finds a header of a message by name. An implementation decides what a
// name that occurs twice means.
type Lookup interface {
	Header(name string) (Value, bool)
}

// Headers is the condition of one binding to a headers exchange. Its Values
// share their Text with the fields it was made from. It never changes after
// NewHeaders, so any number of goroutines may Match it. The zero Headers is the
// condition all without fields, which every message fulfils.
type Headers struct {
	// any: one matching field is enough; otherwise all must match
	any bool
	// fields are in the order of the arguments, without those NewHeaders leaves
	// out
	fields []Field
}

// NewHeaders makes the condition of a binding with these arguments. ok is
// false if mode, the value of x-match, is none of all, any, all-with-x and
// any-with-x. Without -with-x names that start with x- are left out; x-match
// itself always is. fields is not changed and not kept.
func NewHeaders(mode string, fields []Field) (h Headers, ok bool) {
	base, withX := strings.CutSuffix(mode, "-with-x")
	if base != "all" && base != "any" {
		return Headers{}, false
	}
	h.any = base == "any"
	for _, f := range fields {
		if f.Name == "x-match" || !withX && strings.HasPrefix(f.Name, "x-") {
			continue
		}
		h.fields = append(h.fields, f)
	}
	return h, true
}

// Match reports whether a message fulfils the condition. With no field to
// compare, all holds for every message and any for none. A Void field asks only
// whether the header is there. It calls headers.Header at most once per field,
// and stops at the first field that decides.
func (h *Headers) Match(headers Lookup) bool {
	for i := range h.fields {
		want := &h.fields[i]
		got, found := headers.Header(want.Name)
		fits := found && (want.Value.Class == Void || want.Value.Equal(got))
		if fits == h.any {
			return fits
		}
	}
	return !h.any
}
