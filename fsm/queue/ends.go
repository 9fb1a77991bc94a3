package queue

import (
	"bufio"
	"bytes"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/internal/ordered"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	// defaultEnds is how many ends are remembered if the settings do not say it,
	// and maxEnds how many at most.
	defaultEnds = 1000
	maxEnds     = 100_000

	// endSize bounds one encoded record. maxTag is what is kept of a consumer tag,
	// and maxArrivals of the queues that have a letter.
	endSize     = 512
	maxTag      = 48
	maxArrivals = 4
	// smallText: with no more text a record is never longer than endSize.
	smallText = 128
)

// EndReason says why a message ended otherwise than by an ack. The first ones
// are those of deaths.
type EndReason = logpb.EndState_Reason

// endReason is the reason of a death in the record of ends.
func endReason(r logpb.Death_Reason) EndReason {
	if r == logpb.Death_QUEUE_DELETED {
		return logpb.EndState_QUEUE_DELETED
	}
	return EndReason(r)
}

// ends is the record of the last messages that ended otherwise than by an ack:
// which, when, why, and what became of them. It answers questions about messages
// that are gone. No rule depends on it.
//
// Every end goes through record, in the command that causes it, so the record is
// equal on all replicas. It holds no payload, and names no log entry that must be
// kept.
//
// Invariants:
//
//	ring.len() ≤ the greater of settings.ends and least
//	the records are numbered next-ring.len() … next-1
//	letter ascends; records that are posted have different ones
//	no record is longer than endSize in a snapshot
//
// A snapshot has the records behind the messages.
type ends struct {
	*shared
	entries  *entries
	messages *messages

	ring deque[end]
	next uint64 // number of the next record, from 1
	// A property of the program, in no snapshot: keep at least so many.
	least int
}

// end is one record. text is what the strings of it are slices of: the message
// id, the correlation id, the tag.
type end struct {
	at          fsm.Time
	index, term uint64 // of the entry that ended it
	count       uint64 // messages, of a record of several; 0: one
	seq         uint64 // of the message; 0: it was refused, or there are several
	ref         fsm.Ref
	enqueuedAt  fsm.Time // 0: not known
	expireAt    fsm.Time // 0: never
	holder      fsm.ConsumerID
	letter      uint64 // its number if it is posted, otherwise that of the next letter
	settled     uint64 // entry that ended the letter; 0: it has not ended, or there is none
	text        string
	arrivals    []Arrival // replaced, never changed
	acquired    uint32
	failed      uint32
	messageID   uint8 // length
	correlation uint8 // length
	reason      uint8 // an EndReason
	disposition Disposition
	posted      bool // it became a letter of the outbox
}

type lastHolder struct {
	id  fsm.ConsumerID
	tag string
}

func (en *ends) limit() int { return max(en.settings.ends, en.least) }

func (en *ends) keep(n int) { en.least = n }
func (en *ends) kept() int  { return en.least }

func (en *ends) clear() {
	en.ring.Clear()
	en.next = max(en.next, 1)
}

func (en *ends) trim() {
	if en.limit() == 0 {
		en.ring.Clear()
		return
	}
	for en.ring.Len() > en.limit() {
		en.ring.Pop()
	}
}

// add appends a record that says when, and by which entry. The caller completes it.
// Requires: the limit is not 0.
func (en *ends) add() *end {
	for en.ring.Len() >= en.limit() {
		en.ring.Pop()
	}
	en.next++
	r := en.ring.Add()
	r.at, r.index, r.term = en.clock.now(), en.entries.last(), en.clock.inTerm()
	return r
}

func (en *ends) record(r end) {
	if en.limit() > 0 {
		to := en.add()
		r.at, r.index, r.term = to.at, to.index, to.term
		*to = r
	}
}

// message records the end of message h, which still has its record. letter is the
// number of the next letter: that of this one, if it is posted.
func (en *ends) message(h uint32, reason EndReason, what Disposition, letter uint64, posted bool) {
	if en.limit() == 0 {
		return
	}
	x := en.messages.Get(h)
	r := en.add()
	r.seq, r.ref, r.expireAt, r.enqueuedAt = x.seq, x.ref(), x.expireAt, en.entries.time(x.index, en.clock.now())
	r.acquired, r.failed = x.acquired, x.failed
	r.letter, r.reason, r.disposition, r.posted = letter, uint8(reason), what, posted
	if x.place == Scheduled {
		r.expireAt = 0 // it is the due time
	}
	r.holder = en.scratch.by.id
	if x.labelled() || en.scratch.by.tag != "" {
		messageID, correlationID := en.messages.label(h)
		r.setText(string(messageID), string(correlationID), en.scratch.by.tag)
	}
}

// forwarded records that message h has arrived at the queues in done and at last, unless that is 0.
func (en *ends) forwarded(h uint32, done []fsm.QueueID, last fsm.QueueID, letter uint64) {
	if en.limit() == 0 {
		return
	}
	en.message(h, logpb.EndState_FORWARDED, AtLeastOnce, letter, false)
	r := en.ring.Edit(en.ring.Len() - 1)
	r.arrivals = make([]Arrival, 0, min(len(done)+1, maxArrivals))
	for _, at := range done {
		r.arrive(at)
	}
	if last != 0 && !slices.Contains(done, last) {
		r.arrive(last)
	}
}

// arrive adds an arrival by the entry that ended r, unless there are as many as a
// record has. Requires: nobody else has the slice.
func (r *end) arrive(at fsm.QueueID) {
	had := r.arrivals
	if len(had) == maxArrivals {
		return
	}
	if r.arrivals = append(had, Arrival{at, r.index}); !r.fits() {
		r.arrivals = had
	}
}

func (r *end) fits() bool { return len(r.text) <= smallText || r.state().SizeVT() <= endSize }

// refused records the end of a message that was refused as a dead letter. It has
// no number.
func (en *ends) refused(meta *fsm.Meta, cmd *logpb.Enqueue, letter uint64) {
	r := end{
		ref: fsm.Ref{Index: meta.Index, Offset: meta.Offset, Size: cmd.Size}, letter: letter,
		reason: uint8(logpb.EndState_MAXLEN), disposition: SentOnce,
	}
	r.setText(ordered.CutLabel(cmd.MessageId), ordered.CutLabel(cmd.CorrelationId), "")
	en.record(r)
}

func (en *ends) several(n uint64, reason EndReason, letter uint64) {
	if n > 0 {
		en.record(end{count: n, reason: uint8(reason), letter: letter})
	}
}

func (r *end) setText(messageID, correlationID, tag string) {
	r.text = messageID + correlationID + tag[:min(len(tag), maxTag)]
	r.messageID, r.correlation = uint8(len(messageID)), uint8(len(correlationID))
}

func (r *end) strings() (messageID, correlationID, tag string) {
	a, b := int(r.messageID), int(r.messageID)+int(r.correlation)
	return r.text[:a], r.text[a:b], r.text[b:]
}

// ofLetter returns the position of the record of a letter; -1: there is none any
// more, or it never had one.
func (en *ends) ofLetter(letter uint64) int {
	i := sort.Search(en.ring.Len(), func(i int) bool { return en.ring.Item(i).letter > letter }) - 1
	if i < 0 || en.ring.Item(i).letter != letter || !en.ring.Item(i).posted {
		return -1
	}
	return i
}

func (en *ends) arrived(letter uint64, at fsm.QueueID) {
	i := en.ofLetter(letter)
	if i < 0 {
		return
	}
	r := *en.ring.Item(i)
	if len(r.arrivals) >= maxArrivals {
		return
	}
	r.arrivals = append(r.arrivals[:len(r.arrivals):len(r.arrivals)], Arrival{at, en.entries.last()})
	if r.settled = en.entries.last(); !r.fits() { // with what is to come
		return
	}
	r.settled = 0
	*en.ring.Edit(i) = r
}

func (en *ends) settled(letter uint64) {
	if i := en.ofLetter(letter); i >= 0 {
		en.ring.Edit(i).settled = en.entries.last()
	}
}

func (en *ends) save(h *logpb.QueueSnapshot) { h.Ends, h.NextEnd = uint64(en.ring.Len()), en.next }

func (en *ends) capture(keep bool) deque[end] { return en.ring.Capture(keep) }

func (r *end) state() *logpb.EndState {
	st := &logpb.EndState{
		Reason: EndReason(r.reason), At: int64(r.at), Index: r.index, Term: r.term, Count: r.count, Seq: r.seq,
		MessageIndex: r.ref.Index, MessageOffset: r.ref.Offset, MessageSize: r.ref.Size, EnqueuedAt: int64(r.enqueuedAt), ExpireAt: int64(r.expireAt),
		Acquired: r.acquired, Failed: r.failed, Disposition: uint32(r.disposition), Letter: r.letter, Posted: r.posted, Settled: r.settled,
	}
	st.MessageId, st.CorrelationId, st.Tag = r.strings()
	if r.holder != (fsm.ConsumerID{}) {
		st.Session, st.Consumer = r.holder.Session.Proto(), r.holder.Number
	}
	for _, a := range r.arrivals {
		st.ArrivedAt, st.ArrivedIndex = append(st.ArrivedAt, uint64(a.Queue)), append(st.ArrivedIndex, a.Index)
	}
	return st
}

func (en *ends) restoreHead(h *logpb.QueueSnapshot) { en.next = max(h.NextEnd, 1) }

func (en *ends) restore(st *logpb.EndState) error {
	r := end{
		reason: uint8(st.Reason), at: fsm.Time(st.At), index: st.Index, term: st.Term, count: st.Count, seq: st.Seq,
		ref:        fsm.Ref{Index: st.MessageIndex, Offset: st.MessageOffset, Size: st.MessageSize},
		enqueuedAt: fsm.Time(st.EnqueuedAt), expireAt: fsm.Time(st.ExpireAt),
		acquired: st.Acquired, failed: st.Failed, disposition: Disposition(st.Disposition), letter: st.Letter, posted: st.Posted, settled: st.Settled,
	}
	if len(st.MessageId) > fsm.MaxLabel || len(st.CorrelationId) > fsm.MaxLabel || len(st.Tag) > maxTag ||
		st.Disposition > uint32(AtLeastOnce) || st.Reason < 0 || st.Reason > logpb.EndState_FORWARDED || len(st.ArrivedAt) != len(st.ArrivedIndex) {
		return fmt.Errorf("%w: the record of an end is damaged", ErrSnapshot)
	}
	r.setText(st.MessageId, st.CorrelationId, st.Tag)
	if st.Session != nil {
		r.holder = fsm.ConsumerID{Session: fsm.SessionFrom(st.Session), Number: st.Consumer}
	}
	for i, id := range st.ArrivedAt {
		r.arrivals = append(r.arrivals, Arrival{fsm.QueueID(id), st.ArrivedIndex[i]})
	}
	en.ring.Push(r)
	return nil
}

func (en *ends) restoreAll(r *bufio.Reader, buf *bytes.Buffer, n uint64) error {
	for range n {
		var st logpb.EndState
		if err := readRecord(r, buf, st.UnmarshalVT); err != nil {
			return err
		}
		if err := en.restore(&st); err != nil {
			return err
		}
	}
	return nil
}

func (en *ends) check(k *checker, nextLetter uint64) {
	n := en.ring.Len()
	k.that(n <= en.limit() && uint64(n) < en.next, "%d records of ends, the next one is %d", n, en.next)
	letter, posted, index := uint64(0), false, uint64(0)
	for i := range n {
		r := en.ring.Item(i)
		if r.letter < letter || r.letter == letter && posted || r.posted && r.letter >= nextLetter || r.letter > nextLetter {
			k.fail("record %d of an end: letter %d after %d, of %d", i, r.letter, letter, nextLetter)
		}
		if r.index < index || r.at > en.clock.now() || r.reason == 0 || len(r.arrivals) > maxArrivals {
			k.fail("record %d of an end: entry %d after %d, at %d", i, r.index, index, r.at)
		}
		letter, posted, index = r.letter, r.posted, r.index
	}
}

// Arrival is a queue that has a letter, and the entry of the sender's log that
// said so.
type Arrival struct {
	Queue fsm.QueueID
	Index uint64
}

// End describes how a message ended otherwise than by an ack.
type End struct {
	Number      uint64 // of the record, ascending
	Reason      EndReason
	At          fsm.Time
	Index, Term uint64 // of the entry that ended it
	// Count is the number of messages, if the record is about several; 0: it is
	// about one.
	Count                    uint64
	Seq                      uint64  // of the message; 0: it was refused, or there are several
	Ref                      fsm.Ref // of its payload, which is gone
	MessageID, CorrelationID string
	EnqueuedAt               fsm.Time // 0: not known
	ExpireAt                 fsm.Time // 0: never
	Acquired, Failed         uint32
	// Holder is who held it when it ended, with its tag; zero: nobody did.
	Holder      fsm.ConsumerID
	Tag         string
	Disposition Disposition
	// Letter is its number in the outbox; 0: it is in none. Settled is the entry
	// that ended the letter; 0: it has not ended. A letter that has ended without
	// an arrival was dropped.
	Letter   uint64
	Settled  uint64
	Arrivals []Arrival // the first few; shared, never changed
}

// ReasonName is the name of a reason in listings.
func ReasonName(r EndReason) string { return strings.ToLower(r.String()) }

func (r *end) shown(number uint64) End {
	e := End{
		Number: number, Reason: EndReason(r.reason), At: r.at, Index: r.index, Term: r.term, Count: r.count, Seq: r.seq, Ref: r.ref,
		EnqueuedAt: r.enqueuedAt, ExpireAt: r.expireAt, Acquired: r.acquired, Failed: r.failed, Holder: r.holder,
		Disposition: r.disposition, Settled: r.settled, Arrivals: r.arrivals,
	}
	e.MessageID, e.CorrelationID, e.Tag = r.strings()
	if r.posted {
		e.Letter = r.letter
	}
	return e
}

// Ends reads the record of ends of a machine. It is good for as long as nobody
// changes the machine.
type Ends struct{ of *ends }

// EndsOf returns the record of ends of m.
func EndsOf(m *Machine) Ends { return Ends{m.ends} }

// KeepEnds makes m remember at least n ends, whatever its settings say. It is for
// machines that are no replicas: the states of those must not differ.
func KeepEnds(m *Machine, n int) { m.ends.keep(n) }

// Next is the number of the next record.
func (e Ends) Next() uint64 { return e.of.next }

// From calls yield with the records from number on, until that returns false.
func (e Ends) From(number uint64, yield func(End) bool) {
	ring := &e.of.ring
	first := e.of.next - uint64(ring.Len())
	for i := int(max(number, first) - first); i < ring.Len(); i++ {
		if !yield(ring.Item(i).shown(first + uint64(i))) {
			return
		}
	}
}

// OfLetter returns the record of a letter; false: there is none.
func (e Ends) OfLetter(letter uint64) (End, bool) {
	i := e.of.ofLetter(letter)
	if i < 0 {
		return End{}, false
	}
	return e.of.ring.Item(i).shown(e.of.next - uint64(e.of.ring.Len()) + uint64(i)), true
}
