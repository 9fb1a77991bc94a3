package mgmt

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// What JSON can show is shown as it is, and what it cannot show says so.
func TestValuesInJSON(t *testing.T) {
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
		have, err := json.Marshal(ObjectOf(&fsm.Table{Fields: []*logpb.Field{{Name: "k", Value: v}}}))
		if err != nil || string(have) != `{"k":`+want+`}` {
			t.Errorf("%s, %v; want %s", have, err, want)
		}
	}
}
