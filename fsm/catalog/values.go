package catalog

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/route"
	"github.com/quorate/quorate/proto/logpb"
)

// valueClasses gives, for each wire letter of a field value, the class within
// which values can be equal.
var valueClasses = [128]route.Class{
	't': route.Bool,
	'b': route.Int, 'B': route.Int, 's': route.Int, 'u': route.Int, 'I': route.Int, 'i': route.Int, 'l': route.Int, 'L': route.Int,
	'f': route.Float, 'd': route.Float,
	'D': route.Decimal,
	'S': route.String,
	'x': route.Bytes,
	'A': route.Array,
	'T': route.Timestamp,
	'F': route.Nested,
	'V': route.Void,
}

// unknownClass is the class of values with a letter that is not AMQP's.
const unknownClass route.Class = 255

// typeName is never empty.
func typeName(v *logpb.Value) string {
	if name := fsm.TypeName(v.GetTag()); name != "" {
		return name
	}
	return "unknown"
}

// classOf returns the class of a value; of nil, unknownClass: its tag is 0.
func classOf(v *logpb.Value) route.Class {
	if known(v) {
		return valueClasses[v.GetTag()]
	}
	return unknownClass
}

// known reports whether the tag is one of AMQP's. It bounds the index into
// valueClasses.
func known(v *logpb.Value) bool { return fsm.TypeName(v.GetTag()) != "" }

// lookup returns the first value under name, or nil. t may be nil. It walks
// over the fields: tables are short, see MaxArgumentValues.
func lookup(t *fsm.Table, name string) *logpb.Value {
	for _, f := range t.GetFields() {
		if f.GetName() == name {
			return f.GetValue()
		}
	}
	return nil
}

// text returns a longstr as a string. false: v is another type, or nil. It
// copies.
func text(v *logpb.Value) (string, bool) {
	if v.GetTag() != 'S' {
		return "", false
	}
	return string(v.GetStr()), true
}

// integer returns an integer of any width. false: v is another type, or nil.
// Timestamps and booleans are no integers.
func integer(v *logpb.Value) (int64, bool) {
	return v.GetInt(), classOf(v) == route.Int
}

// normal returns v in the form in which values are compared.
//
// Two values are equal if their normal forms are: integers of all widths by
// number, floats of both widths by number with -0 as 0, decimals by their
// bytes, arrays and tables by their encoding, so that inside them types and
// order count. Text shares memory with v for texts, and is new for encoded
// ones.
func normal(v *logpb.Value) route.Value {
	c := route.Value{Class: classOf(v)}
	switch c.Class {
	case route.Bool:
		if v.GetInt() != 0 {
			c.Num = 1
		}
	case route.Int, route.Timestamp:
		c.Num = v.GetInt()
	case route.Float:
		c.Num = floatBits(v)
	case route.String, route.Bytes, route.Decimal:
		c.Text = v.GetStr()
	case route.Array, route.Nested, unknownClass:
		c.Text = encoded(v)
	}
	return c
}

// headerValue is the normal form in which headers exchanges compare: octets are texts there, and times are
// numbers.
func headerValue(v *logpb.Value) route.Value {
	c := normal(v)
	switch c.Class {
	case route.Bytes:
		c.Class = route.String
	case route.Timestamp:
		c.Class = route.Int
	}
	return c
}

// equalValues compares values as redeclares do.
func equalValues(a, b *logpb.Value) bool { return normal(a).Equal(normal(b)) }

// floatBits returns the bits of a float of either width as a float64, and
// those of 0 for -0.
func floatBits(v *logpb.Value) int64 {
	f := math.Float64frombits(uint64(v.GetInt()))
	if v.GetTag() == 'f' {
		f = float64(math.Float32frombits(uint32(v.GetInt())))
	}
	if f == 0 {
		return 0
	}
	return int64(math.Float64bits(f))
}

// encoded returns a message in its one canonical encoding. The same on every
// replica, whatever built m. It panics only if m cannot be encoded at all.
func encoded(m proto.Message) []byte {
	b, err := logpb.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("catalog: a message of our own does not encode: %v", err))
	}
	return b
}

// render returns v as texts for clients and operators show it. It is for
// people: different values may look the same.
func render(v *logpb.Value) string {
	switch classOf(v) {
	case route.Bool:
		return strconv.FormatBool(v.GetInt() != 0)
	case route.Int, route.Timestamp:
		return strconv.FormatInt(v.GetInt(), 10)
	case route.Float:
		return strconv.FormatFloat(math.Float64frombits(uint64(floatBits(v))), 'g', -1, 64)
	case route.String, route.Bytes:
		return string(v.GetStr())
	case route.Decimal:
		return fmt.Sprintf("%x", v.GetStr())
	case route.Array:
		parts := make([]string, len(v.GetArray()))
		for i, e := range v.GetArray() {
			parts[i] = render(e)
		}
		return "[" + strings.Join(parts, ",") + "]"
	case route.Nested:
		return renderTable(v.GetTable())
	}
	return typeName(v)
}

func renderTable(t *fsm.Table) string {
	parts := make([]string, len(t.GetFields()))
	for i, f := range t.GetFields() {
		parts[i] = fmt.Sprintf("%s=%s:%s", f.GetName(), typeName(f.GetValue()), render(f.GetValue()))
	}
	return "{" + strings.Join(parts, ",") + "}"
}
