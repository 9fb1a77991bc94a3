package queue

import "github.com/quorate/quorate/fsm"

// Follow finds one message again after each command, whatever becomes of it. It
// only reads. A message is known by its payload's place in the log, which never
// changes; its number may.
type Follow struct {
	ref    fsm.Ref
	handle uint32
	// The delivery that it was seen in last, see HandedTo.
	holder   fsm.ConsumerID
	delivery uint64
}

// Followed describes a message that is followed.
type Followed struct {
	Message
	// Leaving is set if it was handed out, and nobody holds it any more, but the
	// machine has not yet said what becomes of it.
	Leaving bool
}

// FollowRef begins to follow the message with this payload; false: the queue does
// not have it. O(messages).
func FollowRef(m *Machine, ref fsm.Ref) (Follow, bool) {
	for h := uint32(1); h < m.messages.end(); h++ {
		if x := m.messages.get(h); x.seq != 0 && x.ref() == ref {
			return Follow{ref: ref, handle: h}, true
		}
	}
	return Follow{}, false
}

// Holder returns who held the message last, and in which delivery.
func (f *Follow) Holder() (of fsm.ConsumerID, delivery uint64) { return f.holder, f.delivery }

// HandedTo says in which delivery the message is now.
func (f *Follow) HandedTo(to fsm.ConsumerID, delivery uint64) { f.holder, f.delivery = to, delivery }

// Describe describes the message; false: the queue does not have it any more, or
// has purged it. A purged message may be described until it is released. m is the
// machine with which f began.
func (f *Follow) Describe(m *Machine) (d Followed, ok bool) {
	if f.handle >= m.messages.end() {
		return d, false
	}
	if x := m.messages.get(f.handle); x.seq == 0 || x.ref() != f.ref {
		return d, false
	}
	d.Message = m.messages.describe(f.handle)
	if d.Place != CheckedOut {
		return d, true
	}
	d.Holder, d.Delivery, d.Leaving = f.holder, f.delivery, true
	if c := consumerOf(m, f.holder); c != nil {
		if held, ok := c.held.find(f.delivery); ok && held.handle == f.handle {
			d.Message, d.Leaving = m.deliveries.describe(f.holder, &held), false
		}
	}
	return d, true
}

// NextSeq is the number of the next message.
func NextSeq(m *Machine) uint64 { return m.messages.nextSeq() }

// TagOf returns the tag of a consumer; empty: it has none, or there is no such
// consumer.
func TagOf(m *Machine, id fsm.ConsumerID) string {
	if c := consumerOf(m, id); c != nil {
		return c.tag
	}
	return ""
}

// consumerOf returns a consumer, detached or not; nil: there is none.
func consumerOf(m *Machine, id fsm.ConsumerID) *consumer {
	if s := m.sessions.get(id.Session); s != nil {
		return s.consumer(id.Number)
	}
	return m.deliveries.findDetached(id)
}

// OfLetter returns the record of a letter; false: there is none.
func (e Ends) OfLetter(letter uint64) (End, bool) {
	i := e.of.ofLetter(letter)
	if i < 0 {
		return End{}, false
	}
	return e.of.ring.item(i).shown(e.of.next - uint64(e.of.ring.len()) + uint64(i)), true
}
