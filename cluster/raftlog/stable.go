package raftlog

import (
	"bytes"
	"encoding/binary"
	"fmt"
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

// Set stores a value, durably. A value that is stored already costs nothing.
//
// The term of a new vote takes the candidate of the last one away with it:
// stored without its own candidate it is no vote yet. With the old one it would
// be a vote for that, which raft repeats without comparing logs.
func (g *Group) Set(key, value []byte) error {
	g.stableMu.Lock()
	defer g.stableMu.Unlock()
	old, known := g.stable[string(key)]
	if known && bytes.Equal(old, value) {
		return nil
	}
	if g.isDropped() {
		return ErrDropped
	}
	if string(key) == TermKey {
		g.full.Store(true)
	}
	var ledger sync.WaitGroup
	if err := g.note(string(key), value, &ledger); err != nil {
		return err
	}
	b := g.s.db.NewBatch()
	g.s.setSealed(b, g.stableKey(key), value)
	if string(key) == VoteTermKey {
		g.s.remove(b, g.stableKey([]byte(VotedForKey)))
		delete(g.stable, VotedForKey)
	}
	g.s.commit(b, pebble.Sync)
	ledger.Wait()
	g.stable[string(key)] = slices.Clone(value)
	return nil
}

// note writes a term or vote to the ledger, and begins to sync it beside the
// store. The term of a vote without its candidate is none yet: nothing waits
// for it.
func (g *Group) note(key string, value []byte, w *sync.WaitGroup) error {
	number := uint64(0)
	switch key {
	case TermKey, VoteTermKey:
		if len(value) != 8 {
			return fmt.Errorf("raftlog: group %d: %s is not a number", g.id, key)
		}
		number = binary.BigEndian.Uint64(value)
	case VotedForKey:
		if len(value) > maxCandidate {
			return fmt.Errorf("raftlog: group %d: the candidate's name is too long", g.id)
		}
	default:
		g.place.claim()
		return nil
	}
	g.place.claim()
	g.place.change(func(r *record) {
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
		w.Go(g.s.ledger.sync)
	}
	return nil
}

// Get returns a value, empty if there is none.
func (g *Group) Get(key []byte) ([]byte, error) {
	g.stableMu.Lock()
	defer g.stableMu.Unlock()
	return slices.Clone(g.stable[string(key)]), nil
}

// SetUint64 stores a number, durably.
func (g *Group) SetUint64(key []byte, value uint64) error {
	return g.Set(key, binary.BigEndian.AppendUint64(nil, value))
}

// GetUint64 returns a number, 0 if there is none.
func (g *Group) GetUint64(key []byte) (uint64, error) {
	v, err := g.Get(key)
	if err != nil || len(v) == 0 {
		return 0, err
	}
	if len(v) != 8 {
		return 0, fmt.Errorf("raftlog: group %d: %s is not a number", g.id, key)
	}
	return binary.BigEndian.Uint64(v), nil
}

func (g *Group) stableKey(key []byte) []byte {
	return append(prefixOf(kindStable, g.id), key...)
}

func (g *Group) isDropped() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.dropped
}
