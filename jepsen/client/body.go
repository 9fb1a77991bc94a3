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
	return body(nil, key, size)
}

// padPeriod is after how many bytes the padding repeats itself, and ramp the padding of key 0.
const padPeriod = 256

var ramp = func() (r [padPeriod]byte) {
	for i := range r {
		r[i] = byte(minBody + i)
	}
	return r
}()

// body is like Body, in the memory of an earlier one if that is large enough.
func body(b []byte, key uint64, size int) []byte {
	size = max(size, minBody)
	b = slices.Grow(b[:0], size)[:size]
	binary.BigEndian.PutUint64(b, key)
	var pad [padPeriod]byte
	word := uint64(0) // of eight bytes of the key, shifted by as many bits as each is behind a multiple of eight
	for i := range 8 {
		word |= uint64(byte(key>>((minBody+i)%8))) << (8 * i)
	}
	for i := 0; i < padPeriod; i += 8 {
		binary.LittleEndian.PutUint64(pad[i:], word^binary.LittleEndian.Uint64(ramp[i:]))
	}
	rest := b[minBody:]
	for n := copy(rest, pad[:]); n < len(rest); n *= 2 {
		copy(rest[n:], rest[:n])
	}
	binary.BigEndian.PutUint32(b[8:], checksum(b))
	return b
}

// Key returns the key in a body made by Body. ok is false if the body is damaged.
func Key(body []byte) (key uint64, ok bool) {
	if len(body) < minBody || binary.BigEndian.Uint32(body[8:]) != checksum(body) {
		return 0, false
	}
	return binary.BigEndian.Uint64(body), true
}

func checksum(b []byte) uint32 {
	return crc32.Update(crc32.ChecksumIEEE(b[:8]), crc32.IEEETable, b[minBody:])
}
