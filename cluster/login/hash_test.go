package login

import (
	"bytes"
	"crypto/md5"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/binary"
	"testing"
)

// imported are hashes of the password test12 by RabbitMQ's algorithms. The first
// is the example in its documentation.
func imported(t *testing.T) (sha256Hash, sha512Hash, md5Hash []byte) {
	t.Helper()
	sha256Hash, err := base64.StdEncoding.DecodeString("kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR")
	if err != nil {
		t.Fatal(err)
	}
	sum, short := sha512.Sum512([]byte("salttest12")), md5.Sum([]byte("salttest12"))
	return sha256Hash, append([]byte("salt"), sum[:]...), append([]byte("salt"), short[:]...)
}

// cost counts the iterations that f causes.
func cost(f func()) uint64 {
	before := iterated.Load()
	f()
	return iterated.Load() - before
}

// Comparing a password costs the same for every kind of hash, valid or not.
func TestExamine(t *testing.T) {
	const algorithm512, algorithmMD5 = "rabbit_password_hashing_sha512", "rabbit_password_hashing_md5"
	sha256Hash, sha512Hash, md5Hash := imported(t)
	own := HashPassword("test12")
	cheap := binary.BigEndian.AppendUint32(nil, 3)
	cheap = append(cheap, own[4:4+saltBytes]...)
	cheap = append(cheap, derive("test12", own[4:4+saltBytes], 3)...)
	costly := bytes.Clone(own)
	costly[0] = 0xff // 4 thousand million iterations
	none := bytes.Clone(own)
	clear(none[:4])
	for _, test := range []struct {
		name, algorithm string
		hash            []byte
		password        string
		want            bool
	}{
		{"own", HashAlgorithm, own, "test12", true},
		{"own, wrong", HashAlgorithm, own, "test13", false},
		{"own, with a zero octet behind it", HashAlgorithm, own, "test12\x00", false},
		{"own, of fewer iterations", HashAlgorithm, cheap, "test12", true},
		{"own, of fewer iterations, wrong", HashAlgorithm, cheap, "", false},
		{"own, of too many iterations", HashAlgorithm, costly, "test12", false},
		{"own, of no iteration", HashAlgorithm, none, "test12", false},
		{"sha256", ImportedSHA256, sha256Hash, "test12", true},
		{"sha256, wrong", ImportedSHA256, sha256Hash, "test13", false},
		{"sha512", algorithm512, sha512Hash, "test12", true},
		{"sha512, wrong", algorithm512, sha512Hash, "", false},
		{"other algorithm", algorithm512, sha256Hash, "test12", false},
		{"md5", algorithmMD5, md5Hash, "test12", true},
		{"md5, wrong", algorithmMD5, md5Hash, "test13", false},
		{"md5 of another", algorithmMD5, sha256Hash, "test12", false},
		{"unknown algorithm", "rabbit_password_hashing_sha1", md5Hash, "test12", false},
		{"no hash", HashAlgorithm, nil, "", false},
		{"nobody", "", nil, "", false},
		{"cut short", ImportedSHA256, sha256Hash[:35], "test12", false},
	} {
		var got bool
		var renewed []byte
		if n := cost(func() { got, renewed = examine(test.hash, test.algorithm, test.password) }); n != hashIterations {
			t.Errorf("%s: %d iterations, want %d", test.name, n, hashIterations)
		}
		if got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
		if again := got && test.algorithm != HashAlgorithm; again != (renewed != nil) {
			t.Errorf("%s: a new hash: %v, want %v", test.name, renewed != nil, again)
		}
		if renewed == nil {
			continue
		}
		if matches, _ := examine(renewed, HashAlgorithm, test.password); !matches {
			t.Errorf("%s: the new hash does not match", test.name)
		}
	}
}

func TestDerive(t *testing.T) {
	for _, password := range []string{"", "p", string(bytes.Repeat([]byte("long"), 100))} {
		for _, n := range []int{1, 2, pauseEvery, 2*pauseEvery + 1} {
			want, err := pbkdf2.Key(sha256.New, password, []byte("salt"), n, keyBytes)
			if err != nil {
				t.Fatal(err)
			}
			if got := derive(password, []byte("salt"), uint32(n)); !bytes.Equal(got, want) {
				t.Errorf("%q, %d iterations: %x, want %x", password, n, got, want)
			}
		}
	}
}

func BenchmarkHash(b *testing.B) {
	for b.Loop() {
		HashPassword("password")
	}
}
