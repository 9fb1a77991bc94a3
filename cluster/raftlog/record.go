package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// A header record is, before its checksum:
//
//	term          8 bytes
//	appended at   8 bytes, nanoseconds since the Unix epoch; 0: not known
//	payload size  4 bytes
//	payload check 4 bytes, see checkOf; 0 without a payload section
//	type          1 byte
//	data          the rest
//
// A payload section lies as it is. Both are sealed under their keys.
const headerFixed = 8 + 8 + 4 + 4 + 1

var errShort = errors.New("record is too short")

// entry is a log entry in memory. Entries are shared and never change.
type entry struct {
	term     uint64
	appended int64
	typ      raft.LogType
	header   bool // the fields above and data are there, not only ext
	data     []byte
	ext      []byte
	payload  uint32 // size of the payload section, whether or not it is in ext
}

// whole reports whether nothing of the entry is missing.
func (e *entry) whole() bool { return e.header && len(e.ext) == int(e.payload) }

// fill copies e to raft's form; slices are shared.
func (e *entry) fill(index uint64, out *raft.Log) {
	*out = raft.Log{Index: index, Term: e.term, Type: e.typ, Data: e.data, Extensions: e.ext}
	if !e.whole() {
		out.Extensions = leftOut
	}
	if e.appended != 0 {
		out.AppendedAt = time.Unix(0, e.appended)
	}
}

// entryOf is the inverse of fill.
func entryOf(l *raft.Log) *entry {
	e := &entry{term: l.Term, typ: l.Type, header: true, data: l.Data, ext: l.Extensions, payload: uint32(len(l.Extensions))}
	if !l.AppendedAt.IsZero() {
		e.appended = l.AppendedAt.UnixNano()
	}
	return e
}

// headerSize is the size of the sealed header record of l.
func headerSize(l *raft.Log) int { return headerFixed + len(l.Data) + sealSize }

// checkOf is what a payload section is known by to other members: the checksum
// of its record as a member has it that got the entry by the log, continued over
// the entry's term. seal is the checksum of the record alone.
func checkOf(seal uint32, term uint64) uint32 {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], term)
	return crc32.Update(seal, castagnoli, b[:])
}

// putHeader writes the sealed header record of l, which will lie at key, to
// dst, which has headerSize(l) bytes.
func putHeader(dst, key []byte, l *raft.Log, check uint32) {
	at := int64(0)
	if !l.AppendedAt.IsZero() {
		at = l.AppendedAt.UnixNano()
	}
	b := binary.BigEndian.AppendUint64(dst[:0], l.Term)
	b = binary.BigEndian.AppendUint64(b, uint64(at))
	b = binary.BigEndian.AppendUint32(b, uint32(len(l.Extensions)))
	b = binary.BigEndian.AppendUint32(b, check)
	b = append(b, byte(l.Type))
	b = append(b, l.Data...)
	seal(key, b)
}

// parseHeader reads a sealed header record. Data is a slice of it.
func parseHeader(key, sealed []byte) (*entry, error) {
	v, err := unseal(key, sealed)
	if err != nil {
		return nil, err
	}
	if len(v) < headerFixed {
		return nil, errShort
	}
	e := &entry{
		term:     binary.BigEndian.Uint64(v),
		appended: int64(binary.BigEndian.Uint64(v[8:])),
		payload:  binary.BigEndian.Uint32(v[16:]),
		typ:      raft.LogType(v[24]),
		header:   true,
	}
	if len(v) > headerFixed {
		e.data = v[headerFixed:]
	}
	return e, nil
}

// checkSizes refuses entries whose parts the records cannot describe.
func checkSizes(id fsm.GroupID, l *raft.Log) error {
	if uint64(len(l.Extensions)) > math.MaxUint32-sealSize || uint64(len(l.Data)) > math.MaxUint32/2 {
		return fmt.Errorf("raftlog: group %d: entry %d is too large", id, l.Index)
	}
	return nil
}
