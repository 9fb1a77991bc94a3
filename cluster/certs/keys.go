package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// Files are what a node proves its name with, and checks the names of others by.
type Files struct {
	Authorities string // PEM: the signers of the nodes' certificates
	Certificate string // PEM: the node's, and its chain to an authority
	Key         string
	// AuthorityKey is the key of one of the authorities, by which this node signs the certificates
	// of joining nodes; empty: it signs none.
	AuthorityKey string
}

// Keys supplies the contents of Files. They are read again when they have changed.
type Keys struct {
	node     string
	files    Files
	complain func(error)

	mu    sync.Mutex
	seen  [4]stamp // of the files, when they were last read
	about *about   // their last consistent contents
	// changed is called with each new certificate; nil: it is not called.
	changed func(*x509.Certificate)
}

// stamp tells whether a file has changed.
type stamp struct {
	at   time.Time
	size int64
}

// about is the result of one reading of the files. It does not change.
type about struct {
	authorities []*x509.Certificate
	roots       *x509.CertPool // of these
	chain       []*x509.Certificate
	pair        tls.Certificate // of chain
	// signer is the authority whose key this node has; nil: none.
	signer *Authority
}

// Open reads the files of a node. complain is called with the reason why changed files are not
// accepted, once for each change; the former contents stay valid.
func Open(node string, f Files, complain func(error)) (*Keys, error) {
	k := &Keys{node: node, files: f, complain: complain}
	var err error
	if k.seen, err = k.stamps(); err != nil {
		return nil, err
	}
	k.about, err = k.read()
	return k, err
}

// Expires is when the node's certificate expires.
func (k *Keys) Expires() time.Time { return k.current().chain[0].NotAfter }

// SetChanged sets a function that is called with each new certificate. It must not use the keys.
func (k *Keys) SetChanged(f func(*x509.Certificate)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.changed = f
}

// Ends returns when the first certificate of this node's chain expires, and the first of the
// authorities.
func (k *Keys) Ends() (own, authorities time.Time) {
	a := k.current()
	return firstEnd(a.chain), firstEnd(a.authorities)
}

func firstEnd(all []*x509.Certificate) time.Time {
	first := all[0].NotAfter
	for _, c := range all {
		if c.NotAfter.Before(first) {
			first = c.NotAfter
		}
	}
	return first
}

// Server is for accepted connections. The other side must prove to be a node, of any name.
func (k *Keys) Server() (*tls.Config, error) {
	a := k.current()
	c := &tls.Config{
		Certificates: []tls.Certificate{a.pair},
		ClientCAs:    a.roots, ClientAuth: tls.RequireAndVerifyClientCert,
		VerifyConnection: proves(a.roots, ""),
		MinVersion:       tls.VersionTLS13, NextProtos: []string{LinkProtocol}, SessionTicketsDisabled: true,
		DynamicRecordSizingDisabled: true,
	}
	if a.signer != nil {
		c.GetConfigForClient = a.invite(c)
	}
	return c, nil
}

// Client is for a connection that this node has dialled, to a node that must prove its name; empty:
// any node.
func (k *Keys) Client(node string) (*tls.Config, error) {
	a := k.current()
	return &tls.Config{
		Certificates: []tls.Certificate{a.pair},
		// Names of nodes need not be names of hosts, and are compared as written: VerifyConnection
		// verifies everything.
		InsecureSkipVerify: true,
		VerifyConnection:   proves(a.roots, node),
		MinVersion:         tls.VersionTLS13, NextProtos: []string{LinkProtocol},
		DynamicRecordSizingDisabled: true,
	}, nil
}

// Protocols that connections between nodes speak, as ALPN names them.
const (
	// LinkProtocol is for nodes that prove their names.
	LinkProtocol = "h2"
	// JoinProtocol is for nodes that have no certificate yet, and may only request one.
	JoinProtocol = "quorate-join"
)

// proves checks what the other side has presented.
func proves(roots *x509.CertPool, node string) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		if s.NegotiatedProtocol != LinkProtocol {
			return fmt.Errorf("protocol %q: no link", s.NegotiatedProtocol)
		}
		return verify(s.PeerCertificates, roots, node, time.Now())
	}
}

// current reads the files again if they have changed.
func (k *Keys) current() *about {
	k.mu.Lock()
	defer k.mu.Unlock()
	seen, err := k.stamps()
	if err == nil && seen == k.seen {
		return k.about
	}
	again := seen == k.seen
	k.seen = seen
	if err == nil {
		var a *about
		if a, err = k.read(); err == nil {
			was := k.about.chain[0]
			k.about = a
			if k.changed != nil && !was.Equal(a.chain[0]) {
				k.changed(a.chain[0])
			}
			return a
		}
	}
	if !again {
		k.complain(fmt.Errorf("changed certificates were not accepted: %w", err))
	}
	return k.about
}

// stamps reads when the files were changed. A file that cannot be found has no stamp.
func (k *Keys) stamps() (all [4]stamp, err error) {
	for i, path := range []string{k.files.Authorities, k.files.Certificate, k.files.Key, k.files.AuthorityKey} {
		if path == "" {
			continue
		}
		info, e := os.Stat(path)
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		all[i] = stamp{info.ModTime(), info.Size()}
	}
	return all, err
}

// read reads the files, and checks that the other nodes will accept this one's certificate.
func (k *Keys) read() (*about, error) {
	authorities, err := readCertificates(k.files.Authorities)
	if err != nil {
		return nil, err
	}
	chain, err := readCertificates(k.files.Certificate)
	if err != nil {
		return nil, err
	}
	key, err := readKey(k.files.Key)
	if err != nil {
		return nil, err
	}
	a := &about{authorities: authorities, roots: pool(authorities...), chain: chain}
	if !samePublic(chain[0].PublicKey, key) {
		return nil, fmt.Errorf("%s is not the key of %s", k.files.Key, k.files.Certificate)
	}
	if err := verify(chain, a.roots, k.node, time.Now()); err != nil {
		return nil, fmt.Errorf("%s: %w", k.files.Certificate, err)
	}
	a.pair = tls.Certificate{PrivateKey: key, Leaf: chain[0]}
	for _, c := range chain {
		a.pair.Certificate = append(a.pair.Certificate, c.Raw)
	}
	if k.files.AuthorityKey != "" {
		if a.signer, err = LoadAuthority(k.files.Authorities, k.files.AuthorityKey); err != nil {
			return nil, err
		}
	}
	return a, nil
}
