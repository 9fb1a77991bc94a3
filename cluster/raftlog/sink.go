package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"
)

// sinkBatch is how much a sink gathers before it commits, unsynced: the commit
// that announces the snapshot syncs all of it.
const sinkBatch = 1 << 20

var (
	errSuperseded = errors.New("raftlog: a newer snapshot is there already")
	errClosed     = errors.New("raftlog: the snapshot sink is closed")
	errNotLive    = errors.New("raftlog: a machine's state needs SetLive before Close")
)

// Sink takes a snapshot, of one of two kinds.
//
// A state: raft.FSMSnapshot.Persist writes the machine's state, bare, and calls
// SetLive and Close. The log stays as it is; raft truncates it afterwards.
//
// A stream from another replica: raft writes what the other's Open has read,
// and calls Close without SetLive. The log up to the snapshot's index, and
// all payload sections up to there, are replaced by those of the stream in the
// same durable step that announces the snapshot.
//
// Until Close returns nil, and after a crash before that, the group has what
// it had.
type Sink struct {
	g    *Group
	meta snapshotMeta

	live    []uint64
	hasLive bool
	origin  uint64 // of the state that is written, see Group.Origin

	mode  sinkMode
	begin []byte // what was written while the mode was open
	parse streamParser
	pins  []pin // of a stream
	kept  []pin // sections of a stream that the group has already

	state   []byte // part of the state that is not a chunk yet
	chunk   uint64
	b       *pebble.Batch // nil: nothing waits
	spilled bool          // something of the snapshot was committed
	done    bool
	err     error // the first one; sticks
}

type sinkMode int

const (
	modeOpen sinkMode = iota
	modeState
	modeStream
)

var _ raft.SnapshotSink = (*Sink)(nil)

// ID implements raft.SnapshotSink.
func (k *Sink) ID() string { return k.meta.id() }

// SetLive says which entries have live messages in the state that is written,
// all of them. What is not among them and was never released is released when
// the next snapshot is taken, not at once: its last delivery may still be on
// its way and about to read the payload. The sink keeps the slice.
func (k *Sink) SetLive(indexes []uint64) {
	if !slices.IsSorted(indexes) {
		slices.Sort(indexes)
	}
	k.live, k.hasLive = indexes, true
}

// SetOrigin says what Group.Origin was when the machine whose state is written
// was restored. Without it, it counts as what it was when the sink was made.
func (k *Sink) SetOrigin(origin uint64) { k.origin = origin }

// Write implements io.Writer.
func (k *Sink) Write(p []byte) (int, error) {
	if k.done {
		return 0, errClosed
	}
	if k.err == nil {
		k.err = k.write(p)
	}
	if k.err != nil {
		return 0, k.err
	}
	return len(p), nil
}

func (k *Sink) write(p []byte) error {
	if k.mode == modeOpen {
		k.begin = append(k.begin, p...)
		if !k.hasLive && len(k.begin) < len(streamMagic) {
			return nil
		}
		p = k.decide()
	}
	if k.mode == modeStream {
		return k.parse.feed(k, p)
	}
	k.addState(p)
	return nil
}

// decide fixes the mode by what was written so far, and returns that.
func (k *Sink) decide() []byte {
	p := k.begin
	k.begin = nil
	if !k.hasLive && hasPrefix(p, []byte(streamMagic)) {
		k.mode = modeStream
		k.parse.want = streamHead
	} else {
		k.mode = modeState
	}
	return p
}

// addState appends to the state.
func (k *Sink) addState(p []byte) {
	k.meta.stateSize += uint64(len(p))
	k.meta.stateSum = crc32.Update(k.meta.stateSum, castagnoli, p)
	for len(k.state)+len(p) >= chunkSize {
		n := chunkSize - len(k.state)
		k.state = append(k.state, p[:n]...)
		p = p[n:]
		k.addChunk()
	}
	k.state = append(k.state, p...)
}

func (k *Sink) addChunk() {
	if len(k.state) == 0 {
		return
	}
	key := numberKey(kindChunk, k.g.id, k.meta.number, k.chunk)
	k.g.s.setSealed(k.batch(), key, k.state)
	k.chunk++
	k.state = k.state[:0]
	k.spill()
}

// section stores a payload section of a stream.
func (k *Sink) section(p pin, section []byte) {
	p.number = k.meta.number
	key := k.g.sectionKey(p)
	op := k.batch().SetDeferred(len(key), len(section)+sealSize)
	copy(op.Key, key)
	seal(key, append(op.Value[:0], section...))
	k.g.s.must(op.Finish())
	k.g.setPin(k.batch(), p)
	k.pins = append(k.pins, p)
	k.spill()
}

func (k *Sink) batch() *pebble.Batch {
	if k.b == nil {
		k.b = k.g.s.db.NewBatch()
	}
	return k.b
}

// spill commits what waits if it is much.
func (k *Sink) spill() {
	if k.b.Len() >= sinkBatch {
		k.g.s.commit(k.b, pebble.NoSync)
		k.b, k.spilled = nil, true
	}
}

// Close makes the snapshot durable and the group's only one. A second Close
// does nothing.
func (k *Sink) Close() error {
	if k.done {
		return k.err
	}
	if k.err == nil {
		k.err = k.finish()
	}
	if k.err != nil {
		err := k.err
		k.Cancel()
		return err
	}
	k.done = true
	return nil
}

func (k *Sink) finish() error {
	if k.mode == modeOpen {
		if err := k.write(k.decide()); err != nil {
			return err
		}
	}
	switch {
	case k.mode == modeStream && k.hasLive:
		return fmt.Errorf("%w: SetLive does not belong to a stream", ErrStream)
	case k.mode == modeStream && !k.parse.complete:
		return fmt.Errorf("%w: it ends too early", ErrStream)
	case k.mode == modeState && !k.hasLive:
		return errNotLive
	}
	k.addChunk()
	k.g.begin()
	k.g.awaitDurable()
	k.g.closing.Lock()
	defer k.g.closing.Unlock()
	if k.mode == modeStream {
		return k.install()
	}
	return k.save()
}

// save announces a state. The caller holds closing.
func (k *Sink) save() error {
	g := k.g
	g.mu.Lock()
	err := k.admissible()
	g.mu.Unlock()
	if err != nil {
		return err
	}
	g.s.setSealed(k.batch(), prefixOf(kindMeta, g.id), k.meta.append(nil))
	g.place.rouse(g.s, k.b)
	g.s.commit(k.b, pebble.Sync)
	k.b = nil

	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.s.db.NewBatch()
	g.dropSnapshot(b, g.snapshot.meta)
	g.s.commit(b, pebble.NoSync)
	g.snapshot.meta = &k.meta
	g.sweep(among(g.snapshot.live), g.snapshot.liveIndex)
	g.snapshot.live, g.snapshot.liveIndex = k.live, k.meta.index
	return nil
}

// install announces a stream and replaces what the group held up to its
// index. The caller holds closing.
func (k *Sink) install() error {
	g := k.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := k.admissible(); err != nil {
		return err
	}
	now := installed{number: k.meta.number, index: k.meta.index, term: k.meta.term}
	b := k.batch()
	kept, err := g.replace(b, now.index, k.kept)
	if err != nil {
		g.loose = g.loose[:0]
		return err
	}
	g.dropSnapshot(b, g.snapshot.meta)
	g.s.deleteRange(b, indexKey(kindHeader, g.id, 0), indexKey(kindHeader, g.id, now.index+1))
	g.s.setSealed(b, prefixOf(kindMeta, g.id), k.meta.append(nil))
	g.s.setSealed(b, prefixOf(kindInstalled, g.id), now.append(nil))
	g.place.rouse(g.s, b)
	ledger := g.place.beginSync()
	g.loose.commit(g.s, b, pebble.Sync)
	if k.b = nil; ledger != nil {
		ledger.Wait()
	}

	g.epoch.Store(g.s.epochs.Add(1))
	g.entries.truncatePrefix(now.index)
	if g.voters.since <= now.index {
		g.voters = voters{votersIn(k.meta.config), now.index}
	}
	g.snapshot.meta, g.snapshot.installed, g.pins = &k.meta, now, pins{}
	g.snapshot.live, g.snapshot.liveIndex = nil, 0
	all := append(kept, k.pins...)
	slices.SortFunc(all, byIndex)
	for _, p := range all {
		g.pins.add(p)
	}
	g.offers.postponed = nil // the machine that released them is replaced
	g.place.acknowledge(g.end())
	return nil
}

// admissible refuses what would take the group back, and a state of a machine
// that an installed snapshot has replaced since it was captured: raft would cut
// the log up to there, and apply it from the installed one on. The caller holds
// mu.
func (k *Sink) admissible() error {
	switch {
	case k.g.dropped:
		return ErrDropped
	case k.meta.index < k.g.snapshot.index(), k.mode == modeState && k.origin != k.g.snapshot.installed.number:
		return errSuperseded
	}
	return nil
}

// Cancel gives the snapshot up. After Close it does nothing.
func (k *Sink) Cancel() error {
	if k.done {
		return nil
	}
	k.done = true
	if k.err == nil {
		k.err = errClosed
	}
	if k.b != nil {
		k.b.Close()
		k.b = nil
	}
	if !k.spilled {
		return nil
	}
	b := k.g.s.db.NewBatch()
	for _, kd := range []kind{kindChunk, kindForeign, kindForeignPin} {
		p := numberKey(kd, k.g.id, k.meta.number, 0)
		k.g.s.deleteRange(b, p[:len(p)-8], prefixEnd(p[:len(p)-8]))
	}
	k.g.s.commit(b, pebble.NoSync)
	return nil
}

// among returns a test for membership of ascending numbers, for numbers that
// are asked for in ascending order.
func among(sorted []uint64) func(uint64) bool {
	return func(n uint64) bool {
		for len(sorted) > 0 && sorted[0] < n {
			sorted = sorted[1:]
		}
		return len(sorted) > 0 && sorted[0] == n
	}
}

// streamParser takes a stream apart as it arrives.
type streamParser struct {
	part     streamPart
	want     int    // bytes of the current head or section
	have     []byte // those that have arrived
	left     uint64 // bytes of the state that are missing
	stateSum uint32
	head     [partHead]byte // of the current part
	pin      pin            // it describes
	last     uint64         // index of the last section
	count    uint32
	complete bool
}

type streamPart int

const (
	inHead streamPart = iota
	inState
	inPart
	inSection
)

// feed passes what p completes on to the sink.
func (s *streamParser) feed(k *Sink, p []byte) error {
	for len(p) > 0 {
		if s.complete {
			return fmt.Errorf("%w: bytes behind its end", ErrStream)
		}
		if s.part == inState {
			n := min(s.left, uint64(len(p)))
			k.addState(p[:n])
			p = p[n:]
			s.left -= n
			if err := s.stateEnd(k); err != nil {
				return err
			}
			continue
		}
		n := min(s.want-len(s.have), len(p))
		s.have = append(s.have, p[:n]...)
		p = p[n:]
		if len(s.have) == s.want {
			if err := s.item(k); err != nil {
				return err
			}
			s.have = s.have[:0]
		}
	}
	return nil
}

// stateEnd goes on to the sections if the state is complete.
func (s *streamParser) stateEnd(k *Sink) error {
	if s.left > 0 {
		return nil
	}
	if k.meta.stateSum != s.stateSum {
		return fmt.Errorf("%w: the state's checksum does not match", ErrStream)
	}
	s.part, s.want = inPart, partHead
	return nil
}

// item handles a complete head or section.
func (s *streamParser) item(k *Sink) (err error) {
	switch s.part {
	case inHead:
		s.part = inState
		if s.left, s.stateSum, err = parseStreamHead(s.have); err != nil {
			return err
		}
		return s.stateEnd(k)
	case inPart:
		s.head = [partHead]byte(s.have)
		return s.partHead(k)
	default:
		if !s.sealed(s.have) {
			return fmt.Errorf("%w: a payload section's checksum does not match", ErrStream)
		}
		k.section(s.pin, s.have)
		s.part, s.want = inPart, partHead
		return nil
	}
}

// sealed reports whether the current part's checksum is right.
func (s *streamParser) sealed(section []byte) bool {
	return sum(s.head[:partSealed], section) == binary.BigEndian.Uint32(s.head[partSealed:])
}

// partHead handles the head of a part.
func (s *streamParser) partHead(k *Sink) error {
	kind := s.head[0]
	s.pin = pin{index: binary.BigEndian.Uint64(s.head[1:]), size: binary.BigEndian.Uint32(s.head[9:]), check: binary.BigEndian.Uint32(s.head[13:])}
	if kind == partEnd {
		if s.pin.index != endIndex || s.pin.size != s.count || !s.sealed(nil) {
			return fmt.Errorf("%w: its end does not match", ErrStream)
		}
		s.complete = true
		return nil
	}
	if s.pin.index <= s.last || s.pin.index > k.meta.index || s.pin.size == 0 {
		return fmt.Errorf("%w: payload section of entry %d after %d", ErrStream, s.pin.index, s.last)
	}
	s.last = s.pin.index
	s.count++
	switch {
	case kind == partSection:
		s.part, s.want = inSection, int(s.pin.size)
	case kind != partKept || !s.sealed(nil):
		return fmt.Errorf("%w: a part of kind %d of entry %d", ErrStream, kind, s.pin.index)
	default:
		k.kept = append(k.kept, s.pin)
	}
	return nil
}
