package queue

import (
	"fmt"
	"math"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Oldest is since when a queue has had the oldest message of a kind; 0: it has none.
type Oldest struct {
	Ready     fsm.Time // it came into the queue, or became ready if it was scheduled here
	Unacked   fsm.Time // it was handed out; 0 as well if no delivery knows when
	Scheduled fsm.Time // it was published
}

// Times say since when messages are in a queue, and when they come. They are valid until it changes.
type Times struct {
	Clock fsm.Time // the machine's
	m     *Machine
	ms    *messages
}

// TimesOf returns the times of a queue. They are read when they are asked for.
func TimesOf(m *Machine) Times { return Times{m.clock.now(), m, m.messages} }

// Oldest returns since when the oldest messages are there. The oldest ready one is that with the lowest number: of
// those that wait in order of arrival the first, of the returned ones and those of groups the one that came first.
// Nothing is kept for it: all lists are in that order but that of the returned, of which each block knows the lowest
// number. The scheduled ones are by number, too; the deliveries of a holder are in the order in which they were handed
// out. O(priorities + returned/128 + consumers).
func (t Times) Oldest() (o Oldest) {
	if h := t.firstReady(); h != 0 {
		o.Ready = max(t.ms.enqueuedAt(h), 1)
	}
	if _, h, ok := t.ms.numbers.Peek(); ok {
		o.Scheduled = max(t.ms.entries.time(t.ms.Get(h).index, t.Clock), 1)
	}
	if t.ms.count(CheckedOut).Messages == 0 {
		return o
	}
	for _, all := range t.m.holders() {
		if all.Len() == 0 {
			continue
		}
		if _, first := all.First(); first.since != 0 && (o.Unacked == 0 || first.since < o.Unacked) {
			o.Unacked = first.since
		}
	}
	return o
}

// firstReady is the ready message with the lowest number; 0: there is none.
func (t Times) firstReady() (first uint32) {
	older := func(h uint32) {
		if h != 0 && (first == 0 || t.ms.Get(h).seq < t.ms.Get(first).seq) {
			first = h
		}
	}
	for no := range returnedList {
		older(t.ms.head(no))
	}
	older(t.ms.returns.Least())
	t.ms.groups.byAge(0, func(_ uint64, h uint32) bool {
		older(h)
		return false
	})
	return first
}

// Tallies lists the values that messages have which are ready, unacknowledged or scheduled, at most
// otherTally of them. O(tallies).
func (t Times) Tallies() (list []Tally) {
	for n, of := range t.ms.tallies.of {
		if of == nil {
			continue
		}
		x := Tally{
			Value: of.value, Other: n == otherTally, Ready: uint64(of.ready.Len()), Unacked: of.counts[CheckedOut], Scheduled: of.counts[Scheduled],
		}
		if _, h, ok := of.ready.Peek(); ok {
			x.OldestReady = max(t.ms.enqueuedAt(h), 1)
		}
		if x.Ready+x.Unacked+x.Scheduled > 0 {
			list = append(list, x)
		}
	}
	return list
}

// ExpiringBy is Expire of AheadBy alone, however many steps that takes.
func (t Times) ExpiringBy(instants []fsm.Time) []uint64 {
	return t.ms.timers.expiring(until(instants, 0), &budget{left: math.MaxInt})
}

// DueBy is Fire and Retry of AheadBy for one instant, however many steps that takes.
func (t Times) DueBy(at fsm.Time) uint64 {
	a := t.ms.timers.ahead(until([]fsm.Time{at}, 0), &budget{left: math.MaxInt})
	return a.Fire[0] + a.Retry[0]
}

const (
	// maxTallies is how many values of a header are told apart at a time. What has another counts together.
	maxTallies = 100
	// otherTally is the number of the tally of all other values.
	otherTally = maxTallies + 1
)

// tallies count messages by the value of a header that the queue's settings name: whoever publishes reads it, and says
// it in the Enqueue. A message keeps its tally until it leaves the queue, whatever becomes of the settings.
//
// Invariants:
//
//	1 ≤ extra.tally ≤ otherTally of a message that has one
//	of[n].counts[p] = number of messages with tally n and place p; those purged have none
//	of[n].ready = {number → message} of those of them that are ready
//	of[n] ≠ nil ⇔ there is such a message; then byValue[of[n].value] = n unless n = otherTally
//
// A new value gets the lowest number that is free. byValue is never iterated. A snapshot has the values by
// number, and with each message its number, from which the rest follows.
type tallies struct {
	of      []*tally // by number; of[0] is nil. Empty: there has been none
	byValue map[string]uint8
}

type tally struct {
	value  string
	counts [placeCount]uint64
	ready  sorted[uint32] // keys have at = 0
}

// give gives message h, which is in no place, the tally of a value.
func (ts *tallies) give(h uint32, value string, ms *messages) {
	n, known := ts.byValue[value]
	if !known {
		if n = ts.lowestFree(ms.bounds.Tallies); n < otherTally {
			value = strings.Clone(value) // which the command has
		} else {
			value = ""
		}
		ts.add(n, value)
	}
	ms.editExtra(h).tally = n
	ts.of[n].counts[0]++
}

// lowestFree is the lowest number up to a bound that is free; otherTally: none is.
func (ts *tallies) lowestFree(most int) uint8 {
	for n := 1; n <= most; n++ {
		if n >= len(ts.of) || ts.of[n] == nil {
			return uint8(n)
		}
	}
	return otherTally
}

// add begins tally n, unless it is that of other values and there is one.
func (ts *tallies) add(n uint8, value string) {
	for int(n) >= len(ts.of) {
		ts.of = append(ts.of, nil)
	}
	if ts.of[n] != nil {
		return
	}
	ts.of[n] = &tally{value: value}
	if n == otherTally {
		return
	}
	if ts.byValue == nil {
		ts.byValue = map[string]uint8{}
	}
	ts.byValue[value] = n
}

// moved counts that message h, x, is in place p from now on.
func (ts *tallies) moved(n uint8, h uint32, x *message, p Place) {
	t := ts.of[n]
	if x.ready() {
		t.ready.Remove(key{Seq: x.seq})
	}
	t.counts[x.place]--
	t.counts[p]++
	if p.ready() {
		t.ready.Put(key{Seq: x.seq}, h)
	}
}

// left counts that a message of tally n, which is in no place, leaves the queue.
func (ts *tallies) left(n uint8) {
	ts.of[n].counts[0]--
	ts.endEmpty(n)
}

func (ts *tallies) endEmpty(n uint8) {
	if t := ts.of[n]; t.counts == [placeCount]uint64{} {
		ts.of[n] = nil
		if n != otherTally {
			delete(ts.byValue, t.value)
		}
	}
}

// discard counts that the messages of a place are purged. O(tallies).
func (ts *tallies) discard(p Place) {
	for n, t := range ts.of {
		if t == nil || t.counts[p] == 0 {
			continue
		}
		t.counts[p] = 0
		if t.counts[Ready]+t.counts[Returned]+t.counts[Grouped] == 0 {
			t.ready.Clear()
		}
		ts.endEmpty(uint8(n))
	}
}

// Tally is what a queue has of messages with one value of the header by which they are counted.
type Tally struct {
	Value                     string
	Other                     bool // they have other values, as there are too many
	Ready, Unacked, Scheduled uint64
	OldestReady               fsm.Time // as Oldest.Ready
}

func (ts *tallies) save(h *logpb.QueueSnapshot) {
	for n, t := range ts.of {
		if t != nil {
			h.Tallies, h.TallyValues = append(h.Tallies, uint32(n)), append(h.TallyValues, t.value)
		}
	}
}

// restore begins the tallies of a snapshot. Messages are counted as they come.
func (ts *tallies) restore(h *logpb.QueueSnapshot) error {
	last := uint32(0)
	for i, n := range h.Tallies {
		if n <= last || n > otherTally || i >= len(h.TallyValues) {
			return fmt.Errorf("%w: tally %d after %d", ErrSnapshot, n, last)
		}
		if _, twice := ts.byValue[h.TallyValues[i]]; twice && n != otherTally {
			return fmt.Errorf("%w: two tallies of a value", ErrSnapshot)
		}
		ts.add(uint8(n), h.TallyValues[i])
		last = n
	}
	return nil
}

// restoreOne gives message h, which is in no place, the tally that it has; 0: none.
func (ts *tallies) restoreOne(h, n uint32, ms *messages) error {
	if n == 0 {
		return nil
	}
	if int(n) >= len(ts.of) || ts.of[n] == nil {
		return fmt.Errorf("%w: there is no tally %d", ErrSnapshot, n)
	}
	ms.editExtra(h).tally = uint8(n)
	ts.of[n].counts[0]++
	return nil
}

func (ts *tallies) check(k *checker) {
	known := 0
	for n, t := range ts.of {
		if t == nil {
			k.that(k.tallies[n] == foundTally{}, "tally %d is missing", n)
			continue
		}
		known++
		found := &k.tallies[n]
		k.that(t.counts != [placeCount]uint64{} && t.counts == found.counts, "tally %d: counted %d, found %d", n, t.counts, found.counts)
		k.that(n == otherTally || ts.byValue[t.value] == uint8(n), "tally %d is not found by %q", n, t.value)
		first, _, _ := t.ready.Peek()
		k.that(uint64(t.ready.Len()) == found.ready && first.Seq == found.first, "tally %d: %d are ready from number %d on, found %d from %d on", n, t.ready.Len(), first.Seq, found.ready, found.first)
		if n == otherTally {
			known--
		}
	}
	k.that(known == len(ts.byValue), "%d tallies, %d values", known, len(ts.byValue))
}

// foundTally is what Check finds of a tally.
type foundTally struct {
	counts       [placeCount]uint64
	ready, first uint64 // how many, and the lowest number
}

func (f *foundTally) add(x *message) {
	f.counts[x.place]++
	if !x.ready() {
		return
	}
	if f.ready++; f.ready == 1 || x.seq < f.first {
		f.first = x.seq
	}
}
