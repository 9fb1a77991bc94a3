package v091

import (
	"cmp"
	"slices"
	"sort"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/fsm"
)

// deliveries are the deliveries of a channel that are not finally settled.
//
// Invariants: every tag in unacked and in uncommitted is ≤ last, and in one of
// the two; every get that holds something in unacked is in gets.
type deliveries struct {
	last        uint64 // delivery tag given last
	unacked     unacked
	uncommitted []uncommitted       // in order
	gets        map[uint64]struct{} // tokens of gets
}

// uncommitted is a delivery that the client has settled in a transaction.
type uncommitted struct {
	held    held
	outcome fsm.Outcome
}

// tag assigns the next delivery its tag. noAck: the client never settles it.
func (d *deliveries) tag(consumer, id uint64, noAck bool) uint64 {
	d.last++
	if !noAck {
		d.unacked.add(d.last, consumer, id)
	}
	return d.last
}

// tagGet is tag for the message that a get has taken.
func (d *deliveries) tagGet(token, id uint64, noAck bool) uint64 {
	if !noAck {
		if d.unacked.live == 0 {
			clear(d.gets)
		}
		d.gets[token] = struct{}{}
	}
	return d.tag(token, id, noAck)
}

// settle takes what a client settles and appends it to dst, or keeps it for the
// commit. ok false: there is no such delivery.
func (d *deliveries) settle(s *settlement, commit bool, dst []held) (taken []held, ok bool) {
	switch {
	case s.multiple && s.tag == 0:
		taken, ok = d.unacked.takeAll(dst), true
	case s.multiple:
		taken, ok = d.unacked.takeUpTo(s.tag, dst)
	default:
		var h held
		if h, ok = d.unacked.take(s.tag); ok {
			taken = append(dst, h)
		}
	}
	if !ok || !commit {
		return taken, ok
	}
	for _, h := range taken[len(dst):] {
		d.uncommitted = append(d.uncommitted, uncommitted{h, s.outcome})
	}
	return dst, true
}

// commit returns what was settled in the transaction.
func (d *deliveries) commit() []uncommitted {
	list := d.uncommitted
	d.uncommitted = nil
	return list
}

// rollBack makes what was settled in the transaction unsettled again.
func (d *deliveries) rollBack() {
	for _, u := range d.uncommitted {
		d.unacked.putBack(u.held)
	}
	d.unacked.restore()
	d.uncommitted = nil
}

// describe returns a delivery as commands see it.
func (d *deliveries) describe(h held) fsm.Held {
	return fsm.Held{Tag: h.tag, Consumer: h.consumer, ID: h.id, Get: d.isGet(h.consumer)}
}

// keep makes deliveries unsettled again that a command was to settle.
func (d *deliveries) keep(list []fsm.Held) {
	for _, h := range list {
		d.unacked.putBack(held{h.Tag, h.Consumer, h.ID})
		if h.Get {
			d.gets[h.Consumer] = struct{}{}
		}
	}
	d.unacked.restore()
}

// holds reports whether at least one of the deliveries is not settled by the
// client, or only in a transaction.
func (d *deliveries) holds(consumer uint64, ids []uint64) bool {
	held := func(h held) bool { return h.consumer == consumer && h.id != 0 && slices.Contains(ids, h.id) }
	return slices.ContainsFunc(d.unacked.list[d.unacked.head:], held) ||
		slices.ContainsFunc(d.uncommitted, func(u uncommitted) bool { return held(u.held) })
}

// isGet reports whether a number is the token of a get that may hold something.
func (d *deliveries) isGet(number uint64) bool {
	_, ok := d.gets[number]
	return ok
}

// held is one unacknowledged delivery.
type held struct {
	tag      uint64 // delivery tag on the channel
	consumer uint64 // number of the consumer, or token of a get
	id       uint64 // for Session.Settle, from 1; 0: settled
}

// unacked holds the unacknowledged deliveries of a channel in the order of
// their tags. Adding and taking cost O(1) amortized while tags are dense;
// memory is at most about twice that of the unacknowledged deliveries, however
// old the oldest one is.
//
// Invariants: tags in list[head:] ascend; list[head] is not settled; live is
// the number of entries of list[head:] with id ≠ 0.
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

// find returns the position of an unsettled tag.
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

// putBack adds a delivery that was taken. restore must be called before
// anything else.
func (u *unacked) putBack(h held) {
	u.list = append(u.list, h)
	u.live++
}

// restore puts the list in order after putBack.
func (u *unacked) restore() {
	u.compact()
	slices.SortFunc(u.list, func(a, b held) int {
		if a.tag < b.tag {
			return -1
		}
		return 1
	})
}

// settlement is basic.ack, nack or reject.
type settlement struct {
	method   uint32
	tag      uint64
	multiple bool
	outcome  fsm.Outcome
}

// settler passes settlements on to the session, those of one consumer in one
// call. The channel's gate guards it, and only later is called during a
// blocking call.
type settler struct {
	session amqp.Session
	waiting []waitingSettle // for the end of the blocking call, in order
	taken   []held          // scratch
	ids     []uint64        // scratch
}

// waitingSettle is a settlement that waits for the session.
type waitingSettle struct {
	consumer uint64
	outcome  fsm.Outcome
	ids      []uint64
}

// scratch is an empty list for pass.
func (s *settler) scratch() []held { return s.taken[:0] }

// pass settles deliveries. The list belongs to the settler again on return.
func (s *settler) pass(list []held, outcome fsm.Outcome) {
	s.taken = list
	if slices.ContainsFunc(list, func(h held) bool { return h.consumer != list[0].consumer }) {
		slices.SortStableFunc(list, func(a, b held) int { return cmp.Compare(a.consumer, b.consumer) })
	}
	for i := 0; i < len(list); {
		consumer := list[i].consumer
		s.ids = s.ids[:0]
		for i < len(list) && list[i].consumer == consumer {
			s.ids = append(s.ids, list[i].id)
			i++
		}
		s.session.Settle(consumer, ascending(s.ids), outcome)
	}
	if cap(s.taken) > keepItems {
		s.taken, s.ids = nil, nil
	}
}

// passAll settles what a transaction has settled, consecutive deliveries with
// the same outcome together.
func (s *settler) passAll(list []uncommitted) {
	for len(list) > 0 {
		outcome, taken := list[0].outcome, s.scratch()
		for len(list) > 0 && list[0].outcome == outcome {
			taken = append(taken, list[0].held)
			list = list[1:]
		}
		s.pass(taken, outcome)
	}
}

// passIDs settles deliveries of one consumer. It may sort ids.
func (s *settler) passIDs(consumer uint64, ids []uint64, outcome fsm.Outcome) {
	s.session.Settle(consumer, ascending(ids), outcome)
}

// later keeps a settlement until flush.
func (s *settler) later(consumer uint64, ids []uint64, outcome fsm.Outcome) {
	s.waiting = append(s.waiting, waitingSettle{consumer, outcome, ids})
}

// flush passes on the settlements that had to wait.
func (s *settler) flush() {
	for _, w := range s.waiting {
		s.passIDs(w.consumer, w.ids, w.outcome)
	}
	s.waiting = s.waiting[:0]
}

// flushUnless is flush, unless the session is being closed.
func (s *settler) flushUnless(closing bool) {
	if !closing {
		s.flush()
	}
}

// clear drops the waiting settlements and their memory.
func (s *settler) clear() { s.waiting = nil }

// ascending sorts ids if necessary.
func ascending(ids []uint64) []uint64 {
	if !slices.IsSorted(ids) {
		slices.Sort(ids)
	}
	return ids
}

// settle ends deliveries as the client requests. The gate is held.
func (ch *channel) settle(s *settlement) error {
	taken, ok := ch.consumers.settle(s, ch.tx.on, ch.settler.scratch())
	if !ok {
		return errUnknownTag(s.method, s.tag)
	}
	ch.settler.pass(taken, s.outcome)
	return nil
}

// recover returns every unacknowledged delivery. reply, if not nil, is called
// before any of them can be delivered again. The gate is held.
func (ch *channel) recover(reply func()) {
	taken := ch.consumers.takeAll(ch.settler.scratch())
	if reply != nil {
		reply()
	}
	ch.settler.pass(taken, fsm.Requeue)
}

// settleWritten acknowledges deliveries that have been written to a client
// that does not acknowledge. The writer calls it.
func (ch *channel) settleWritten(consumer uint64, ids []uint64) {
	ch.gate.Lock()
	defer ch.gate.Unlock()
	switch {
	case ch.end.sessionClosing:
	case ch.busy:
		ch.settler.later(consumer, slices.Clone(ids), fsm.Ack)
	default:
		ch.settler.passIDs(consumer, ids, fsm.Ack)
	}
}
