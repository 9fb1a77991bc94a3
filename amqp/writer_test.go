package amqp

import (
	"testing"

	"github.com/quorate/quorate/fsm"
)

// TestOutboxBacklog checks when a client is dropped for what it does not read.
func TestOutboxBacklog(t *testing.T) {
	dropped := 0
	o := NewOutbox(&Account{}, func() { dropped++ })
	large := fsm.Message{Payload: make(fsm.Payload, 16<<20)}
	push := func(requested bool) {
		o.Lock()
		o.PushItem(&Item{Requested: requested, Message: large})
		o.Unlock()
	}
	for range 8 {
		push(false)
	}
	if dropped != 0 {
		t.Error("dropped for deliveries that have just come")
	}
	o.progress.Add(-int64(2 * stallTime))
	push(false)
	if dropped == 0 {
		t.Error("kept although it has not read for a while")
	}
	dropped = 0
	o.wrote(9*(16<<20+itemWeight), 0)
	for range 5 {
		push(true)
	}
	if dropped == 0 {
		t.Error("kept although it has too much requested")
	}
	if !o.requested.full() {
		t.Error("the reader goes on")
	}
}
