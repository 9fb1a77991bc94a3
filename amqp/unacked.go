package amqp

import "sort"

// held is one unacknowledged delivery.
type held struct {
	tag      uint64 // delivery tag on the channel
	consumer uint64 // number of the consumer, or token of a get
	id       uint64 // for Session.Settle, from 1; 0: settled
}

// unacked holds the unacknowledged deliveries of a channel in the order of
// their tags. Adding and taking cost O(1) amortized while tags are dense;
// memory is at most about twice what is unacknowledged, however old the oldest
// delivery is.
type unacked struct {
	list []held // list[:head] is settled; tags ascend
	head int
	live int // entries with id != 0
}

// add appends a delivery. tag is above all tags before.
func (u *unacked) add(tag, consumer, id uint64) {
	if len(u.list) == cap(u.list) && u.live <= len(u.list)/2 {
		u.compact()
	}
	u.list = append(u.list, held{tag, consumer, id})
	u.live++
}

// compact drops settled entries.
func (u *unacked) compact() {
	kept := u.list[:0]
	for _, h := range u.list[u.head:] {
		if h.id != 0 {
			kept = append(kept, h)
		}
	}
	u.list, u.head = kept, 0
}

// find returns the place of an unsettled tag.
func (u *unacked) find(tag uint64) (int, bool) {
	if u.live == 0 || tag < u.list[u.head].tag {
		return 0, false
	}
	tail := u.list[u.head:]
	i := len(tail)
	if d := tag - tail[0].tag; d < uint64(len(tail)) && tail[d].tag == tag {
		i = int(d)
	} else {
		i = sort.Search(i, func(i int) bool { return tail[i].tag >= tag })
	}
	if i == len(tail) || tail[i].tag != tag || tail[i].id == 0 {
		return 0, false
	}
	return u.head + i, true
}

// take removes one delivery.
func (u *unacked) take(tag uint64) (held, bool) {
	i, ok := u.find(tag)
	if !ok {
		return held{}, false
	}
	h := u.list[i]
	u.list[i].id = 0
	u.live--
	u.trim()
	return h, true
}

// takeUpTo removes every delivery with a tag ≤ tag, which must be
// unacknowledged itself, and appends them to dst in ascending order.
func (u *unacked) takeUpTo(tag uint64, dst []held) ([]held, bool) {
	last, ok := u.find(tag)
	if !ok {
		return dst, false
	}
	return u.takeThrough(last, dst), true
}

// takeAll removes every delivery.
func (u *unacked) takeAll(dst []held) []held {
	return u.takeThrough(len(u.list)-1, dst)
}

func (u *unacked) takeThrough(last int, dst []held) []held {
	for i := u.head; i <= last; i++ {
		if u.list[i].id != 0 {
			dst = append(dst, u.list[i])
			u.list[i].id = 0
			u.live--
		}
	}
	u.trim()
	return dst
}

// trim moves head to the first unsettled entry.
func (u *unacked) trim() {
	if u.live == 0 {
		u.list, u.head = u.list[:0], 0
		return
	}
	for u.list[u.head].id == 0 {
		u.head++
	}
}
