package raftlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"

	"github.com/cockroachdb/pebble/v2"

	"github.com/quorate/quorate/fsm"
)

// asleepVersion is the first byte of a record of kindAsleep. Records of another version are as none.
const asleepVersion = 1

// A record of kindAsleep is, before its checksum:
//
//	version          1 byte
//	index, its term  8 bytes each: what the log ends with
//	snapshot         8 bytes, the number of the newest one; 0: there is none
//	the rest         what the owner needs to know of the group, see Put
const asleepFixed = 1 + 8 + 8 + 8

// Records are those of groups whose raft does not run.
type Records struct {
	Store *Store
	Void  int // how many All has found that are not true
}

// Asleep is what a group is that nothing has been stored of since Put.
type Asleep struct {
	Group            fsm.GroupID
	Term             uint64 // raft's, unless only the store has heard of a later one
	Index, IndexTerm uint64 // what the log ends with
	Data             []byte // as Put was given it; valid until the next record
}

// Put records what an owner needs to know of a group to leave it as it is after a restart. It waits for no disk: a power
// failure may take the record, and nothing else. It ends with the next entry, snapshot or value that is stored, in the
// same batch; terms and votes leave it. False: nothing is
// recorded, since the log is empty, something of it is not durable yet, or the group is in doubt.
func (*Records) Put(g *Group, data []byte) bool {
	g.stable.mu.Lock()
	defer g.stable.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dropped || !g.overlap.settled() || g.Doubt() != "" {
		return false
	}
	index, term := g.end()
	if index == 0 {
		return false
	}
	v := append(make([]byte, 0, asleepFixed+len(data)+sealSize), asleepVersion)
	for _, n := range [...]uint64{index, term, g.snapshot.number()} {
		v = binary.BigEndian.AppendUint64(v, n)
	}
	b := g.s.db.NewBatch()
	g.s.setSealed(b, prefixOf(kindAsleep, g.id), append(v, data...))
	g.place.asleep.Store(true)
	g.s.commit(b, pebble.NoSync)
	return true
}

// rouse adds to a batch what ends the record of a group that sleeps: the rest of it changes what the record speaks of.
func (p *place) rouse(s *Store, b *pebble.Batch) {
	if p.asleep.Load() && p.asleep.Swap(false) {
		s.remove(b, prefixOf(kindAsleep, p.id))
	}
}

// number is that of the newest snapshot; 0: there is none.
func (s *snapshotState) number() uint64 {
	if s.meta == nil {
		return 0
	}
	return s.meta.number
}

// All calls f for every group whose record is true: the log ends as it says, the snapshot is the same, and the ledger
// knows of nothing else. The others are deleted. No group is read, and none may be in use. Call it once, after Open.
func (r *Records) All(f func(a Asleep)) {
	s := r.Store
	c := &sleepCheck{s: s, at: map[kind]*cursor{}, gone: s.db.NewBatch()}
	err := c.open()
	if err == nil {
		err = c.run(f)
	}
	if err = errors.Join(err, c.close()); err != nil { // who is not named is opened
		s.log.Error("the groups that slept cannot be listed in full", slog.String("error", err.Error()))
	}
	r.Void = c.void
}

// sleepCheck holds the records of groups that sleep against the rest of the store, in one pass: all are in the order of
// their groups.
type sleepCheck struct {
	s    *Store
	at   map[kind]*cursor
	gone *pebble.Batch // records that are not true
	void int           // how many these are
}

func (c *sleepCheck) open() error {
	for _, k := range []kind{kindAsleep, kindHeader, kindMeta, kindExtent} {
		it, err := newCursor(c.s.db, k)
		if err != nil {
			return err
		}
		c.at[k] = it
	}
	return nil
}

func (c *sleepCheck) close() error {
	var errs []error
	for _, it := range c.at {
		errs = append(errs, it.Close())
	}
	c.s.commit(c.gone, pebble.NoSync)
	return errors.Join(errs...)
}

func (c *sleepCheck) run(f func(a Asleep)) error {
	records := c.at[kindAsleep]
	for ; records.valid; records.next() {
		a, is, err := c.check(records)
		if err != nil {
			return err
		}
		if is {
			c.s.ledger.place(a.Group).asleep.Store(true)
			f(a)
			continue
		}
		c.void++
		c.s.remove(c.gone, records.Key())
	}
	return records.Error()
}

// check reads a record, and reports whether it is true. An error says that something cannot be read.
func (c *sleepCheck) check(records *cursor) (a Asleep, is bool, err error) {
	v, err := records.value()
	if err != nil || len(v) < asleepFixed || v[0] != asleepVersion || len(records.Key()) != groupKeySize {
		return a, false, unreadable(err)
	}
	n := func(at int) uint64 { return binary.BigEndian.Uint64(v[1+8*at:]) }
	a = Asleep{Group: groupOf(records.Key()), Index: n(0), IndexTerm: n(1), Data: v[asleepFixed:]}
	p := c.s.ledger.has(a.Group)
	if p == nil {
		return a, false, nil
	}
	r := p.get()
	if a.Term = r.term; r.doubt != "" || r.wipe || r.index > a.Index || r.index == a.Index && r.indexTerm != a.IndexTerm {
		return a, false, nil
	}
	snapshot, err := c.snapshot(a.Group)
	if err != nil || snapshot.number != n(2) {
		return a, false, unreadable(err)
	}
	if is, err = c.endsAt(&a, snapshot); err != nil || !is {
		return a, false, unreadable(err)
	}
	if is, err = c.sections(a.Group, snapshot.index); is {
		p.raise(a.Index, a.IndexTerm)
	}
	return a, is, unreadable(err)
}

// unreadable is an error unless it says that one record is wrong.
func unreadable(err error) error {
	if err == nil || isRecordDamage(err) {
		return nil
	}
	return err
}

// snapshot describes a group's snapshot; zero: there is none.
func (c *sleepCheck) snapshot(id fsm.GroupID) (m snapshotMeta, err error) {
	metas, prefix := c.at[kindMeta], prefixOf(kindMeta, id)
	if !metas.seek(prefix, prefix) {
		return m, metas.Error()
	}
	v, err := metas.value()
	if err != nil {
		return m, err
	}
	have, err := parseMeta(v)
	if err != nil {
		return m, err
	}
	return *have, nil
}

// endsAt reports whether the last entry of a group is that of a record: in the log, or in the snapshot with nothing behind it.
func (c *sleepCheck) endsAt(a *Asleep, snapshot snapshotMeta) (bool, error) {
	headers, prefix := c.at[kindHeader], prefixOf(kindHeader, a.Group)
	if !headers.seek(indexKey(kindHeader, a.Group, a.Index), prefix) {
		return a.Index == snapshot.index && a.IndexTerm == snapshot.term, headers.Error()
	}
	v, err := headers.value()
	if err != nil || len(v) < headerFixed || lastNumber(headers.Key()) != a.Index || binary.BigEndian.Uint64(v) != a.IndexTerm {
		return false, err
	}
	headers.next()
	return !headers.within(prefix), headers.Error()
}

// sections counts what a group has in segments, and reports whether all of it is there, for certain.
func (c *sleepCheck) sections(id fsm.GroupID, snapshot uint64) (bool, error) {
	extents, prefix := c.at[kindExtent], prefixOf(kindExtent, id)
	var spans []span
	for ok := extents.seek(prefix, prefix); ok; ok = extents.within(prefix) {
		v, err := extents.value()
		if err != nil {
			return false, err
		}
		sp, _, err := parseExtent(v)
		if err != nil {
			return false, err
		}
		if lastNumber(extents.Key()) > snapshot && !c.s.segments.isSealed(sp.segment) {
			return false, nil // a power failure may have taken it: who reads the group looks
		}
		spans = append(spans, sp)
		extents.next()
	}
	return extents.Error() == nil && c.s.segments.count(id, spans), extents.Error()
}

// cursor reads the records of one kind, forwards.
type cursor struct {
	*pebble.Iterator
	valid bool
}

func newCursor(db *pebble.DB, of kind) (*cursor, error) {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: []byte{byte(of)}, UpperBound: []byte{byte(of) + 1}})
	if err != nil {
		return nil, err
	}
	return &cursor{it, it.First()}, nil
}

func (c *cursor) next() { c.valid = c.Next() }

// seek goes to the first record from key on, which is not before those that were read, and reports whether it is within prefix.
func (c *cursor) seek(key, prefix []byte) bool {
	if c.valid && bytes.Compare(c.Key(), key) < 0 {
		c.valid = c.SeekGE(key)
	}
	return c.within(prefix)
}

func (c *cursor) within(prefix []byte) bool { return c.valid && hasPrefix(c.Key(), prefix) }

// value returns the record, checked and without its checksum.
func (c *cursor) value() ([]byte, error) {
	sealed, err := c.ValueAndErr()
	if err != nil {
		return nil, err
	}
	return unseal(c.Key(), sealed)
}
