package raftlog

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// foundingTerm is the term of a group's first entry.
const foundingTerm = 1

// Founding is what every member of a group has from the beginning, whether or not it has stored that: the first
// entry, with the members, and in its term a vote for the first of them.
type Founding struct {
	Owner   string // see SetOwner
	Members raft.Configuration
}

func (f *Founding) first() string { return string(f.Members.Servers[0].ID) }

func (f *Founding) log() *raft.Log {
	return &raft.Log{Index: 1, Term: foundingTerm, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(f.Members)}
}

// values are the stable records of a group that has these of its own.
func (f *Founding) values(own map[string][]byte) map[string][]byte {
	term := binary.BigEndian.AppendUint64(nil, foundingTerm)
	all := map[string][]byte{OwnerKey: []byte(f.Owner)}
	if len(own[TermKey]) == 0 {
		all[TermKey] = term
	}
	if len(own[VotedForKey]) == 0 {
		all[VoteTermKey], all[VotedForKey] = term, []byte(f.first())
	}
	return all
}

// founding is what a group was founded with and has not written.
type founding struct {
	first  string
	log    *raft.Log
	entry  *entry
	values map[string][]byte
}

// put adds its records to a batch.
func (f *founding) put(s *Store, b *pebble.Batch, id fsm.GroupID) {
	for name, value := range f.values {
		s.setSealed(b, append(prefixOf(kindStable, id), name...), value)
	}
	key := indexKey(kindHeader, id, f.log.Index)
	header := make([]byte, headerSize(f.log))
	putHeader(header, key, f.log, 0)
	s.set(b, key, header)
}

// founder founds a group, and writes what it was founded with.
type founder struct {
	g         *Group
	founding  atomic.Pointer[founding] // that is not written; nil: it is, or there is none
	beginning sync.Mutex               // it is being written
}

// Found founds a group of which nothing is in its log. That costs nothing: it is written with what comes next. It
// does nothing if the group has a past, and reports whether it was founded.
func (n *founder) Found(f Founding) bool {
	g := n.g
	g.stable.mu.Lock()
	defer g.stable.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.place.get(); g.dropped || !g.entries.empty() || g.snapshot.index() > 0 || r.index > 0 || r.doubt != "" {
		return false
	}
	of := &founding{first: f.first(), log: f.log(), values: f.values(g.stable.values)}
	of.entry = entryOf(of.log)
	for name, value := range of.values {
		g.stable.values[name] = value
	}
	n.founding.Store(of)
	g.entries.append(1, []info{{header: uint32(headerSize(of.log))}}, foundingTerm)
	g.voters.configured(1, of.log.Type, of.log.Data)
	return true
}

// IsUnborn reports whether nothing of the group is stored but what it was founded with, or not even that.
func (n *founder) IsUnborn() bool { return n.founding.Load() != nil }

// Begin writes what the group was founded with, durably.
func (n *founder) Begin() {
	if n.IsUnborn() {
		n.begin()
		b := n.g.s.db.NewBatch()
		n.g.s.must(b.LogData(nil, nil))
		n.g.s.commit(b, pebble.Sync)
	}
}

// begin is called before anything of the group is written: by then the ledger knows of it, and what it was founded with
// is written, which is durable with what follows. So there is no entry behind the first one without a slot.
func (n *founder) begin() {
	g := n.g
	if !n.IsUnborn() {
		g.place.claim()
		return
	}
	n.beginning.Lock()
	defer n.beginning.Unlock()
	f := n.founding.Load()
	if f == nil {
		return
	}
	g.place.found(f.first, true)
	g.s.ledger.sync()
	b := g.s.db.NewBatch()
	f.put(g.s, b, g.id)
	g.s.commit(b, pebble.NoSync)
	n.founding.Store(nil)
}

// found notes that the store has what the group was founded with, or is about to.
func (p *place) found(first string, claims bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end, p.blank = logEnd{1, foundingTerm}, false
	p.record.term = max(p.record.term, foundingTerm)
	if p.record.candidate == "" {
		p.record.voteTerm, p.record.candidate = foundingTerm, first
	}
	if claims {
		p.write(slotUsed)
	}
}

// Has reports whether there may be anything of a group.
func (r *Records) Has(id fsm.GroupID) bool {
	s := r.Store
	s.mu.Lock()
	loaded := s.groups[id] != nil
	s.mu.Unlock()
	if loaded || s.ledger.has(id) != nil {
		return true
	}
	it, err := s.db.NewIter(nil)
	if err != nil {
		return true
	}
	defer it.Close()
	prefix := prefixOf(kindStable, id) // no group is without
	return it.SeekGE(prefix) && hasPrefix(it.Key(), prefix) || it.Error() != nil
}
