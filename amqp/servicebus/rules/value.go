package rules

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/quorate/quorate/amqp/v10/wire"
)

// Errors of an evaluation.
var (
	ErrTypes  = errors.New("values of types that the operator does not take")
	ErrDivide = errors.New("a division by zero, or beyond the largest number")
	ErrSteps  = errors.New("the message takes too many steps")
)

// Kind is what a Value is.
type Kind uint8

// Kinds of values.
const (
	Unknown Kind = iota // null, or what the message does not have
	Bool
	Int      // of 64 bits, whatever width it came with
	Float    // double
	Text     // compared octet by octet
	UUID     // compared as a whole
	Time     // ms since 1970
	Duration // in ticks of 100 ns
	Binary
	Other // a value that can only be there or not
)

// TicksPerMilli is how many ticks a millisecond has.
const TicksPerMilli = 10_000

// Value is the value of a property or of an expression. Its zero value is unknown. Texts are views, mostly of a message.
type Value struct {
	kind Kind
	n    int64  // of Bool: 0 or 1; of Float: its bits
	text []byte // of Text, UUID and Binary
}

// BoolOf returns a truth value.
func BoolOf(b bool) Value {
	if b {
		return Value{kind: Bool, n: 1}
	}
	return Value{kind: Bool}
}

// IntOf returns a whole number.
func IntOf(n int64) Value { return Value{kind: Int, n: n} }

// FloatOf returns a number.
func FloatOf(f float64) Value { return Value{kind: Float, n: int64(math.Float64bits(f))} }

// TextOf returns a text.
func TextOf(s string) Value { return Value{kind: Text, text: []byte(s)} }

// TimeOf returns a time in ms since 1970.
func TimeOf(ms int64) Value { return Value{kind: Time, n: ms} }

// DurationOf returns a duration in ticks.
func DurationOf(ticks int64) Value { return Value{kind: Duration, n: ticks} }

// UUIDOf returns a UUID.
func UUIDOf(id [16]byte) Value { return Value{kind: UUID, text: id[:]} }

// Kind returns what v is.
func (v Value) Kind() Kind { return v.kind }

func (v Value) isNumber() bool { return v.kind == Int || v.kind == Float }
func (v Value) isTrue() bool   { return v.kind == Bool && v.n == 1 }
func (v Value) isFalse() bool  { return v.kind == Bool && v.n == 0 }

func (v Value) float() float64 {
	if v.kind == Int {
		return float64(v.n)
	}
	return math.Float64frombits(uint64(v.n))
}

// Descriptors of the types that the service's clients add to AMQP.
const (
	descriptorURI   = "com.microsoft:uri"
	descriptorTime  = "com.microsoft:datetime-offset" // in ticks since the year 1
	descriptorTicks = "com.microsoft:timespan"

	epochTicks = 621_355_968_000_000_000 // of 1970
)

// valueOf returns a value of a message.
func valueOf(v wire.Value) Value {
	if n, ok := v.Integer(); ok {
		return IntOf(n)
	}
	switch v.Type {
	case wire.Null:
		return Value{}
	case wire.Boolean:
		return BoolOf(v.Bool())
	case wire.Float, wire.Double:
		return FloatOf(v.Float())
	case wire.Char:
		return IntOf(v.Signed())
	case wire.Timestamp:
		return TimeOf(v.Signed())
	case wire.String, wire.Symbol:
		return Value{kind: Text, text: v.Bytes()}
	case wire.UUID:
		return Value{kind: UUID, text: v.Bytes()}
	case wire.Binary:
		return Value{kind: Binary, text: v.Bytes()}
	case wire.Described:
		return describedValue(v.Walk())
	}
	return Value{kind: Other}
}

func describedValue(w wire.Walk) Value {
	w.Next()
	descriptor := w.Value
	w.Next()
	v := valueOf(w.Value)
	switch name := string(descriptor.Bytes()); {
	case name == descriptorURI && v.kind == Text:
		return v
	case name == descriptorTime && v.kind == Int:
		return TimeOf((v.n - epochTicks) / TicksPerMilli)
	case name == descriptorTicks && v.kind == Int:
		return DurationOf(v.n)
	}
	return Value{kind: Other}
}

// raw returns the value of an encoded one, which has been checked; empty: unknown.
func raw(b wire.RawValue) Value { return valueOf(b.Value()) }

// encode returns the value as a property of a message has it.
func (v Value) encode() wire.RawValue {
	switch v.kind {
	case Bool:
		return wire.AppendBool(nil, v.n == 1)
	case Int:
		return wire.AppendLong(nil, v.n)
	case Float:
		return wire.AppendDoubleBits(nil, uint64(v.n))
	case Text:
		return wire.AppendString(nil, v.text)
	case UUID:
		return wire.AppendUUID(nil, [16]byte(v.text))
	case Time:
		return wire.AppendTimestamp(nil, v.n)
	case Duration:
		return wire.AppendLong(wire.AppendSymbol([]byte{0}, descriptorTicks), v.n)
	case Binary:
		return wire.AppendBinary(nil, v.text)
	}
	return wire.AppendNull(nil)
}

// format returns the value as a text has it. ok false: it has no form.
func (v Value) format() (text []byte, ok bool) {
	switch v.kind {
	case Text:
		return v.text, true
	case Bool:
		if v.n == 1 {
			return []byte("True"), true
		}
		return []byte("False"), true
	case Int:
		return strconv.AppendInt(nil, v.n, 10), true
	case Float:
		return strconv.AppendFloat(nil, v.float(), 'G', -1, 64), true
	case UUID:
		h := hex.EncodeToString(v.text)
		return []byte(strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")), true
	}
	return nil, false
}

// compare compares two values that are known. ordered false: they can only be equal or not.
func compare(a, b Value) (order int, ordered bool, err error) {
	switch {
	case a.isNumber() && b.isNumber():
		return compareNumbers(a, b), true, nil
	case a.kind != b.kind || a.kind == Other:
		return 0, false, ErrTypes
	case a.kind == Text:
		return bytes.Compare(a.text, b.text), true, nil
	case a.kind == Time, a.kind == Duration:
		return three(a.n < b.n, a.n > b.n), true, nil
	}
	return three(false, a.n != b.n || !bytes.Equal(a.text, b.text)), false, nil
}

// notANumber is the order of numbers that have none: they are neither equal nor less nor greater.
const notANumber = 2

func compareNumbers(a, b Value) int {
	if a.kind == Int && b.kind == Int {
		return three(a.n < b.n, a.n > b.n)
	}
	x, y := a.float(), b.float()
	if x != x || y != y {
		return notANumber
	}
	return three(x < y, x > y)
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

// maxText bounds a text that an expression makes.
const maxText = 32 << 10

// calculate applies an operator of arithmetic to two values that are known.
func calculate(op byte, a, b Value) (Value, error) {
	switch {
	case a.kind == Int && b.kind == Int:
		return calculateInt(op, a.n, b.n)
	case a.isNumber() && b.isNumber():
		return FloatOf(calculateFloat(op, a.float(), b.float())), nil
	case op == '+' && (a.kind == Text || b.kind == Text):
		return concatenate(a, b)
	}
	return calculateTime(op, a, b)
}

func concatenate(a, b Value) (Value, error) {
	x, ok := a.format()
	y, too := b.format()
	switch {
	case !ok || !too:
		return Value{}, ErrTypes
	case len(x)+len(y) > maxText:
		return Value{}, ErrSteps
	}
	return Value{kind: Text, text: append(append(make([]byte, 0, len(x)+len(y)), x...), y...)}, nil
}

// calculateInt wraps as numbers of 64 bits do.
func calculateInt(op byte, x, y int64) (Value, error) {
	switch op {
	case '+':
		return IntOf(x + y), nil
	case '-':
		return IntOf(x - y), nil
	case '*':
		return IntOf(x * y), nil
	}
	switch {
	case y == 0 || y == -1 && x == math.MinInt64:
		return Value{}, ErrDivide
	case op == '/':
		return IntOf(x / y), nil
	}
	return IntOf(x % y), nil
}

func calculateFloat(op byte, x, y float64) float64 {
	switch op {
	case '+':
		return x + y
	case '-':
		return x - y
	case '*':
		return x * y
	case '/':
		return x / y
	}
	return math.Mod(x, y)
}

func calculateTime(op byte, a, b Value) (Value, error) {
	sign := int64(1)
	if op == '-' {
		sign = -1
	}
	switch {
	case op != '+' && op != '-':
	case a.kind == Time && b.kind == Time && op == '-':
		return DurationOf((a.n - b.n) * TicksPerMilli), nil
	case a.kind == Time && b.kind == Duration:
		return TimeOf(a.n + sign*(b.n/TicksPerMilli)), nil
	case a.kind == Duration && b.kind == Duration:
		return DurationOf(a.n + sign*b.n), nil
	}
	return Value{}, ErrTypes
}

// negate is the unary minus.
func negate(v Value) (Value, error) {
	switch v.kind {
	case Int, Duration:
		v.n = -v.n
		return v, nil
	case Float:
		return FloatOf(-v.float()), nil
	}
	return Value{}, ErrTypes
}
