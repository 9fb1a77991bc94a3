// Package client publishes and consumes like an application, with confirms, acks
// and reconnects, and records every call and answer.
package client

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
)

// minBody is the smallest body: key, checksum.
const minBody = 12

// Body returns the body of an attempt: its key, a checksum of all the rest, and
// padding that depends on the key.
func Body(key uint64, size int) []byte {
	b := Brief(nil, key, size)
	for i := minBody; i < len(b); i++ {
		b[i] = byte(key>>(i%8)) ^ byte(i)
	}
	binary.BigEndian.PutUint32(b[8:], checksum(b))
	return b
}

// Brief is like Body, but nothing is known of its padding: neither it nor its check takes time. It is in the memory of
// an earlier one if that is large enough.
func Brief(b []byte, key uint64, size int) []byte {
	size = max(size, minBody)
	b = slices.Grow(b[:0], size)[:size]
	binary.BigEndian.PutUint64(b, key)
	binary.BigEndian.PutUint32(b[8:], headsum(b))
	return b
}

// Key returns the key in a body made by Body or Brief. ok is false if the body is damaged.
func Key(body []byte) (key uint64, ok bool) {
	if len(body) < minBody {
		return 0, false
	}
	if sum := binary.BigEndian.Uint32(body[8:]); sum != headsum(body) && sum != checksum(body) {
		return 0, false
	}
	return binary.BigEndian.Uint64(body), true
}

func checksum(b []byte) uint32 {
	return crc32.Update(crc32.ChecksumIEEE(b[:8]), crc32.IEEETable, b[minBody:])
}

// headsum is a checksum of the key and the length alone.
func headsum(b []byte) uint32 {
	const spread = 0x9e3779b97f4a7c15 // odd, with bits everywhere
	return uint32((binary.BigEndian.Uint64(b) ^ uint64(len(b))<<40) * spread >> 32)
}
