package v10

import (
	"sync/atomic"

	"github.com/quorate/quorate/amqp/v10/wire"
)

// maxLinkCredit is how many messages a client may send on a link before it is given new credit.
const maxLinkCredit = 170

// receiving is the credit of an incoming link.
//
// Invariant: left ≤ limit.
type receiving struct {
	count   uint32 // delivery-count
	left    uint32
	limit   uint32
	waiting atomic.Int32 // publishes without an outcome
}

// begin starts with the client's count.
func (r *receiving) begin(count, limit uint32) { r.count, r.left, r.limit = count, limit, limit }

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
	if r.left > r.limit/2 || r.waiting.Load() >= int32(r.limit) {
		return false
	}
	r.left = r.limit
	return true
}

// stamp fills in the link's fields of a flow.
func (r *receiving) stamp(f *wire.Flow) {
	f.DeliveryCount, f.LinkCredit = wire.Some(r.count), wire.Some(r.left)
}

// sending is the credit of an outgoing link whose messages do not come from a queue, which would have it otherwise.
type sending struct {
	count uint32 // delivery-count
	left  uint32
}

// flow takes in what the client allows.
func (s *sending) flow(f *wire.Flow) {
	s.left = uint32(max(int64(f.LinkCredit.Value)-int64(ahead(f.DeliveryCount.Value, s.count)), 0))
	if f.Drain {
		s.count += s.left
		s.left = 0
	}
}

// take uses the credit of one message. false: there is none.
func (s *sending) take() bool {
	if s.left == 0 {
		return false
	}
	s.count++
	s.left--
	return true
}
