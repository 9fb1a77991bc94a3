package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// mustHex reads hexadecimal digits; blanks and line ends do not count.
func mustHex(t testing.TB, digits string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(digits), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// mustFail checks that err is the protocol error want.
func mustFail(t testing.TB, err error, want Error) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("err = %v, want a protocol error", err)
	}
	if *e != want {
		t.Fatalf("err = %+v\nwant  %+v", *e, want)
	}
}

// mustReadFrame reads one frame that must be well formed.
func mustReadFrame(t testing.TB, b []byte) Frame {
	t.Helper()
	r := NewReader(bytes.NewReader(b), 1<<20)
	f, err := r.ReadFrame()
	if err != nil {
		t.Fatal(err)
	}
	if r.Buffered() != 0 {
		t.Fatalf("%d octets behind the frame", r.Buffered())
	}
	return f
}

// allIDs are the ids of all methods there are.
func allIDs() []uint32 {
	var ids []uint32
	for class := range uint32(256) {
		for method := range uint32(256) {
			if newMethod(class<<16|method) != nil {
				ids = append(ids, class<<16|method)
			}
		}
	}
	return ids
}

func drawShortstr(t *rapid.T, label string) string {
	return rapid.StringN(-1, -1, maxShortstr).Draw(t, label)
}

// drawMethod draws the arguments of m.
func drawMethod(t *rapid.T, m Method) {
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		f, name := v.Field(i), v.Type().Field(i).Name
		switch f.Interface().(type) {
		case bool:
			f.SetBool(rapid.Bool().Draw(t, name))
		case byte:
			f.SetUint(uint64(rapid.Byte().Draw(t, name)))
		case uint16:
			f.SetUint(uint64(rapid.Uint16().Draw(t, name)))
		case uint32:
			f.SetUint(uint64(rapid.Uint32().Draw(t, name)))
		case uint64:
			f.SetUint(rapid.Uint64().Draw(t, name))
		case string:
			f.SetString(drawShortstr(t, name))
		case Table:
			f.Set(reflect.ValueOf(drawTable(t, 3)))
		default:
			t.Fatalf("%T.%s has a type no test knows", m, name)
		}
	}
}

// drawTable draws a table in canonical form: as DecodeTable returns it.
func drawTable(t *rapid.T, depth int) Table {
	n := rapid.IntRange(0, 4).Draw(t, "fields")
	if n == 0 {
		return nil
	}
	table := make(Table, n)
	for i := range table {
		table[i] = Field{Name: drawShortstr(t, "name"), Value: drawValue(t, depth)}
	}
	return table
}

const allTags = "tbBsuIilLfdDSATFVx"

func drawValue(t *rapid.T, depth int) Value {
	tags := allTags
	if depth == 0 {
		tags = "tbBsuIilfdDSTVx"
	}
	v := Value{Tag: rapid.SampledFrom([]byte(tags)).Draw(t, "tag")}
	switch v.Tag {
	case TagBool:
		v.Int = int64(bit(rapid.Bool().Draw(t, "bool"), 0))
	case TagInt8:
		v.Int = int64(rapid.Int8().Draw(t, "int8"))
	case TagUint8:
		v.Int = int64(rapid.Uint8().Draw(t, "uint8"))
	case TagInt16:
		v.Int = int64(rapid.Int16().Draw(t, "int16"))
	case TagUint16:
		v.Int = int64(rapid.Uint16().Draw(t, "uint16"))
	case TagInt32:
		v.Int = int64(rapid.Int32().Draw(t, "int32"))
	case TagUint32, TagFloat32:
		v.Int = int64(rapid.Uint32().Draw(t, "uint32"))
	case TagInt64, TagInt64Alt, TagTimestamp, TagFloat64:
		v.Int = rapid.Int64().Draw(t, "int64")
	case TagDecimal:
		v.Str = string(rapid.SliceOfN(rapid.Byte(), 5, 5).Draw(t, "decimal"))
	case TagString, TagBytes:
		v.Str = string(rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "bytes"))
	case TagTable:
		v.Table = drawTable(t, depth-1)
	case TagArray:
		for range rapid.IntRange(0, 4).Draw(t, "values") {
			v.Array = append(v.Array, drawValue(t, depth-1))
		}
	}
	if v.Tag == TagInt64Alt {
		v.Tag = TagInt64
	}
	return v
}
