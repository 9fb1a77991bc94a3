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

// kind is the first byte of every key. All integers in keys are big endian,
// so that keys sort as their numbers do.
type kind byte

const (
	// kindStamp: nothing → which ledger the store belongs to.
	kindStamp kind = 0x01
	// kindStable: group, name → value. Raft's term and vote.
	kindStable kind = 0x10
	// kindHeader: group, index → header record. Exactly raft's log.
	kindHeader kind = 0x20
	// kindPayload: group, index → payload section of a log entry, or of one
	// that raft has let go of.
	kindPayload kind = 0x30
	// kindExtent: group, index → where in a segment the payload section of a log
	// entry lies, or of one that raft has let go of, if it is not a kindPayload.
	kindExtent kind = 0x38
	// kindPin: group, index → size and check of a payload section without a header.
	kindPin kind = 0x40
	// kindMeta: group → description of the group's snapshot.
	kindMeta kind = 0x50
	// kindChunk: group, snapshot number, position → part of its state.
	kindChunk kind = 0x60
	// kindInstalled: group → the last snapshot that came from a leader.
	kindInstalled kind = 0x70
	// kindForeign: group, snapshot number, index → payload section that came
	// with that snapshot.
	kindForeign kind = 0x80
	// kindForeignPin: group, snapshot number, index → its size and check.
	kindForeignPin kind = 0x90
	// kindAsleep: group → what the owner of a group that sleeps has recorded. What it speaks of is of the other
	// kinds, and nothing is lost with it.
	kindAsleep kind = 0xa0
)

// kinds lists every kind of a group's records, for what concerns a whole group, but for kindAsleep: damage there
// concerns no group.
var kinds = []kind{
	kindStable, kindHeader, kindPayload, kindExtent, kindPin, kindMeta, kindChunk,
	kindInstalled, kindForeign, kindForeignPin,
}

// appendPrefix appends the part of a key that all keys of a kind and a group share.
func appendPrefix(dst []byte, k kind, id fsm.GroupID) []byte {
	return binary.BigEndian.AppendUint32(append(dst, byte(k)), uint32(id))
}

// prefixOf returns that part as a key of its own.
func prefixOf(k kind, id fsm.GroupID) []byte { return appendPrefix(nil, k, id) }

// prefixEnd returns the first key behind all keys that begin with p. p must
// not consist of 0xff bytes only; no kind is 0xff.
func prefixEnd(p []byte) []byte {
	end := append([]byte(nil), p...)
	for i := len(end) - 1; ; i-- {
		end[i]++
		if end[i] != 0 {
			return end[:i+1]
		}
	}
}

// indexKey is the key of a header, a payload section or a pin.
func indexKey(k kind, id fsm.GroupID, index uint64) []byte {
	return appendIndexKey(make([]byte, 0, indexKeySize), k, id, index)
}

const (
	groupKeySize = 1 + 4
	indexKeySize = groupKeySize + 8
)

func appendIndexKey(dst []byte, k kind, id fsm.GroupID, index uint64) []byte {
	return binary.BigEndian.AppendUint64(appendPrefix(dst, k, id), index)
}

// numberKey is the key of something that belongs to one snapshot: a state
// chunk by position, a foreign payload section or pin by index.
func numberKey(k kind, id fsm.GroupID, number, at uint64) []byte {
	key := make([]byte, 0, numberKeySize)
	key = binary.BigEndian.AppendUint64(appendPrefix(key, k, id), number)
	return binary.BigEndian.AppendUint64(key, at)
}

const numberKeySize = indexKeySize + 8

// lastNumber returns the last eight bytes of a key: its index or position.
func lastNumber(key []byte) uint64 { return binary.BigEndian.Uint64(key[len(key)-8:]) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sealSize is what sealing adds to a value.
const sealSize = 4

var errChecksum = errors.New("checksum does not match")

// sum is the checksum of a value under its key: a value under the wrong key
// fails it as well.
func sum(key, value []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, key), castagnoli, value)
}

// seal appends the checksum of value, which lies at key, to value.
func seal(key, value []byte) []byte {
	return binary.BigEndian.AppendUint32(value, sum(key, value))
}

// sealOf returns the checksum that ends a sealed value.
func sealOf(sealed []byte) uint32 { return binary.BigEndian.Uint32(sealed[len(sealed)-sealSize:]) }

// unseal checks a sealed value and returns it without its checksum.
func unseal(key, sealed []byte) ([]byte, error) {
	n := len(sealed) - sealSize
	if n < 0 || binary.BigEndian.Uint32(sealed[n:]) != sum(key, sealed[:n]) {
		return nil, errChecksum
	}
	return sealed[:n:n], nil
}

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
