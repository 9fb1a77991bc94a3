package catalog

import (
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// A headers exchange compares octets with texts, and times with numbers; a redeclare does not.
func TestHeadersAcrossTypes(t *testing.T) {
	text, octets := &logpb.Value{Tag: 'S', Str: []byte("5")}, &logpb.Value{Tag: 'x', Str: []byte("5")}
	number, small, time := &logpb.Value{Tag: 'l', Int: 5}, &logpb.Value{Tag: 'b', Int: 5}, &logpb.Value{Tag: 'T', Int: 5}
	yes := &logpb.Value{Tag: 't', Int: 1}
	for _, tc := range []struct {
		bound, sent *logpb.Value
		want        bool
	}{
		{text, octets, true},
		{octets, text, true},
		{number, time, true},
		{time, small, true},
		{text, number, false},
		{octets, time, false},
		{yes, &logpb.Value{Tag: 'l', Int: 1}, false},
		{number, &logpb.Value{Tag: 'd', Int: 5}, false},
	} {
		h, err := headersOf(&fsm.Table{Fields: []*logpb.Field{{Name: "k", Value: tc.bound}}})
		if err != nil {
			t.Fatal(err)
		}
		if have := h.Match((*messageHeaders)(&fsm.Table{Fields: []*logpb.Field{{Name: "k", Value: tc.sent}}})); have != tc.want {
			t.Errorf("%v matches %v: %v", tc.bound, tc.sent, have)
		}
	}
	if equalValues(text, octets) || equalValues(number, time) {
		t.Error("arguments of other types are equivalent")
	}
}
