package raftlog

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// Names under which raft stores its current term, and its vote: the term of it
// first, then who got it.
const (
	TermKey     = "CurrentTerm"
	VoteTermKey = "LastVoteTerm"
	VotedForKey = "LastVoteCand"
)

// Names under which a node stores to which queue a group belongs, and since when its data is put aside.
const (
	OwnerKey = "Owner"
	AsideKey = "Aside"
)

// stable is a group's raft.StableStore: term and vote, and whatever else raft
// stores by name.
//
//	values is what is on disk, but for the term of a vote without its candidate; what is not synced yet is followed
//	by nobody's word, see Group.Overlap
type stable struct {
	g *Group

	mu      sync.Mutex // held while a value is stored
	dropped bool
	values  map[string][]byte
}

// Set stores a value. A value that is stored already costs nothing.
//
// A term is durable with what follows it: a vote, or the first entries that come in it. Nothing else is promised in a
// term. A vote is durable when Set returns or, in a group with Overlap, when WhenDurable and WhenVoted say so.
//
// The term of a vote is stored with its candidate, and until then the vote has none: with the candidate of the last one
// it would be a vote for that, which raft repeats without comparing logs.
func (t *stable) Set(key, value []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	name := string(key)
	old, known := t.values[name]
	if known && bytes.Equal(old, value) {
		return nil
	}
	if t.dropped {
		return ErrDropped
	}
	if err := t.check(name, value); err != nil {
		return err
	}
	value = slices.Clone(value)
	switch name {
	case VoteTermKey:
		delete(t.values, VotedForKey)
	case VotedForKey:
		t.vote(value)
	default:
		t.store(name, value)
	}
	t.values[name] = value
	return nil
}

// check refuses what the ledger has no room for.
func (t *stable) check(name string, value []byte) error {
	switch {
	case (name == TermKey || name == VoteTermKey) && len(value) != 8:
		return fmt.Errorf("raftlog: group %d: %s is not a number", t.g.id, name)
	case name == VotedForKey && len(value) > maxCandidate:
		return fmt.Errorf("raftlog: group %d: the candidate's name is too long", t.g.id)
	}
	return nil
}

// store stores a value that is no vote, durably unless it is a term.
func (t *stable) store(name string, value []byte) {
	t.g.begin()
	b, durably := t.g.s.db.NewBatch(), pebble.Sync
	t.g.s.setSealed(b, t.key([]byte(name)), value)
	if name == TermKey {
		t.g.place.rise(binary.BigEndian.Uint64(value))
		durably = pebble.NoSync
	} else {
		t.g.place.rouse(t.g.s, b)
	}
	t.g.s.commit(b, durably)
}

// vote stores a vote in the term that was set last: in the ledger, then in the store, where it is synced behind all that
// the group has written before. It waits for that if this member decides alone, or may.
func (t *stable) vote(candidate []byte) {
	g := t.g
	g.begin()
	term, w := t.number(VoteTermKey), unsynced{g: g, b: g.s.db.NewBatch()}
	g.s.setSealed(w.b, t.key([]byte(VoteTermKey)), binary.BigEndian.AppendUint64(nil, term))
	g.s.setSealed(w.b, t.key([]byte(VotedForKey)), candidate)
	w.ledger = g.place.vote(term, string(candidate))
	w.number = g.s.write(w.b)
	if g.overlaps(nil) {
		g.overlap.voted(term, g.s.syncer.await(w))
		return
	}
	g.s.syncer.sync(&w)
	g.awaitDurable()
	g.overlap.voted(term, g.Written())
}

// SetOwner stores to which queue the group belongs, durably with the next write that is.
func (t *stable) SetOwner(owner string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if string(t.values[OwnerKey]) == owner {
		return nil
	}
	if t.dropped {
		return ErrDropped
	}
	t.g.begin()
	b := t.g.s.db.NewBatch()
	t.g.s.setSealed(b, t.key([]byte(OwnerKey)), []byte(owner))
	t.g.s.commit(b, pebble.NoSync)
	t.values[OwnerKey] = []byte(owner)
	return nil
}

// Get returns a value, empty if there is none.
func (t *stable) Get(key []byte) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.values[string(key)]), nil
}

// SetUint64 stores a number, as Set does.
func (t *stable) SetUint64(key []byte, value uint64) error {
	return t.Set(key, binary.BigEndian.AppendUint64(nil, value))
}

// GetUint64 returns a number, 0 if there is none.
func (t *stable) GetUint64(key []byte) (uint64, error) {
	v, err := t.Get(key)
	if err != nil || len(v) == 0 {
		return 0, err
	}
	if len(v) != 8 {
		return 0, fmt.Errorf("raftlog: group %d: %s is not a number", t.g.id, key)
	}
	return binary.BigEndian.Uint64(v), nil
}

func (t *stable) key(key []byte) []byte {
	return append(prefixOf(kindStable, t.g.id), key...)
}

// forget empties what is in memory of a group that is dropped or unloaded. Nothing is stored any more. The caller
// holds mu.
func (t *stable) forget() {
	t.dropped = true
	clear(t.values)
}

// reconcile makes store and ledger agree about term and vote: each gets
// what the other has of later terms.
func (t *stable) reconcile(r record) {
	b := t.g.s.db.NewBatch()
	put := func(key string, value []byte) {
		t.g.s.setSealed(b, t.key([]byte(key)), value)
		t.values[key] = value
	}
	term, voteTerm, candidate := t.number(TermKey), t.number(VoteTermKey), string(t.values[VotedForKey])
	if r.term > term {
		put(TermKey, binary.BigEndian.AppendUint64(nil, r.term))
	}
	if r.candidate != "" && (r.voteTerm > voteTerm || r.voteTerm == voteTerm && candidate == "") {
		put(VoteTermKey, binary.BigEndian.AppendUint64(nil, r.voteTerm))
		put(VotedForKey, []byte(r.candidate))
	}
	if b.Empty() {
		b.Close()
	} else {
		t.g.s.log.Warn("term and vote are restored from the ledger", slog.Any("group", t.g.id))
		t.g.s.commit(b, pebble.Sync)
	}
	if term > r.term || voteTerm > r.voteTerm || voteTerm == r.voteTerm && candidate != "" && r.candidate == "" {
		t.g.place.change(func(r *record) {
			r.term = max(r.term, term)
			if candidate != "" && voteTerm >= r.voteTerm {
				r.voteTerm, r.candidate = voteTerm, candidate
			}
		})
		t.g.s.ledger.sync()
	}
}

// number returns a number that was read from the store, 0 if there is none.
func (t *stable) number(key string) uint64 {
	if v := t.values[key]; len(v) == 8 {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}
