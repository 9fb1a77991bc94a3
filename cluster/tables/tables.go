// Package tables is the one codec between AMQP's field tables and JSON. It has two forms.
//
// The plain form is that of the HTTP API and of definitions, and RabbitMQ's: a value is what JSON can show of
// it, a table an object. It does not say whether 1 was a byte or a long, nor in which order fields were.
//
// The typed form is that of exported messages: what is read is what was written, to the octet. A table is an
// object whose members are in the order of the table. A name that is not UTF-8, or begins with rawName itself,
// is rawName and its octets in base64. Values:
//
//	S                  a string, or {"string_base64": …} if it is not UTF-8
//	l                  a whole number
//	d                  {"float64": number, "NaN", "Infinity" or "-Infinity"}; a number with a fraction or an exponent is read, too
//	t                  true, false
//	V                  null
//	A                  an array
//	F                  {"table": object}
//	b B s u I i f T D x  an object with the name in kinds: {"int8": n}, {"decimal": [scale, value]}, {"bytes": base64} …
package tables

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	rawName = "base64:"
	// nested is the name of a table in the typed form, rawText that of a string that is not UTF-8.
	nested, rawText = "table", "string_base64"
	// maxDepth is how deep a typed table may be nested: AMQP's decoder allows no more.
	maxDepth = 64
)

// kind is a type that JSON does not have.
type kind struct {
	tag  byte
	name string                              // in the typed form
	show func(v *logpb.Value) any            // in the plain form
	keep func(v *logpb.Value) any            // in the typed form
	read func(v *logpb.Value, kept any) bool // the inverse of keep; false: that is none of its values
}

var kinds = []kind{
	{'b', "int8", whole, whole, readWhole(math.MinInt8, math.MaxInt8)}, {'B', "uint8", whole, whole, readWhole(0, math.MaxUint8)},
	{'s', "int16", whole, whole, readWhole(math.MinInt16, math.MaxInt16)}, {'u', "uint16", whole, whole, readWhole(0, math.MaxUint16)},
	{'I', "int32", whole, whole, readWhole(math.MinInt32, math.MaxInt32)}, {'i', "uint32", whole, whole, readWhole(0, math.MaxUint32)},
	{'T', "timestamp", instant, instant, readInstant},
	{'f', "float32", finite(single), exact(single, 32), readFloat(32)},
	{'d', "float64", finite(double), exact(double, 64), readFloat(64)},
	{'D', "decimal", showDecimal, keepDecimal, readDecimal},
	{'x', "bytes", text, encoded, readEncoded},
	{'S', rawText, text, encoded, readEncoded},
}

// JSON returns a table in the plain form.
func JSON(t *fsm.Table) map[string]any {
	object := map[string]any{}
	for _, f := range t.GetFields() {
		object[f.GetName()] = JSONValue(f.GetValue())
	}
	return object
}

// JSONValue returns a value in the plain form.
func JSONValue(v *logpb.Value) any { return toJSON(v, false) }

// Typed returns a table in the typed form. The field with the name plain is an object there if it is a table: its reader
// knows what it is.
func Typed(t *fsm.Table, plain string) Object {
	o := typed(t)
	for i, f := range t.GetFields() {
		if kept, ok := o[i].Value.(Object); ok && f.GetName() == plain && kept[0].Name == nested {
			o[i].Value = kept[0].Value
		}
	}
	return o
}

func typed(t *fsm.Table) Object {
	o := make(Object, len(t.GetFields()))
	for i, f := range t.GetFields() {
		name := f.GetName()
		if !utf8.ValidString(name) || strings.HasPrefix(name, rawName) {
			name = rawName + base64.StdEncoding.EncodeToString([]byte(name))
		}
		o[i] = Member{name, toJSON(f.GetValue(), true)}
	}
	return o
}

// toJSON returns a value in one of the two forms.
func toJSON(v *logpb.Value, keep bool) any {
	switch v.GetTag() {
	case 't':
		return v.GetInt() != 0
	case 'V':
		return nil
	case 'A':
		list := []any{}
		for _, e := range v.GetArray() {
			list = append(list, toJSON(e, keep))
		}
		return list
	case 'F':
		if keep {
			return Object{{nested, typed(v.GetTable())}}
		}
		return JSON(v.GetTable())
	case 'S':
		if keep && utf8.Valid(v.GetStr()) {
			return string(v.GetStr())
		}
	}
	for i := range kinds {
		if k := &kinds[i]; k.tag == byte(v.GetTag()) {
			if keep {
				return Object{{k.name, k.keep(v)}}
			}
			return k.show(v)
		}
	}
	return v.GetInt()
}

// Of returns the table of a decoded object in the plain form, ordered by name.
func Of(object map[string]any) *fsm.Table { return ValueOf(object).Table }

// ValueOf returns the value of a decoded one in the plain form: whole numbers are long, others double.
func ValueOf(value any) *logpb.Value {
	v, _ := valueOf(value, math.MaxInt) // the plain form has no wrong values
	return v
}

// Table is the inverse of Typed.
func (o Object) Table(plain string) (*fsm.Table, error) {
	o = slices.Clone(o)
	for i := range o {
		if o[i].Name == plain {
			o[i].Value = Object{{nested, o[i].Value}}
		}
	}
	return o.table(maxDepth)
}

// valueOf is the inverse of toJSON for both forms: an Object is of the typed one, a map of the plain one. left is how
// much deeper values may be nested.
func valueOf(value any, left int) (v *logpb.Value, err error) {
	if left == 0 {
		return nil, errDepth
	}
	switch x := value.(type) {
	case bool:
		v = &logpb.Value{Tag: 't'}
		if x {
			v.Int = 1
		}
	case string:
		v = &logpb.Value{Tag: 'S', Str: []byte(x)}
	case json.Number:
		if n, err := x.Int64(); err == nil {
			return &logpb.Value{Tag: 'l', Int: n}, nil
		}
		f, _ := x.Float64() // beyond its range: infinite
		v = &logpb.Value{Tag: 'd', Int: int64(math.Float64bits(f))}
	case map[string]any:
		v = &logpb.Value{Tag: 'F', Table: &fsm.Table{}}
		for _, name := range slices.Sorted(maps.Keys(x)) {
			f := &logpb.Field{Name: name}
			if f.Value, err = valueOf(x[name], left-1); err != nil {
				return nil, err
			}
			v.Table.Fields = append(v.Table.Fields, f)
		}
	case Object:
		return x.value(left)
	case []any:
		v = &logpb.Value{Tag: 'A'}
		for _, e := range x {
			element, err := valueOf(e, left-1)
			if err != nil {
				return nil, err
			}
			v.Array = append(v.Array, element)
		}
	default:
		v = &logpb.Value{Tag: 'V'}
	}
	return v, nil
}

// table reads a table that left allows to be nested.
func (o Object) table(left int) (*fsm.Table, error) {
	t := &fsm.Table{}
	for _, m := range o {
		v, err := valueOf(m.Value, left)
		name := m.Name
		if coded, ok := strings.CutPrefix(name, rawName); err == nil && ok {
			var raw []byte
			raw, err = base64.StdEncoding.DecodeString(coded)
			name = string(raw)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
		t.Fields = append(t.Fields, &logpb.Field{Name: name, Value: v})
	}
	return t, nil
}

// value reads the object of a kind, or of a table.
func (o Object) value(left int) (v *logpb.Value, err error) {
	switch len(o) {
	case 0:
		return nil, errors.New(`an object without a type; a table is {"table": {…}}`)
	case 1:
	default:
		return nil, errors.New(`an object with more than one type; a table is {"table": {…}}`)
	}
	name, kept := o[0].Name, o[0].Value
	if name == nested {
		inner, ok := kept.(Object)
		if !ok {
			return nil, errShape
		}
		v = &logpb.Value{Tag: 'F'}
		v.Table, err = inner.table(left - 1)
		return v, err
	}
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })
	if i < 0 {
		return nil, fmt.Errorf("%q is not a type", name)
	}
	v = &logpb.Value{Tag: uint32(kinds[i].tag)}
	if !kinds[i].read(v, kept) {
		return nil, fmt.Errorf("%s is not a valid %s", fsm.Short(string(Append(nil, kept))), name)
	}
	return v, nil
}

func whole(v *logpb.Value) any { return v.GetInt() }

// readWhole reads a whole number within bounds.
func readWhole(low, high int64) func(v *logpb.Value, kept any) bool {
	return func(v *logpb.Value, kept any) bool {
		number, _ := kept.(json.Number)
		n, err := number.Int64()
		v.Int = n
		return err == nil && n >= low && n <= high
	}
}

func instant(v *logpb.Value) any { return uint64(v.GetInt()) }

func readInstant(v *logpb.Value, kept any) bool {
	number, _ := kept.(json.Number)
	n, err := strconv.ParseUint(number.String(), 10, 64)
	v.Int = int64(n)
	return err == nil
}

func single(v *logpb.Value) float64 { return float64(math.Float32frombits(uint32(v.GetInt()))) }

func double(v *logpb.Value) float64 { return math.Float64frombits(uint64(v.GetInt())) }

// finite is null for what is no number in JSON.
func finite(of func(*logpb.Value) float64) func(v *logpb.Value) any {
	return func(v *logpb.Value) any {
		if f := of(v); !math.IsNaN(f) && !math.IsInf(f, 0) {
			return f
		}
		return nil
	}
}

// exact is a number, or the name of what is none in JSON.
func exact(of func(*logpb.Value) float64, bits int) func(v *logpb.Value) any {
	return func(v *logpb.Value) any {
		switch f := of(v); {
		case math.IsNaN(f):
			return "NaN"
		case math.IsInf(f, 1):
			return "Infinity"
		case math.IsInf(f, -1):
			return "-Infinity"
		default:
			return json.Number(strconv.FormatFloat(f, 'g', -1, bits))
		}
	}
}

// readFloat is the inverse of exact.
func readFloat(bits int) func(v *logpb.Value, kept any) bool {
	return func(v *logpb.Value, kept any) bool {
		name, _ := kept.(string)
		number, _ := kept.(json.Number)
		f, err := strconv.ParseFloat(name+number.String(), bits)
		if v.Int = int64(math.Float64bits(f)); bits == 32 {
			v.Int = int64(math.Float32bits(float32(f)))
		}
		return err == nil
	}
}

// decimalOf takes a decimal apart: what it is to be divided by a power of ten, and which.
func decimalOf(v *logpb.Value) (scale uint8, n int32) {
	raw := slices.Concat(v.GetStr(), make([]byte, 5))
	return raw[0], int32(binary.BigEndian.Uint32(raw[1:]))
}

func showDecimal(v *logpb.Value) any {
	if len(v.GetStr()) != 5 {
		return text(v)
	}
	scale, n := decimalOf(v)
	return json.Number(strings.TrimSuffix(fmt.Sprintf("%de-%d", n, scale), "e-0"))
}

func keepDecimal(v *logpb.Value) any {
	scale, n := decimalOf(v)
	return []any{scale, n}
}

func readDecimal(v *logpb.Value, kept any) bool {
	pair, _ := kept.([]any)
	var scale, n logpb.Value
	v.Str = nil
	if len(pair) != 2 || !readWhole(0, math.MaxUint8)(&scale, pair[0]) || !readWhole(math.MinInt32, math.MaxInt32)(&n, pair[1]) {
		return false
	}
	v.Str = binary.BigEndian.AppendUint32([]byte{byte(scale.Int)}, uint32(n.Int))
	return true
}

// text says of octets that JSON cannot show, in RabbitMQ's words, that it cannot.
func text(v *logpb.Value) any {
	if raw := v.GetStr(); !utf8.Valid(raw) {
		return "Not UTF-8, base64 is: " + base64.StdEncoding.EncodeToString(raw)
	}
	return string(v.GetStr())
}

func encoded(v *logpb.Value) any { return base64.StdEncoding.EncodeToString(v.GetStr()) }

func readEncoded(v *logpb.Value, kept any) bool {
	coded, ok := kept.(string)
	var err error
	v.Str, err = base64.StdEncoding.DecodeString(coded)
	return ok && err == nil
}
