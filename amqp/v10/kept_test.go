package v10

import (
	"testing"
	"time"

	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// What a link keeps of its attach does not keep the frame, which may be much larger.
func TestFilterIsCopied(t *testing.T) {
	value := wire.AppendString(wire.AppendSymbol([]byte{0}, "amqp:sql-filter"), "a = 1")
	frame := wire.EndMap(append(wire.AppendSymbol(wire.StartMap(nil), "f"), value...), 0, 1)
	f, e := filterOf(frame)
	if e != nil {
		t.Fatal(e)
	}
	want := string(f.pair)
	clear(frame)
	if string(f.pair) != want || want == "" {
		t.Errorf("it is %q now, was %q", f.pair, want)
	}
}

// A listing does not stop a session for long, however many locks have ended.
func TestListingOfManyLapses(t *testing.T) {
	l, c := &outgoingLink{}, &counts{}
	numbers := make([]uint64, 200_000)
	for i := range numbers {
		numbers[i] = uint64(i + 1)
		c.deliveries.number(l, &fsm.Message{ID: numbers[i]})
	}
	c.deliveries.lose(l, numbers[:len(numbers)-1], true, func(d delivery) { c.lapses = append(c.lapses, lapse{id: d.id}) })
	start := time.Now()
	if c.hasTimedOut(l) {
		t.Error("no consumer timeout has come")
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("it takes %v", took)
	}
	c.deliveries.lose(l, numbers[len(numbers)-1:], false, func(delivery) {})
	if !c.hasTimedOut(l) {
		t.Error("it has timed out")
	}
}
