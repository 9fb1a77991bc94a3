package certs

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"
)

const (
	// tokenPrefix begins the text of a token, so that people and scanners for
	// secrets know it.
	tokenPrefix = "qjt1"
	// SecretSize is the length of a token's secret.
	SecretSize = 32
)

// Token lets a node into a cluster, and tells it which cluster that is.
type Token struct {
	// Authority is the fingerprint of the authority that the nodes of the cluster
	// are signed by; empty: their links are plain.
	Authority []byte
	Secret    []byte
}

// errToken does not repeat what was given: it may be most of a secret.
var errToken = errors.New("this is no token: quoratectl token create makes them")

// NewToken makes a token of a cluster.
func NewToken(authority []byte) (Token, error) {
	t := Token{authority, make([]byte, SecretSize)}
	_, err := rand.Read(t.Secret)
	return t, err
}

// Text is the token for people to hand on.
func (t Token) Text() string {
	e := base64.RawURLEncoding
	return strings.Join([]string{tokenPrefix, e.EncodeToString(t.Authority), e.EncodeToString(t.Secret)}, ".")
}

// Hash is what a cluster knows of the secret.
func (t Token) Hash() []byte { return HashSecret(t.Secret) }

// HashSecret is the hash of a token's secret. The secret is random: there is
// nothing to be guessed, so the hash need not be slow.
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
