package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/certs"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/peer"
)

// tlsFiles configure TLS for a listener.
type tlsFiles struct {
	cert, key, roots string
	verify           string // verify_none or verify_peer
	insist           string // true or false
}

// or takes missing values from others.
func (f tlsFiles) or(others tlsFiles) tlsFiles {
	if f.cert == "" && f.key == "" {
		f.cert, f.key = others.cert, others.key
	}
	if f.roots == "" {
		f.roots = others.roots
	}
	return f
}

// tlsVersions are the oldest and the newest supported version.
type tlsVersions struct{ oldest, newest uint16 }

// config reads the files. They are read again when they have changed, so clients that connect later
// get the new certificate and are checked by the new roots.
func (f tlsFiles) config(v tlsVersions) (*tls.Config, error) {
	if err := checkPrivate(f.key); err != nil {
		return nil, err
	}
	pair := &watched[*tls.Certificate]{files: []string{f.cert, f.key}, load: func() (*tls.Certificate, error) {
		c, err := tls.LoadX509KeyPair(f.cert, f.key)
		return &c, err
	}}
	if _, err := pair.get(); err != nil {
		return nil, err
	}
	c := &tls.Config{
		MinVersion: v.oldest, MaxVersion: v.newest,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.get() },
	}
	if f.verify != "verify_peer" {
		return c, nil
	}
	roots := &watched[*x509.CertPool]{files: []string{f.roots}, load: func() (*x509.CertPool, error) { return readRoots(f.roots) }}
	if _, err := roots.get(); err != nil {
		return nil, err
	}
	c.ClientAuth = tls.VerifyClientCertIfGiven
	if f.insist == "true" {
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	c.SessionTicketsDisabled = true // a resumed session was admitted by roots that may be gone
	each := c.Clone()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool, err := roots.get()
		if err != nil {
			return nil, err
		}
		now := each.Clone()
		now.ClientCAs = pool
		return now, nil
	}
	return c, nil
}

func readRoots(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: contains no certificate", file)
	}
	return pool, nil
}

// certificateUser returns a function that gets the user's name from a client's certificate, by the
// setting ssl_cert_login_from; empty: the certificate has no such name.
func certificateUser(from string) func(*x509.Certificate) string {
	return func(c *x509.Certificate) string {
		switch from {
		case "common_name":
			return c.Subject.CommonName
		case "subject_alternative_name":
			for _, names := range [][]string{c.DNSNames, c.EmailAddresses} {
				if len(names) > 0 {
					return names[0]
				}
			}
			for _, u := range c.URIs {
				return u.String()
			}
			return ""
		}
		return c.Subject.String()
	}
}

// watched is a value loaded from files that may be replaced.
type watched[T any] struct {
	files []string
	load  func() (T, error)

	mu     sync.Mutex
	have   bool
	loaded T
	state  []fileState // of the files, when they were loaded
}

// fileState changes when a file is replaced.
type fileState struct {
	changed time.Time
	size    int64
}

// get returns the contents of the files; the last valid ones if they are inconsistent, as while
// they are being replaced.
func (w *watched[T]) get() (T, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	state, err := w.read()
	if err == nil && w.have && slices.Equal(state, w.state) {
		return w.loaded, nil
	}
	if err == nil {
		var t T
		if t, err = w.load(); err == nil {
			w.have, w.loaded, w.state = true, t, state
		}
	}
	if w.have {
		return w.loaded, nil
	}
	return w.loaded, err
}

func (w *watched[T]) read() (state []fileState, err error) {
	for _, name := range w.files {
		info, err := os.Stat(name)
		if err != nil {
			return nil, err
		}
		state = append(state, fileState{info.ModTime(), info.Size()})
	}
	return state, nil
}

// certificateEnds lists when the certificates expire that the node presents: to other nodes, and on
// each TLS listener.
func (s *settings) certificateEnds(sockets listeners, security *peer.Security) []api.Certificate {
	var all []api.Certificate
	if k := keysOf(security); k != nil {
		files, _, err := s.certificates()
		if err == nil {
			own, authorities := k.Ends()
			all = append(all, api.Certificate{Protocol: "clustering", File: files.Certificate, Ends: own, AuthoritiesFile: files.Authorities, AuthoritiesEnd: authorities})
		}
	}
	for _, x := range []struct {
		protocol string
		sockets  []socket
		files    tlsFiles
	}{
		{"amqp/ssl", sockets.clients, s.tls}, {"https", sockets.management, s.managementTLS.or(s.tls)}, {"https/prometheus", sockets.metrics, s.metricsTLS.or(s.tls)},
	} {
		for _, w := range x.sockets {
			if w.tls == nil {
				continue
			}
			c := api.Certificate{Protocol: x.protocol, File: x.files.cert}
			if shown, err := w.tls.GetCertificate(nil); err == nil {
				c.Ends = chainEnd(shown.Certificate)
			}
			if w.tls.GetConfigForClient != nil { // clients are asked for certificates
				if roots, err := certs.List(x.files.roots); err == nil {
					c.AuthoritiesFile, c.AuthoritiesEnd = x.files.roots, firstEnd(roots)
				}
			}
			all = append(all, c)
		}
	}
	return all
}

// keysOf returns the keys of links; nil: there are none.
func keysOf(security *peer.Security) *certs.Keys {
	if security == nil {
		return nil
	}
	switch k := security.Keys.(type) {
	case *certs.Waiting:
		return k.Keys()
	case *certs.Keys:
		return k
	}
	return nil
}

// chainEnd is when the first certificate of a chain expires, which makes the whole chain invalid.
func chainEnd(chain [][]byte) (first time.Time) {
	for _, raw := range chain {
		if c, err := x509.ParseCertificate(raw); err == nil && (first.IsZero() || c.NotAfter.Before(first)) {
			first = c.NotAfter
		}
	}
	return first
}

// firstEnd is when the first of several certificates expires.
func firstEnd(files []certs.File) (first time.Time) {
	for _, f := range files {
		if first.IsZero() || f.Certificate.NotAfter.Before(first) {
			first = f.Certificate.NotAfter
		}
	}
	return first
}
