package message

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/amqp/v091/wire"
	wire10 "github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// saying returns messages of both protocols that say the same.
func saying() map[string]fsm.Payload {
	annotations := pairs(symbol("x-basic-type"), text("t"), symbol("x-k"), wire10.AppendLong(nil, 5))
	properties := wire10.AppendDescriptor(nil, 0x73)
	properties = append(properties, list(
		text("m"), wire10.AppendBinary(nil, "guest"), wire10.AppendNull(nil), wire10.AppendNull(nil), text("/queues/r"), text("c"),
		symbol("text/plain"), symbol("gzip"), wire10.AppendNull(nil), wire10.AppendTimestamp(nil, 7000), text("a"),
	)...)
	sections := slices.Concat(properties, application(pairs(text("colour"), text("red"))), wire10.AppendData(nil, []byte("body")))
	list := wire.AppendProperties(nil, &wire.Properties{
		Present:     0xfffc &^ wire.FlagClusterID,
		ContentType: []byte("text/plain"), ContentEncoding: []byte("gzip"), DeliveryMode: 2, Priority: 7, CorrelationID: []byte("c"), ReplyTo: []byte("r"),
		Expiration: []byte("500"), MessageID: []byte("m"), Timestamp: 7, Type: []byte("t"), UserID: []byte("guest"), AppID: []byte("a"),
		Headers: wire.AppendFields(nil, wire.Table{{Name: "colour", Value: wire.String("red")}, {Name: "x-k", Value: wire.Int64(5)}}),
	})
	return map[string]fsm.Payload{"0-9-1": old(list, []byte("body")), "1.0": bare(fsm.BareHeader{Durable: true, Priority: 7, TTL: 500}, annotations, sections)}
}

// Messages that say the same are shown as the same, whichever protocol they came by.
func TestDescribe(t *testing.T) {
	all := saying()
	died := []*logpb.Death{{Queue: "q", Reason: logpb.Death_EXPIRED, Count: 1, OriginalExpiration: "500", RoutingKeys: []string{"k"}}}
	for _, m := range []fsm.Message{{}, {Acquired: 2, Failed: 1}, {Deaths: died}, {ScheduledFor: 9}} {
		var shown [2]*fsm.Table
		for i, protocol := range []string{"0-9-1", "1.0"} {
			m.Payload = all[protocol]
			shown[i] = Properties{}.Describe(&m)
		}
		if !proto.Equal(shown[0], shown[1]) || len(shown[0].Fields) < 12 {
			t.Errorf("%+v\nis not\n%+v", shown[1], shown[0])
		}
		expires := strings.Contains(shown[0].String(), `"expiration"`)
		if dies := len(m.Deaths) > 0; expires == dies {
			t.Errorf("with %d deaths it expires: %v", len(m.Deaths), expires)
		}
	}
}

// Messages that say the same have the same labels, and exchanges compare the same.
func TestProperties(t *testing.T) {
	for protocol, p := range saying() {
		for name, want := range map[string]string{
			"message_id": "m", "correlation_id": "c", "reply_to": "r", "app_id": "a", "timestamp": "7", "priority": "7",
		} {
			if got := string(Properties{}.Property(p, name)); got != want {
				t.Errorf("%s: %s is %q, not %q", protocol, name, got, want)
			}
		}
		if got := (Properties{}).Expiration(p); got != "500" {
			t.Errorf("%s: it expires after %s", protocol, got)
		}
		for _, f := range (Properties{}).Headers(p, nil).GetFields() {
			switch {
			case f.Name == "colour" && string(f.Value.Str) == "red":
			case f.Name == "x-k" && f.Value.Int == 5:
			case f.Name == "x-basic-type" && protocol == "1.0":
			default:
				t.Errorf("%s: %v", protocol, f)
			}
		}
	}
}
