package login

import (
	"crypto/hmac"
	"crypto/md5"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/binary"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// HashAlgorithm names the algorithm of stored passwords: PBKDF2 with HMAC-SHA-256.
// A hash is the number of iterations (4 bytes), the salt (16) and the key (32).
const HashAlgorithm = "pbkdf2_sha256"

// ImportedSHA256 is the algorithm of hashes imported from RabbitMQ that name none.
const ImportedSHA256 = "rabbit_password_hashing_sha256"

// importedHashes are the algorithms of hashes imported from RabbitMQ: a salt of 4 bytes,
// and the digest of the salt and the password. They are fast, and MD5 is no hash that
// one would choose, so each ends at its user's first login; see examine. A wrong
// password is as slow with them as with any.
var importedHashes = map[string]struct {
	size   int
	digest func(salted []byte) []byte
}{
	ImportedSHA256:                   {sha256.Size, func(salted []byte) []byte { sum := sha256.Sum256(salted); return sum[:] }},
	"rabbit_password_hashing_sha512": {sha512.Size, func(salted []byte) []byte { sum := sha512.Sum512(salted); return sum[:] }},
	"rabbit_password_hashing_md5":    {md5.Size, func(salted []byte) []byte { sum := md5.Sum(salted); return sum[:] }},
}

const importedSalt = 4

const (
	// hashIterations is the cost of creating or comparing any hash.
	hashIterations = 100_000
	saltBytes      = 16
	keyBytes       = sha256.Size // one block of PBKDF2, see derive

	// A goroutine that hashes sleeps for pauseFor after every pauseEvery iterations
	// (half a millisecond), so that others can run. Yielding would not help other
	// processes or goroutines that are about to wake up.
	pauseEvery = 2_000
	pauseFor   = 100 * time.Microsecond
)

// iterated counts the iterations of all hashes in this process.
var iterated atomic.Uint64

// HashPassword returns the hash of a new password.
func HashPassword(password string) []byte {
	salt := make([]byte, saltBytes)
	rand.Read(salt) // never fails
	return hashWith(password, salt)
}

func hashWith(password string, salt []byte) []byte {
	out := binary.BigEndian.AppendUint32(nil, hashIterations)
	return append(append(out, salt...), derive(password, salt, hashIterations)...)
}

// derive is PBKDF2 for a key of one block. The standard library's does not pause:
// on few processors, clients would wait while a refused login is computed.
func derive(password string, salt []byte, iterations uint32) []byte {
	prf := hmac.New(sha256.New, []byte(password))
	prf.Write(salt)
	prf.Write([]byte{0, 0, 0, 1}) // number of the block
	step := prf.Sum(nil)
	key := slices.Clone(step)
	for i := uint32(1); i < iterations; i++ {
		if i%pauseEvery == 0 {
			time.Sleep(pauseFor)
		}
		prf.Reset()
		prf.Write(step)
		step = prf.Sum(step[:0])
		subtle.XORBytes(key, key, step)
	}
	iterated.Add(uint64(iterations))
	return key
}

// ValidHash reports whether a hash is well-formed for an algorithm. A hash that
// costs more than this program's own is not valid, because a login of its user
// would take longer than that of others.
func ValidHash(hash []byte, algorithm string) bool {
	if algorithm == HashAlgorithm {
		n := uint32(0)
		if len(hash) == 4+saltBytes+keyBytes {
			n = binary.BigEndian.Uint32(hash)
		}
		return n > 0 && n <= hashIterations
	}
	known, ok := importedHashes[algorithm]
	return ok && len(hash) == importedSalt+known.size
}

// KnownAlgorithm reports whether there are hashes of an algorithm.
func KnownAlgorithm(algorithm string) bool {
	_, ok := importedHashes[algorithm]
	return ok || algorithm == HashAlgorithm
}

// ValidPassword reports whether a password is permitted. It must not contain zero
// octets: PBKDF2 ignores them at the end of a short password.
func ValidPassword(password string) bool { return !strings.Contains(password, "\x00") }

// examine compares a password with a hash in constant time. It always computes
// hashIterations. For a missing hash (nil), an invalid one and an imported one, it
// computes a new hash of the password, and returns that if an imported hash matches.
func examine(hash []byte, algorithm, password string) (matches bool, renewed []byte) {
	if algorithm == HashAlgorithm && ValidHash(hash, algorithm) {
		n := binary.BigEndian.Uint32(hash)
		salt := hash[4 : 4+saltBytes]
		matches = subtle.ConstantTimeCompare(hash[4+saltBytes:], derive(password, salt, n)) == 1 && ValidPassword(password)
		if n < hashIterations {
			derive(password, salt, hashIterations-n)
		}
		return matches, nil
	}
	renewed = HashPassword(password)
	if !ValidHash(hash, algorithm) {
		return false, nil
	}
	salted := append(slices.Clone(hash[:importedSalt]), password...)
	if subtle.ConstantTimeCompare(hash[importedSalt:], importedHashes[algorithm].digest(salted)) != 1 {
		return false, nil
	}
	return true, renewed
}
