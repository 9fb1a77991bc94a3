package certs

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"
)

const (
	// tokenPrefix begins the text of a token, so that people and secret scanners recognize it.
	tokenPrefix = "qjt1"
	// SecretSize is the length of a token's secret.
	SecretSize = 32
)

// Token admits a node to a cluster, and identifies that cluster to the node.
type Token struct {
	// Authority is the fingerprint of the authority that has signed the nodes of the cluster;
	// empty: their links are plain.
	Authority []byte
	Secret    []byte
}

// errToken does not repeat its input, which may be most of a secret.
var errToken = errors.New("not a token: create one with quoratectl token create")

// NewToken creates a token for a cluster.
func NewToken(authority []byte) (Token, error) {
	t := Token{authority, make([]byte, SecretSize)}
	_, err := rand.Read(t.Secret)
	return t, err
}

// Text is the token as people pass it on.
func (t Token) Text() string {
	e := base64.RawURLEncoding
	return strings.Join([]string{tokenPrefix, e.EncodeToString(t.Authority), e.EncodeToString(t.Secret)}, ".")
}

// Hash is what a cluster stores of the secret.
func (t Token) Hash() []byte { return HashSecret(t.Secret) }

// HashSecret is the hash of a token's secret. The secret is random and cannot be guessed, so the
// hash need not be slow.
func HashSecret(secret []byte) []byte {
	sum := sha256.Sum256(secret)
	return sum[:]
}

// ParseToken reads the text of a token.
func ParseToken(text string) (t Token, err error) {
	parts := strings.Split(strings.TrimSpace(text), ".")
	if len(parts) != 3 || parts[0] != tokenPrefix {
		return t, errToken
	}
	e := base64.RawURLEncoding.Strict()
	if t.Authority, err = e.DecodeString(parts[1]); err != nil || len(t.Authority) != 0 && len(t.Authority) != sha256.Size {
		return Token{}, errToken
	}
	if t.Secret, err = e.DecodeString(parts[2]); err != nil || len(t.Secret) != SecretSize {
		return Token{}, errToken
	}
	return t, nil
}
