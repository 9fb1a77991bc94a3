// Package certs creates, stores and reads the certificates by which the nodes of a cluster know
// each other: an authority of the cluster's own, and for each node a certificate that is bound to
// the node's name.
//
// It promises that a certificate is accepted only if the authority has signed it for both ends of a
// connection, and if it names the node exactly: no wildcard, no common name. It knows of no files
// except those passed to it, never prints a key, and has no revocation list: certificates are
// short-lived, and a new authority revokes all of them at once.
package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"
)

// Default validity of certificates.
const (
	AuthorityLife = 10 * 365 * 24 * time.Hour
	NodeLife      = 365 * 24 * time.Hour
)

// skew is how long before its creation a certificate is already valid: the clocks of nodes differ.
const skew = time.Hour

// Algorithm is an algorithm of keys.
type Algorithm string

// Algorithms of keys.
const (
	ECDSA   Algorithm = "ecdsa" // on the curve P-256
	Ed25519 Algorithm = "ed25519"
)

// generate generates a key.
func (a Algorithm) generate() (crypto.Signer, error) {
	switch a {
	case ECDSA:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case Ed25519:
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return key, err
	}
	return nil, fmt.Errorf("%q is not one of %s, %s", a, ECDSA, Ed25519)
}

// algorithmOf returns the algorithm of a key; ECDSA for a key of another kind.
func algorithmOf(key crypto.Signer) Algorithm {
	if _, ok := key.(ed25519.PrivateKey); ok {
		return Ed25519
	}
	return ECDSA
}

// algorithmOfPublic returns the algorithm of a public key, if it is one of those above.
func algorithmOfPublic(key crypto.PublicKey) (a Algorithm, known bool) {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		return ECDSA, k.Curve == elliptic.P256()
	case ed25519.PublicKey:
		return Ed25519, true
	}
	return "", false
}

// Authority signs the certificates of a cluster's nodes.
type Authority struct {
	Certificate *x509.Certificate
	key         crypto.Signer
}

// Pair is a certificate and its key.
type Pair struct {
	Certificate *x509.Certificate
	key         crypto.Signer
}

// NewAuthority creates an authority. The name is for people.
func NewAuthority(name string, a Algorithm, now time.Time, life time.Duration) (*Authority, error) {
	key, err := a.generate()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:   pkix.Name{Organization: []string{"quorate"}, CommonName: name},
		NotBefore: now.Add(-skew), NotAfter: now.Add(life),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	c, err := sign(template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &Authority{c, key}, nil
}

// Issue generates a key for a node and signs its certificate.
func (a *Authority) Issue(node string, now time.Time, life time.Duration) (*Pair, error) {
	key, err := algorithmOf(a.key).generate()
	if err != nil {
		return nil, err
	}
	c, err := a.Sign(node, key.Public(), now, life)
	if err != nil {
		return nil, err
	}
	return &Pair{c, key}, nil
}

// IssueServer generates a key for a listener for clients and signs its certificate for names and addresses. It is
// no node's: nodes need a certificate by which they dial, too.
func (a *Authority) IssueServer(names []string, now time.Time, life time.Duration) (*Pair, error) {
	key, err := algorithmOf(a.key).generate()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: names[0]}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	c, err := a.sign(template, key.Public(), now, life)
	if err != nil {
		return nil, err
	}
	return &Pair{c, key}, nil
}

// Sign creates a certificate that is bound to a node's name. It does not outlive the authority's
// own.
func (a *Authority) Sign(node string, public crypto.PublicKey, now time.Time, life time.Duration) (*x509.Certificate, error) {
	return a.sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: node},
		DNSNames:    []string{node},
		ExtKeyUsage: usages,
	}, public, now, life)
}

// sign completes a certificate for somebody else, and signs it.
func (a *Authority) sign(template *x509.Certificate, public crypto.PublicKey, now time.Time, life time.Duration) (*x509.Certificate, error) {
	end := now.Add(life)
	if a.Certificate.NotAfter.Before(end) {
		end = a.Certificate.NotAfter
	}
	if !now.Before(end) {
		return nil, fmt.Errorf("the authority's certificate was valid until %s", day(a.Certificate.NotAfter))
	}
	template.Subject.Organization = []string{"quorate"}
	template.NotBefore, template.NotAfter = now.Add(-skew), end
	template.BasicConstraintsValid, template.KeyUsage = true, x509.KeyUsageDigitalSignature
	c, err := sign(template, a.Certificate, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("a certificate for the name %q: %w", template.Subject.CommonName, err)
	}
	return c, nil
}

// sign creates a certificate with a serial number of its own.
func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// Fingerprint identifies a certificate, for people and for tokens: the SHA-256 of it.
func Fingerprint(c *x509.Certificate) string { return hex.EncodeToString(fingerprint(c)) }

func fingerprint(c *x509.Certificate) []byte {
	sum := sha256.Sum256(c.Raw)
	return sum[:]
}

// day formats a point in time for people.
func day(t time.Time) string { return t.UTC().Format(time.DateTime) + " UTC" }

// errNoCertificate means that the other side has presented no certificate.
var errNoCertificate = errors.New("no certificate")

// usages are the uses required of a node's certificate: each node dials and is dialled.
var usages = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}

// verify checks that one of the roots has signed a certificate, the first of a chain, for a node;
// empty: for any node.
func verify(chain []*x509.Certificate, roots *x509.CertPool, node string, now time.Time) error {
	if len(chain) == 0 {
		return errNoCertificate
	}
	leaf, between := chain[0], x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	for _, usage := range usages {
		_, err := leaf.Verify(x509.VerifyOptions{
			Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage},
		})
		if err != nil {
			return fmt.Errorf("certificate for %q: %w", leaf.DNSNames, err)
		}
	}
	switch {
	case leaf.IsCA || len(leaf.DNSNames) == 0:
		return errors.New("the certificate is not for a node")
	case node != "" && !slices.Contains(leaf.DNSNames, node):
		return fmt.Errorf("the certificate is for %q, not for node %q", leaf.DNSNames, node)
	}
	return nil
}
