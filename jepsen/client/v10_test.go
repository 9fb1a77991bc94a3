package client

import (
	"encoding/binary"
	"reflect"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
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

// Elements of an array share their constructor.
func TestDeathsIn10(t *testing.T) {
	keys := []byte{0xe0, 7, 2, 0xa1, 1, 'a', 2, 'b', 'c'}
	one := compound(0xd1, symbol10("queue"), string10("q"), symbol10("reason"), symbol10("expired"), symbol10("count"), []byte{0x53, 3},
		symbol10("ttl"), number10(50), symbol10("routing-keys"), keys)
	body := append([]byte{one[0]}, one[1:]...)
	body = append(body, one[1:]...)
	array := append(binary.BigEndian.AppendUint32([]byte{0xf0}, uint32(len(body)+4)), 0, 0, 0, 2)
	all := deaths10(compound(0xd1, symbol10("x-opt-deaths"), append(array, body...)))
	want := amqp.Table{"queue": "q", "reason": "expired", "count": int64(3), "original-expiration": "50", "routing-keys": []any{"a", "bc"}}
	if !reflect.DeepEqual(all, []any{want, want}) {
		t.Errorf("%v", all)
	}
}

// What is cut short has no size.
func TestDamagedIn10(t *testing.T) {
	whole := performative(codeTransfer, number10(1), string10("abc"), value10(int64(5)))
	for n := range whole {
		if got := size10(whole[:n]); got != 0 {
			t.Errorf("%d octets of %d have the size %d", n, len(whole), got)
		}
	}
}
