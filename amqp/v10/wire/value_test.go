package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"testing"
)

// Every encoding of part 1 of the specification, and what it means.
func TestEncodings(t *testing.T) {
	for _, c := range []struct{ name, bytes, want string }{
		{"null", "40", "null"},
		{"true", "41", "bool true"}, {"false", "42", "bool false"}, {"boolean", "56 01", "bool true"}, {"boolean", "56 00", "bool false"},
		{"ubyte", "50 ff", "ubyte 255"}, {"ushort", "60 0102", "ushort 258"},
		{"uint", "70 01020304", "uint 16909060"}, {"smalluint", "52 ff", "uint 255"}, {"uint0", "43", "uint 0"},
		{"ulong", "80 ffffffffffffffff", "ulong 18446744073709551615"}, {"smallulong", "53 24", "ulong 36"}, {"ulong0", "44", "ulong 0"},
		{"byte", "51 ff", "byte -1"}, {"short", "61 fffe", "short -2"},
		{"int", "71 fffffffd", "int -3"}, {"smallint", "54 fc", "int -4"},
		{"long", "81 fffffffffffffffb", "long -5"}, {"smalllong", "55 fa", "long -6"},
		{"float", "72 3fc00000", "float 1.5"}, {"double", "82 c004000000000000", "double -2.5"},
		{"decimal32", "74 01020304", "decimal 01020304"}, {"decimal64", "84 0102030405060708", "decimal 0102030405060708"},
		{"decimal128", "94 000102030405060708090a0b0c0d0e0f", "decimal 000102030405060708090a0b0c0d0e0f"},
		{"char", "73 0001f600", "char 128512"},
		{"timestamp", "83 00000138f2b0c000", "timestamp 1344101466112"},
		{"uuid", "98 000102030405060708090a0b0c0d0e0f", "uuid 000102030405060708090a0b0c0d0e0f"},
		{"vbin8", "a0 02 00ff", "binary 00ff"}, {"vbin32", "b0 00000002 00ff", "binary 00ff"},
		{"str8", "a1 03 666f6f", "string 666f6f"}, {"str32", "b1 00000003 666f6f", "string 666f6f"},
		{"sym8", "a3 03 666f6f", "symbol 666f6f"}, {"sym32", "b3 00000003 666f6f", "symbol 666f6f"},
		{"list0", "45", "list []"},
		{"list8", "c0 04 02 41 52 07", "list [bool true, uint 7]"},
		{"list32", "d0 00000007 00000002 41 52 07", "list [bool true, uint 7]"},
		{"map8", "c1 06 02 a3 01 61 52 07", "map [symbol 61, uint 7]"},
		{"map32", "d1 00000009 00000002 a3 01 61 52 07", "map [symbol 61, uint 7]"},
		{"array8", "e0 06 02 a3 01 61 01 62", "array [symbol 61, symbol 62]"},
		{"array32", "f0 0000000d 00000002 70 00000001 00000002", "array [uint 1, uint 2]"},
		{"array of true", "e0 02 03 41", "array [bool true, bool true, bool true]"},
		{"empty array", "e0 02 00 a3", "array []"},
		{"array of lists", "e0 06 02 c0 02 01 41 02 01 42", ""},
		{"array of lists", "e0 08 02 c0 02 01 41 02 01 42", "array [list [bool true], list [bool false]]"},
		{"array of described values", "e0 07 02 00 53 24 50 01 02", "array [ubyte 1, ubyte 2]"},
		{"described", "00 a3 03 55524c a1 01 78", "described [symbol 55524c, string 78]"},
		{"twice described", "00 53 01 00 53 02 41", "described [ulong 1, described [ulong 2, bool true]]"},
		{"described descriptor", "00 00 53 01 53 02 41", "described [described [ulong 1, ulong 2], bool true]"},
	} {
		in := mustHex(t, c.bytes)
		v, rest, err := ReadValue(append(in, 0x42))
		if c.want == "" {
			mustFail(t, err, ConditionDecode, "")
			continue
		}
		if err != nil || len(rest) != 1 {
			t.Errorf("%s %s: %v, %d octets left", c.name, c.bytes, err, len(rest))
			continue
		}
		if got := render(v); got != c.want {
			t.Errorf("%s %s = %s, want %s", c.name, c.bytes, got, c.want)
		}
		for n := range in {
			if _, _, err := ReadValue(in[:n:n]); err == nil {
				t.Errorf("%s: %d of %d octets were read", c.name, n, len(in))
			}
		}
	}
}

var typeNames = [...]string{
	Null: "null", Boolean: "bool", Ubyte: "ubyte", Ushort: "ushort", Uint: "uint", Ulong: "ulong", Byte: "byte", Short: "short", Int: "int",
	Long: "long", Float: "float", Double: "double", Decimal: "decimal", Char: "char", Timestamp: "timestamp", UUID: "uuid", Binary: "binary",
	String: "string", Symbol: "symbol", List: "list", Map: "map", Array: "array", Described: "described",
}

// render returns a value as text.
func render(v Value) string {
	name := typeNames[v.Type]
	switch v.Type {
	case Null:
		return name
	case Boolean:
		return fmt.Sprint(name, " ", v.Bool())
	case Ubyte, Ushort, Uint, Ulong, Char:
		return fmt.Sprint(name, " ", v.Unsigned())
	case Byte, Short, Int, Long, Timestamp:
		return fmt.Sprint(name, " ", v.Signed())
	case Float, Double:
		return fmt.Sprint(name, " ", v.Float())
	case List, Map, Array, Described:
		var all []string
		for w := v.Walk(); w.Next(); {
			all = append(all, render(w.Value))
		}
		return name + " [" + strings.Join(all, ", ") + "]"
	}
	return name + " " + hex.EncodeToString(v.Bytes())
}

func TestWhatIsNoValue(t *testing.T) {
	deep := func(n int) []byte {
		b := []byte{cList0}
		for range n {
			b = append([]byte{cList32, 0, 0, 0, 0, 0, 0, 0, 0}, b...)
			endCompound(b, 0, 1)
		}
		return b
	}
	if _, _, err := ReadValue(deep(maxMessageDepth)); err != nil {
		t.Errorf("%d nested lists: %v", maxMessageDepth, err)
	}
	for _, c := range []struct {
		name string
		in   []byte
		why  string
	}{
		{"nothing", nil, whyShort},
		{"unknown constructor", []byte{0x57}, whyConstructor},
		{"unknown constructor of an array", mustHex(t, "e0 03 01 57 00"), whyConstructor},
		{"list without its size", []byte{cList8}, whyShort},
		{"list without its count", mustHex(t, "c0 00"), whyShort},
		{"list32 of 4 GiB", mustHex(t, "d0 ffffffff 00000001 41"), whyShort},
		{"count beyond the list", mustHex(t, "d0 00000005 ffffffff 41"), whyCount},
		{"octets behind the last", mustHex(t, "c0 03 01 41 42"), whyCount},
		{"element beyond the list", mustHex(t, "c0 03 01 70 00 00 00 00"), whyShort},
		{"odd map", mustHex(t, "c1 02 01 41"), whyOdd},
		{"array without constructor", mustHex(t, "e0 01 00"), whyShort},
		{"array of fixed width", mustHex(t, "e0 03 02 50 01"), whyCount},
		{"array of strings", mustHex(t, "e0 04 03 a1 01 61"), whyCount},
		{"4 billion nulls", mustHex(t, "f0 00000005 ffffffff 40"), whyEmpty},
		{"65,537 empty lists", mustHex(t, "f0 00000005 00010001 45"), whyEmpty},
		{"65 nested lists", deep(maxMessageDepth + 1), whyDeep},
		{"6000 nested lists", deep(6000), whyDeep},
		{"6000 descriptors", append(bytes.Repeat([]byte{described}, 6000), 0x41), whyDeep},
		{"6000 times described", append(bytes.Repeat([]byte{described, cUlong0}, 6000), 0x41), whyDeep},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := ReadValue(c.in)
			mustFail(t, err, ConditionDecode, c.why)
		})
	}
	if v, _, err := ReadValue(mustHex(t, "f0 00000005 00010000 40")); err != nil || v.Len() != maxEmptyElements {
		t.Errorf("65,536 nulls: %d, %v", v.Len(), err)
	}
}

// The shortest encoding is appended, and means the value.
func TestAppendedValues(t *testing.T) {
	long := strings.Repeat("x", 256)
	for _, c := range []struct {
		got  []byte
		size int
		want string
	}{
		{AppendNull(nil), 1, "null"},
		{AppendBool(nil, true), 1, "bool true"}, {AppendBool(nil, false), 1, "bool false"},
		{AppendUbyte(nil, 0), 2, "ubyte 0"}, {AppendUshort(nil, 1), 3, "ushort 1"},
		{AppendUint(nil, 0), 1, "uint 0"}, {AppendUint(nil, 255), 2, "uint 255"}, {AppendUint(nil, 256), 5, "uint 256"},
		{AppendUlong(nil, 0), 1, "ulong 0"}, {AppendUlong(nil, 255), 2, "ulong 255"}, {AppendUlong(nil, math.MaxUint64), 9, "ulong 18446744073709551615"},
		{AppendInt(nil, -128), 2, "int -128"}, {AppendInt(nil, 128), 5, "int 128"},
		{AppendLong(nil, 127), 2, "long 127"}, {AppendLong(nil, -129), 9, "long -129"},
		{AppendTimestamp(nil, -1), 9, "timestamp -1"},
		{AppendBinary(nil, "a"), 3, "binary 61"}, {AppendString(nil, long), 261, "string " + strings.Repeat("78", 256)}, {AppendSymbol(nil, "a"), 3, "symbol 61"},
		{AppendSymbols(nil, []string{"a", "b"}), 14, "array [symbol 61, symbol 62]"},
		{AppendStrings(nil, []string{"a", "b"}), 14, "array [string 61, string 62]"},
		{
			EndMapArray(EndMapElement(AppendUint(AppendSymbol(StartMapElement(EndMapElement(StartMapElement(StartMapArray(nil)), 10, 0)), "a"), 7), 18, 1), 0, 2),
			31, "array [map [], map [symbol 61, uint 7]]",
		},
		{EndMap(AppendBool(AppendSymbol(StartMap(nil), "a"), true), 0, 1), 13, "map [symbol 61, bool true]"},
		{EndList(AppendUint(AppendUint(StartList(nil), 1), 2), 0, 2), 13, "list [uint 1, uint 2]"},
		{AppendBool(AppendDescriptor(nil, 0x24), true), 4, "described [ulong 36, bool true]"},
	} {
		v, rest, err := ReadValue(c.got)
		if err != nil || len(rest) != 0 {
			t.Errorf("% x: %v, %d octets left", c.got, err, len(rest))
		} else if got := render(v); got != c.want || len(c.got) != c.size {
			t.Errorf("% x: %s in %d octets, want %s in %d", c.got, got, len(c.got), c.want, c.size)
		}
	}
}

func TestMapBytes(t *testing.T) {
	m := MapBytes(mustHex(t, "c1[06 a3[61] 41 a1[62] 52 07 52 61 42]"))
	if w := m.Walk(); !w.NextPair() || string(w.Pair) != "\xa3\x01a\x41" {
		t.Errorf("first pair % x", w.Pair)
	}
	if v, ok := m.Get("b"); !ok || v.Unsigned() != 7 {
		t.Errorf("b = %v, %v", v, ok)
	}
	if _, ok := m.Get("c"); ok {
		t.Error("there is a c")
	}
	if _, ok := MapBytes(nil).Get("a"); ok {
		t.Error("there is something in an empty map")
	}
}

func TestInteger(t *testing.T) {
	for _, c := range []struct {
		in   []byte
		want int64
		ok   bool
	}{
		{AppendUbyte(nil, 7), 7, true}, {AppendInt(nil, -7), -7, true}, {AppendUlong(nil, math.MaxUint64), -1, false},
		{AppendLong(nil, math.MinInt64), math.MinInt64, true}, {AppendTimestamp(nil, 7), 0, false}, {AppendString(nil, "7"), 0, false},
	} {
		if n, ok := RawValue(c.in).Value().Integer(); n != c.want || ok != c.ok {
			t.Errorf("% x: %d, %v", c.in, n, ok)
		}
	}
}

// Elements of an array may be described, each by the same descriptor. It is there once, and reading an element does not
// depend on its length.
func TestDescribedElements(t *testing.T) {
	long := append([]byte{described}, AppendSymbol(nil, make([]byte, 1000))...)
	b := append([]byte{cArray32, 0, 0, 0, 0, 0, 0, 0, 3}, long...)
	b = append(b, cUbyte, 1, 2, 3)
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-5))
	v, rest, err := ReadValue(b)
	if err != nil || len(rest) > 0 || !v.HasDescriptor() {
		t.Fatalf("%+v, %v", v, err)
	}
	w, n := v.Walk(), uint64(0)
	for w.Next() {
		if n++; w.Value.Type != Ubyte || w.Value.Unsigned() != n || len(w.item) != 1 {
			t.Errorf("element %d is %+v", n, w.Value)
		}
	}
	if n != 3 {
		t.Errorf("%d elements", n)
	}
	if plain, _, err := ReadValue(AppendStrings(nil, []string{"a"})); err != nil || plain.HasDescriptor() {
		t.Errorf("%+v, %v", plain, err)
	}
}
