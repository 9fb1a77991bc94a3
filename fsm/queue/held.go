package queue

import (
	"cmp"
	"slices"
	"sort"

	"github.com/quorate/quorate/fsm"
)

// heldSpare is how much room a consumer keeps that holds nothing.
const heldSpare = 4096

// checkout is one message in the hands of a consumer. A settled one has
// handle 0 until it is swept.
type checkout struct {
	id       uint64
	deadline fsm.Time   // of the consumer timeout, see Machine.heldUntil; 0: never
	limit    fsm.Millis // the timeout behind deadline
	since    fsm.Time   // when it was handed out; 0: not known
	handle   uint32
}

// lateness is a delivery that was taken back from a consumer.
type lateness struct {
	id    uint64
	since fsm.Time   // when it was handed out; 0: not known
	limit fsm.Millis // its timeout; 0: not known
}

func compareLate(l lateness, id uint64) int { return cmp.Compare(l.id, id) }

// describeLate lists the ids of late deliveries, of which there are some, their
// smallest limit, and for how long the oldest has been held now.
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

// held is what a consumer holds, ascending by delivery id. Deliveries are
// mostly settled from the front; settled ones in the middle stay until they
// are more than the others.
type held struct {
	all    []checkout
	head   int  // all[head] is the first one not settled
	n      int  // not settled
	shared bool // a snapshot reads all: clone before a write in place
}

func (d *held) own() {
	if d.shared {
		d.all, d.shared = slices.Clone(d.all), false
	}
}

func (d *held) push(c checkout) {
	if len(d.all) == cap(d.all) && d.head > len(d.all)/2 {
		d.compact()
	}
	d.all = append(d.all, c)
	d.n++
}

// compact drops what is settled.
func (d *held) compact() {
	kept := d.all[:0]
	if d.shared {
		kept, d.shared = make([]checkout, 0, d.n+1), false
	}
	for _, c := range d.all[d.head:] {
		if c.handle != 0 {
			kept = append(kept, c)
		}
	}
	d.all, d.head = kept, 0
}

// search returns the position of the first checkout with an id of at least id.
func (d *held) search(id uint64) int {
	if d.n == 0 {
		return len(d.all)
	}
	first := d.all[d.head].id
	if id <= first {
		return d.head
	}
	if at := id - first; at < uint64(len(d.all)-d.head) && d.all[d.head+int(at)].id == id {
		return d.head + int(at)
	}
	return d.head + sort.Search(len(d.all)-d.head, func(i int) bool { return d.all[d.head+i].id >= id })
}

// find returns the checkout with this id.
func (d *held) find(id uint64) (checkout, bool) {
	if i := d.search(id); i < len(d.all) && d.all[i].id == id && d.all[i].handle != 0 {
		return d.all[i], true
	}
	return checkout{}, false
}

// take removes the checkouts first … last and appends them to dst. It does not
// walk twice over many that are settled.
func (d *held) take(first, last uint64, dst []checkout) []checkout {
	i := d.search(first)
	if i == len(d.all) || d.all[i].id > last {
		return dst
	}
	d.own()
	settled := 0
	for ; i < len(d.all) && d.all[i].id <= last; i++ {
		if d.all[i].handle == 0 {
			settled++
			continue
		}
		dst = append(dst, d.all[i])
		d.all[i].handle = 0
		d.n--
	}
	for d.head < len(d.all) && d.all[d.head].handle == 0 {
		d.head++
	}
	switch {
	case d.n == 0 && cap(d.all) > heldSpare:
		d.all, d.head = nil, 0
	case d.n == 0:
		d.all, d.head = d.all[:0], 0
	case len(d.all)-d.head > 2*d.n+16, settled > 16:
		d.compact()
	}
	return dst
}

// from iterates over what is held with an id of at least id, ascending.
func (d *held) from(id uint64) func(yield func(checkout) bool) {
	return func(yield func(checkout) bool) {
		for _, c := range d.all[d.search(id):] {
			if c.handle != 0 && !yield(c) {
				return
			}
		}
	}
}

// share returns what is held as it is now. It may hold settled ones.
func (d *held) share() []checkout {
	d.shared = len(d.all) > 0
	return d.all[d.head:len(d.all):len(d.all)]
}
