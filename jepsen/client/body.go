// Package client publishes and consumes like an application, with confirms, acks
// and reconnects, and records every call and answer.
package client

import (
	"encoding/binary"
	"hash/crc32"
)

// minBody is the smallest body: key, checksum.
const minBody = 12

// Body returns the body of an attempt: its key, a checksum of all the rest, and
// padding that depends on the key.
func Body(key uint64, size int) []byte {
	b := make([]byte, max(size, minBody))
	binary.BigEndian.PutUint64(b, key)
	for i := minBody; i < len(b); i++ {
		b[i] = byte(key>>(i%8)) ^ byte(i)
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
