package main

import (
	"crypto/x509"
	"time"

	"github.com/quorate/quorate/cluster/certs"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/peer"
)

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
