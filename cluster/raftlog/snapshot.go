package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
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
	r := &streamReader{g: g, view: g.s.db.NewSnapshot(), meta: meta, payloads: payloads, release: g.s.segments.retain(spansOf(payloads))}
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

// A snapshot travels as one stream:
//
//	magic         8 bytes
//	state size    8 bytes
//	state sum     4 bytes, CRC-32C
//	state
//	parts by ascending index, each
//	    kind      1 byte
//	    index     8 bytes
//	    size      4 bytes
//	    check     4 bytes, see checkOf
//	    sum       4 bytes, CRC-32C of the 17 bytes before and the section
//	    section   not if the receiver has it
//	the last part has the highest index, and the number of parts in place of
//	    the size
//
// The first byte cannot begin a protocol buffer, so no machine's state looks
// like a stream.
const (
	streamMagic = "\xffqrsnap1"
	streamHead  = len(streamMagic) + 8 + 4
	partSealed  = 1 + 8 + 4 + 4
	partHead    = partSealed + 4
	endIndex    = math.MaxUint64
)

// Kinds of parts.
const (
	partSection byte = iota + 1 // a payload section
	partKept                    // a section that the receiver has
	partEnd
)

// ErrStream says that a snapshot stream is not what a Store has written.
var ErrStream = errors.New("raftlog: malformed snapshot stream")

func appendStreamHead(b []byte, stateSize uint64, stateSum uint32) []byte {
	b = binary.BigEndian.AppendUint64(append(b, streamMagic...), stateSize)
	return binary.BigEndian.AppendUint32(b, stateSum)
}

func parseStreamHead(b []byte) (stateSize uint64, stateSum uint32, err error) {
	if string(b[:len(streamMagic)]) != streamMagic {
		return 0, 0, fmt.Errorf("%w: it begins with %x", ErrStream, b[:len(streamMagic)])
	}
	b = b[len(streamMagic):]
	return binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), nil
}

// appendPart appends a part of a stream: its head, and the section.
func appendPart(b []byte, kind byte, p pin, section []byte) []byte {
	at := len(b)
	b = binary.BigEndian.AppendUint64(append(b, kind), p.index)
	b = binary.BigEndian.AppendUint32(b, p.size)
	b = binary.BigEndian.AppendUint32(b, p.check)
	b = binary.BigEndian.AppendUint32(b, sum(b[at:at+partSealed], section))
	return append(b, section...)
}

// appendEnd appends the last part, behind so many others.
func appendEnd(b []byte, parts int) []byte {
	return appendPart(b, partEnd, pin{index: endIndex, size: uint32(parts)}, nil)
}

// ReadState returns the machine's state out of a stream. The reader ends with
// io.EOF behind the state, or with ErrStream if the state is not the one that
// was saved. What follows in r is left unread.
func ReadState(r io.Reader) (io.Reader, error) {
	head := make([]byte, streamHead)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	size, want, err := parseStreamHead(head)
	if err != nil {
		return nil, err
	}
	return &stateReader{r: r, left: size, want: want}, nil
}

type stateReader struct {
	r    io.Reader
	left uint64
	sum  uint32
	want uint32
}

func (s *stateReader) Read(p []byte) (int, error) {
	if s.left == 0 {
		if s.sum != s.want {
			return 0, fmt.Errorf("%w: the state's checksum does not match", ErrStream)
		}
		return 0, io.EOF
	}
	if uint64(len(p)) > s.left {
		p = p[:s.left]
	}
	n, err := s.r.Read(p)
	s.sum = crc32.Update(s.sum, castagnoli, p[:n])
	s.left -= uint64(n)
	if errors.Is(err, io.EOF) {
		err = nil
		if s.left > 0 {
			err = io.ErrUnexpectedEOF
		}
	}
	return n, err
}

// streamReader produces the stream of a snapshot from a view of the store.
type streamReader struct {
	g        *Group
	view     *pebble.Snapshot // nil: closed
	meta     *snapshotMeta
	payloads []pin
	kept     []bool // which of them the receiver has; nil: none
	release  func() // lets go of the segments that payloads are in

	begun   bool
	ended   bool
	chunk   uint64 // the next one
	payload int    // the next one
	buf     []byte // not yet read
	own     []byte // buf's memory, for reuse
}

// size is the length of the whole stream.
func (r *streamReader) size() int64 {
	n := int64(streamHead) + int64(r.meta.stateSize) + int64(len(r.payloads)+1)*int64(partHead)
	for i, p := range r.payloads {
		if !r.has(i) {
			n += int64(p.size)
		}
	}
	return n
}

// Read implements io.Reader.
func (r *streamReader) Read(p []byte) (int, error) {
	for len(r.buf) == 0 {
		if r.ended {
			return 0, io.EOF
		}
		if r.view == nil {
			return 0, fmt.Errorf("read snapshot: %w", io.ErrClosedPipe)
		}
		r.refill()
	}
	n := copy(p, r.buf)
	r.buf = r.buf[n:]
	return n, nil
}

// refill puts the next part of the stream into buf.
func (r *streamReader) refill() {
	b := r.own[:0]
	switch {
	case !r.begun:
		r.begun = true
		b = appendStreamHead(b, r.meta.stateSize, r.meta.stateSum)
	case r.chunk < r.meta.chunks():
		c := r.get(section{key: numberKey(kindChunk, r.g.id, r.meta.number, r.chunk)}, "snapshot")
		r.chunk++
		b = append(b, c...)
	case r.payload < len(r.payloads):
		p := r.payloads[r.payload]
		if r.has(r.payload) {
			r.payload++
			b = appendPart(b, partKept, p, nil)
			break
		}
		section := r.get(section{r.g.sectionKey(p), p.span()}, "payload of a snapshot")
		if len(section) != int(p.size) {
			r.g.s.readFailed(r.g.id, fmt.Sprintf("payload of entry %d", p.index), errShort)
			return // to be read again
		}
		r.payload++
		b = appendPart(b, partSection, p, section)
	default:
		r.ended = true
		b = appendEnd(b, len(r.payloads))
	}
	r.own, r.buf = b, b
}

// get reads what must be there.
func (r *streamReader) get(at section, what string) []byte {
	for {
		v, err := readSection(r.view, r.g.s.segments, at)
		if err == nil {
			return v
		}
		r.g.s.readFailed(r.g.id, fmt.Sprintf("%s, record %x", what, at.key), lost(err))
	}
}

// Close gives the view of the store back.
func (r *streamReader) Close() error {
	if r.view == nil {
		return nil
	}
	v := r.view
	r.view = nil
	r.release()
	return v.Close()
}

// chunks is how many records hold the state.
func (m *snapshotMeta) chunks() uint64 { return (m.stateSize + chunkSize - 1) / chunkSize }
