package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quorate/quorate/amqp/amqptest"
)

// mustWritePair writes a certificate and its key, as of a time.
func mustWritePair(t *testing.T, dir string, c tls.Certificate, at time.Time) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: c.Certificate[0]}, "key.pem": {Type: "PRIVATE KEY", Bytes: key},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCertificateIsReadAgain replaces a certificate under a listener.
func TestCertificateIsReadAgain(t *testing.T) {
	dir, authority, now := t.TempDir(), amqptest.NewAuthority(t), time.Now()
	first, second := authority.Issue("127.0.0.1"), authority.Issue("127.0.0.1")
	mustWritePair(t, dir, first, now)
	files := tlsFiles{cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem")}
	config, err := files.config()
	if err != nil {
		t.Fatal(err)
	}
	w, err := listenAt("127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	defer w.shut()
	serves := func(want tls.Certificate) {
		t.Helper()
		go func() {
			if c, err := w.listener.Accept(); err == nil {
				_ = c.(*tls.Conn).Handshake() // the dialler's error says what is wrong
				c.Close()
			}
		}()
		raw, err := net.Dial("tcp", w.address)
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		c := tls.Client(raw, &tls.Config{RootCAs: authority.Roots(), ServerName: "127.0.0.1"})
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		if got := c.ConnectionState().PeerCertificates[0]; string(got.Raw) != string(want.Certificate[0]) {
			t.Error("another certificate is served")
		}
	}
	serves(first)
	mustWritePair(t, dir, second, now.Add(time.Second))
	serves(second)
	if err := os.WriteFile(files.cert, []byte("half a fi"), 0o600); err != nil {
		t.Fatal(err)
	}
	serves(second)
}

func TestCertificateUser(t *testing.T) {
	c := &x509.Certificate{}
	c.Subject.CommonName, c.Subject.Organization = "app", []string{"Firm"}
	for _, at := range []struct {
		from, want string
		change     func()
	}{
		{"distinguished_name", "CN=app,O=Firm", func() {}},
		{"common_name", "app", func() {}},
		{"subject_alternative_name", "", func() {}},
		{"subject_alternative_name", "spiffe://firm/app", func() { c.URIs = []*url.URL{{Scheme: "spiffe", Host: "firm", Path: "/app"}} }},
		{"subject_alternative_name", "app@firm", func() { c.EmailAddresses = []string{"app@firm"} }},
		{"subject_alternative_name", "app.firm", func() { c.DNSNames = []string{"app.firm", "other"} }},
	} {
		at.change()
		if got := (&tlsFiles{loginFrom: at.from}).user(c); got != at.want {
			t.Errorf("%s: %q, want %q", at.from, got, at.want)
		}
	}
}

func TestTLSSettings(t *testing.T) {
	for _, c := range []struct {
		sets []string
		want string
	}{
		{[]string{"listeners.ssl.default=5671"}, "setting listeners.ssl.default needs ssl_options.certfile and ssl_options.keyfile"},
		{[]string{"ssl_options.verify=verify_peer"}, "setting ssl_options.verify needs ssl_options.cacertfile"},
		{[]string{"ssl_options.verify=verify_all"}, `setting ssl_options.verify: "verify_all" is none of verify_none, verify_peer`},
	} {
		if _, err := load("", c.sets); err == nil || err.Error() != c.want {
			t.Errorf("%v: %v, want %s", c.sets, err, c.want)
		}
	}
	if _, err := (&tlsFiles{cert: "missing", key: "missing"}).config(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
