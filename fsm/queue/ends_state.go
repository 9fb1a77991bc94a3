package queue

import (
	"bufio"
	"bytes"
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// save writes the section of a snapshot's head. The records follow the messages.
func (en *ends) save(h *logpb.QueueSnapshot) { h.Ends, h.NextEnd = uint64(en.ring.len()), en.next }

// view returns the records, valid until the next change.
func (en *ends) view() deque[end] { return en.ring }

// freeze returns the records as they are now.
func (en *ends) freeze() deque[end] { return en.ring.freeze() }

// state is r as a snapshot has it.
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

// restoreHead is the inverse of save.
func (en *ends) restoreHead(h *logpb.QueueSnapshot) { en.next = max(h.NextEnd, 1) }

// restore appends the next record.
func (en *ends) restore(st *logpb.EndState) error {
	r := end{
		reason: uint8(st.Reason), at: fsm.Time(st.At), index: st.Index, term: st.Term, count: st.Count, seq: st.Seq,
		ref:        fsm.Ref{Index: st.MessageIndex, Offset: st.MessageOffset, Size: st.MessageSize},
		enqueuedAt: fsm.Time(st.EnqueuedAt), expireAt: fsm.Time(st.ExpireAt),
		acquired: st.Acquired, failed: st.Failed, disposition: Disposition(st.Disposition), letter: st.Letter, posted: st.Posted, settled: st.Settled,
	}
	if len(st.MessageId) > maxLabel || len(st.CorrelationId) > maxLabel || len(st.Tag) > maxTag ||
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
	en.ring.push(r)
	return nil
}

// restoreAll reads n records.
func (en *ends) restoreAll(r *bufio.Reader, buf *bytes.Buffer, n uint64) error {
	for range n {
		var st logpb.EndState
		if err := readRecord(r, buf); err != nil {
			return noEOF(err)
		}
		if err := st.UnmarshalVT(buf.Bytes()); err != nil {
			return fmt.Errorf("%w: %w", ErrSnapshot, err)
		}
		if err := en.restore(&st); err != nil {
			return err
		}
	}
	return nil
}

// check checks the records.
func (en *ends) check(k *checker, nextLetter uint64) {
	n := en.ring.len()
	k.that(n <= en.limit() && uint64(n) < en.next, "%d records of ends, the next one is %d", n, en.next)
	letter, posted, index := uint64(0), false, uint64(0)
	for i := range n {
		r := en.ring.item(i)
		if r.letter < letter || r.letter == letter && posted || r.posted && r.letter >= nextLetter || r.letter > nextLetter {
			k.fail("record %d of an end: letter %d after %d, of %d", i, r.letter, letter, nextLetter)
		}
		if r.index < index || r.at > en.clock.now() || r.reason == 0 || len(r.arrivals) > maxArrivals {
			k.fail("record %d of an end: entry %d after %d, at %d", i, r.index, index, r.at)
		}
		letter, posted, index = r.letter, r.posted, r.index
	}
}
