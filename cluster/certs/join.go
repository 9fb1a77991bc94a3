package certs

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Authority is the fingerprint of the authority that has signed this node's certificate, to be
// pinned by tokens.
func (k *Keys) Authority() ([]byte, error) {
	a := k.current()
	for _, c := range a.authorities {
		if verify(a.chain, pool(c), k.node, time.Now()) == nil {
			return fingerprint(c), nil
		}
	}
	return nil, errors.New("this node's certificate was not signed by any of the authorities")
}

func pool(all ...*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range all {
		p.AddCert(c)
	}
	return p
}

// Invited is Client for a node that joins a cluster by a token: the other side must prove to the
// one authority pinned by the token that it is a node, of any name.
func (k *Keys) Invited(pin []byte) (*tls.Config, error) {
	a := k.current()
	at := slices.IndexFunc(a.authorities, func(c *x509.Certificate) bool { return bytes.Equal(fingerprint(c), pin) })
	if at < 0 {
		return nil, fmt.Errorf("the token is for a cluster whose authority has the fingerprint %s, which is not in %s", hex.EncodeToString(pin), k.files.Authorities)
	}
	c, err := k.Client("")
	if err == nil {
		c.VerifyConnection = proves(pool(a.authorities[at]), "")
	}
	return c, err
}

// invite lets a node that says that it wants to join connect without a certificate. Such a
// connection presents the authorities, too: a token pins one of them.
func (a *about) invite(links *tls.Config) func(*tls.ClientHelloInfo) (*tls.Config, error) {
	return func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if !slices.Equal(hello.SupportedProtos, []string{JoinProtocol}) {
			return nil, nil
		}
		c := links.Clone()
		c.ClientCAs, c.ClientAuth, c.VerifyConnection, c.GetConfigForClient = nil, tls.NoClientCert, nil, nil
		c.NextProtos = []string{JoinProtocol}
		shown := a.pair
		shown.Certificate = slices.Clone(shown.Certificate)
		for _, x := range a.authorities {
			shown.Certificate = append(shown.Certificate, x.Raw)
		}
		c.Certificates = []tls.Certificate{shown}
		return c, nil
	}
}

// provesPin checks that the other side is a node signed by the authority with this fingerprint,
// which it must also present.
func provesPin(pin []byte) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		for _, c := range s.PeerCertificates {
			if c.IsCA && bytes.Equal(fingerprint(c), pin) {
				return verify(s.PeerCertificates, pool(c), "", time.Now())
			}
		}
		return fmt.Errorf("the token is for a cluster whose authority has the fingerprint %s, but the node that answered belongs to another one", hex.EncodeToString(pin))
	}
}

// errSignsNone: this node has no key to sign with.
var errSignsNone = errors.New("this node does not sign certificates: it has no cluster.ssl_options.cakeyfile")

// Sign creates a certificate for a joining node from its request. It returns the certificate and
// the valid authorities as PEM.
func (k *Keys) Sign(node string, request []byte) (made *x509.Certificate, certificate, authorities []byte, err error) {
	a := k.current()
	if a.signer == nil {
		return nil, nil, nil, errSignsNone
	}
	r, err := x509.ParseCertificateRequest(request)
	if err == nil {
		err = r.CheckSignature()
	}
	if err != nil {
		return nil, nil, nil, fmt.Errorf("request for a certificate: %w", err)
	}
	if _, known := algorithmOfPublic(r.PublicKey); !known {
		return nil, nil, nil, errors.New("request for a certificate: the key must be ECDSA on P-256 or Ed25519")
	}
	if made, err = a.signer.Sign(node, r.PublicKey, time.Now(), NodeLife); err != nil {
		return nil, nil, nil, err
	}
	return made, encode(made), encode(a.authorities...), nil
}

// Waiting is the Keys of a node that has none yet. It gets them when it is admitted by a token.
type Waiting struct {
	node  string
	files Files
	open  func() (*Keys, error)
	key   crypto.Signer // for which the certificate is requested
	keys  atomic.Pointer[Keys]
	// changed is to be passed to Keys.SetChanged.
	changed func(*x509.Certificate)
}

// Wait returns the keys of a joining node: open reads the files once they exist.
func Wait(node string, f Files, open func() (*Keys, error)) *Waiting {
	return &Waiting{node: node, files: f, open: open}
}

var errWaiting = errors.New("this node has no certificate yet: it has not joined")

// Server implements peer.Keys.
func (w *Waiting) Server() (*tls.Config, error) {
	if k := w.keys.Load(); k != nil {
		return k.Server()
	}
	return nil, errWaiting
}

// Client implements peer.Keys.
func (w *Waiting) Client(node string) (*tls.Config, error) {
	if k := w.keys.Load(); k != nil {
		return k.Client(node)
	}
	return nil, errWaiting
}

// Authority implements peer.Keys.
func (w *Waiting) Authority() ([]byte, error) {
	if k := w.keys.Load(); k != nil {
		return k.Authority()
	}
	return nil, errWaiting
}

// Invited is for a connection to a cluster that this node joins. It proves nothing before the node
// has a certificate.
func (w *Waiting) Invited(pin []byte) (*tls.Config, error) {
	if k := w.keys.Load(); k != nil {
		return k.Invited(pin)
	}
	return &tls.Config{
		InsecureSkipVerify: true, // VerifyConnection verifies everything
		VerifyConnection:   provesPin(pin),
		MinVersion:         tls.VersionTLS13, NextProtos: []string{JoinProtocol},
	}, nil
}

// Keys returns the node's keys; nil before it has some.
func (w *Waiting) Keys() *Keys { return w.keys.Load() }

// Request returns a certificate request; nil: the node has a certificate. The key is generated once
// and kept, because a request may be repeated.
func (w *Waiting) Request() ([]byte, error) {
	if w.keys.Load() != nil {
		return nil, nil
	}
	if w.key == nil {
		if err := w.loadKey(); err != nil {
			return nil, err
		}
	}
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: w.node}}, w.key)
}

func (w *Waiting) loadKey() error {
	key, err := readKey(w.files.Key)
	if errors.Is(err, fs.ErrNotExist) {
		if key, err = ECDSA.generate(); err != nil {
			return err
		}
		var text []byte
		if text, err = encodeKey(key); err != nil {
			return err
		}
		if err = os.MkdirAll(filepath.Dir(w.files.Key), 0o700); err == nil {
			err = create(w.files.Key, text)
		}
	}
	w.key = key
	return err
}

// Accept stores what Sign has returned in the node's files.
func (w *Waiting) Accept(certificate, authorities []byte) error {
	chain, err := decode(certificate)
	if err != nil {
		return fmt.Errorf("certificate of this node: %w", err)
	}
	roots, err := decode(authorities)
	if err == nil {
		err = verify(chain, pool(roots...), w.node, time.Now())
	}
	if err == nil && !samePublic(chain[0].PublicKey, w.key) {
		err = errors.New("it is for a different key")
	}
	if err != nil {
		return fmt.Errorf("certificate of this node: %w", err)
	}
	// The certificate comes last: with it the node counts as having all three.
	if err := WritePrivate(w.files.Authorities, authorities); err != nil {
		return err
	}
	if err := WritePrivate(w.files.Certificate, certificate); err != nil {
		return err
	}
	k, err := w.open()
	if err != nil {
		return fmt.Errorf("certificate of this node: %w", err)
	}
	k.SetChanged(w.changed)
	w.keys.Store(k)
	if w.changed != nil {
		w.changed(chain[0])
	}
	return nil
}

// SetChanged sets a function that is called with each accepted certificate. It is called before
// Accept.
func (w *Waiting) SetChanged(f func(*x509.Certificate)) { w.changed = f }

// samePublic reports whether a public key is that of a key.
func samePublic(public crypto.PublicKey, key crypto.Signer) bool {
	same, ok := public.(interface{ Equal(x crypto.PublicKey) bool })
	return ok && key != nil && same.Equal(key.Public())
}

// maxNodeName is the maximum length of a node's name, in bytes.
const maxNodeName = 255

// CheckNode returns an error for names that cannot be used in a certificate, an address of the API,
// a log line or a list of nodes.
func CheckNode(name string) error {
	other := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	}
	if name == "" || len(name) > maxNodeName || strings.ContainsFunc(name, other) {
		return fmt.Errorf("node name %.300q: letters, digits, '.', '_' and '-', at most %d", name, maxNodeName)
	}
	return nil
}

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
