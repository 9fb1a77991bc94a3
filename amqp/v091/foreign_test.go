package v091

import (
	"errors"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

func named(name string, v *logpb.Value) *logpb.Field { return &logpb.Field{Name: name, Value: v} }

func text(s string) *logpb.Value { return &logpb.Value{Tag: 'S', Str: []byte(s)} }

func whole(n int64) *logpb.Value { return &logpb.Value{Tag: 'l', Int: n} }

// TestForeignPublish: properties that did not come over AMQP are shown as they were given, and take
// effect.
func TestForeignPublish(t *testing.T) {
	headers := &logpb.Value{Tag: 'F', Table: &fsm.Table{Fields: []*logpb.Field{
		named("CC", &logpb.Value{Tag: 'A', Array: []*logpb.Value{text("other")}}), named("n", whole(-1)),
		named("f", &logpb.Value{Tag: 'd', Int: int64(math.Float64bits(1.5))}), named("b", &logpb.Value{Tag: 't', Int: 1}), named("v", &logpb.Value{Tag: 'V'}),
	}}}
	given := &fsm.Table{Fields: []*logpb.Field{
		named("content_type", text("text/plain")), named("content_encoding", text("gzip")), named("headers", headers), named("delivery_mode", whole(2)),
		named("priority", whole(7)), named("correlation_id", text("c")), named("reply_to", text("r")), named("expiration", text("500")),
		named("message_id", text("m")), named("timestamp", &logpb.Value{Tag: 'T', Int: -1}), named("type", text("t")), named("user_id", text("guest")),
		named("app_id", text("a")), named("cluster_id", text("k")),
	}}
	p, err := Properties{}.Publish("guest", "x", "key", given, []byte("body"))
	if err != nil {
		t.Fatal(err)
	}
	if shown := (Properties{}).Describe(&fsm.Message{Payload: p.Payload}); !proto.Equal(shown, given) {
		t.Errorf("shown as %v", shown)
	}
	if p.TTL != 500 || p.Priority != 7 || !p.HasExpiration || p.MessageID != "m" || p.UserError != nil || len(p.Copies) != 1 ||
		string(p.Payload.Body()) != "body" || string(p.Payload.RoutingKey()) != "key" || string(p.Property("app_id")) != "a" || len(p.Headers().GetFields()) != 5 {
		t.Errorf("published as %+v", p)
	}
	if p, err = (Properties{}).Publish("eve", "", "q", given, nil); err != nil || p.UserError == nil {
		t.Errorf("another's user-id: %v, %v", p.UserError, err)
	}
	number := &fsm.Table{Fields: []*logpb.Field{named("timestamp", whole(77))}}
	if p, err = (Properties{}).Publish("eve", "", "q", number, nil); err != nil || string(p.Property("timestamp")) != "77" {
		t.Errorf("a time that is a number: %+v, %v", p, err)
	}
	if p, err = (Properties{}).Publish("eve", "", "q", nil, nil); err != nil || p.TTL != -1 || p.Priority != -1 {
		t.Errorf("no properties: %+v, %v", p, err)
	}
	deep := headers
	for range 70 {
		deep = &logpb.Value{Tag: 'F', Table: &fsm.Table{Fields: []*logpb.Field{named("a", deep)}}}
	}
	for name, bad := range map[string]*logpb.Field{
		"unknown": named("nosuch", text("")), "number for text": named("type", whole(1)), "text for number": named("priority", text("x")),
		"negative": named("timestamp", whole(-1)), "too large": named("priority", whole(256)), "too long": named("type", text(strings.Repeat("x", 256))),
		"no table": named("headers", text("")), "too deep": named("headers", deep),
		"name too long": named("headers", &logpb.Value{Tag: 'F', Table: &fsm.Table{Fields: []*logpb.Field{named(strings.Repeat("x", 256), whole(1))}}}),
	} {
		if _, err := (Properties{}).Publish("guest", "", "q", &fsm.Table{Fields: []*logpb.Field{bad}}, nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := (Properties{}).Publish("guest", strings.Repeat("x", 256), "q", nil, nil); err == nil {
		t.Error("an exchange of 256 bytes is accepted")
	}
}

// Properties that no client could be sent are refused over HTTP, too.
func TestForeignLargeProperties(t *testing.T) {
	headers := func(n int) *fsm.Table {
		list := &fsm.Table{Fields: []*logpb.Field{{Name: "h", Value: &logpb.Value{Tag: 'S', Str: make([]byte, n)}}}}
		return &fsm.Table{Fields: []*logpb.Field{{Name: "headers", Value: &logpb.Value{Tag: 'F', Table: list}}}}
	}
	if _, err := (Properties{}).Publish("u", "", "q", headers(100_000), nil); err != nil {
		t.Error(err)
	}
	_, err := Properties{}.Publish("u", "", "q", headers(130_000), nil)
	if r := new(fsm.Refusal); !errors.As(err, &r) || r.Kind != fsm.Precondition {
		t.Errorf("%v", err)
	}
}

// TestForeignBody: people see the body that a delivery has, whatever protocol a message came by.
func TestForeignBody(t *testing.T) {
	bare, err := fsm.AppendBareHead(nil, "", "q", fsm.BareHeader{Priority: -1, TTL: -1}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []fsm.Payload{
		append(bare, "\x00\x53\x75\xa0\x02bo\x00\x53\x75\xa0\x02dy"...), append(fsm.AppendPayloadHead(nil, "", "q", nil), "body"...),
	} {
		if got := (Properties{}).Body(p); string(got) != "body" {
			t.Errorf("%q is shown", got)
		}
	}
}
