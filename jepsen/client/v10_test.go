package client

import (
	"encoding/binary"
	"reflect"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/internal/frames"
)

// What is published in AMQP 1.0 is read again as it was.
func TestMessageIn10(t *testing.T) {
	for _, m := range []amqp.Publishing{
		{Body: []byte("x")},
		{DeliveryMode: amqp.Persistent, Expiration: "1500", Priority: 3, MessageId: "m", CorrelationId: "c", Headers: amqp.Table{"x-delay": int64(5)}, Body: make([]byte, 70_000)},
	} {
		b := appendTransfer(nil, 2, 77, &m)
		if n := int(binary.BigEndian.Uint32(b)); n != len(b) {
			t.Fatalf("a frame of %d octets says %d", len(b), n)
		}
		code, value, err := content(b[8:])
		if err != nil || code != codeTransfer {
			t.Fatal(code, err)
		}
		f, err := fields(value)
		if err != nil || uint10(f[0]) != 2 || uint10(f[1]) != 77 || is(f[4]) {
			t.Errorf("%v, %v", f, err)
		}
		d := delivery10(value[size10(value):])
		want := amqp.Delivery{Redelivered: true, Expiration: m.Expiration, MessageId: m.MessageId, CorrelationId: m.CorrelationId, Body: m.Body}
		if !reflect.DeepEqual(d, want) {
			t.Errorf("%+v, want %+v", d, want)
		}
	}
}

// A history is read whatever the encoding of its elements.
func TestDeathsIn10(t *testing.T) {
	one := frames.Map{frames.Symbol("queue"), "q", frames.Symbol("reason"), frames.Symbol("expired"), frames.Symbol("count"), uint64(3),
		frames.Symbol("ttl"), uint32(50), frames.Symbol("routing-keys"), frames.Array{Code: 0xa1, Values: []any{"a", "bc"}}}
	all := deaths10(frames.Append(nil, frames.Map{frames.Symbol("x-opt-deaths"), frames.Array{Code: 0xd1, Values: []any{one, one}}}))
	want := amqp.Table{"queue": "q", "reason": "expired", "count": int64(3), "original-expiration": "50", "routing-keys": []any{"a", "bc"}}
	if !reflect.DeepEqual(all, []any{want, want}) {
		t.Errorf("%v", all)
	}
}

// What is cut short has no size.
func TestDamagedIn10(t *testing.T) {
	whole := frames.Append(nil, frames.Described{Descriptor: uint64(codeTransfer), Value: frames.List{uint32(1), "abc", int64(5)}})
	for n := range whole {
		if got := size10(whole[:n]); got != 0 {
			t.Errorf("%d octets of %d have the size %d", n, len(whole), got)
		}
	}
}
