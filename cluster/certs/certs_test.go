package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// terms are those of most tests.
func terms() Terms { return Terms{ECDSA, time.Now(), time.Hour} }

// folder is an authority's folder in a test.
type folder struct {
	t   *testing.T
	dir string
}

func mustFolder(t *testing.T, nodes ...string) *folder {
	t.Helper()
	f := &folder{t, filepath.Join(t.TempDir(), "certs")}
	if _, err := Init(f.dir, terms()); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if _, err := Node(f.dir, n, terms()); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func (f *folder) files(node string) Files {
	return Files{Authorities: filepath.Join(f.dir, AuthorityFile), Certificate: filepath.Join(f.dir, node+".pem"), Key: filepath.Join(f.dir, node+".key")}
}

// mustKeys opens the keys of a node. Every complaint is an error of the test.
func (f *folder) mustKeys(node string) *Keys {
	f.t.Helper()
	k, err := Open(node, f.files(node), func(err error) { f.t.Error(err) })
	if err != nil {
		f.t.Fatal(err)
	}
	return k
}

// connect has one node dial another one, which it takes for name, and returns
// what either side says. A dialled side that is refused learns it when it reads.
func connect(t *testing.T, from, to *tls.Config) (dialled, accepted error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		c := tls.Server(b, to)
		err := c.Handshake()
		if err == nil {
			_, err = c.Write([]byte("x"))
		}
		b.Close()
		done <- err
	}()
	c := tls.Client(a, from)
	dialled = c.Handshake()
	if dialled == nil {
		_, dialled = io.ReadFull(c, make([]byte, 1))
	}
	a.Close()
	return dialled, <-done
}

func mustServer(t *testing.T, k *Keys) *tls.Config {
	t.Helper()
	c, err := k.Server()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mustClient(t *testing.T, k *Keys, node string) *tls.Config {
	t.Helper()
	c, err := k.Client(node)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNodesProveTheirNames(t *testing.T) {
	for _, a := range []Algorithm{ECDSA, Ed25519} {
		f := &folder{t, t.TempDir()}
		want := terms()
		want.Algorithm = a
		if _, err := Init(f.dir, want); err != nil {
			t.Fatal(err)
		}
		for _, node := range []string{"n1", "N_2.example-3"} {
			c, err := Node(f.dir, node, want)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.CheckSignatureFrom(mustOpen(t, f.dir).Certificate); err != nil || c.NotAfter.After(want.Now.Add(time.Hour)) {
				t.Errorf("%s: %v, good until %v", a, err, c.NotAfter)
			}
		}
		n1, n2 := f.mustKeys("n1"), f.mustKeys("N_2.example-3")
		if from, to := connect(t, mustClient(t, n1, "N_2.example-3"), mustServer(t, n2)); from != nil || to != nil {
			t.Errorf("%s: %v, %v", a, from, to)
		}
		if from, to := connect(t, mustClient(t, n2, ""), mustServer(t, n1)); from != nil || to != nil {
			t.Errorf("%s, any node: %v, %v", a, from, to)
		}
		if from, _ := connect(t, mustClient(t, n1, "n_2.example-3"), mustServer(t, n2)); from == nil || !strings.Contains(from.Error(), "not for node") {
			t.Errorf("%s: another name in small letters: %v", a, from)
		}
	}
}

func mustOpen(t *testing.T, dir string) *Authority {
	t.Helper()
	a, err := open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// What does not prove a node is refused by who is dialled and by who dials.
func TestRefused(t *testing.T) {
	f := mustFolder(t, "n1")
	n1, own := f.mustKeys("n1"), mustOpen(t, f.dir)
	now := time.Now()
	other, err := NewAuthority("other", ECDSA, now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	// cert has the authority sign a certificate that is changed.
	cert := func(a *Authority, change func(*x509.Certificate)) tls.Certificate {
		t.Helper()
		key, err := ECDSA.generate()
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{
			DNSNames: []string{"n2"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
			BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: usages,
		}
		change(template)
		c, err := sign(template, a.Certificate, key.Public(), a.key)
		if err != nil {
			t.Fatal(err)
		}
		return tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: key}
	}
	for name, tc := range map[string]struct {
		cert tls.Certificate
		dial bool // only who dials can tell
		says string
	}{
		"another authority": {cert: cert(other, func(*x509.Certificate) {}), says: "unknown authority"},
		"expired":           {cert: cert(own, func(c *x509.Certificate) { c.NotAfter = now.Add(-time.Minute) }), says: "expired"},
		"not yet":           {cert: cert(own, func(c *x509.Certificate) { c.NotBefore = now.Add(time.Minute) }), says: "not yet valid"},
		"to dial only":      {cert: cert(own, func(c *x509.Certificate) { c.ExtKeyUsage = usages[1:] }), says: "incompatible key usage"},
		"to be dialled only": {cert: cert(own, func(c *x509.Certificate) { c.ExtKeyUsage = usages[:1] }),
			says: "incompatible key usage"},
		"no name":       {cert: cert(own, func(c *x509.Certificate) { c.DNSNames, c.Subject.CommonName = nil, "n2" }), says: "not for a node"},
		"another name":  {cert: cert(own, func(c *x509.Certificate) { c.DNSNames[0] = "n3" }), dial: true, says: `not for node "n2"`},
		"a wild card":   {cert: cert(own, func(c *x509.Certificate) { c.DNSNames[0] = "*" }), dial: true, says: `not for node "n2"`},
		"the authority": {cert: tls.Certificate{Certificate: [][]byte{own.Certificate.Raw}, PrivateKey: own.key}, says: "not for a node"},
		"nothing":       {says: "certificate"},
	} {
		stranger := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{LinkProtocol}}
		if tc.cert.Certificate != nil {
			stranger.Certificates = []tls.Certificate{tc.cert}
			stranger.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &tc.cert, nil }
			if from, _ := connect(t, mustClient(t, n1, "n2"), stranger); from == nil || !strings.Contains(from.Error(), tc.says) {
				t.Errorf("%s, dialled: %v", name, from)
			}
		}
		if tc.dial {
			continue
		}
		if from, to := connect(t, stranger, mustServer(t, n1)); from == nil || to == nil || !strings.Contains(to.Error(), tc.says) {
			t.Errorf("%s, dials: %v, %v", name, from, to)
		}
	}
	for _, protocols := range [][]string{nil, {"http/1.1"}} {
		other := mustClient(t, n1, "n1")
		other.NextProtos, other.VerifyConnection = protocols, nil
		if from, to := connect(t, other, mustServer(t, n1)); from == nil || to == nil || !strings.Contains(to.Error(), "no link") {
			t.Errorf("protocols %q: %v, %v", protocols, from, to)
		}
	}
	old := mustClient(t, n1, "n1")
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if from, to := connect(t, old, mustServer(t, n1)); from == nil || to == nil || !strings.Contains(to.Error(), "version") {
		t.Errorf("TLS 1.2: %v, %v", from, to)
	}
}

// A certificate that has been replaced counts from the next connection on, and
// what cannot be read does not count at all.
func TestRotation(t *testing.T) {
	f := mustFolder(t, "n1", "n2")
	var said []error
	n1, err := Open("n1", f.files("n1"), func(err error) { said = append(said, err) })
	if err != nil {
		t.Fatal(err)
	}
	n2 := f.mustKeys("n2")
	good := func(when string) {
		t.Helper()
		for _, c := range [][2]*tls.Config{{mustClient(t, n1, "n2"), mustServer(t, n2)}, {mustClient(t, n2, "n1"), mustServer(t, n1)}} {
			if from, to := connect(t, c[0], c[1]); from != nil || to != nil {
				t.Errorf("%s: %v, %v", when, from, to)
			}
		}
	}
	before := n1.Expires()
	next := terms()
	next.Life = 30 * time.Minute
	if _, err := RotateNode(f.dir, "n1", next); err != nil {
		t.Fatal(err)
	}
	good("with a new certificate")
	if n1.Expires() == before {
		t.Error("the old certificate still counts")
	}
	first, err := RotateAuthority(f.dir, terms())
	if err != nil {
		t.Fatal(err)
	}
	good("with two authorities")
	if _, err := RetireAuthorities(f.dir); err == nil || !strings.Contains(err.Error(), "rotate it first") {
		t.Errorf("an authority that is in use is retired: %v", err)
	}
	for _, n := range []string{"n1", "n2"} {
		c, err := RotateNode(f.dir, n, terms())
		if err != nil || c.CheckSignatureFrom(first.Certificate) != nil {
			t.Fatal(n, err)
		}
		good("with " + n + "'s of the new authority")
	}
	if left, err := RetireAuthorities(f.dir); err != nil || !left.Equal(first.Certificate) {
		t.Fatal(left, err)
	}
	good("with the new authority alone")
	if err := os.WriteFile(f.files("n1").Certificate, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if len(said) > 0 {
		t.Errorf("complains of %v", said)
	}
	good("with a file that is broken")
	if len(said) != 1 || !strings.Contains(said[0].Error(), "n1.pem: contains no certificate") {
		t.Errorf("complains of %v, and should once", said)
	}
	if err := os.Remove(f.files("n1").Key); err != nil {
		t.Fatal(err)
	}
	good("with a file that is gone")
	if len(said) != 2 || !errors.Is(said[1], os.ErrNotExist) {
		t.Errorf("complains of %v", said)
	}
	if _, err := RotateNode(f.dir, "n1", next); err != nil {
		t.Fatal(err)
	}
	good("with files that are whole again")
	if n1.Expires().After(next.Now.Add(next.Life)) {
		t.Error("the files are not read any more")
	}
}

// A node does not start with what the others would not believe.
func TestOpenRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		node  string
		spoil func(f *folder) error
		says  string
	}{
		"another's name": {"n2", func(f *folder) error { return nil }, `not for node "n2"`},
		"no file":        {"n1", func(f *folder) error { return os.Remove(f.files("n1").Certificate) }, "no such file"},
		"no key":         {"n1", func(f *folder) error { return os.WriteFile(f.files("n1").Key, nil, 0o600) }, "contains no key"},
		"open key":       {"n1", func(f *folder) error { return os.Chmod(f.files("n1").Key, 0o604) }, "mode 0604"},
		"another's key": {"n1", func(f *folder) error { return os.Rename(filepath.Join(f.dir, AuthorityKeyFile), f.files("n1").Key) },
			"is not the key of"},
		"another's authority": {"n1", func(f *folder) error {
			other := mustFolder(f.t)
			return os.Rename(filepath.Join(other.dir, AuthorityFile), f.files("n1").Authorities)
		}, "unknown authority"},
	} {
		f := mustFolder(t, "n1")
		if err := tc.spoil(f); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(tc.node, f.files("n1"), func(error) {}); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Nothing is written over, and nobody else can read a file.
func TestFiles(t *testing.T) {
	f := mustFolder(t, "n1")
	if _, err := Init(f.dir, terms()); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second authority: %v", err)
	}
	if _, err := Node(f.dir, "n1", terms()); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second certificate: %v", err)
	}
	if _, err := RotateNode(f.dir, "n2", terms()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("rotates what is not there: %v", err)
	}
	for _, name := range []string{"ca", "..", ".", "", "a/b", "../n1"} {
		if _, err := Node(f.dir, name, terms()); err == nil {
			t.Errorf("a certificate for %q", name)
		}
	}
	if _, err := Node(f.dir, strings.Repeat("x", 300), terms()); err == nil {
		t.Error("a certificate for a name that is too long to be a host's")
	}
	all, err := os.ReadDir(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		info, err := e.Info()
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v", e.Name(), info.Mode(), err)
		}
	}
	if len(all) != 4 {
		t.Errorf("%d files: %v", len(all), all)
	}
	list, err := List(f.dir)
	if err != nil || len(list) != 2 || !list[0].Certificate.IsCA || list[1].Certificate.DNSNames[0] != "n1" ||
		len(Fingerprint(list[0].Certificate)) != 64 {
		t.Errorf("lists %v, %v", list, err)
	}
}

// A certificate ends with its authority's at the latest, and none is signed
// after that.
func TestLife(t *testing.T) {
	now := time.Now()
	a, err := NewAuthority("a", ECDSA, now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.Issue("n1", now, 2*time.Hour)
	if err != nil || !p.Certificate.NotAfter.Equal(a.Certificate.NotAfter) {
		t.Errorf("good until %v, %v", p.Certificate.NotAfter, err)
	}
	if _, err := a.Issue("n1", now.Add(time.Hour), time.Hour); err == nil || !strings.Contains(err.Error(), "was valid until") {
		t.Errorf("signs after its end: %v", err)
	}
}
