package v10

import (
	"slices"
	"sort"

	"github.com/quorate/quorate/fsm"
)

// unsettled are the deliveries of a session that its client has not settled.
//
// Invariants: ids in list[head:] ascend, and are below next; an id that is not there is settled or was never unsettled;
// list[head] is not settled. Memory is at most about twice that of the unsettled deliveries.
type unsettled struct {
	next uint64 // id of the next delivery; on the wire its lower half
	list []delivery
	head int
	live int // entries of list that are not settled
}

// delivery is one unsettled delivery, or one that is not dropped yet.
type delivery struct {
	id     uint64
	link   *outgoingLink // nil: it is settled
	number uint64        // at the queue
	lost   bool          // the broker has taken it back, and the client is told
	lapses bool          // for its lock has ended
	renew  bool          // the client wants to hold it for longer, and the broker does not know
	// received is what else its dialect wants to know of it; nil: nothing.
	received *Received
}

// number gives a delivery its id. It is remembered unless it is settled.
func (u *unsettled) number(link *outgoingLink, m *fsm.Message) uint32 {
	id := u.next
	u.next++
	if !link.settled {
		if len(u.list) == cap(u.list) && u.live <= len(u.list)/2 {
			u.compact()
		}
		d := delivery{id: id, link: link, number: m.ID}
		if link.quiet {
			d.received = &Received{m.Sequence, m.Acquired, m.Edit, link.session, id}
		}
		u.list = append(u.list, d)
		u.live++
	}
	return uint32(id)
}

// compact drops settled deliveries.
func (u *unsettled) compact() {
	kept := u.list[:0]
	for _, d := range u.list[u.head:] {
		if d.link != nil {
			kept = append(kept, d)
		}
	}
	clear(u.list[len(kept):])
	u.list, u.head = kept, 0
}

// whole is an id of 32 bits in full: the one nearest to the next.
func (u *unsettled) whole(id uint32) int64 { return int64(u.next) - int64(ahead(id, uint32(u.next))) }

// at returns the position of the first delivery with an id ≥ id.
func (u *unsettled) at(id int64) int {
	tail := u.list[u.head:]
	if len(tail) == 0 || id <= int64(tail[0].id) {
		return u.head
	}
	if d := id - int64(tail[0].id); d < int64(len(tail)) && int64(tail[d].id) == id {
		return u.head + int(d)
	}
	return u.head + sort.Search(len(tail), func(i int) bool { return int64(tail[i].id) >= id })
}

// each calls f for the unsettled deliveries of a range, in order. take: they are settled now.
func (u *unsettled) each(first, last uint32, take bool, f func(delivery)) {
	from, to := u.whole(first), u.whole(last)
	for i := u.at(from); i < len(u.list) && int64(u.list[i].id) <= to; i++ {
		u.visit(i, take, f)
	}
	u.trim()
}

// of calls f for the unsettled deliveries of a link, which are settled now.
func (u *unsettled) of(link *outgoingLink, f func(delivery)) {
	for i := u.head; i < len(u.list); i++ {
		if u.list[i].link == link {
			u.visit(i, true, f)
		}
	}
	u.trim()
}

// lose marks deliveries of a link, by their numbers at the queue, as lost, and calls f for those that were not. lapses: for
// their locks have ended.
func (u *unsettled) lose(link *outgoingLink, numbers []uint64, lapses bool, f func(delivery)) {
	for i := u.head; i < len(u.list); i++ {
		d := &u.list[i]
		if _, is := slices.BinarySearch(numbers, d.number); is && d.link == link && !d.lost {
			d.lost, d.lapses = true, lapses
			f(*d)
		}
	}
}

// takeLost takes a delivery that is still lost, that is, not settled. false: it is not.
func (u *unsettled) takeLost(id uint64) (d delivery, ok bool) {
	i := u.at(int64(id))
	if i == len(u.list) || u.list[i].id != id || u.list[i].link == nil {
		return delivery{}, false
	}
	u.visit(i, true, func(x delivery) { d = x })
	u.trim()
	return d, true
}

func (u *unsettled) visit(i int, take bool, f func(delivery)) {
	d := u.list[i]
	if d.link == nil {
		return
	}
	if take {
		u.list[i].link = nil
		u.live--
	}
	f(d)
}

// trim moves head to the first delivery that is not settled.
func (u *unsettled) trim() {
	if u.live == 0 {
		u.list, u.head = u.list[:0], 0
		return
	}
	for u.list[u.head].link == nil {
		u.head++
	}
}
