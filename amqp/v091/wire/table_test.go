package wire

import (
	"bytes"
	"math"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// goldenValues has every tag: the encoding, and the value it is read as.
var goldenValues = []struct {
	name, bytes string
	want        Value
}{
	{"true", `74 01`, Value{Tag: 't', Int: 1}},
	{"false", `74 00`, Value{Tag: 't'}},
	{"int8", `62 80`, Value{Tag: 'b', Int: -128}},
	{"uint8", `42 ff`, Value{Tag: 'B', Int: 255}},
	{"int16", `73 8000`, Value{Tag: 's', Int: -32768}},
	{"uint16", `75 ffff`, Value{Tag: 'u', Int: 65535}},
	{"int32", `49 80000000`, Value{Tag: 'I', Int: math.MinInt32}},
	{"uint32", `69 ffffffff`, Value{Tag: 'i', Int: math.MaxUint32}},
	{"int64", `6c 8000000000000000`, Value{Tag: 'l', Int: math.MinInt64}},
	{"float32", `66 3fc00000`, Value{Tag: 'f', Int: int64(math.Float32bits(1.5))}},
	{"float64", `64 bff8000000000000`, Value{Tag: 'd', Int: int64(math.Float64bits(-1.5))}},
	{"decimal", `44 02 ffffffff`, Value{Tag: 'D', Str: "\x02\xff\xff\xff\xff"}},
	{"string", `53 00000002 ff41`, Value{Tag: 'S', Str: "\xffA"}},
	{"empty string", `53 00000000`, Value{Tag: 'S'}},
	{"array", `41 00000004 56 74 01 56`, Value{Tag: 'A', Array: []Value{{Tag: 'V'}, {Tag: 't', Int: 1}, {Tag: 'V'}}}},
	{"empty array", `41 00000000`, Value{Tag: 'A'}},
	{"timestamp", `54 ffffffffffffffff`, Value{Tag: 'T', Int: -1}},
	{"table", `46 00000003 01 61 56`, Value{Tag: 'F', Table: Table{{"a", Value{Tag: 'V'}}}}},
	{"empty table", `46 00000000`, Value{Tag: 'F'}},
	{"void", `56`, Value{Tag: 'V'}},
	{"bytes", `78 00000001 00`, Value{Tag: 'x', Str: "\x00"}},
}

func TestEveryTagSurvivesTheWire(t *testing.T) {
	seen := map[byte]bool{'L': true} // TestCanonicalForms
	for _, c := range goldenValues {
		t.Run(c.name, func(t *testing.T) {
			fields := append([]byte("\x04name"), mustHex(t, c.bytes)...)
			table, err := DecodeFields(fields)
			if err != nil {
				t.Fatal(err)
			}
			if want := (Table{{"name", c.want}}); !reflect.DeepEqual(table, want) {
				t.Errorf("decoded %+v, want %+v", table, want)
			}
			if got := AppendFields(nil, table); !bytes.Equal(got, fields) {
				t.Errorf("encoded % x, want % x", got, fields)
			}
			if v, ok := LookupField(fields, "name"); !ok || !reflect.DeepEqual(v, c.want) {
				t.Errorf("looked up %+v, want %+v", v, c.want)
			}
		})
		seen[c.want.Tag] = true
	}
	for _, tag := range []byte(allTags) {
		if !seen[tag] {
			t.Errorf("tag %c is not tested", tag)
		}
	}
}

func TestCanonicalForms(t *testing.T) {
	for _, c := range []struct{ name, in, out string }{
		{"a true that is not 1", `01 61 74 07`, `01 61 74 01`},
		{"L becomes l", `01 61 4c fffffffffffffffe`, `01 61 6c fffffffffffffffe`},
	} {
		t.Run(c.name, func(t *testing.T) {
			table, err := DecodeFields(mustHex(t, c.in))
			if err != nil {
				t.Fatal(err)
			}
			if got := AppendFields(nil, table); !bytes.Equal(got, mustHex(t, c.out)) {
				t.Errorf("encoded % x, want %s", got, c.out)
			}
		})
	}
	for _, c := range []struct {
		name string
		v    Value
		out  string
	}{
		{"L", Value{Tag: 'L', Int: 5}, `6c 0000000000000005`},
		{"zero value", Value{}, `56`},
		{"short decimal", Value{Tag: 'D', Str: "\x01"}, `44 01 00000000`},
	} {
		if got := appendValue(nil, &c.v); !bytes.Equal(got, mustHex(t, c.out)) {
			t.Errorf("%s: encoded % x, want %s", c.name, got, c.out)
		}
	}
}

func TestValueConstructors(t *testing.T) {
	got := AppendFields(nil, Table{{"a", Bool(true)}, {"b", Int32(-1)}, {"c", Int64(-2)}, {"d", String("x")},
		{"e", Timestamp(3)}, {"f", Nested(Table{{"g", Bool(false)}})}, {"h", Array(String("y"), Int64(1))}})
	want := mustHex(t, `01 61 74 01  01 62 49 ffffffff  01 63 6c fffffffffffffffe  01 64 53 00000001 78
		01 65 54 0000000000000003  01 66 46 00000004 01 67 74 00  01 68 41 0000000f 53 00000001 79 6c 0000000000000001`)
	if !bytes.Equal(got, want) {
		t.Errorf("encoded % x\nwant    % x", got, want)
	}
}

func TestOrderAndDuplicatesStay(t *testing.T) {
	want := mustHex(t, `0000000f  01 62 74 01  01 61 56  01 62 74 00  01 61 74 01`)
	table, err := DecodeTable(want)
	if err != nil {
		t.Fatal(err)
	}
	if got := AppendTable(nil, table); !bytes.Equal(got, want) {
		t.Errorf("encoded % x, want % x", got, want)
	}
	if v, ok := table.Get("b"); !ok || v.Int != 1 {
		t.Errorf("Get finds %+v, %v, want the first b", v, ok)
	}
	if v, ok := LookupField(want[4:], "b"); !ok || v.Int != 1 {
		t.Errorf("LookupField finds %+v, %v, want the first b", v, ok)
	}
	if _, ok := table.Get("c"); ok {
		t.Error("Get finds what is not there")
	}
	if _, ok := LookupField(want[4:], "c"); ok {
		t.Error("LookupField finds what is not there")
	}
}

func TestMalformedTables(t *testing.T) {
	malformed := Error{Code: 502, Text: "malformed field table"}
	for _, c := range []struct{ name, fields string }{
		{"name without end", `05 61`},
		{"name without value", `01 61`},
		{"unknown tag", `01 61 5a`},
		{"int16 by the book", `01 61 55 0001`},
		{"short string by the book", `01 61 73 05`},
		{"truncated bool", `01 61 74`},
		{"truncated int64", `01 61 6c 00000000000000`},
		{"truncated decimal", `01 61 44 00000000`},
		{"string without length", `01 61 53 000000`},
		{"string past the end", `01 61 53 00000002 61`},
		{"string of 4 GiB", `01 61 53 ffffffff 61`},
		{"table past the end", `01 61 46 00000004 01 61 56`},
		{"array past the end", `01 61 41 00000002 56`},
		{"value past its table", `01 61 46 00000003 01 61 74 01`},
		{"half a field in a table", `01 61 46 00000001 01`},
		{"half a value in an array", `01 61 41 00000001 74`},
		{"octet behind the fields", `01 61 56 00`},
	} {
		t.Run(c.name, func(t *testing.T) {
			mustFail(t, second(DecodeFields(mustHex(t, c.fields))), malformed)
		})
	}
	for _, c := range []struct{ name, table string }{
		{"nothing", ``},
		{"half a length", `0000`},
		{"length too great", `00000004 01 61 56`},
		{"length too small", `00000002 01 61 56`},
	} {
		t.Run(c.name, func(t *testing.T) {
			mustFail(t, second(DecodeTable(mustHex(t, c.table))), malformed)
		})
	}
}

// nested encodes a field with n tables, or arrays, around a void.
func nested(n int, tag byte) []byte {
	v := Value{Tag: TagVoid}
	for range n {
		if tag == TagTable {
			v = Nested(Table{{"a", v}})
		} else {
			v = Array(v)
		}
	}
	return AppendFields(nil, Table{{"a", v}})
}

func TestNestingIsLimited(t *testing.T) {
	for _, tag := range []byte{TagTable, TagArray} {
		deepest := nested(64, tag)
		table, err := DecodeFields(deepest)
		if err != nil {
			t.Fatalf("64 levels of %c: %v", tag, err)
		}
		if !bytes.Equal(AppendFields(nil, table), deepest) {
			t.Errorf("64 levels of %c do not survive", tag)
		}
		for _, n := range []int{65, 200, 20000} {
			if err := second(DecodeFields(nested(n, tag))); err == nil {
				t.Errorf("%d levels of %c are accepted", n, tag)
			}
		}
	}
}

func TestNumberOfValuesIsLimited(t *testing.T) {
	array := func(n int) []byte {
		return AppendFields(nil, Table{{"a", Value{Tag: TagArray, Array: make([]Value, n)}}})
	}
	if err := second(DecodeFields(array(maxTableValues - 1))); err != nil {
		t.Errorf("%d values: %v", maxTableValues, err)
	}
	mustFail(t, second(DecodeFields(array(maxTableValues))), Error{Code: 502, Text: "malformed field table"})
}

func TestTableSurvivesTheWire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawTable(t, 5)
		b := AppendTable(nil, want)
		got, err := DecodeTable(b)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("decoded %+v\nwant    %+v", got, want)
		}
		if again := AppendTable(nil, got); !bytes.Equal(again, b) {
			t.Fatalf("encoded % x\nand then % x", b, again)
		}
	})
}

func TestDecodedTableIsACopy(t *testing.T) {
	b := AppendTable(nil, Table{{"name", String("text")}})
	table, err := DecodeTable(b)
	if err != nil {
		t.Fatal(err)
	}
	clear(b)
	if v, ok := table.Get("name"); !ok || v.Str != "text" {
		t.Errorf("%+v changed with the buffer", table)
	}
}

func TestLongNameIsCut(t *testing.T) {
	b := AppendTable(nil, Table{{strings.Repeat("n", 300), Bool(true)}})
	table, err := DecodeTable(b)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(table[0].Name); n != 255 {
		t.Errorf("name of %d bytes", n)
	}
}

func TestUnknownTagPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a value that cannot be written is written")
		}
	}()
	AppendTable(nil, Table{{"a", Value{Tag: 'Z'}}})
}

// Fields that are walked over say what decoded ones say.
func TestRawFields(t *testing.T) {
	table := Table{
		{Name: "t", Value: Bool(true)}, {Name: "b", Value: Value{Tag: TagInt8, Int: -3}}, {Name: "B", Value: Value{Tag: TagUint8, Int: 200}}, {Name: "s", Value: Value{Tag: TagInt16, Int: -300}},
		{Name: "u", Value: Value{Tag: TagUint16, Int: 60000}}, {Name: "I", Value: Int32(-70000)}, {Name: "i", Value: Value{Tag: TagUint32, Int: 4e9}}, {Name: "l", Value: Int64(-1 << 63)},
		{Name: "T", Value: Timestamp(1<<64 - 1)}, {Name: "f", Value: Value{Tag: TagFloat32, Int: 7}}, {Name: "d", Value: Value{Tag: TagFloat64, Int: -7}}, {Name: "V", Value: Value{Tag: TagVoid}},
		{Name: "S", Value: String("text")}, {Name: "x", Value: Value{Tag: TagBytes, Str: "\xff"}}, {Name: "", Value: Array(Int32(1), String("e"))}, {Name: "F", Value: Nested(Table{{Name: "k", Value: Bool(false)}})},
		{Name: "D", Value: Value{Tag: TagDecimal, Str: "\x00\x00\x00\x00\x05"}},
	}
	rest := AppendFields(nil, table)
	for _, want := range table {
		var name []byte
		var v Raw
		if name, v, rest = NextRaw(rest); string(name) != want.Name || v.Tag() != want.Value.Tag {
			t.Fatalf("%q of type %c, want %q of %c", name, v.Tag(), want.Name, want.Value.Tag)
		}
		switch v.Tag() {
		case TagString, TagBytes:
			if string(v.Bytes()) != want.Value.Str {
				t.Errorf("%s is %q", name, v.Bytes())
			}
		case TagArray:
			first, others := NextElement(v.Bytes())
			second, end := NextElement(others)
			if first.Int() != 1 || string(second.Bytes()) != "e" || len(end) > 0 {
				t.Errorf("%q and %q", first, second)
			}
		case TagTable:
			if name, v, end := NextRaw(v.Bytes()); string(name) != "k" || v.Int() != 0 || len(end) > 0 {
				t.Errorf("%q", name)
			}
		case TagDecimal, TagVoid:
		default:
			if v.Int() != want.Value.Int {
				t.Errorf("%s is %d, want %d", name, v.Int(), want.Value.Int)
			}
		}
	}
	if len(rest) > 0 {
		t.Errorf("%q is left", rest)
	}
}
