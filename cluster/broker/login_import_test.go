package broker

import (
	"crypto/sha512"
	"encoding/base64"
	"testing"
)

// Hashes that come from RabbitMQ open the door to their password only. The
// first is the example of its documentation.
func TestImportedHashes(t *testing.T) {
	sha256Hash, err := base64.StdEncoding.DecodeString("kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha512.Sum512([]byte("salttest12"))
	sha512Hash := append([]byte("salt"), sum[:]...)
	for _, test := range []struct {
		name, algorithm string
		hash            []byte
		password        string
		want            bool
	}{
		{"sha256", ImportedSHA256, sha256Hash, "test12", true},
		{"sha256, wrong", ImportedSHA256, sha256Hash, "test13", false},
		{"sha512", ImportedSHA512, sha512Hash, "test12", true},
		{"sha512, wrong", ImportedSHA512, sha512Hash, "", false},
		{"other algorithm", ImportedSHA512, sha256Hash, "test12", false},
		{"unknown algorithm", "rabbit_password_hashing_md5", sha256Hash, "test12", false},
		{"no hash", HashAlgorithm, nil, "", false},
		{"cut short", ImportedSHA256, sha256Hash[:35], "test12", false},
	} {
		if got := passwordMatches(test.hash, test.algorithm, test.password); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
	costly, err := HashPassword("p")
	if err != nil {
		t.Fatal(err)
	}
	costly[0] = 0xff // 4 thousand million iterations
	if ValidHash(costly, HashAlgorithm) {
		t.Error("a hash may cost more than any login is worth")
	}
}
