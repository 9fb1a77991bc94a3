package queue

import (
	"github.com/quorate/quorate/fsm"
)

// delay lets message h, which is in no place, wait until an instant. It does
// not expire meanwhile.
func (m *Machine) delay(h uint32, until fsm.Time) {
	x := m.messages.mut(h)
	if x.expireAt != 0 {
		r := *m.rareOf(h)
		r.expireAt = x.expireAt
		m.setRare(h, r)
	}
	x.expireAt = until
	m.setPlace(x, Delayed)
	m.append(h)
	m.delays.put(key{until, x.seq}, h)
}

// undelay takes message h out of those that wait for their next try. It is in
// no place then.
func (m *Machine) undelay(h uint32) {
	m.remove(h)
	x := m.messages.mut(h)
	x.expireAt = 0
	if r := *m.rareOf(h); r.expireAt != 0 {
		x.expireAt, r.expireAt = r.expireAt, 0
		m.setRare(h, r)
	}
}

// retry makes message h, which was delayed, the last one of the returned.
func (m *Machine) retry(h uint32) {
	m.undelay(h)
	m.returnLast(h)
	m.watch(h)
}
