package raftlog

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"log/slog"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// loader reads what a group has on disk, without payload sections.
type loader struct {
	g     *Group
	it    *pebble.Iterator
	spans map[uint64]span // in segments, by index
	taken []span          // those that a pin or a header belongs to
	cut   uint64          // entries from here on are not whole; 0: all are
}

// load builds a Group. What is damaged is deleted, and the group empty.
func (s *Store) load(id fsm.GroupID) (*Group, error) {
	p := s.ledger.place(id)
	if p.get().wipe {
		s.wipe(p)
	}
	g, err := s.readGroup(id, p)
	if err != nil && isRecordDamage(err) {
		s.condemn(p, err.Error())
		s.wipe(p)
		g, err = s.readGroup(id, p)
	}
	if err != nil && isDamage(err) {
		s.readFailed(id, "its log", err)
		return s.load(id)
	}
	return g, err
}

// readGroup reads what the store has of a group, and holds it against the
// ledger.
func (s *Store) readGroup(id fsm.GroupID, p *place) (*Group, error) {
	it, err := s.db.NewIter(nil)
	if err != nil {
		return nil, fmt.Errorf("open group %d: %w", id, err)
	}
	defer it.Close()
	g := &Group{s: s, id: id, place: p}
	g.stable.g, g.stable.values, g.founder.g = g, make(map[string][]byte), g
	g.entries.trailing = s.trailing
	g.epoch.Store(s.epochs.Add(1))
	l := &loader{g: g, it: it, spans: map[uint64]span{}}
	steps := []func() error{l.stable, l.snapshot, l.sections, l.pins, l.headers, l.orphans}
	if p.isPlain() {
		steps = []func() error{l.stable, l.headers}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, fmt.Errorf("open group %d: %w", id, err)
		}
	}
	if g.snapshot.meta != nil && g.entries.begin() > g.snapshot.meta.index+1 {
		return nil, fmt.Errorf("open group %d: entry %d is missing: %w", id, g.snapshot.meta.index+1, errShort)
	}
	if err := g.checkAcknowledged(l.termAt); err != nil {
		return nil, fmt.Errorf("open group %d: %w", id, err)
	}
	if err := s.segments.loaded(id, l.taken); err != nil {
		return nil, fmt.Errorf("open group %d: %w", id, err)
	}
	g.entries.loaded(&s.reclaimable)
	return g, nil
}

// each calls f for every record whose key begins with prefix, checked and
// without its checksum.
func (l *loader) each(prefix []byte, f func(key, value []byte) error) error {
	for ok := l.it.SeekGE(prefix); ok && hasPrefix(l.it.Key(), prefix); ok = l.it.Next() {
		sealed, err := l.it.ValueAndErr()
		if err != nil {
			return err
		}
		v, err := unseal(l.it.Key(), sealed)
		if err == nil {
			err = f(l.it.Key(), v)
		}
		if err != nil {
			return fmt.Errorf("record %x: %w", l.it.Key(), err)
		}
	}
	return l.it.Error()
}

func hasPrefix(key, prefix []byte) bool {
	return len(key) >= len(prefix) && string(key[:len(prefix)]) == string(prefix)
}

// stable reads term and vote.
func (l *loader) stable() error {
	prefix := prefixOf(kindStable, l.g.id)
	return l.each(prefix, func(key, v []byte) error {
		l.g.stable.values[string(key[len(prefix):])] = append([]byte(nil), v...)
		return nil
	})
}

// snapshot reads what is known about the snapshot, and about the last one
// that was installed.
func (l *loader) snapshot() error {
	err := l.each(prefixOf(kindMeta, l.g.id), func(_, v []byte) (err error) {
		if l.g.snapshot.meta, err = parseMeta(v); err == nil {
			l.g.voters = voters{votersIn(l.g.snapshot.meta.config), l.g.snapshot.meta.index}
		}
		return err
	})
	if err != nil {
		return err
	}
	return l.each(prefixOf(kindInstalled, l.g.id), func(_, v []byte) (err error) {
		l.g.snapshot.installed, err = parseInstalled(v)
		return err
	})
}

// sections reads where payload sections are that lie in segments. Of a batch that was not durable when the
// process ended, its records may be there and its sections not: then it is as if all of it were not, and
// what followed. What is in a snapshot was durable before that.
func (l *loader) sections() error {
	g := l.g
	return l.each(prefixOf(kindExtent, g.id), func(key, v []byte) error {
		sp, behind, err := parseExtent(v)
		if err != nil {
			return err
		}
		index := lastNumber(key)
		l.spans[index] = sp
		if l.cut != 0 || index <= g.snapshot.index() || g.s.segments.isSealed(sp.segment) {
			return nil
		}
		_, err = g.s.segments.read(sp, indexKey(kindPayload, g.id, index))
		if err = lost(err); isRecordDamage(err) && index-uint64(behind) > g.snapshot.index() {
			l.cut, err = index-uint64(behind), nil
		}
		return err
	})
}

// take returns where the payload section is to which a pin or a header belongs, and says that it has so many
// bytes.
func (l *loader) take(index uint64, size uint32) (extent, error) {
	sp, ok := l.spans[index]
	if !ok {
		return extent{}, nil
	}
	if sp.size != size {
		return extent{}, errShort
	}
	l.taken = append(l.taken, sp)
	return sp.extent, nil
}

// pins reads which payload sections outlive their headers: the group's own, and
// those that came with the installed snapshot or with earlier ones. What came
// with a later one was never finished.
func (l *loader) pins() error {
	var all []pin
	add := func(number func(key []byte) uint64) func(key, v []byte) error {
		return func(key, v []byte) error {
			if len(v) != 8 {
				return errShort
			}
			p := pin{index: lastNumber(key), size: binary.BigEndian.Uint32(v), check: binary.BigEndian.Uint32(v[4:]), number: number(key)}
			if p.number == 0 {
				var err error
				if p.extent, err = l.take(p.index, p.size); err != nil {
					return err
				}
			}
			if p.number <= l.g.snapshot.installed.number {
				all = append(all, p)
			}
			return nil
		}
	}
	own := func([]byte) uint64 { return 0 }
	foreign := func(key []byte) uint64 { return lastNumber(key[:len(key)-8]) }
	if err := l.each(prefixOf(kindPin, l.g.id), add(own)); err != nil {
		return err
	}
	if err := l.each(prefixOf(kindForeignPin, l.g.id), add(foreign)); err != nil {
		return err
	}
	slices.SortFunc(all, byIndex)
	for _, p := range all {
		l.g.pins.add(p)
	}
	return nil
}

func byIndex(a, b pin) int { return cmp.Compare(a.index, b.index) }

// headers reads the log, which must not have gaps.
func (l *loader) headers() error {
	g := l.g
	return l.each(prefixOf(kindHeader, g.id), func(key, v []byte) error {
		if len(v) < headerFixed {
			return errShort
		}
		index := lastNumber(key)
		if l.cut != 0 && index >= l.cut {
			return nil
		}
		if !g.entries.empty() && index != g.entries.last()+1 {
			return fmt.Errorf("entry %d is missing: %w", g.entries.last()+1, errShort)
		}
		i := info{payload: binary.BigEndian.Uint32(v[16:]), check: binary.BigEndian.Uint32(v[20:]), header: uint32(len(v) + sealSize)}
		var err error
		if i.extent, err = l.take(index, i.payload); err != nil {
			return err
		}
		g.entries.load(index, i, binary.BigEndian.Uint64(v))
		if index > g.snapshot.index() {
			g.voters.configured(index, raft.LogType(v[24]), v[headerFixed:])
		}
		return nil
	})
}

// termAt returns the term of an entry, 0 if raft cannot see it.
func (l *loader) termAt(index uint64) (term uint64, err error) {
	err = l.each(indexKey(kindHeader, l.g.id, index), func(_, v []byte) error {
		term = binary.BigEndian.Uint64(v)
		return nil
	})
	return term, err
}

// orphans deletes what belongs to snapshots that were never finished, or were
// replaced when the process ended, and the entries that are not whole.
func (l *loader) orphans() error {
	g := l.g
	b := g.s.db.NewBatch()
	chunks := uint64(0)
	if g.snapshot.meta != nil {
		chunks = g.snapshot.meta.number
	}
	g.snapshot.numbers = max(g.snapshot.installed.number, chunks)
	for _, k := range []kind{kindChunk, kindForeign, kindForeignPin} {
		prefix := prefixOf(k, g.id)
		for ok := l.it.SeekGE(prefix); ok && hasPrefix(l.it.Key(), prefix); {
			number := binary.BigEndian.Uint64(l.it.Key()[len(prefix):])
			end := prefixEnd(l.it.Key()[:len(prefix)+8])
			if k == kindChunk && number != chunks || k != kindChunk && number > g.snapshot.installed.number {
				g.s.deleteRange(b, l.it.Key()[:len(prefix)+8], end)
				g.snapshot.numbers = max(g.snapshot.numbers, number)
			}
			ok = l.it.SeekGE(end)
		}
	}
	if err := l.it.Error(); err != nil {
		b.Close()
		return err
	}
	if l.cut != 0 {
		g.s.log.Info("the last entries of a log were not durable", slog.Any("group", g.id), slog.Uint64("from", l.cut))
		for _, k := range []kind{kindHeader, kindPayload, kindExtent} {
			g.s.deleteRange(b, indexKey(k, g.id, l.cut), prefixEnd(prefixOf(k, g.id)))
		}
	}
	g.s.commit(b, pebble.NoSync)
	return nil
}
