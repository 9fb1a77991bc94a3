package certs

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// Files are what a node proves its name with, and has the others prove theirs.
type Files struct {
	Authorities string // PEM: whoever signed the nodes' certificates
	Certificate string // PEM: the node's, and what leads from it to an authority
	Key         string
}

// Keys hands out what Files hold. They are read again when they have changed.
type Keys struct {
	node     string
	files    Files
	complain func(error)

	mu    sync.Mutex
	seen  [3]stamp // of the files, when they were read last
	about *about   // what they held when they fitted together
}

// stamp tells whether a file has changed.
type stamp struct {
	at   time.Time
	size int64
}

// about is what one reading of the files has given. It does not change.
type about struct {
	roots *x509.CertPool
	pair  tls.Certificate
	ends  time.Time
}

// Open reads the files of a node. complain is told why files that have changed
// are not taken, once for each change; what they held before goes on to count.
func Open(node string, f Files, complain func(error)) (*Keys, error) {
	k := &Keys{node: node, files: f, complain: complain}
	var err error
	if k.seen, err = k.stamps(); err != nil {
		return nil, err
	}
	k.about, err = k.read()
	return k, err
}

// Expires is when the node's certificate ceases to be good.
func (k *Keys) Expires() time.Time { return k.current().ends }

// Server is for a connection that somebody has dialled. Whoever it is must prove
// to be a node, whichever.
func (k *Keys) Server() (*tls.Config, error) {
	a := k.current()
	return &tls.Config{
		Certificates: []tls.Certificate{a.pair},
		ClientCAs:    a.roots, ClientAuth: tls.RequireAndVerifyClientCert,
		VerifyConnection: a.proves(""),
		MinVersion:       tls.VersionTLS13, NextProtos: protocols, SessionTicketsDisabled: true,
		DynamicRecordSizingDisabled: true,
	}, nil
}

// Client is for a connection that this node has dialled, to a node that must
// prove its name; empty: to be a node, whichever.
func (k *Keys) Client(node string) (*tls.Config, error) {
	a := k.current()
	return &tls.Config{
		Certificates: []tls.Certificate{a.pair},
		// Names of nodes need not be names of hosts, and count as they are
		// written: VerifyConnection verifies all there is.
		InsecureSkipVerify: true,
		VerifyConnection:   a.proves(node),
		MinVersion:         tls.VersionTLS13, NextProtos: protocols,
		DynamicRecordSizingDisabled: true,
	}, nil
}

// protocols is what links speak.
var protocols = []string{"h2"}

// proves checks what the other side has shown.
func (a *about) proves(node string) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		if s.NegotiatedProtocol != protocols[0] {
			return fmt.Errorf("protocol %q: no link", s.NegotiatedProtocol)
		}
		return verify(s.PeerCertificates, a.roots, node, time.Now())
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
			k.about = a
			return a
		}
	}
	if !again {
		k.complain(fmt.Errorf("certificates have changed and are not taken: %w", err))
	}
	return k.about
}

// stamps looks at the files. Of one that cannot be found it has none.
func (k *Keys) stamps() (all [3]stamp, err error) {
	for i, path := range []string{k.files.Authorities, k.files.Certificate, k.files.Key} {
		info, e := os.Stat(path)
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		all[i] = stamp{info.ModTime(), info.Size()}
	}
	return all, err
}

// read reads the files, and checks that the others will believe the node.
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
	a := &about{roots: x509.NewCertPool(), ends: chain[0].NotAfter}
	for _, c := range authorities {
		a.roots.AddCert(c)
	}
	if same, ok := chain[0].PublicKey.(interface{ Equal(x crypto.PublicKey) bool }); !ok || !same.Equal(key.Public()) {
		return nil, fmt.Errorf("%s is not the key of %s", k.files.Key, k.files.Certificate)
	}
	if err := verify(chain, a.roots, k.node, time.Now()); err != nil {
		return nil, fmt.Errorf("%s: %w", k.files.Certificate, err)
	}
	a.pair = tls.Certificate{PrivateKey: key, Leaf: chain[0]}
	for _, c := range chain {
		a.pair.Certificate = append(a.pair.Certificate, c.Raw)
	}
	return a, nil
}
