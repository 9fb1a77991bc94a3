package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"
)

// ErrNoSnapshot is returned when a snapshot is opened that is not, or not any
// more, the group's newest.
var ErrNoSnapshot = errors.New("raftlog: no such snapshot")

// chunkSize is how much of a state lies under one key.
const chunkSize = 256 << 10

// snapshotMeta describes a finished snapshot.
type snapshotMeta struct {
	number      uint64 // names its records; grows within the group
	index, term uint64
	configIndex uint64
	config      []byte // raft's encoding
	stateSize   uint64
	stateSum    uint32 // checksum of the state
}

// installed is the last snapshot that came from a leader. Payload sections of
// entries up to its index came with it.
type installed struct{ number, index, term uint64 }

// snapshotState is what a group knows of its snapshot.
//
//	meta.number, installed.number ≤ numbers
//	installed.index ≤ meta.index, if anything was installed
type snapshotState struct {
	meta      *snapshotMeta // nil: no snapshot
	installed installed
	// live is what the last SetLive said, of entries up to liveIndex. The next one
	// acts on it.
	live      []uint64
	liveIndex uint64
	numbers   uint64 // the last number given out
}

// index is the last index that the snapshot covers, 0 if there is none.
func (s *snapshotState) index() uint64 {
	if s.meta == nil {
		return 0
	}
	return s.meta.index
}

const metaFixed = 5*8 + 4

func (m *snapshotMeta) append(b []byte) []byte {
	for _, n := range []uint64{m.number, m.index, m.term, m.configIndex, m.stateSize} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	b = binary.BigEndian.AppendUint32(b, m.stateSum)
	return append(b, m.config...)
}

func parseMeta(b []byte) (*snapshotMeta, error) {
	if len(b) < metaFixed {
		return nil, errShort
	}
	n := func(at int) uint64 { return binary.BigEndian.Uint64(b[8*at:]) }
	return &snapshotMeta{
		number: n(0), index: n(1), term: n(2), configIndex: n(3), stateSize: n(4),
		stateSum: binary.BigEndian.Uint32(b[40:]),
		config:   append([]byte(nil), b[metaFixed:]...),
	}, nil
}

func (i installed) append(b []byte) []byte {
	for _, n := range []uint64{i.number, i.index, i.term} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return b
}

func parseInstalled(b []byte) (installed, error) {
	if len(b) != 24 {
		return installed{}, errShort
	}
	n := func(at int) uint64 { return binary.BigEndian.Uint64(b[8*at:]) }
	return installed{n(0), n(1), n(2)}, nil
}

// id is what raft knows the snapshot by.
func (m *snapshotMeta) id() string { return fmt.Sprintf("%d-%d-%d", m.term, m.index, m.number) }

// raft returns the description in raft's form, with the size of the stream.
func (m *snapshotMeta) raft(size int64) *raft.SnapshotMeta {
	return &raft.SnapshotMeta{
		Version: 1, ID: m.id(), Index: m.index, Term: m.term,
		Configuration: raft.DecodeConfiguration(m.config), ConfigurationIndex: m.configIndex,
		Size: size,
	}
}

// Origin changes whenever a snapshot from a leader is installed. A machine that
// was restored before does not stand for what the group holds afterwards.
func (g *Group) Origin() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.snapshot.installed.number
}

// snapshots is the group as raft.SnapshotStore. It holds one snapshot, the
// newest: an older one is of no use, because the entries between the two may
// have been truncated.
type snapshots struct{ g *Group }

// Snapshots returns the group's snapshot store. Its sinks are of type Sink.
func (g *Group) Snapshots() raft.SnapshotStore { return snapshots{g} }

// List describes the newest snapshot. Size counts the state only; Open has
// the size of the stream.
func (s snapshots) List() ([]*raft.SnapshotMeta, error) {
	g := s.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.snapshot.meta == nil {
		return nil, nil
	}
	return []*raft.SnapshotMeta{g.snapshot.meta.raft(int64(g.snapshot.meta.stateSize) + int64(streamHead))}, nil
}

// Open returns the snapshot as a stream: the state (see ReadState), then the
// payload sections that were not released until now. Meta.Size is the exact
// length. Nothing is read before Read; a reader that is closed after the
// state costs no payload. The reader must be closed before the Store is.
func (s snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	g := s.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.snapshot.meta == nil || g.snapshot.meta.id() != id {
		return nil, nil, ErrNoSnapshot
	}
	meta := g.snapshot.meta
	payloads := slices.DeleteFunc(g.pins.live(), func(p pin) bool { return p.index > meta.index })
	payloads = append(payloads, g.entries.sections(meta.index, false)...)
	r := &streamReader{g: g, view: g.s.db.NewSnapshot(), meta: meta, payloads: payloads, release: g.s.segments.hold(spansOf(payloads))}
	return meta.raft(r.size()), r, nil
}

// Create begins a snapshot. What the sink is given decides what it is; see Sink.
func (s snapshots) Create(version raft.SnapshotVersion, index, term uint64, config raft.Configuration,
	configIndex uint64, _ raft.Transport,
) (raft.SnapshotSink, error) {
	if version != 1 {
		return nil, fmt.Errorf("raftlog: snapshot version %d is not supported", version)
	}
	g := s.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dropped {
		return nil, ErrDropped
	}
	g.snapshot.numbers++
	return &Sink{g: g, origin: g.snapshot.installed.number, meta: snapshotMeta{
		number: g.snapshot.numbers, index: index, term: term,
		config: raft.EncodeConfiguration(config), configIndex: configIndex,
	}}, nil
}

// dropSnapshot adds the deletion of a snapshot's state to a batch. m may be nil.
func (g *Group) dropSnapshot(b *pebble.Batch, m *snapshotMeta) {
	if m == nil {
		return
	}
	if n := m.chunks(); n < rangeFrom {
		for at := range n {
			g.s.remove(b, numberKey(kindChunk, g.id, m.number, at))
		}
		return
	}
	p := numberKey(kindChunk, g.id, m.number, 0)
	g.s.deleteRange(b, p[:len(p)-8], prefixEnd(p[:len(p)-8]))
}
