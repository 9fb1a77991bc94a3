package queue

import (
	"fmt"
	"iter"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// detached are consumers whose sessions have ended and whose deliveries stay
// locked for a while: somebody else may still settle or renew them. A renewed lock
// keeps its consumer here for as long as it lasts.
//
// Invariants: each of them holds something, has a detachedUntil, and is no
// consumer of any session; all, byAge and byID have the same ones.
//
// They are what consumer.detach would be otherwise, and count neither as
// consumers nor for a single active consumer. The queue is in use as long as
// there are any. A snapshot has them in the order of all; byID is only looked up,
// byAge is for readers that come back.
type detached struct {
	*shared
	all   sorted[*consumer] // by detachedUntil, then by registered
	byAge sorted[*consumer] // by registered
	byID  map[fsm.ConsumerID]*consumer
}

// clear removes all of them.
func (d *detached) clear() {
	*d = detached{shared: d.shared, byID: map[fsm.ConsumerID]*consumer{}}
}

// len is how many there are.
func (d *detached) len() int { return len(d.byID) }

// key returns the position of c.
func (d *detached) key(c *consumer) key { return key{c.detachedUntil, c.registered} }

// add adds c, which holds something and is about to be unregistered. Its locks
// end at until at the latest. What was late is forgotten, since nobody reports it.
func (d *detached) add(c *consumer, until fsm.Time) {
	c.detachedUntil, c.late, c.lockLost = until, nil, nil
	d.all.put(d.key(c), c)
	d.byAge.put(key{seq: c.registered}, c)
	d.byID[c.id] = c
}

// extend lets c, which is one of them, stay at least until an instant on the clock
// of held messages.
func (d *detached) extend(c *consumer, until fsm.Time) {
	if until <= c.detachedUntil {
		return
	}
	d.all.remove(d.key(c))
	c.detachedUntil = until
	d.all.put(d.key(c), c)
}

// remove removes c. The caller has taken what it held.
func (d *detached) remove(c *consumer) {
	d.all.remove(d.key(c))
	d.byAge.remove(key{seq: c.registered})
	delete(d.byID, c.id)
}

// find returns one of them; nil: there is none.
func (d *detached) find(id fsm.ConsumerID) *consumer { return d.byID[id] }

// has reports whether c is one of them.
func (d *detached) has(c *consumer) bool { return c.detachedUntil != 0 }

// over returns the first one whose time is over; nil: there is none.
func (d *detached) over() *consumer {
	if at, c, ok := firstOf(&d.all); ok && d.clock.heldUntil(at.at) <= d.clock.now() {
		return c
	}
	return nil
}

// nextEnd is when the time of the first one is over; 0: there is none.
func (d *detached) nextEnd() fsm.Time {
	at, _, _ := firstOf(&d.all)
	return d.clock.heldUntil(at.at)
}

// list iterates over all of them. None may come or go meanwhile.
func (d *detached) list() iter.Seq[*consumer] {
	return func(yield func(*consumer) bool) {
		for _, c := range d.all.all() {
			if !yield(*c) {
				return
			}
		}
	}
}

// from iterates over those with a position of at least n in the order of age,
// which is that of all consumers.
func (d *detached) from(n uint64) iter.Seq[*consumer] {
	return func(yield func(*consumer) bool) {
		for _, c := range d.byAge.from(key{seq: n}) {
			if !yield(*c) {
				return
			}
		}
	}
}

// describe writes one line for each of them.
func (d *detached) describe(b *strings.Builder) {
	for c := range d.list() {
		fmt.Fprintf(b, "detached %s:%d held=%d until=%d\n", sessionText(c.id.Session), c.id.Number, c.held.len(), d.clock.heldUntil(c.detachedUntil))
	}
}

// save writes their section of a snapshot's head. What they hold follows what is
// on its way back.
func (d *detached) save(h *logpb.QueueSnapshot) {
	for c := range d.list() {
		h.Detached = append(h.Detached, &logpb.DetachedState{
			Session: c.id.Session.Proto(), Consumer: c.id.Number, Registered: c.registered, Until: int64(c.detachedUntil), Tag: c.tag,
		})
	}
}

// view appends what they hold, valid until the next change.
func (d *detached) view(all []sorted[grip]) []sorted[grip] {
	for c := range d.list() {
		all = append(all, c.held.sorted)
	}
	return all
}

// freeze is like view, but what it appends never changes.
func (d *detached) freeze(all []sorted[grip]) []sorted[grip] {
	for c := range d.list() {
		all = append(all, c.held.freeze())
	}
	return all
}

// restore is the inverse of save. It returns them in the order of the snapshot.
func (d *detached) restore(h *logpb.QueueSnapshot) ([]*consumer, error) {
	var coming []*consumer
	for _, st := range h.Detached {
		c := &consumer{
			id:         fsm.ConsumerID{Session: fsm.SessionFrom(st.Session), Number: st.Consumer},
			registered: st.Registered, tag: st.Tag, next: ^uint64(0), cancelled: true,
		}
		at := key{fsm.Time(st.Until), st.Registered}
		if st.Until <= 0 || d.byID[c.id] != nil || d.byAge.get(key{seq: c.registered}) != nil {
			return nil, fmt.Errorf("%w: a consumer is detached twice, or never", ErrSnapshot)
		}
		d.add(c, at.at)
		coming = append(coming, c)
	}
	return coming, nil
}

// check checks the invariants. What they hold is checked with the deliveries.
func (d *detached) check(k *checker) {
	k.that(d.all.len() == len(d.byID) && d.all.len() == d.byAge.len(), "%d consumers are detached, and %d", d.all.len(), len(d.byID))
	for at, p := range d.all.all() {
		c := *p
		k.that(at == d.key(c) && c.detachedUntil > 0 && d.byID[c.id] == c && c.held.len() > 0 && c.session == nil && c.level == nil, "detached consumer %v", c.id)
		k.deadline(d.clock.heldUntil(c.detachedUntil))
	}
}
