package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/amqp/amqptest"
	"github.com/quorate/quorate/cluster/limit"
)

var bothVersions = tlsVersions{tls.VersionTLS12, tls.VersionTLS13}

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
	config, err := files.config(bothVersions)
	if err != nil {
		t.Fatal(err)
	}
	w := socket{network: "tcp", address: "127.0.0.1:0", tls: config, limiter: limit.New(limit.Config{Max: 100, Logger: slog.New(slog.DiscardHandler)})}
	if err := w.listen(); err != nil {
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

// mustListen serves by TLS what files say, and says who came.
func mustListen(t *testing.T, files tlsFiles, v tlsVersions) (address string) {
	t.Helper()
	config, err := files.config(v)
	if err != nil {
		t.Fatal(err)
	}
	w := socket{network: "tcp", address: "127.0.0.1:0", tls: config, limiter: limit.New(limit.Config{Max: 100, Logger: slog.New(slog.DiscardHandler)})}
	if err := w.listen(); err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	l := w.listener // shut takes it out of w
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if c.(*tls.Conn).Handshake() == nil {
				_, _ = c.Write([]byte("in"))
			}
			c.Close()
		}
	})
	t.Cleanup(func() {
		w.shut()
		serving.Wait()
	})
	return w.address
}

// dial reports how a server ends a client's attempt; nil: it is let in.
func dial(address string, config *tls.Config) error {
	c, err := tls.Dial("tcp", address, config)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = io.ReadFull(c, make([]byte, 2)) // a client learns here what was made of its certificate
	return err
}

// TestRootsAreReadAgain replaces the roots of clients' certificates under a
// listener. Sessions of before do not help those who are not trusted any more.
func TestRootsAreReadAgain(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	authority, first, second := amqptest.NewAuthority(t), amqptest.NewAuthority(t), amqptest.NewAuthority(t)
	mustWritePair(t, dir, authority.Issue("127.0.0.1"), now)
	files := tlsFiles{
		cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem"), roots: filepath.Join(dir, "roots.pem"), verify: "verify_peer", insist: "true",
	}
	trust := func(a *amqptest.Authority, at time.Time) {
		t.Helper()
		mustWrite(t, files.roots, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Root()})))
		if err := os.Chtimes(files.roots, at, at); err != nil {
			t.Fatal(err)
		}
	}
	trust(first, now)
	address := mustListen(t, files, bothVersions)
	client := func(a *amqptest.Authority) *tls.Config {
		return &tls.Config{
			RootCAs: authority.Roots(), ServerName: "127.0.0.1", Certificates: []tls.Certificate{a.Issue("client")}, ClientSessionCache: tls.NewLRUClientSessionCache(8),
		}
	}
	a, b := client(first), client(second)
	expect := func(name string, config *tls.Config, in bool) {
		t.Helper()
		for _, newest := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			config.MaxVersion = newest
			if err := dial(address, config); (err == nil) != in {
				t.Errorf("%s by %s: %v", name, tls.VersionName(newest), err)
			}
		}
	}
	expect("trusted", a, true)
	if _, ok := a.ClientSessionCache.Get("127.0.0.1"); ok {
		t.Error("a client is given a session to take up again, certificate and all")
	}
	expect("not trusted", b, false)
	trust(second, now.Add(time.Second))
	expect("not trusted any more", a, false)
	expect("trusted now", b, true)
	mustWrite(t, files.roots, "half a fi")
	expect("trusted by the last good file", b, true)
	expect("not trusted by the last good file", a, false)
}

func TestVersionsOfTLS(t *testing.T) {
	dir, authority := t.TempDir(), amqptest.NewAuthority(t)
	mustWritePair(t, dir, authority.Issue("127.0.0.1"), time.Now())
	files := tlsFiles{cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem")}
	for value, spoken := range map[string][]uint16{
		"tlsv1.2,tlsv1.3": {tls.VersionTLS12, tls.VersionTLS13}, "tlsv1.3": {tls.VersionTLS13}, "tlsv1.2": {tls.VersionTLS12},
	} {
		s := defaults()
		if err := s.apply("ssl_options.versions", value); err != nil {
			t.Fatal(err)
		}
		address := mustListen(t, files, s.tlsVersions)
		for _, v := range []uint16{tls.VersionTLS10, tls.VersionTLS11, tls.VersionTLS12, tls.VersionTLS13} {
			err := dial(address, &tls.Config{RootCAs: authority.Roots(), ServerName: "127.0.0.1", MinVersion: v, MaxVersion: v})
			if (err == nil) != slices.Contains(spoken, v) {
				t.Errorf("%s: %s: %v", value, tls.VersionName(v), err)
			}
		}
	}
}

// A key that every user of the host can read is not taken.
func TestKeyOfOthers(t *testing.T) {
	dir := t.TempDir()
	mustWritePair(t, dir, amqptest.NewAuthority(t).Issue("127.0.0.1"), time.Now())
	files := tlsFiles{cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem")}
	for mode, good := range map[fs.FileMode]bool{0o600: true, 0o640: true, 0o400: true, 0o644: false, 0o606: false} {
		mustMode(t, files.key, mode)
		if _, err := files.config(bothVersions); (err == nil) != good {
			t.Errorf("%v: %v", mode, err)
		}
	}
}

// Files of one listener stand in for those that another has not.
func TestFilesStandIn(t *testing.T) {
	common := tlsFiles{cert: "c", key: "k", roots: "r", verify: "verify_peer"}
	for _, c := range []struct{ of, want tlsFiles }{
		{tlsFiles{verify: "verify_none"}, tlsFiles{cert: "c", key: "k", roots: "r", verify: "verify_none"}},
		{tlsFiles{cert: "own", key: "own"}, tlsFiles{cert: "own", key: "own", roots: "r"}},
		{tlsFiles{cert: "own"}, tlsFiles{cert: "own", roots: "r"}}, // a certificate has one key
		{tlsFiles{roots: "own"}, tlsFiles{cert: "c", key: "k", roots: "own"}},
	} {
		if got := c.of.or(common); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.of, got, c.want)
		}
	}
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
		if got := certificateUser(at.from)(c); got != at.want {
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
		{[]string{"management.ssl.port=15671"}, "setting management.ssl.port needs management.ssl.certfile and management.ssl.keyfile, or those of ssl_options"},
		{[]string{"prometheus.ssl.verify=verify_peer"}, "setting prometheus.ssl.verify needs prometheus.ssl.cacertfile, or that of ssl_options"},
		{[]string{"ssl_options.verify=verify_peer"}, "setting ssl_options.verify needs ssl_options.cacertfile"},
		{[]string{"ssl_options.verify=verify_all"}, `setting ssl_options.verify: "verify_all" is not one of verify_none, verify_peer`},
	} {
		if _, err := load("", c.sets); err == nil || err.Error() != c.want {
			t.Errorf("%v: %v, want %s", c.sets, err, c.want)
		}
	}
	if _, err := (&tlsFiles{cert: "missing", key: "missing"}).config(bothVersions); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
