package v10

import (
	"sync/atomic"

	"github.com/quorate/quorate/amqp/v10/wire"
)

// maxLinkCredit is how many messages a client may send on a link before it is given new credit.
const maxLinkCredit = 170

// receiving is the credit of an incoming link.
//
// Invariant: left ≤ maxLinkCredit.
type receiving struct {
	count   uint32 // delivery-count
	left    uint32
	waiting atomic.Int32 // publishes without an outcome
}

// begin starts with the client's count.
func (r *receiving) begin(count uint32) { r.count, r.left = count, maxLinkCredit }

// message counts a complete or aborted message. false: the client had no credit for it.
func (r *receiving) message() bool {
	if r.left == 0 {
		return false
	}
	r.left--
	r.count++
	return true
}

// refill gives new credit if it is due, and reports whether it was. What waits for the broker is what
// stops a client that publishes faster than queues commit.
func (r *receiving) refill() bool {
	if r.left > maxLinkCredit/2 || r.waiting.Load() >= maxLinkCredit {
		return false
	}
	r.left = maxLinkCredit
	return true
}

// stamp fills in the link's fields of a flow.
func (r *receiving) stamp(f *wire.Flow) {
	f.DeliveryCount, f.LinkCredit = wire.Some(r.count), wire.Some(r.left)
}
