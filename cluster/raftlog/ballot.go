package raftlog

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/quorate/quorate/fsm"
)

// Ballot is what a candidate asks a group for: its vote in a term, as the last entry of the candidate's log is of this
// index and term.
type Ballot struct {
	Group            fsm.GroupID
	Term             uint64
	Index, IndexTerm uint64
	Founding         *Founding // of a group of which nothing may be stored; nil: something is
}

// Vote has groups vote, whose raft does not run and is not started until Vote returns, as raft would with what it has
// on disk, unless it knows a leader, or the candidate is no voter. It returns which of them vote for the candidate,
// durably by then. Like raft, a group without a vote may get on to the term, and a group in doubt votes for nobody.
// Nor does one of which nothing is stored, unless its founding is known: that is stored with the vote.
//
// All of them take two syncs at the same time, one of the store and one of the ledger. Groups that are not loaded are
// read only if they never were since Open.
func (s *Store) Vote(candidate string, ballots []Ballot) (votes []bool) {
	for _, b := range ballots {
		if readOnce(s, b.Group); b.Founding != nil {
			s.Unload(b.Group)
		}
	}
	began := time.Now()
	votes = make([]bool, len(ballots))
	w, some := unsynced{b: s.db.NewBatch()}, false
	s.mu.Lock()
	for i, b := range ballots {
		votes[i] = s.vote(w.b, candidate, b)
		some = some || votes[i]
	}
	if !some {
		s.mu.Unlock()
		s.commit(w.b, pebble.NoSync)
		return votes
	}
	w.ledger = &sync.WaitGroup{}
	w.ledger.Go(s.ledger.sync)
	w.number = s.write(w.b)
	s.mu.Unlock()
	s.syncer.sync(&w)
	s.syncer.took.observe(began)
	return votes
}

// readOnce reads a group of which it is not known what it has on disk.
func readOnce(s *Store, id fsm.GroupID) {
	if s.ledger.place(id).isRead() {
		return
	}
	if _, err := s.Group(id); err == nil {
		s.Unload(id)
	}
}

// vote decides as raft's requestVote, and adds to a batch what that stores. The caller holds mu.
func (s *Store) vote(b *pebble.Batch, candidate string, of Ballot) bool {
	p := s.ledger.place(of.Group)
	g, ok := s.idle(of.Group)
	if g != nil {
		defer g.stable.mu.Unlock()
	}
	r, end, blank := p.getWithEnd()
	founds := of.Founding != nil && g == nil && blank && r.index == 0 && r.doubt == ""
	if !ok || !p.known() && !founds || !p.isRead() || candidate == "" || len(candidate) > maxCandidate {
		return false
	}
	put := func(name string, value []byte) {
		key := append(prefixOf(kindStable, of.Group), name...)
		s.setSealed(b, key, value)
		if g != nil {
			g.stable.values[name] = value
		}
	}
	number := binary.BigEndian.AppendUint64(nil, of.Term)
	if of.Term < r.term {
		return false
	}
	if founds {
		f, own := of.Founding, map[string][]byte{}
		if r.term > 0 {
			own[TermKey] = binary.BigEndian.AppendUint64(nil, r.term)
		}
		if r.candidate != "" {
			own[VotedForKey] = []byte(r.candidate)
		}
		(&founding{log: f.log(), values: f.values(own)}).put(s, b, of.Group)
		p.found(f.first(), false)
		r, end, _ = p.getWithEnd()
	}
	if of.Term > r.term {
		put(TermKey, number)
		p.rise(of.Term)
	}
	switch {
	case r.voteTerm == of.Term && r.candidate != "":
		if r.candidate != candidate {
			return false
		} // else it may not be durable yet
	case end.term > of.IndexTerm || end.term == of.IndexTerm && end.index > of.Index:
		return false
	case r.doubt != "" || end.term == 0 && end.index > 0: // its term could not be read
		return false
	}
	put(VoteTermKey, number)
	put(VotedForKey, []byte(candidate))
	p.risen.Store(false)
	p.change(func(r *record) { r.voteTerm, r.candidate = of.Term, candidate })
	return true
}

// idle returns a group if it is loaded, with stable.mu, and reports whether it is one that has nothing under way. The
// caller holds mu.
func (s *Store) idle(id fsm.GroupID) (*Group, bool) {
	sl := s.groups[id]
	if sl == nil {
		return nil, true
	}
	if !sl.loaded || !sl.group.stable.mu.TryLock() {
		return nil, false
	}
	if !sl.group.overlap.settled() {
		sl.group.stable.mu.Unlock()
		return nil, false
	}
	return sl.group, true
}
