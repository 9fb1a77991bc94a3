package main

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/certs"
)

// Every certificate in use is listed with its end, and a new one as soon as its
// file is there.
func TestCertificateEnds(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	if err := devCertificates(dir, 1); err != nil {
		t.Fatal(err)
	}
	ca, cert, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "n1.pem"), filepath.Join(dir, "n1.key")
	s := mustSettings(t, "cluster.ssl_options.cacertfile="+ca, "cluster.ssl_options.certfile="+cert, "cluster.ssl_options.keyfile="+key,
		"ssl_options.certfile="+cert, "ssl_options.keyfile="+key, "ssl_options.cacertfile="+ca, "prometheus.ssl.verify=verify_peer")
	security, err := s.security(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var sockets listeners
	for to, files := range map[*[]socket]tlsFiles{&sockets.clients: s.tls, &sockets.management: s.managementTLS.or(s.tls), &sockets.metrics: s.metricsTLS.or(s.tls)} {
		config, err := files.config(s.tlsVersions)
		if err != nil {
			t.Fatal(err)
		}
		*to = []socket{{address: "plain"}, {address: "secure", tls: config}}
	}
	check := func(life time.Duration) {
		t.Helper()
		all := s.certificateEnds(sockets, security)
		if len(all) != 4 {
			t.Fatalf("%+v", all)
		}
		for i, want := range []string{"clustering", "amqp/ssl", "https", "https/prometheus"} {
			c := all[i]
			checks := want == "clustering" || want == "https/prometheus"
			if c.Protocol != want || c.File != cert || time.Until(c.Ends)-life > time.Minute || life-time.Until(c.Ends) > time.Minute ||
				(c.AuthoritiesFile == ca) != checks || checks != (time.Until(c.AuthoritiesEnd) > certs.NodeLife) {
				t.Errorf("%s: %+v", want, c)
			}
		}
	}
	check(certs.NodeLife)
	if _, err := certs.RotateNode(dir, "n1", certs.NewTerms(time.Hour)); err != nil {
		t.Fatal(err)
	}
	check(time.Hour)
	if all := s.certificateEnds(listeners{}, nil); len(all) != 0 {
		t.Errorf("without TLS: %+v", all)
	}
}
