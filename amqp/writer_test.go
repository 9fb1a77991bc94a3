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
	if !o.requested.IsFull() {
		t.Error("the reader goes on")
	}
}

// After the connection's close only its own frames are taken, and nothing once it has
// ended.
func TestOutboxClose(t *testing.T) {
	o := NewOutbox(&Account{}, func() {})
	item := Item{Kind: Frames + 1}
	o.Lock()
	o.PushItem(&item)
	o.Close()
	o.PushItem(&item)
	if o.Takes(false) || !o.Takes(true) {
		t.Errorf("after the close: %v, of the connection %v", o.Takes(false), o.Takes(true))
	}
	o.PushFrames(append(o.Encoded(), "answer"...))
	o.Unlock()
	o.end()
	var b Batch
	if some, _ := o.Take(&b); !some || len(b.Items) != 2 || string(b.Frames(&b.Items[1])) != "answer" {
		t.Errorf("taken is %+v", b.Items)
	}
	if _, ended := o.Take(&Batch{}); !ended || o.Takes(true) {
		t.Error("it has not ended")
	}
}
