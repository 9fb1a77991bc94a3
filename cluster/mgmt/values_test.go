package mgmt

import (
	"encoding/json"
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
	} {
		have, err := json.Marshal(ObjectOf(&fsm.Table{Fields: []*logpb.Field{{Name: "k", Value: v}}}))
		if err != nil || string(have) != `{"k":`+want+`}` {
			t.Errorf("%s, %v; want %s", have, err, want)
		}
	}
}
