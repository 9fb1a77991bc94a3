package lines

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// A table is a JSON object whose members are in the order of the table. A name that is
// not UTF-8, or begins with rawName itself, is rawName and its bytes in base64. Values:
//
//	S  a string, or {"string_base64": …} if it is not UTF-8
//	l  a whole number
//	d  {"float64": number, "NaN", "Infinity" or "-Infinity"}; a number with a fraction or an exponent is read, too
//	t  true, false
//	V  null
//	A  an array
//	F  {"table": object}
//	b B s u I i  {"int8": n} {"uint8": n} {"int16": n} {"uint16": n} {"int32": n} {"uint32": n}
//	f  {"float32": as float64}
//	T  {"timestamp": seconds}
//	D  {"decimal": [scale, value]}
//	x  {"bytes": base64}
const rawName = "base64:"

// maxDepth is how deep a table may be nested: AMQP's decoder allows no more.
const maxDepth = 64

// integers are the types of whole numbers that have a name in JSON, with their bounds.
var integers = []struct {
	tag       byte
	name      string
	low, high int64
}{
	{'b', "int8", math.MinInt8, math.MaxInt8}, {'B', "uint8", 0, math.MaxUint8},
	{'s', "int16", math.MinInt16, math.MaxInt16}, {'u', "uint16", 0, math.MaxUint16},
	{'I', "int32", math.MinInt32, math.MaxInt32}, {'i', "uint32", 0, math.MaxUint32},
}

// appendString appends a JSON string. s is UTF-8.
func appendString(dst []byte, s string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string always encodes
	return append(dst, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...)
}

func appendName(dst []byte, name string) []byte {
	if !utf8.ValidString(name) || strings.HasPrefix(name, rawName) {
		name = rawName + base64.StdEncoding.EncodeToString([]byte(name))
	}
	return appendString(dst, name)
}

// appendTable appends a table as a JSON object. properties: it is that of the properties,
// whose headers need not be called a table.
func appendTable(dst []byte, t *fsm.Table, properties bool) []byte {
	dst = append(dst, '{')
	for i, f := range t.GetFields() {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendName(dst, f.GetName()), ':')
		dst = appendValue(dst, properties && f.GetName() == "headers", f.GetValue())
	}
	return append(dst, '}')
}

// appendValue appends a value. A table that is plain is not called one.
func appendValue(dst []byte, plain bool, v *logpb.Value) []byte {
	typed := func(name string, add func(dst []byte) []byte) []byte {
		return append(add(append(appendString(append(dst, '{'), name), ':')), '}')
	}
	number := func(n int64) func([]byte) []byte {
		return func(dst []byte) []byte { return strconv.AppendInt(dst, n, 10) }
	}
	encoded := func(dst []byte) []byte {
		return appendString(dst, base64.StdEncoding.EncodeToString(v.GetStr()))
	}
	switch tag := byte(v.GetTag()); tag {
	case 'S':
		if utf8.Valid(v.GetStr()) {
			return appendString(dst, string(v.GetStr()))
		}
		return typed("string_base64", encoded)
	case 'x':
		return typed("bytes", encoded)
	case 'l', 'L':
		return strconv.AppendInt(dst, v.GetInt(), 10)
	case 't':
		return strconv.AppendBool(dst, v.GetInt() != 0)
	case 'A':
		dst = append(dst, '[')
		for i, e := range v.GetArray() {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendValue(dst, false, e)
		}
		return append(dst, ']')
	case 'F':
		if plain {
			return appendTable(dst, v.GetTable(), false)
		}
		return typed("table", func(dst []byte) []byte { return appendTable(dst, v.GetTable(), false) })
	case 'f':
		return typed("float32", func(dst []byte) []byte {
			return appendFloat(dst, float64(math.Float32frombits(uint32(v.GetInt()))), 32)
		})
	case 'd':
		return typed("float64", func(dst []byte) []byte { return appendFloat(dst, math.Float64frombits(uint64(v.GetInt())), 64) })
	case 'T':
		return typed("timestamp", func(dst []byte) []byte { return strconv.AppendUint(dst, uint64(v.GetInt()), 10) })
	case 'D':
		b := append(v.GetStr(), make([]byte, 5)...)[:5]
		return typed("decimal", func(dst []byte) []byte {
			return fmt.Appendf(dst, "[%d,%d]", b[0], int32(binary.BigEndian.Uint32(b[1:])))
		})
	default:
		for _, x := range integers {
			if x.tag == tag {
				return typed(x.name, number(v.GetInt()))
			}
		}
	}
	return append(dst, "null"...)
}

func appendFloat(dst []byte, f float64, bits int) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, `"NaN"`...)
	case math.IsInf(f, 1):
		return append(dst, `"Infinity"`...)
	case math.IsInf(f, -1):
		return append(dst, `"-Infinity"`...)
	}
	return strconv.AppendFloat(dst, f, 'g', -1, bits)
}

// parseTable is the inverse of appendTable.
func parseTable(b []byte) (*fsm.Table, error) {
	p := &parser{json.NewDecoder(bytes.NewReader(b))}
	p.UseNumber()
	if err := p.open('{'); err != nil {
		return nil, fmt.Errorf("properties: %w", err)
	}
	t, err := p.table(0, true)
	if err != nil {
		return nil, fmt.Errorf("properties: %w", err)
	}
	return t, nil
}

// parser reads JSON token by token, since an object of encoding/json has no order.
type parser struct{ *json.Decoder }

var (
	errShape = errors.New("not an object")
	errDepth = fmt.Errorf("nested more than %d levels deep", maxDepth)
)

func (p *parser) open(with json.Delim) error {
	t, err := p.Token()
	if err == nil && t != with {
		err = errShape
	}
	return err
}

// table reads the members of an object up to its end. properties: it is the object of
// the properties, whose headers are a table without being called one.
func (p *parser) table(depth int, properties bool) (*fsm.Table, error) {
	t := &fsm.Table{}
	for p.More() {
		key, err := p.Token()
		if err != nil {
			return nil, err
		}
		name, _ := key.(string) // the decoder lets nothing else through
		var v *logpb.Value
		if properties && name == "headers" {
			if err = p.open('{'); err == nil {
				v = &logpb.Value{Tag: 'F'}
				v.Table, err = p.table(depth+1, false)
			}
		} else {
			v, err = p.value(depth + 1)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if coded, ok := strings.CutPrefix(name, rawName); ok {
			b, err := base64.StdEncoding.DecodeString(coded)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			name = string(b)
		}
		t.Fields = append(t.Fields, &logpb.Field{Name: name, Value: v})
	}
	_, err := p.Token() // its end
	return t, err
}

func (p *parser) value(depth int) (*logpb.Value, error) {
	if depth > maxDepth {
		return nil, errDepth
	}
	t, err := p.Token()
	if err != nil {
		return nil, err
	}
	switch x := t.(type) {
	case nil:
		return &logpb.Value{Tag: 'V'}, nil
	case bool:
		v := &logpb.Value{Tag: 't'}
		if x {
			v.Int = 1
		}
		return v, nil
	case string:
		return &logpb.Value{Tag: 'S', Str: []byte(x)}, nil
	case json.Number:
		if n, err := strconv.ParseInt(x.String(), 10, 64); err == nil {
			return &logpb.Value{Tag: 'l', Int: n}, nil
		}
		f, err := x.Float64()
		return &logpb.Value{Tag: 'd', Int: int64(math.Float64bits(f))}, err
	case json.Delim:
		if x == '[' {
			return p.array(depth)
		}
		return p.typed(depth)
	}
	return nil, errShape
}

func (p *parser) array(depth int) (*logpb.Value, error) {
	v := &logpb.Value{Tag: 'A'}
	for p.More() {
		e, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		v.Array = append(v.Array, e)
	}
	_, err := p.Token()
	return v, err
}

// typed reads the rest of an object whose one member is a type and a value.
func (p *parser) typed(depth int) (*logpb.Value, error) {
	key, err := p.Token()
	if err != nil {
		return nil, err
	}
	kind, ok := key.(string)
	if !ok {
		return nil, errors.New("an object without a type; a table is {\"table\": {…}}")
	}
	v := &logpb.Value{}
	if kind == "table" {
		if err := p.open('{'); err != nil {
			return nil, err
		}
		v.Tag = 'F'
		v.Table, err = p.table(depth, false)
	} else {
		err = p.scalar(v, kind)
	}
	if err != nil {
		return nil, err
	}
	if end, err := p.Token(); err != nil || end != json.Delim('}') {
		return nil, errors.Join(err, fmt.Errorf("an object with more than one type; a table is {%q: {…}}", "table"))
	}
	return v, nil
}

// scalar reads a value of a type that is neither a table nor an array.
func (p *parser) scalar(v *logpb.Value, kind string) (err error) {
	switch kind {
	case "string_base64", "bytes":
		v.Tag = 'S'
		if kind == "bytes" {
			v.Tag = 'x'
		}
		return p.Decode(&v.Str)
	case "float32", "float64":
		return p.float(v, kind)
	case "timestamp":
		var n uint64
		err = p.Decode(&n)
		v.Tag, v.Int = 'T', int64(n)
		return err
	case "decimal":
		var n []int64
		if err = p.Decode(&n); err != nil || len(n) != 2 || n[0] < 0 || n[0] > math.MaxUint8 || n[1] != int64(int32(n[1])) {
			return errors.Join(err, errors.New("a decimal is [scale, value], 1 and 4 bytes"))
		}
		v.Tag, v.Str = 'D', binary.BigEndian.AppendUint32([]byte{byte(n[0])}, uint32(n[1]))
		return nil
	}
	for _, x := range integers {
		if x.name == kind {
			if err = p.Decode(&v.Int); err == nil && (v.Int < x.low || v.Int > x.high) {
				err = fmt.Errorf("%d is not a valid %s", v.Int, kind)
			}
			v.Tag = uint32(x.tag)
			return err
		}
	}
	return fmt.Errorf("%q is not a type", kind)
}

func (p *parser) float(v *logpb.Value, kind string) error {
	t, err := p.Token()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	bits := 64
	if kind == "float32" {
		bits = 32
	}
	switch t.(type) {
	case string, json.Number:
	default:
		return fmt.Errorf("%v is not a valid %s", t, kind)
	}
	f, err := strconv.ParseFloat(fmt.Sprint(t), bits)
	v.Tag, v.Int = 'd', int64(math.Float64bits(f))
	if bits == 32 {
		v.Tag, v.Int = 'f', int64(math.Float32bits(float32(f)))
	}
	return err
}
