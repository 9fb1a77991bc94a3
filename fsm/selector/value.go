package selector

import "math"

// Section is a part of a message that fields are named in.
type Section uint8

// Sections.
const (
	Application Section = iota // properties of the application, and the default
	Header
	Properties
	Annotations
)

// Message tells the values of its fields; the zero Value: it has no such field, or one whose type has no order here. Names
// in Header and Properties are those of AMQP 1.0 with underscores.
type Message interface {
	Field(s Section, name string) Value
}

// Kind is what a Value is.
type Kind uint8

// Kinds of values.
const (
	Unknown Kind = iota // which a field is that the message does not have
	Bool
	Int
	Float
	Text
)

// Value is the value of a field or of an expression. Its zero value is unknown.
type Value struct {
	kind Kind
	int  int64 // of Bool: 0 or 1; of Float: its bits
	text string
}

// BoolOf, IntOf, FloatOf and TextOf return values.
func BoolOf(b bool) Value {
	if b {
		return Value{kind: Bool, int: 1}
	}
	return Value{kind: Bool}
}

// IntOf returns a whole number.
func IntOf(n int64) Value { return Value{kind: Int, int: n} }

// FloatOf returns a number; what is none is unknown.
func FloatOf(f float64) Value {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return Value{}
	}
	return Value{kind: Float, int: int64(math.Float64bits(f))}
}

// TextOf returns a string.
func TextOf(s string) Value { return Value{kind: Text, text: s} }

func (v Value) isNumber() bool { return v.kind == Int || v.kind == Float }

// isTrue reports whether v is true: neither false nor unknown, and no other value.
func (v Value) isTrue() bool { return v.kind == Bool && v.int == 1 }

func (v Value) isFalse() bool { return v.kind == Bool && v.int == 0 }

func (v Value) asFloat() float64 {
	if v.kind == Int {
		return float64(v.int)
	}
	return math.Float64frombits(uint64(v.int))
}

// compare orders two values of one type; ok false: they have no order.
func compare(a, b Value) (order int, ok bool) {
	switch {
	case a.kind == Int && b.kind == Int:
		return three(a.int < b.int, a.int > b.int), true
	case a.isNumber() && b.isNumber():
		x, y := a.asFloat(), b.asFloat()
		return three(x < y, x > y), true
	}
	return 0, false
}

func three(less, more bool) int {
	switch {
	case less:
		return -1
	case more:
		return 1
	}
	return 0
}

// equal reports whether two values are equal; ok false: they cannot be compared.
func equal(a, b Value) (same, ok bool) {
	if order, ok := compare(a, b); ok {
		return order == 0, true
	}
	if a.kind != b.kind || a.kind == Unknown {
		return false, false
	}
	return a.int == b.int && a.text == b.text, true
}

// calculate applies an operator of arithmetic. What has no result as a number of its type is unknown.
func calculate(op byte, a, b Value) Value {
	switch {
	case !a.isNumber() || !b.isNumber():
		return Value{}
	case a.kind == Int && b.kind == Int:
		return calculateInt(op, a.int, b.int)
	}
	x, y := a.asFloat(), b.asFloat()
	switch op {
	case '+':
		return FloatOf(x + y)
	case '-':
		return FloatOf(x - y)
	case '*':
		return FloatOf(x * y)
	case '/':
		return FloatOf(x / y)
	}
	return FloatOf(math.Mod(x, y))
}

func calculateInt(op byte, x, y int64) Value {
	switch op {
	case '+':
		if z := x + y; (z > x) == (y > 0) {
			return IntOf(z)
		}
	case '-':
		if z := x - y; (z < x) == (y > 0) {
			return IntOf(z)
		}
	case '*':
		if x == 0 || y == 0 {
			return IntOf(0)
		}
		if z := x * y; z/y == x && !(x == -1 && y == math.MinInt64) && !(y == -1 && x == math.MinInt64) {
			return IntOf(z)
		}
	case '/':
		if y != 0 && !(x == math.MinInt64 && y == -1) {
			return IntOf(x / y)
		}
	case '%':
		if y != 0 && y != -1 {
			return IntOf(x % y)
		}
		if y == -1 {
			return IntOf(0)
		}
	}
	return Value{}
}
