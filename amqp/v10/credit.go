package v10

import "github.com/quorate/quorate/amqp/v10/wire"

const (
	// maxLinkCredit is how many messages a client may send on a link before it is given new credit.
	maxLinkCredit = 170
	// maxQueueCredit is how much of a link's credit lies at its queue.
	maxQueueCredit = 256
)

// receiving is the credit of an incoming link.
//
// Invariant: left ≤ maxLinkCredit.
type receiving struct {
	count   uint32 // delivery-count
	left    uint32
	waiting uint32 // publishes without an outcome
}

// begin starts with the client's count.
func (r *receiving) begin(count uint32) { *r = receiving{count: count, left: maxLinkCredit} }

// message counts a complete or aborted message. false: the client had no credit for it.
func (r *receiving) message() bool {
	if r.left == 0 {
		return false
	}
	r.left--
	r.count++
	return true
}

// publish counts a message that the broker has, done that such ones have their outcome.
func (r *receiving) publish()      { r.waiting++ }
func (r *receiving) done(n uint32) { r.waiting -= n }

// refill gives new credit if it is due, and reports whether it was. What waits for the broker is what
// stops a client that publishes faster than queues commit.
func (r *receiving) refill() bool {
	if r.left > maxLinkCredit/2 || r.waiting >= maxLinkCredit {
		return false
	}
	r.left = maxLinkCredit
	return true
}

// stamp fills in the link's fields of a flow.
func (r *receiving) stamp(f *wire.Flow) {
	f.DeliveryCount, f.LinkCredit = wire.Some(r.count), wire.Some(r.left)
}

// sending is the credit of an outgoing link, of which a part lies at its queue. Both count deliveries from
// 0, so a count means the same to both.
//
// One request for credit is on its way to the queue at a time; what comes meanwhile replaces what waits.
//
// Invariants, as serial numbers: count ≤ limit, unless the client has taken credit back; count ≤ atQueue.
type sending struct {
	count   uint32 // delivery-count
	limit   uint32 // the count to which the client's credit reaches
	atQueue uint32 // the count to which the queue's reaches
	drain   bool   // the client wants the rest of its credit used up
	echo    bool   // it wants a flow
	waits   bool   // for the queue's answer
	drained bool   // what the queue was asked last
}

// creditRequest is what the queue is asked for.
type creditRequest struct {
	count, credit uint32
	drain         bool
}

// flow takes in the client's flow.
func (s *sending) flow(f *wire.Flow) {
	limit := f.DeliveryCount.Or(0) + f.LinkCredit.Or(0)
	if ahead(s.count, limit) < 0 {
		limit = s.count
	}
	s.limit, s.drain, s.echo = limit, f.Drain, s.echo || f.Echo
}

// left is the credit that the client has given and not had.
func (s *sending) left() uint32 { return uint32(max(ahead(s.count, s.limit), 0)) }

// delivered counts a delivery. The queue may have handed it out before its credit was reduced: then the client
// gets more than its last flow allows.
func (s *sending) delivered() {
	s.count++
	if ahead(s.count, s.limit) < 0 {
		s.limit = s.count
	}
	if ahead(s.count, s.atQueue) < 0 {
		s.atQueue = s.count
	}
}

// next returns what the queue is to be asked for. ok false: nothing, at present.
func (s *sending) next() (r creditRequest, ok bool) {
	if s.waits {
		return r, false
	}
	want := s.left()
	if !s.drain {
		want = min(want, maxQueueCredit)
	}
	has := uint32(ahead(s.count, s.atQueue))
	low := want > has && has <= maxQueueCredit/2
	if !s.drain && !s.echo && !low && want >= has {
		return r, false
	}
	s.waits, s.drained = true, s.drain
	s.atQueue = s.count + want
	return creditRequest{s.count, want, s.drain}, true
}

// answered takes in the queue's answer: its count, which a drain has moved. It returns whether the client is told, and
// by a flow of which kind. All deliveries before the answer have been counted.
func (s *sending) answered(count uint32) (tell, drained bool) {
	s.waits = false
	drained = s.drained && s.drain
	if drained {
		s.count, s.limit, s.atQueue, s.drain = count, count, count, false
	}
	tell = drained || s.echo
	s.echo = false
	return tell, drained
}

// stamp fills in the link's fields of a flow. available is how many messages the queue has.
func (s *sending) stamp(f *wire.Flow, available uint32, drained bool) {
	f.DeliveryCount, f.LinkCredit = wire.Some(s.count), wire.Some(s.left())
	f.Available, f.Drain = wire.Some(available), drained
}
