package raftlog

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/quorate/quorate/fsm"
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
//	values is what is on disk, but for the term of a vote without its candidate; the ledger has the same term and vote, or is about
//	to have them before Set returns
type stable struct {
	s     *Store
	id    fsm.GroupID
	place *place

	mu      sync.Mutex // held while a value is stored
	dropped bool
	values  map[string][]byte
}

// Set stores a value, durably. A value that is stored already costs nothing.
//
// The term of a new vote takes the candidate of the last one away with it:
// stored without its own candidate it is no vote yet. With the old one it would
// be a vote for that, which raft repeats without comparing logs. It is no vote on
// disk either, so it gets there with its candidate, which follows it in Pebble's log.
func (t *stable) Set(key, value []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	old, known := t.values[string(key)]
	if known && bytes.Equal(old, value) {
		return nil
	}
	if t.dropped {
		return ErrDropped
	}
	var ledger sync.WaitGroup
	if err := t.note(string(key), value, &ledger); err != nil {
		return err
	}
	b, durably := t.s.db.NewBatch(), pebble.Sync
	t.s.setSealed(b, t.key(key), value)
	if string(key) == VoteTermKey {
		t.s.remove(b, t.key([]byte(VotedForKey)))
		delete(t.values, VotedForKey)
		durably = pebble.NoSync
	}
	if durably == pebble.Sync {
		t.s.segments.sync() // who changes its term has everything that it has written
	}
	t.s.commit(b, durably)
	ledger.Wait()
	t.values[string(key)] = slices.Clone(value)
	return nil
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
	t.place.claim()
	b := t.s.db.NewBatch()
	t.s.setSealed(b, t.key([]byte(OwnerKey)), []byte(owner))
	t.s.commit(b, pebble.NoSync)
	t.values[OwnerKey] = []byte(owner)
	return nil
}

// note writes a term or vote to the ledger, and begins to sync it beside the
// store. The term of a vote without its candidate is none yet: nothing waits
// for it.
func (t *stable) note(key string, value []byte, w *sync.WaitGroup) error {
	number := uint64(0)
	switch key {
	case TermKey, VoteTermKey:
		if len(value) != 8 {
			return fmt.Errorf("raftlog: group %d: %s is not a number", t.id, key)
		}
		number = binary.BigEndian.Uint64(value)
	case VotedForKey:
		if len(value) > maxCandidate {
			return fmt.Errorf("raftlog: group %d: the candidate's name is too long", t.id)
		}
	default:
		t.place.claim()
		return nil
	}
	t.place.claim()
	t.place.change(func(r *record) {
		switch key {
		case TermKey:
			r.term = number
		case VoteTermKey:
			r.voteTerm, r.candidate = number, ""
		case VotedForKey:
			r.candidate = string(value)
		}
	})
	if key != VoteTermKey {
		w.Go(t.s.ledger.sync)
	}
	return nil
}

// Get returns a value, empty if there is none.
func (t *stable) Get(key []byte) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.values[string(key)]), nil
}

// SetUint64 stores a number, durably.
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
		return 0, fmt.Errorf("raftlog: group %d: %s is not a number", t.id, key)
	}
	return binary.BigEndian.Uint64(v), nil
}

func (t *stable) key(key []byte) []byte {
	return append(prefixOf(kindStable, t.id), key...)
}

// forget empties what is in memory of a dropped group. Nothing is stored any more.
func (t *stable) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropped = true
	clear(t.values)
}

// reconcile makes store and ledger agree about term and vote: each gets
// what the other has of later terms.
func (t *stable) reconcile(r record) {
	b := t.s.db.NewBatch()
	put := func(key string, value []byte) {
		t.s.setSealed(b, t.key([]byte(key)), value)
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
		t.s.log.Warn("term and vote are restored from the ledger", slog.Any("group", t.id))
		t.s.commit(b, pebble.Sync)
	}
	if term > r.term || voteTerm > r.voteTerm || voteTerm == r.voteTerm && candidate != "" && r.candidate == "" {
		t.place.change(func(r *record) {
			r.term = max(r.term, term)
			if candidate != "" && voteTerm >= r.voteTerm {
				r.voteTerm, r.candidate = voteTerm, candidate
			}
		})
		t.s.ledger.sync()
	}
}

// number returns a number that was read from the store, 0 if there is none.
func (t *stable) number(key string) uint64 {
	if v := t.values[key]; len(v) == 8 {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}
