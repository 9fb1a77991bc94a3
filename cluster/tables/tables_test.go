package tables

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// The plain form shows what JSON can show as it is, and says so of what it cannot show.
func TestPlain(t *testing.T) {
	for want, v := range map[string]*logpb.Value{
		`"é"`:                          {Tag: 'S', Str: []byte("é")},
		`"octets"`:                     {Tag: 'x', Str: []byte("octets")},
		`"Not UTF-8, base64 is: //4A"`: {Tag: 'S', Str: []byte("\xff\xfe\x00")},
		`"Not UTF-8, base64 is: /w=="`: {Tag: 'x', Str: []byte("\xff")},
		`-314e-2`:                      {Tag: 'D', Str: []byte("\x02\xff\xff\xfe\xc6")},
		`5`:                            {Tag: 'D', Str: []byte("\x00\x00\x00\x00\x05")},
		`1e-255`:                       {Tag: 'D', Str: []byte("\xff\x00\x00\x00\x01")},
		`18446744073709551615`:         {Tag: 'T', Int: -1},
		`-1`:                           {Tag: 'l', Int: -1},
		`9223372036854775807`:          {Tag: 'l', Int: math.MaxInt64},
		`-9007199254740993`:            {Tag: 'L', Int: -(1<<53 + 1)},
		`-128`:                         {Tag: 'b', Int: -128},
		`255`:                          {Tag: 'B', Int: 255},
		`-32768`:                       {Tag: 's', Int: -32768},
		`65535`:                        {Tag: 'u', Int: 65535},
		`-2147483648`:                  {Tag: 'I', Int: math.MinInt32},
		`4294967295`:                   {Tag: 'i', Int: math.MaxUint32},
		`true`:                         {Tag: 't', Int: 1},
		`false`:                        {Tag: 't'},
		`0.10000000149011612`:          {Tag: 'f', Int: int64(math.Float32bits(0.1))},
		`1e+21`:                        {Tag: 'd', Int: int64(math.Float64bits(1e21))},
		`1e-9`:                         {Tag: 'd', Int: int64(math.Float64bits(1e-9))},
		`2`:                            {Tag: 'd', Int: int64(math.Float64bits(2))},
		`null`:                         {Tag: 'V'},
		`"\u003cx\u003e"`:              {Tag: 'S', Str: []byte("<x>")},
		`[]`:                           {Tag: 'A'},
		`[null,null]`:                  {Tag: 'A', Array: []*logpb.Value{{Tag: 'f', Int: int64(math.Float32bits(float32(math.Inf(1))))}, {Tag: 'd', Int: int64(math.Float64bits(math.NaN()))}}},
		`[1,[null],{"a":"b"}]`: {Tag: 'A', Array: []*logpb.Value{
			{Tag: 'I', Int: 1}, {Tag: 'A', Array: []*logpb.Value{{Tag: 'V'}}},
			{Tag: 'F', Table: &fsm.Table{Fields: []*logpb.Field{{Name: "a", Value: &logpb.Value{Tag: 'S', Str: []byte("b")}}}}},
		}},
		`{}`: {Tag: 'F'},
		`{"a":2,"z":1,"\ufffd(":true}`: {Tag: 'F', Table: &fsm.Table{Fields: []*logpb.Field{
			{Name: "z", Value: &logpb.Value{Tag: 'l', Int: 1}}, {Name: "a", Value: &logpb.Value{Tag: 'l', Int: 1}},
			{Name: "\xc3(", Value: &logpb.Value{Tag: 't', Int: 1}}, {Name: "a", Value: &logpb.Value{Tag: 'l', Int: 2}},
		}}},
	} {
		have, err := json.Marshal(JSON(&fsm.Table{Fields: []*logpb.Field{{Name: "k", Value: v}}}))
		if err != nil || string(have) != `{"k":`+want+`}` {
			t.Errorf("%s, %v; want %s", have, err, want)
		}
	}
}

// The plain form is read with the types that its values can have.
func TestReadPlain(t *testing.T) {
	d := json.NewDecoder(strings.NewReader(`{"z":1,"a":{"n":null,"b":[true,false,"x"]},"f":1.5,"i":9223372036854775808,"huge":1e999,"x":{}}`))
	d.UseNumber()
	var object map[string]any
	if err := d.Decode(&object); err != nil {
		t.Fatal(err)
	}
	number := func(f float64) *logpb.Value { return &logpb.Value{Tag: 'd', Int: int64(math.Float64bits(f))} }
	want := tableOf(
		"a", nestedIn(tableOf("b", &logpb.Value{Tag: 'A', Array: []*logpb.Value{{Tag: 't', Int: 1}, {Tag: 't'}, {Tag: 'S', Str: []byte("x")}}}, "n", &logpb.Value{Tag: 'V'})),
		"f", number(1.5), "huge", number(math.Inf(1)), "i", number(1<<63), "x", nestedIn(tableOf()), "z", &logpb.Value{Tag: 'l', Int: 1},
	)
	if have := Of(object); !proto.Equal(have, want) {
		t.Errorf("%v\nnot\n%v", have, want)
	}
	if have := Of(nil); len(have.GetFields()) != 0 {
		t.Error(have)
	}
	deep := any([]any{})
	for range 2 * maxDepth {
		deep = []any{deep}
	}
	if v := ValueOf(deep); v == nil { // how deep arguments may be is for the catalog to say
		t.Error("a deep array is not read")
	}
}

// tableOf is a table of names and values in turn.
func tableOf(fields ...any) *fsm.Table {
	t := &fsm.Table{}
	for i := 0; i < len(fields); i += 2 {
		t.Fields = append(t.Fields, &logpb.Field{Name: fields[i].(string), Value: fields[i+1].(*logpb.Value)})
	}
	return t
}

func nestedIn(t *fsm.Table) *logpb.Value { return &logpb.Value{Tag: 'F', Table: t} }

// The typed form keeps each type: its values are shown so, and are read as what they were.
func TestTyped(t *testing.T) {
	for _, c := range []struct {
		want string
		v    *logpb.Value
	}{
		{`"<é>"`, &logpb.Value{Tag: 'S', Str: []byte("<é>")}},
		{`{"string_base64":"//4A"}`, &logpb.Value{Tag: 'S', Str: []byte("\xff\xfe\x00")}},
		{`{"bytes":"b2N0ZXRz"}`, &logpb.Value{Tag: 'x', Str: []byte("octets")}},
		{`-9223372036854775808`, &logpb.Value{Tag: 'l', Int: math.MinInt64}},
		{`9007199254740993`, &logpb.Value{Tag: 'l', Int: 1<<53 + 1}},
		{`true`, &logpb.Value{Tag: 't', Int: 1}},
		{`false`, &logpb.Value{Tag: 't'}},
		{`null`, &logpb.Value{Tag: 'V'}},
		{`{"int8":-128}`, &logpb.Value{Tag: 'b', Int: -128}},
		{`{"uint8":255}`, &logpb.Value{Tag: 'B', Int: 255}},
		{`{"int16":-32768}`, &logpb.Value{Tag: 's', Int: -32768}},
		{`{"uint16":65535}`, &logpb.Value{Tag: 'u', Int: 65535}},
		{`{"int32":-2147483648}`, &logpb.Value{Tag: 'I', Int: math.MinInt32}},
		{`{"uint32":4294967295}`, &logpb.Value{Tag: 'i', Int: math.MaxUint32}},
		{`{"timestamp":18446744073709551615}`, &logpb.Value{Tag: 'T', Int: -1}},
		{`{"decimal":[2,-314]}`, &logpb.Value{Tag: 'D', Str: []byte("\x02\xff\xff\xfe\xc6")}},
		{`{"float32":0.1}`, &logpb.Value{Tag: 'f', Int: int64(math.Float32bits(0.1))}},
		{`{"float32":"-Infinity"}`, &logpb.Value{Tag: 'f', Int: int64(math.Float32bits(float32(math.Inf(-1))))}},
		{`{"float64":2}`, &logpb.Value{Tag: 'd', Int: int64(math.Float64bits(2))}},
		{`{"float64":1e+21}`, &logpb.Value{Tag: 'd', Int: int64(math.Float64bits(1e21))}},
		{`{"float64":-0}`, &logpb.Value{Tag: 'd', Int: math.MinInt64}},
		{`{"float64":"NaN"}`, &logpb.Value{Tag: 'd', Int: int64(math.Float64bits(math.NaN()))}},
		{`{"float64":"Infinity"}`, &logpb.Value{Tag: 'd', Int: int64(math.Float64bits(math.Inf(1)))}},
		{`[]`, &logpb.Value{Tag: 'A'}},
		{`[{"int8":1},[null],{"table":{"a":"b"}}]`, &logpb.Value{Tag: 'A', Array: []*logpb.Value{
			{Tag: 'b', Int: 1}, {Tag: 'A', Array: []*logpb.Value{{Tag: 'V'}}}, nestedIn(tableOf("a", &logpb.Value{Tag: 'S', Str: []byte("b")})),
		}}},
		{ // names of all kinds: one that is no text, one that looks like it
			`{"table":{"z":1,"a":true,"a":false,"base64:wyg=":"","":{"table":{}},"base64:YmFzZTY0Og==":null}}`,
			nestedIn(tableOf("z", &logpb.Value{Tag: 'l', Int: 1}, "a", &logpb.Value{Tag: 't', Int: 1}, "a", &logpb.Value{Tag: 't'},
				"\xc3(", &logpb.Value{Tag: 'S'}, "", nestedIn(tableOf()), "base64:", &logpb.Value{Tag: 'V'})),
		},
	} {
		was := tableOf("k", c.v)
		text := Append(nil, Typed(was, "headers"))
		if string(text) != `{"k":`+c.want+`}` || !json.Valid(text) {
			t.Errorf("%s; want %s", text, c.want)
		}
		var o Object
		err := json.Unmarshal(text, &o)
		if err != nil {
			t.Fatal(err)
		}
		again, err := o.Table("headers")
		if err != nil || !equal(again, was) {
			t.Errorf("%s is read as %v, %v", text, again, err)
		}
	}
}

// equal compares tables by their octets: an empty text is none.
func equal(a, b *fsm.Table) bool {
	x, errX := logpb.Marshal(a)
	y, errY := logpb.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// A field that is known to be a table is an object, and its fields are as others.
func TestPlainField(t *testing.T) {
	was := tableOf("headers", nestedIn(tableOf("headers", nestedIn(tableOf()))), "x", nestedIn(tableOf()))
	text := Append(nil, Typed(was, "headers"))
	if want := `{"headers":{"headers":{"table":{}}},"x":{"table":{}}}`; string(text) != want {
		t.Errorf("%s, not %s", text, want)
	}
	var o Object
	if err := json.Unmarshal(text, &o); err != nil {
		t.Fatal(err)
	}
	for range 2 { // reading an object does not change it
		if again, err := o.Table("headers"); err != nil || !proto.Equal(again, was) {
			t.Errorf("%s is read as %v, %v", text, again, err)
		}
	}
}

// What is no value of its type is refused, with the place where it stands.
func TestRefused(t *testing.T) {
	levels := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for text, why := range map[string]string{
		`[]`: "not an object", `1`: "not an object", `null`: "not an object", `{"a":1`: "unexpected end", `{"a":1e999}`: "1e999",
		`{"a":{}}`: "a: an object without a type", `{"a":{"int8":1,"int16":1}}`: "more than one type", `{"a":{"int9":1}}`: `"int9" is not a type`,
		`{"a":{"table":1}}`: "a: not an object", `{"a":{"table":{"b":{"int8":128}}}}`: "a: b: 128 is not a valid int8", `{"a":{"int8":-129}}`: "int8",
		`{"a":{"uint8":-1}}`: "uint8", `{"a":{"uint16":65536}}`: "uint16", `{"a":{"int32":1.5}}`: "int32", `{"a":{"uint32":"1"}}`: "uint32", `{"a":{"int16":null}}`: "int16",
		`{"a":{"timestamp":-1}}`: "timestamp", `{"a":{"timestamp":18446744073709551616}}`: "timestamp",
		`{"a":{"float32":1e39}}`: "float32", `{"a":{"float64":"x"}}`: `"x" is not a valid float64`, `{"a":{"float64":true}}`: "float64",
		`{"a":{"decimal":[1]}}`: "decimal", `{"a":{"decimal":[256,1]}}`: "decimal", `{"a":{"decimal":[0,2147483648]}}`: "decimal", `{"a":{"decimal":7}}`: "decimal",
		`{"a":{"bytes":"?"}}`: "bytes", `{"a":{"string_base64":1}}`: "string_base64", `{"base64:?":1}`: "illegal base64",
		`{"a":` + levels(maxDepth+1) + `}`: "deep", `{"headers":1}`: "headers: not an object",
	} {
		var o Object
		err := json.Unmarshal([]byte(text), &o)
		if err == nil {
			_, err = o.Table("headers")
		} else if o != nil {
			t.Errorf("%s: %v is left behind", text, o)
		}
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v; want %s", text, err, why)
		}
	}
	var o Object
	if err := json.Unmarshal([]byte(`{"a":`+levels(maxDepth)+`}`), &o); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Table("headers"); err != nil {
		t.Error(err)
	}
}
