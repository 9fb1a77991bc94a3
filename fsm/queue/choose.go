package queue

import (
	"iter"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// A consumer with a selector takes nothing by itself: the machine reads no message. The
// leader does, and names in a Choose command what is for whom. Of that the machine hands
// out what is still ready, so a Choose may come late, and be wrong about what others have
// taken meanwhile.

// choice is what a consumer with a selector has. The zero choice is that of another one.
//
// Invariant: selector ≠ "" or drain = 0; both only in credit mode.
type choice struct {
	selector string // not read here; empty: it takes all
	number   uint64 // of the last Choose: so each is performed once
	// Of what was ready up to this entry, nothing else is for the consumer.
	searched uint64
	drain    uint64 // the entry with the drain that is not finished; 0: none
}

func (c *consumer) chooses() bool { return c.choice.selector != "" }

// drains begins a drain with an entry, unless one has begun before, and reports whether
// it goes on: until all that was ready then was searched.
func (c *choice) drains(at uint64) bool {
	if c.drain == 0 {
		c.drain = at
	}
	return c.searched < c.drain
}

// choosers are the consumers with selectors that are served and have credit, by age.
// It follows from the consumers, and is in no snapshot.
type choosers struct{ list sorted[*consumer] }

func (cs *choosers) note(c *consumer, wants bool) {
	at := key{At: fsm.Time(c.registered)}
	switch {
	case cs.list.Len() == 0 && !c.chooses():
	case wants && c.chooses():
		if cs.list.Value(at) == nil {
			cs.list.Put(at, c)
		}
	default:
		cs.list.Remove(at)
	}
}

func (cs *choosers) checkOne(k *checker, c *consumer, wants bool) {
	is := cs.list.Value(key{At: fsm.Time(c.registered)}) == c
	k.that(is == (wants && c.chooses()) || c.session.life.over, "consumer %v: among those that choose %v", c.id, is)
}

// chosenAtOnce bounds the messages that one Choose names.
const chosenAtOnce = 256

// choose hands messages that the leader names to a consumer with a selector.
//
// Refusals: Invalid before version 3, and for more than chosenAtOnce numbers or such that
// do not ascend; NotFound for a consumer that is not there or has no selector; Rejected for
// another number than the next. None of them changes anything.
func (m *Machine) choose(cmd *logpb.Choose, eff *fsm.Effects) fsm.Result {
	numbers := cmd.GetMessages()
	if !m.since(3) || len(numbers) > chosenAtOnce || !slices.IsSorted(numbers) {
		return fsm.Result{Code: fsm.Invalid}
	}
	c := consumerOf(m, fsm.ConsumerID{Session: fsm.SessionFrom(cmd.GetSession()), Number: cmd.GetConsumer()})
	switch {
	case c == nil || c.cancelled || !c.chooses():
		return fsm.Result{Code: fsm.NotFound}
	case cmd.Number != c.choice.number+1:
		return fsm.Result{Code: fsm.Rejected}
	}
	c.choice.number++
	c.choice.searched = max(c.choice.searched, cmd.Searched)
	if m.settings.forwards() || m.sessions.isEnding() || !m.consumers.served(c) {
		return fsm.Result{}
	}
	for i, h := range m.messages.readyWith(numbers) {
		x := m.messages.Get(h)
		if h == 0 || x.seq != numbers[i] || x.place != Ready && x.place != Returned || x.due(m.clock.now()) || !x.lives(m.clock.now(), c.least) {
			continue // others have it, or it is for nobody
		}
		if c.credit() <= 0 || m.scratch.handOuts == 0 {
			break
		}
		m.scratch.handOuts--
		id, lock := m.checkOut(h, c)
		m.deliver(c, id, h, lock, eff)
	}
	m.consumers.refresh(c)
	return fsm.Result{}
}

// readyWith returns the messages with some numbers, ascending, that are ready and of no
// group; 0: there is none. O(lists) for each, and a scan of the returned ones for all.
func (ms *messages) readyWith(numbers []uint64) []uint32 {
	found, left := make([]uint32, len(numbers)), 0
	for i, seq := range numbers {
		for list := 0; found[i] == 0 && list <= maxPriority; list++ {
			if h := ms.marks.above(ms, list, seq-1); h != 0 && ms.Get(h).seq == seq {
				found[i] = h
			}
		}
		if found[i] == 0 {
			left++
		}
	}
	for h, at := range ms.returns.All() {
		if left == 0 {
			break
		}
		if i, ok := slices.BinarySearch(numbers, at.Number); ok && found[i] == 0 {
			found[i] = h
			left--
		}
	}
	return found
}

// Chooser is a consumer with a selector that may be handed messages.
type Chooser struct {
	ID       fsm.ConsumerID
	Age      uint64 // of no other consumer
	Selector string
	Number   uint64 // of its next Choose
	Credit   int
	Drains   bool       // it waits for a Choose that says that all was searched
	Least    fsm.Millis // messages with less left of their TTL are not for it
}

// thatChoose iterates over those with selectors that may be handed messages.
func (cs *consumers) thatChoose() iter.Seq[*consumer] {
	return func(yield func(*consumer) bool) {
		for c := range cs.choosers.list.Values(key{}) {
			if cs.served(c) && !yield(c) {
				return
			}
		}
	}
}

// Selective returns the ages of all consumers with selectors. O(consumers).
func Selective(m *Machine) map[uint64]struct{} {
	ages := map[uint64]struct{}{}
	for c := range m.consumers.from(0) {
		if c.chooses() && !c.cancelled {
			ages[c.registered] = struct{}{}
		}
	}
	return ages
}

func (ms *messages) timesBack() uint64 { return ms.cameBack }

// Choosers returns those of a queue, by age; none while a Choose would hand nothing out.
func Choosers(m *Machine) (all []Chooser) {
	if m.settings.forwards() || m.sessions.isEnding() {
		return nil
	}
	for c := range m.consumers.thatChoose() {
		all = append(all, Chooser{
			ID: c.id, Age: c.registered, Selector: c.choice.selector, Number: c.choice.number + 1, Credit: c.credit(), Drains: c.choice.drain > c.choice.searched, Least: c.least,
		})
	}
	return all
}
