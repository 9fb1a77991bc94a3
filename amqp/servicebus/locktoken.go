package servicebus

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"

	"github.com/quorate/quorate/fsm"
)

// token names one holding of one message of a queue, as UUIDs are written.
type token [16]byte

// sealer makes lock tokens of a queue and reads them: one block of AES each, over the number of the message (8 bytes), how
// often it had been handed out (4), and a check over both (4). Every node has the key, so each reads what another has made.
type sealer struct{ block, check cipher.Block }

func newSealer(key [16]byte) *sealer {
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // the key has 16 bytes
	}
	var second [16]byte
	block.Encrypt(second[:], second[:])
	check, err := aes.NewCipher(second[:])
	if err != nil {
		panic(err)
	}
	return &sealer{block, check}
}

// seal makes a token.
func (s *sealer) seal(h fsm.Handle) (t token) {
	plain := s.plain(h)
	s.block.Encrypt(t[:], plain[:])
	return t
}

// open reads a token. ok false: no node has made it for this queue.
func (s *sealer) open(t token) (h fsm.Handle, ok bool) {
	var plain token
	s.block.Decrypt(plain[:], t[:])
	h = fsm.Handle{Number: binary.BigEndian.Uint64(plain[:]), Acquired: binary.BigEndian.Uint32(plain[8:])}
	return h, s.plain(h) == plain
}

func (s *sealer) plain(h fsm.Handle) (p token) {
	binary.BigEndian.PutUint64(p[:], h.Number)
	binary.BigEndian.PutUint32(p[8:], h.Acquired)
	var sum token
	s.check.Encrypt(sum[:], p[:])
	copy(p[12:], sum[:4])
	return p
}

// guid returns a token in the order of octets that .NET has for a Guid, as delivery-tags have it, and the other way round.
func (t token) guid() token {
	t[0], t[1], t[2], t[3] = t[3], t[2], t[1], t[0]
	t[4], t[5] = t[5], t[4]
	t[6], t[7] = t[7], t[6]
	return t
}
