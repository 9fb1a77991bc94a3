package servicebus

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/amqp/servicebus/edit"
	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// A message says which number it had at its topic, where it died if it was handed on since, and why (MP, TP-11, FD-3).
func TestOrigin(t *testing.T) {
	notes := wire.EndMap(wire.AppendLong(wire.AppendSymbol(wire.StartMap(nil), annotationFirst), 7), 0, 1)
	head, err := fsm.AppendBareHead(nil, "", "q", fsm.BareHeader{Priority: -1, TTL: -1}, notes, nil)
	must(t, err)
	payload := fsm.Payload(wire.AppendData(append(head, wire.Append(nil, &wire.Properties{MessageID: wire.AppendString(nil, "a")})...), []byte("body")))
	for reason, text := range map[logpb.Death_Reason]string{
		logpb.Death_REJECTED: "", logpb.Death_EXPIRED: "TTLExpiredException", logpb.Death_MAXHOPS: "MaxTransferHopCountExceeded", logpb.Death_UNROUTABLE: "TransferRefused",
	} {
		for part, source := range map[entity.Part]string{entity.Main: "T/Subscriptions/S", entity.DeadLetters: ""} {
			f := &form{part: part}
			m := &fsm.Message{Payload: payload, Sequence: 9, Deaths: []*logpb.Death{{Queue: "T/Subscriptions/S", Reason: reason}}}
			var got wire.Message
			must(t, got.ParseRequest(f.encode(m, stateActive, false)))
			first, _ := got.Annotations.Get(annotationFirst)
			from, has := got.Annotations.Get(annotationDeadSource)
			why, _ := got.ApplicationProperties.Get(propertyReason)
			if first.Signed() != 7 || has != (source != "") || has && string(from.Bytes()) != source || text != "" && string(why.Bytes()) != text {
				t.Errorf("%v in part %d: first %d, from %s, because of %s", reason, part, first.Signed(), from.Bytes(), why.Bytes())
			}
		}
	}
}

// A reason that is too long for the service is cut where a character ends; other properties are kept as they are (ST-6).
func TestLongReasons(t *testing.T) {
	long := strings.Repeat("x", fsm.MaxSettleDescription-1) + "\u00e4"
	info := wire.StartMap(nil)
	for _, name := range []string{propertyReason, propertyDescription, "mine"} {
		info = wire.AppendString(wire.AppendString(info, name), long)
	}
	f := &form{part: entity.Main}
	how, e := f.Settlement(&wire.State{Kind: wire.StateRejected, Rejected: wire.Rejected{Error: &wire.Error{Condition: conditionDeadLetter, Info: wire.EndMap(info, 0, 3)}}}, &v10.Received{})
	if e != nil || how.Outcome != fsm.Discard {
		t.Fatal(how, e)
	}
	changes, err := edit.Parse(how.Edit)
	must(t, err)
	for name, want := range map[string]string{propertyReason: long[:len(long)-2], propertyDescription: long[:len(long)-2], "mine": long} {
		if v, _ := changes.Property(name); string(v.Value().Bytes()) != want {
			t.Errorf("%s has %d bytes, not %d", name, len(v.Value().Bytes()), len(want))
		}
	}
}
