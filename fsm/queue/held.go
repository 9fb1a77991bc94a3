package queue

import (
	"cmp"
	"iter"

	"github.com/quorate/quorate/fsm"
)

// grip is the record of one message held by a consumer. Its deadline is fixed
// when it is handed out, and moves when it is renewed: later settings do not
// affect it. limit ≠ 0 ⇐ deadline ≠ 0.
type grip struct {
	// Invariant: 0 ≤ deadline, 0 ≤ limit. The command that handed the message out
	// has computed all three; a snapshot holds them.
	deadline fsm.Time   // of the consumer timeout, see clock.heldUntil; 0: never
	limit    fsm.Millis // the timeout behind deadline
	since    fsm.Time   // when it was handed out; 0: not known
	// In the arena of messages. The handle is valid as long as the message is held.
	handle uint32
	lock   uint32 // handle in locks; 0: it has none
}

// checkout is one delivery that a consumer holds or held. Its seq is known only
// after the message was lifted, see deliveries.lift. It is a copy: changing it
// changes nothing of what is held.
type checkout struct {
	// 1 ≤ id < consumer.next: the number of the delivery.
	id uint64
	grip
	seq    uint64 // of the message, see deliveries.lift
	by     uint32 // who held it, see scratch.holder; 0: not noted
	failed bool   // it goes back as failed; set when it does
	// Its lock has ended: a Retry of failures alone does not delay it, even if that
	// counts as one.
	lapsed bool
}

// lateness is a delivery that was taken back from a consumer. The message has a
// place of its own again, so there is no handle: all that is left is the id
// that the consumer may still settle.
type lateness struct {
	id    uint64
	since fsm.Time   // when it was handed out; 0: not known
	limit fsm.Millis // its timeout; 0: not known
}

// compareLate orders late deliveries by their ids.
func compareLate(l lateness, id uint64) int { return cmp.Compare(l.id, id) }

// describeLate returns the ids of late deliveries, at least one, their smallest
// limit, and for how long the oldest has been held now. ids has the order of
// late and belongs to the caller. held is 0 if no instant is known.
func describeLate(late []lateness, now fsm.Time) (ids []uint64, limit, held fsm.Millis) {
	ids, limit = make([]uint64, len(late)), late[0].limit
	for i, l := range late {
		ids[i], limit = l.id, min(limit, l.limit)
		if l.since != 0 {
			held = max(held, fsm.Millis(now-l.since))
		}
	}
	return ids, limit, held
}

// held is what a consumer holds, ascending by delivery id.
//
// Keys have at = 0 and seq = id. It is shared with snapshots by block, so a
// million deliveries freeze in the time of their table of blocks.
type held struct{ sorted[grip] }

// push adds a checkout with an id above all others.
func (d *held) push(c checkout) { d.put(key{seq: c.id}, c.grip) }

// find returns the checkout with this id.
func (d *held) find(id uint64) (checkout, bool) {
	if g := d.get(key{seq: id}); g != nil {
		return checkout{id: id, grip: *g}, true
	}
	return checkout{}, false
}

// take removes the checkouts first … last and appends them to dst. Ids that are
// not there are left out. O(log n + what is taken).
func (d *held) take(first, last uint64, dst []checkout) []checkout {
	d.cut(key{seq: first}, key{seq: last}, func(k key, g grip) { dst = append(dst, checkout{id: k.seq, grip: g}) })
	return dst
}

// takeFirst removes the first checkout, which must exist, and appends it to
// dst.
func (d *held) takeFirst(dst []checkout) []checkout {
	k, _ := d.first()
	g, _ := d.remove(k)
	return append(dst, checkout{id: k.seq, grip: g})
}

// from iterates over what is held with an id of at least id, ascending.
func (d *held) from(id uint64) iter.Seq[checkout] {
	return func(yield func(checkout) bool) {
		for k, g := range d.sorted.from(key{seq: id}) {
			if !yield(checkout{id: k.seq, grip: *g}) {
				return
			}
		}
	}
}

// within appends what is held of some ranges to dst, which is empty, but no more
// than limit. next is the first delivery that is left out; 0: there is none.
func (d *held) within(ranges []uint64, limit int, dst []checkout) (_ []checkout, next uint64) {
	for ; len(ranges) > 0; ranges = ranges[2:] {
		first, last, ok := span(ranges)
		if !ok {
			continue
		}
		for held := range d.from(first) {
			if held.id > last {
				break
			}
			if len(dst) == limit {
				return dst, held.id
			}
			dst = append(dst, held)
		}
	}
	return dst, 0
}

// span decodes the first of some ranges; false: it is empty.
func span(ranges []uint64) (first, last uint64, ok bool) {
	first, length := ranges[0], ranges[1]
	if last = first + length - 1; last < first {
		last = ^uint64(0)
	}
	return first, last, length != 0
}
