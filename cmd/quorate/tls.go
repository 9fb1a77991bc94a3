package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// tlsFiles is how clients are served by TLS.
type tlsFiles struct {
	cert, key, roots string
	verify           string // verify_none or verify_peer
	insist           string // true or false
	loginFrom        string
}

// config reads the files. The certificate is read again when its file has
// changed; the roots are not.
func (f *tlsFiles) config() (*tls.Config, error) {
	k := &keyPair{cert: f.cert, key: f.key}
	if _, err := k.get(nil); err != nil {
		return nil, err
	}
	c := &tls.Config{GetCertificate: k.get, MinVersion: tls.VersionTLS12}
	if f.verify != "verify_peer" {
		return c, nil
	}
	roots, err := os.ReadFile(f.roots)
	if err != nil {
		return nil, err
	}
	c.ClientCAs = x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(roots) {
		return nil, fmt.Errorf("%s: no certificate in it", f.roots)
	}
	c.ClientAuth = tls.VerifyClientCertIfGiven
	if f.insist == "true" {
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return c, nil
}

// user names the user of a client's certificate; empty: it has no such name.
func (f *tlsFiles) user(c *x509.Certificate) string {
	switch f.loginFrom {
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

// keyPair is a certificate in files that may be replaced.
type keyPair struct {
	cert, key string

	mu      sync.Mutex
	changed [2]time.Time
	loaded  *tls.Certificate
}

// get returns the certificate of the files; the last good one if they do not
// fit together, as while they are being replaced.
func (k *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	changed, err := k.changes()
	if err == nil && k.loaded != nil && changed == k.changed {
		return k.loaded, nil
	}
	c, loadErr := tls.LoadX509KeyPair(k.cert, k.key)
	if err = errors.Join(err, loadErr); err != nil {
		if k.loaded != nil {
			return k.loaded, nil
		}
		return nil, err
	}
	k.loaded, k.changed = &c, changed
	return k.loaded, nil
}

func (k *keyPair) changes() (at [2]time.Time, err error) {
	for i, name := range []string{k.cert, k.key} {
		info, err := os.Stat(name)
		if err != nil {
			return at, err
		}
		at[i] = info.ModTime()
	}
	return at, nil
}
