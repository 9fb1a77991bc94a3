package v091

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/amqp/v091/wire"
	wire10 "github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// What receivers of AMQP 1.0 have added to a message is shown where it fits, and never keeps the message from its
// receiver.
func TestAddedAnnotationsFit(t *testing.T) {
	added := fsm.AnnotationMap([]*logpb.Annotation{{Key: wire10.AppendSymbol(nil, "x-added"), Value: wire10.AppendString(nil, strings.Repeat("a", 2000))}})
	long := wire.AppendFields(nil, wire.Table{{Name: "long", Value: wire.String(strings.Repeat("l", 3000))}})
	bare, err := fsm.AppendBareHead(nil, "", "q", fsm.BareHeader{Priority: -1, TTL: -1}, wire10.EndMap(
		wire10.AppendString(wire10.AppendSymbol(wire10.StartMap(nil), "x-long"), strings.Repeat("l", 3000)), 0, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]fsm.Payload{
		"0-9-1": fsm.AppendPayloadHead(nil, "", "q", wire.AppendProperties(nil, &wire.Properties{Present: wire.FlagHeaders, Headers: long})),
		"1.0":   wire10.AppendData(bare, nil),
	} {
		for frameMax, shown := range map[uint32]bool{4096: false, 8192: true} {
			var r rendering
			m := &fsm.Message{Payload: p, Acquired: 1, Annotations: added}
			raw := r.properties(m, frameMax)
			list, err := wire.ParseProperties(raw)
			if err != nil || !fitsFrame(len(raw), frameMax) {
				t.Fatalf("%s: %d bytes, %v", name, len(raw), err)
			}
			_, has := list.Header("x-added")
			_, counts := list.Header("x-acquired-count")
			_, old := list.Header("long")
			_, old10 := list.Header("x-long")
			if has != shown || !counts || !old && !old10 {
				t.Errorf("%s in %d bytes: %v, %v, %v", name, frameMax, has, counts, old || old10)
			}
		}
	}
}
