package session

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"

	"github.com/quorate/quorate/fsm"
)

// lockToken names a delivery to whoever holds its text. The node that serves the consumer makes
// the text, any node understands it: it ends with a MAC by the cluster's secret, so nobody can make
// one up or change one. It says nothing about whether the delivery is still held.
type lockToken struct {
	queue    fsm.QueueID
	of       fsm.ConsumerID
	delivery uint64
}

// lockMACSize is how much of the MAC is in a token.
const lockMACSize = 16

// maxLockToken is the length of the longest token.
const maxLockToken = (6*binary.MaxVarintLen64 + lockMACSize + 4) / 5 * 8

var lockEncoding = base32.StdEncoding.WithPadding(base32.NoPadding)

// text returns the token as clients see it; empty without a secret.
func (t lockToken) text(secret []byte) string {
	if len(secret) == 0 {
		return ""
	}
	var space [6*binary.MaxVarintLen64 + sha256.Size]byte
	raw := space[:0]
	for _, n := range [...]uint64{uint64(t.queue), uint64(t.of.Session.Node), t.of.Session.Boot, t.of.Session.Num, t.of.Number, t.delivery} {
		raw = binary.AppendUvarint(raw, n)
	}
	return lockEncoding.EncodeToString(appendLockMAC(raw, secret, raw))
}

// appendLockMAC appends the MAC of fields.
func appendLockMAC(dst, secret, fields []byte) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("lock token"))
	h.Write(fields)
	return append(dst, h.Sum(nil)[:lockMACSize]...)
}

// parseLockToken is the inverse of text. ok false: the text is no token of this cluster. The MAC is
// compared in constant time, before anything else is read.
func parseLockToken(text string, secret []byte) (t lockToken, ok bool) {
	if len(secret) == 0 || len(text) > maxLockToken {
		return t, false
	}
	raw, err := lockEncoding.DecodeString(text)
	if err != nil || len(raw) < lockMACSize || lockEncoding.EncodeToString(raw) != text {
		return t, false
	}
	fields, mac := raw[:len(raw)-lockMACSize], raw[len(raw)-lockMACSize:]
	if !hmac.Equal(mac, appendLockMAC(nil, secret, fields)) {
		return t, false
	}
	var all [6]uint64
	for i := range all {
		n, size := binary.Uvarint(fields)
		if size <= 0 {
			return t, false
		}
		all[i], fields = n, fields[size:]
	}
	return lockToken{
		queue: fsm.QueueID(all[0]), delivery: all[5],
		of: fsm.ConsumerID{Session: fsm.SessionID{Node: fsm.NodeID(all[1]), Boot: all[2], Num: all[3]}, Number: all[4]},
	}, len(fields) == 0
}
