package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// model is a group as it should be, kept in the plainest way.
type model struct {
	terms     map[uint64]uint64 // raft's log: index → term
	dead      map[uint64]bool   // in the log, without live messages
	pins      map[uint64]uint64 // truncated, with live messages: index → term
	own       map[uint64]bool   // which of them did not come with a snapshot
	stable    map[string]uint64
	snapIndex uint64
	snapTerm  uint64
	snapState string
	installed uint64
	lastLive  []uint64 // in the snapshot before, and up to where
	lastIndex uint64
	asleep    uint64 // what the record of a group that sleeps says; 0: there is none

	committed uint64 // known to the tests only: what raft would not take back
}

func newModel() *model {
	return &model{
		terms: map[uint64]uint64{}, dead: map[uint64]bool{}, pins: map[uint64]uint64{}, own: map[uint64]bool{}, stable: map[string]uint64{},
	}
}

func (m *model) clone() *model {
	c := *m
	c.terms, c.dead, c.pins, c.stable = maps.Clone(m.terms), maps.Clone(m.dead), maps.Clone(m.pins), maps.Clone(m.stable)
	c.own = maps.Clone(m.own)
	return &c
}

func (m *model) bounds() (first, last uint64) {
	for i := range m.terms {
		if first == 0 || i < first {
			first = i
		}
		last = max(last, i)
	}
	return first, last
}

// next is the index of the entry that raft would append.
func (m *model) next() uint64 {
	_, last := m.bounds()
	return max(last, m.snapIndex) + 1
}

func (m *model) store(from, to, term uint64) {
	m.asleep = 0
	for i := from; i <= to; i++ {
		m.terms[i] = term
	}
}

func (m *model) truncatePrefix(to uint64) {
	for i, term := range m.terms {
		if i > to {
			continue
		}
		if len(body(i, term)) > 0 && !m.dead[i] {
			m.pins[i], m.own[i] = term, true
		}
		delete(m.terms, i)
		delete(m.dead, i)
	}
}

func (m *model) truncateBack(from uint64) {
	m.asleep = 0
	for i := range m.terms {
		if i >= from {
			delete(m.terms, i)
			delete(m.dead, i)
		}
	}
}

func (m *model) release(indexes []uint64) {
	for _, i := range indexes {
		if _, ok := m.terms[i]; ok {
			m.dead[i] = true
		}
		delete(m.pins, i)
	}
}

// live lists the entries up to to with live messages, ascending.
func (m *model) live(to uint64) []uint64 {
	var live []uint64
	for i, term := range m.terms {
		if i <= to && !m.dead[i] && len(body(i, term)) > 0 {
			live = append(live, i)
		}
	}
	for i := range m.pins {
		if i <= to {
			live = append(live, i)
		}
	}
	slices.Sort(live)
	return live
}

// save takes a snapshot of a machine.
func (m *model) save(index, term uint64, state string) {
	m.asleep = 0
	m.snapIndex, m.snapTerm, m.snapState = index, term, state
}

// sweep releases what was not live in the snapshot before.
func (m *model) sweep(next []uint64, to uint64) {
	live, until := m.lastLive, m.lastIndex
	m.lastLive, m.lastIndex = next, to
	var gone []uint64
	for _, i := range m.live(until) {
		if !slices.Contains(live, i) {
			gone = append(gone, i)
		}
	}
	m.release(gone)
}

// install is a snapshot from a leader whose entries have these terms. kept are
// those that the group has already.
func (m *model) install(index, term uint64, state string, live []uint64, termOf func(uint64) uint64, kept map[uint64]bool) {
	m.asleep = 0
	own := map[uint64]bool{}
	for i := range kept {
		_, inLog := m.terms[i]
		own[i] = inLog || m.own[i]
	}
	for i := range m.terms {
		if i <= index {
			delete(m.terms, i)
			delete(m.dead, i)
		}
	}
	clear(m.pins)
	for _, i := range live {
		m.pins[i] = termOf(i)
	}
	m.own = own
	m.snapIndex, m.snapTerm, m.snapState = index, term, state
	m.lastLive, m.lastIndex = nil, 0
	m.installed, m.committed = index, max(m.committed, index)
}

// reopen loses what is in memory only.
func (m *model) reopen() {
	clear(m.dead)
	m.lastLive, m.lastIndex = nil, 0
}

// streamOf is a leader's stream: its live entries have that term.
func streamOf(term uint64, state string, live []uint64) []byte {
	return streamWith(1, state, live, func(uint64) uint64 { return term }, nil)
}

// streamWith is a leader's stream without the sections that the receiver has.
func streamWith(group fsm.GroupID, state string, live []uint64, termOf func(uint64) uint64, kept map[uint64]bool) []byte {
	b := appendStreamHead(nil, uint64(len(state)), sum(nil, []byte(state)))
	b = append(b, state...)
	for _, i := range live {
		if p := pinOf(group, i, termOf(i)); kept[i] {
			b = appendPart(b, partKept, p, nil)
		} else {
			b = appendPart(b, partSection, p, body(i, termOf(i)))
		}
	}
	return appendEnd(b, len(live))
}

// pinOf describes the payload section of an entry.
func pinOf(group fsm.GroupID, index, term uint64) pin {
	section := body(index, term)
	return pin{index: index, size: uint32(len(section)), check: checkOf(sum(indexKey(kindPayload, group, index), section), term)}
}

// compare returns the first difference between a group and its model.
func compare(g *Group, m *model) error {
	if err := g.entries.check(); err != nil {
		return err
	}
	first, last := m.bounds()
	if f, _ := g.FirstIndex(); f != first {
		return fmt.Errorf("first index %d, want %d", f, first)
	}
	if l, _ := g.LastIndex(); l != last {
		return fmt.Errorf("last index %d, want %d", l, last)
	}
	top := max(last, m.snapIndex) + 2
	for p := range m.pins {
		top = max(top, p)
	}
	for i := uint64(0); i <= top; i++ {
		if err := compareEntry(g, m, i, first); err != nil {
			return err
		}
		if err := comparePayload(g, m, i); err != nil {
			return err
		}
	}
	if !m.hasStable(g) {
		return fmt.Errorf("term and vote are %v, want %v", g.stable.values, m.stable)
	}
	return errors.Join(compareSnapshot(g, m), compareRecords(g, m))
}

// hasStable reports whether a group has the term and the vote of the model.
func (m *model) hasStable(g *Group) bool {
	for _, k := range []string{TermKey, VoteTermKey, VotedForKey} {
		if got, err := g.GetUint64([]byte(k)); got != m.stable[k] || err != nil {
			return false
		}
	}
	return true
}

func compareEntry(g *Group, m *model, i, first uint64) error {
	var l raft.Log
	err := getWhole(g, i, &l)
	term, ok := m.terms[i]
	switch {
	case !ok && i == m.installed && i == first-1 && i > 1:
		if err != nil || l.Term != m.snapTerm && i == m.snapIndex {
			return fmt.Errorf("last entry of the installed snapshot: %+v, %w", l, err)
		}
	case !ok && !errors.Is(err, raft.ErrLogNotFound):
		return fmt.Errorf("entry %d is there: %+v, %w", i, l, err)
	case ok && err != nil:
		return fmt.Errorf("entry %d: %w", i, err)
	case ok:
		want := makeLog(i, term)
		if l.Term != term || !bytes.Equal(l.Data, want.Data) || !bytes.Equal(l.Extensions, want.Extensions) {
			return fmt.Errorf("entry %d is %+v, want %+v", i, l, *want)
		}
	}
	return nil
}

func comparePayload(g *Group, m *model, i uint64) error {
	term, ok := m.terms[i]
	if !ok {
		term, ok = m.pins[i]
	}
	want := body(i, term)
	ok = ok && len(want) > 0
	ref := fsm.Ref{Index: i}
	if len(want) > 2 {
		ref.Offset, ref.Size = 1, uint32(len(want)-2)
		want = want[1 : len(want)-1]
	}
	if !ok { // the cache may still have it, the store must not
		if g.locate(i).size != 0 {
			return fmt.Errorf("payload of entry %d is there", i)
		}
		return nil
	}
	p, err := g.Payload(ref)
	switch {
	case err != nil || !bytes.Equal(p, want):
		return fmt.Errorf("payload of entry %d is %q, %w, want %q", i, p, err, want)
	}
	return nil
}

func compareSnapshot(g *Group, m *model) error {
	list, err := g.Snapshots().List()
	if err != nil || m.snapIndex == 0 {
		if len(list) != 0 {
			err = fmt.Errorf("there is a snapshot at %d", list[0].Index)
		}
		return err
	}
	if len(list) != 1 || list[0].Index != m.snapIndex || list[0].Term != m.snapTerm {
		return fmt.Errorf("%d snapshots, want one at %d/%d", len(list), m.snapTerm, m.snapIndex)
	}
	meta, r, err := g.Snapshots().Open(list[0].ID)
	if err != nil {
		return err
	}
	defer r.Close()
	stream, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	want := appendStreamHead(nil, uint64(len(m.snapState)), sum(nil, []byte(m.snapState)))
	want = append(want, m.snapState...)
	live := m.live(m.snapIndex)
	for _, i := range live {
		term, ok := m.terms[i]
		if !ok {
			term = m.pins[i]
		}
		want = appendPart(want, partSection, pinOf(g.id, i, term), body(i, term))
	}
	want = appendEnd(want, len(live))
	if !bytes.Equal(stream, want) || meta.Size != int64(len(want)) {
		return fmt.Errorf("the stream has %d bytes, its description says %d, want %d", len(stream), meta.Size, len(want))
	}
	return nil
}

// compareRecords looks for records that nothing refers to.
func compareRecords(g *Group, m *model) error {
	want := map[kind]int{kindHeader: len(m.terms)}
	for i, term := range m.terms {
		if len(body(i, term)) > 0 {
			want[kindPayload]++
		}
	}
	for i := range m.pins {
		if !m.own[i] {
			want[kindForeign]++
			want[kindForeignPin]++
		} else {
			want[kindPayload]++
			want[kindPin]++
		}
	}
	if m.snapIndex > 0 {
		want[kindChunk] = (len(m.snapState) + chunkSize - 1) / chunkSize
	}
	for _, k := range []kind{kindHeader, kindPayload, kindPin, kindChunk, kindForeign, kindForeignPin} {
		n, err := countRecords(g, k)
		if err != nil {
			return err
		}
		if n != want[k] {
			return fmt.Errorf("%d records of kind %#x, want %d", n, k, want[k])
		}
	}
	return checkSegments(g.s)
}

// countRecords counts a group's records of a kind. Payload sections in segments count as those in Pebble.
func countRecords(g *Group, k kind) (n int, err error) {
	it, err := g.s.db.NewIter(nil)
	if err != nil {
		return 0, err
	}
	defer it.Close()
	prefixes := [][]byte{prefixOf(k, g.id)}
	if k == kindPayload {
		prefixes = append(prefixes, prefixOf(kindExtent, g.id))
	}
	for _, prefix := range prefixes {
		for ok := it.SeekGE(prefix); ok && hasPrefix(it.Key(), prefix); ok = it.Next() {
			n++
		}
	}
	return n, it.Error()
}

// checkSegments checks that a store counts in its segments what the groups that are loaded have there.
func checkSegments(s *Store) error {
	live := map[uint32]int64{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sl := range s.groups {
		if !sl.loaded {
			continue
		}
		sl.group.mu.Lock()
		for _, sp := range spansOf(sl.group.everySection(math.MaxUint64)) {
			live[sp.segment] += sp.bytes()
		}
		sl.group.mu.Unlock()
	}
	s.segments.mu.Lock()
	defer s.segments.mu.Unlock()
	for number, want := range live {
		if s.segments.all[number] == nil {
			return fmt.Errorf("segment %d is gone, %d bytes in it are live", number, want)
		}
	}
	for number, seg := range s.segments.all {
		if seg.live != live[number] {
			return fmt.Errorf("segment %d counts %d bytes, %d are live", number, seg.live, live[number])
		}
	}
	return nil
}
