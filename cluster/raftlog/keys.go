package raftlog

import (
	"encoding/binary"
	"errors"
	"hash/crc32"

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
)

// kinds lists every kind of a group's records, for what concerns a whole group.
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
