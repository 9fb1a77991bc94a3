package client

import "github.com/quorate/quorate/jepsen/history"

// Recorder records what clients do and see. A *history.History is one.
type Recorder interface {
	// NextMessage numbers a message that is going to be published, in one attempt or several.
	NextMessage() uint64
	// Begin records a publish, and returns the key of the attempt, which is in its body.
	Begin(a history.Attempt) (key uint64)
	// End records the answer to it.
	End(key uint64, r history.Result)
	// Deliver records a delivery, and returns a number for Acked and Settled.
	Deliver(d history.Delivery) int
	// Acked records that acks of deliveries were sent; Settled that they are known to hold.
	Acked(deliveries []int)
	Settled(deliveries []int)
}
