package attack

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/long"
)

// issuer makes certificates.
type issuer struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

// lastSerial numbers certificates, unless they are to have a certain one.
var lastSerial int64 = 1000

// certificateFor is a certificate that nothing is wrong with.
func certificateFor(name string) *x509.Certificate {
	lastSerial++
	return &x509.Certificate{
		SerialNumber: big.NewInt(lastSerial), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
}

func newIssuer(t *testing.T, name string) *issuer {
	t.Helper()
	c := certificateFor(name)
	c.IsCA, c.BasicConstraintsValid, c.KeyUsage, c.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
	i := &issuer{t: t, cert: c}
	made := i.sign(c, nil)
	i.key = made.PrivateKey.(*ecdsa.PrivateKey)
	i.cert = made.Leaf
	return i
}

// sign makes a certificate, or without a parent one that signs itself.
func (i *issuer) sign(c *x509.Certificate, parent *issuer) tls.Certificate {
	i.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}
	above, by := c, key
	if parent != nil {
		above, by = parent.cert, parent.key
	}
	raw, err := x509.CreateCertificate(rand.Reader, c, above, &key.PublicKey, by)
	if err != nil {
		i.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		i.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key, Leaf: leaf}
}

func (i *issuer) issue(c *x509.Certificate) tls.Certificate { return i.sign(c, i) }

// mustWritePEM writes a certificate, and its key if there is to be one.
func mustWritePEM(t *testing.T, c tls.Certificate, certFile, keyFile string) {
	t.Helper()
	write := func(path, kind string, raw []byte) {
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(certFile, "CERTIFICATE", c.Certificate[0])
	if keyFile == "" {
		return
	}
	raw, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	write(keyFile, "PRIVATE KEY", raw)
}

// tlsNode is a node that clients reach by TLS only, with a certificate.
type tlsNode struct {
	node                 *cluster.Node
	authority            *issuer
	dir                  string
	amqp, https, metrics string
}

func mustSecure(t *testing.T) *tlsNode {
	t.Helper()
	s := &tlsNode{authority: newIssuer(t, "authority"), dir: t.TempDir()}
	file := func(name string) string { return filepath.Join(s.dir, name) }
	mustWritePEM(t, s.authority.issue(certificateFor("node")), file("cert.pem"), file("key.pem"))
	mustWritePEM(t, tls.Certificate{Certificate: [][]byte{s.authority.cert.Raw}}, file("roots.pem"), "")
	var args []string
	for _, set := range []string{
		"listeners.tcp=none", "listeners.ssl.default=127.0.0.1:0", "ssl_options.certfile=" + file("cert.pem"), "ssl_options.keyfile=" + file("key.pem"),
		"ssl_options.cacertfile=" + file("roots.pem"), "ssl_options.verify=verify_peer", "ssl_options.fail_if_no_peer_cert=true",
		"management.ssl.port=0", "management.ssl.ip=127.0.0.1", "management.ssl.verify=verify_peer", "management.ssl.fail_if_no_peer_cert=true",
		"prometheus.tcp.listener=none", "prometheus.ssl.port=0", "prometheus.ssl.ip=127.0.0.1", "prometheus.ssl.verify=verify_peer",
		"prometheus.ssl.fail_if_no_peer_cert=true", "prometheus.authentication.enabled=true",
	} {
		args = append(args, "--set", set)
	}
	s.node = mustStart(t, cluster.Options{Nodes: 1, Args: args}).Nodes[0]
	var status struct {
		Listeners []struct{ Protocol, Address string }
	}
	if err := s.node.Call(t.Context(), http.MethodGet, "/api/quorate/status", nil, &status); err != nil {
		t.Fatal(err)
	}
	for _, l := range status.Listeners {
		switch l.Protocol {
		case "amqp/ssl":
			s.amqp = l.Address
		case "https":
			s.https = l.Address
		case "https/prometheus":
			s.metrics = l.Address
		case "amqp", "http/prometheus":
			t.Errorf("it listens for %s at %s", l.Protocol, l.Address)
		}
	}
	return s
}

// enterByTLS tries to get an answer by TLS; nil: there is one.
func enterByTLS(address, hello string, config *tls.Config) error {
	d := &tls.Dialer{NetDialer: &net.Dialer{Timeout: 30 * time.Second}, Config: config}
	c, err := d.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, hello); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 1))
	return err
}

func (s *tlsNode) client(certs ...tls.Certificate) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(s.authority.cert)
	return &tls.Config{RootCAs: roots, ServerName: "localhost", Certificates: certs}
}

// ways are the listeners and what is said to them to get an answer.
func (s *tlsNode) ways() map[string][2]string {
	const get = " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + adminLogin + "\r\n\r\n"
	return map[string][2]string{
		"amqp": {s.amqp, "AMQP\x00\x00\x09\x01"}, "https": {s.https, "GET /api/whoami" + get}, "metrics": {s.metrics, "GET /metrics" + get},
	}
}

// Whoever has no certificate of the right authority is not heard, whichever
// listener they come to.
func TestClientCertificates(t *testing.T) {
	long.Test(t)
	t.Parallel()
	s := mustSecure(t)
	honest := certificateFor("client")
	good := s.authority.issue(honest)
	other := newIssuer(t, "authority") // by the same name
	expired, early, server, copied := certificateFor("client"), certificateFor("client"), certificateFor("client"), certificateFor("client")
	expired.NotAfter = time.Now().Add(-time.Minute)
	early.NotBefore = time.Now().Add(10 * time.Minute)
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	copied.SerialNumber, copied.Issuer = honest.SerialNumber, s.authority.cert.Subject
	copied.Subject = s.authority.cert.Subject // what signs itself is its own issuer
	leaf := &issuer{t: t, key: good.PrivateKey.(*ecdsa.PrivateKey), cert: good.Leaf}
	below := leaf.issue(certificateFor("client"))
	below.Certificate = append(below.Certificate, good.Certificate[0])
	stolen := s.authority.issue(certificateFor("client"))
	stolen.PrivateKey = other.key // a certificate without its key
	for name, cert := range map[string][]tls.Certificate{
		"none": nil, "another authority's": {other.issue(certificateFor("client"))}, "expired": {s.authority.issue(expired)}, "not valid yet": {s.authority.issue(early)},
		"for servers": {s.authority.issue(server)}, "self-signed, with the issuer and number of an honest one": {s.authority.sign(copied, nil)},
		"below one that may not sign": {below}, "whose key is another's": {stolen},
	} {
		for way, at := range s.ways() {
			attack(t, "tls", way+", a certificate that is "+name, func(t *testing.T) {
				config := s.client(cert...)
				config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
					if len(cert) == 0 {
						return &tls.Certificate{}, nil
					}
					return &cert[0], nil // also if the server did not ask for its issuer
				}
				if err := enterByTLS(at[0], at[1], config); err == nil {
					t.Error("it is let in")
				}
			})
		}
	}
	for way, at := range s.ways() {
		attack(t, "tls", way+", versions that are broken", func(t *testing.T) {
			for _, v := range []uint16{tls.VersionTLS10, tls.VersionTLS11} {
				config := s.client(good)
				config.MinVersion, config.MaxVersion = v, v
				if err := enterByTLS(at[0], at[1], config); err == nil || !strings.Contains(err.Error(), "protocol version not supported") {
					t.Errorf("%s: %v", tls.VersionName(v), err)
				}
			}
		})
		attack(t, "tls", way+", ciphers that are broken", func(t *testing.T) {
			config := s.client(good)
			config.MaxVersion = tls.VersionTLS12
			for _, c := range tls.InsecureCipherSuites() {
				config.CipherSuites = append(config.CipherSuites, c.ID)
			}
			if err := enterByTLS(at[0], at[1], config); err == nil || !strings.Contains(err.Error(), "handshake failure") {
				t.Error(err)
			}
		})
		attack(t, "tls", way+", without TLS", func(t *testing.T) {
			c, err := net.Dial("tcp", at[0])
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(c, at[1]); err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(c)
			if late, ok := err.(net.Error); ok && late.Timeout() || strings.Contains(string(text), "guest") || strings.Contains(string(text), "TYPE") || strings.HasPrefix(string(text), "\x01") {
				t.Errorf("answered %q, %v", text, err)
			}
		})
		if err := enterByTLS(at[0], at[1], s.client(good)); err != nil {
			t.Errorf("%s: an honest client is refused: %v", way, err)
		}
	}
	s.attackRoots(t, good)
	s.attackMetrics(t, good)
	s.attackPages(t, good)
}

// attackRoots takes an authority's trust away while the node runs.
func (s *tlsNode) attackRoots(t *testing.T, good tls.Certificate) {
	attack(t, "tls", "a certificate whose authority is not trusted any more", func(t *testing.T) {
		file, cache := filepath.Join(s.dir, "roots.pem"), tls.NewLRUClientSessionCache(8)
		config := s.client(good)
		config.ClientSessionCache = cache
		if err := enterByTLS(s.amqp, "AMQP\x00\x00\x09\x01", config); err != nil {
			t.Fatal(err)
		}
		mustWritePEM(t, tls.Certificate{Certificate: [][]byte{newIssuer(t, "next authority").cert.Raw}}, file, "")
		if err := enterByTLS(s.amqp, "AMQP\x00\x00\x09\x01", config); err == nil {
			t.Error("it is let in")
		}
		mustWritePEM(t, tls.Certificate{Certificate: [][]byte{s.authority.cert.Raw}}, file, "")
		if err := enterByTLS(s.amqp, "AMQP\x00\x00\x09\x01", config); err != nil {
			t.Errorf("trusted again: %v", err)
		}
	})
}

// ask asks over HTTPS, as a user unless the name is empty.
func (s *tlsNode) ask(t *testing.T, cert tls.Certificate, url, user string, header ...string) int {
	t.Helper()
	way := &http.Transport{TLSClientConfig: s.client(cert)}
	defer way.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if user != "" {
		r.SetBasicAuth(user, user)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	if r.Header.Get("Host") != "" {
		r.Host = r.Header.Get("Host")
	}
	res, err := (&http.Client{Transport: way}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode
}

// attackMetrics reads metrics without the right to.
func (s *tlsNode) attackMetrics(t *testing.T, good tls.Certificate) {
	for _, u := range []struct{ name, tags string }{{"few", "management"}, {"watch", "monitoring"}} {
		if err := s.node.SetUser(t.Context(), u.name, u.name, u.tags); err != nil {
			t.Fatal(err)
		}
	}
	url := "https://" + s.metrics + "/metrics"
	for name, user := range map[string]string{"without a login": "", "with a wrong one": "nobody", "with a login that may not": "few"} {
		attack(t, "tls", "metrics "+name, func(t *testing.T) {
			if status := s.ask(t, good, url, user); status != 401 {
				t.Errorf("answered %d, want 401", status)
			}
		})
	}
	if status := s.ask(t, good, url, "watch"); status != 200 {
		t.Errorf("who may read metrics is answered %d", status)
	}
}

// attackPages has a page of another site come by TLS.
func (s *tlsNode) attackPages(t *testing.T, good tls.Certificate) {
	for name, url := range map[string]string{"API": "https://" + s.https + "/api/whoami", "metrics": "https://" + s.metrics + "/metrics"} {
		attack(t, "tls", "a page of another site, "+name, func(t *testing.T) {
			for _, mark := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Origin", "https://evil.example"}, {"Host", "evil.example"}} {
				if status := s.ask(t, good, url, "guest", mark...); status != 403 {
					t.Errorf("%s: answered %d, want 403", mark, status)
				}
			}
		})
	}
}

// Whoever stands in for a node without a certificate of its authority and for
// its name learns no password from quoratectl.
func TestFalseNodes(t *testing.T) {
	tool, err := cluster.BuildTool(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir, authority, other := t.TempDir(), newIssuer(t, "authority"), newIssuer(t, "authority")
	roots := filepath.Join(dir, "roots.pem")
	mustWritePEM(t, tls.Certificate{Certificate: [][]byte{authority.cert.Raw}}, roots, "")
	expired, elsewhere, client := certificateFor("node"), certificateFor("node"), certificateFor("node")
	expired.NotAfter = time.Now().Add(-time.Minute)
	elsewhere.DNSNames, elsewhere.IPAddresses = []string{"elsewhere.example"}, nil
	client.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for name, c := range map[string]struct {
		cert   tls.Certificate
		newest uint16
		why    string
	}{
		"another authority's":  {other.issue(certificateFor("node")), 0, "certificate signed by unknown authority"},
		"self-signed":          {authority.sign(certificateFor("node"), nil), 0, "certificate signed by unknown authority"},
		"expired":              {authority.issue(expired), 0, "certificate has expired"},
		"for another name":     {authority.issue(elsewhere), 0, "certificate"},
		"for clients":          {authority.issue(client), 0, "incompatible key usage"},
		"of an older protocol": {authority.issue(certificateFor("node")), tls.VersionTLS11, "protocol version"},
	} {
		attack(t, "tls", "a false node whose certificate is "+name, func(t *testing.T) {
			address, heard := mustListenFalsely(t, &tls.Config{Certificates: []tls.Certificate{c.cert}, MinVersion: tls.VersionTLS10, MaxVersion: c.newest})
			out, err := exec.CommandContext(t.Context(), tool, "--ca-file", roots, "-n", address, "version").CombinedOutput()
			if exit := (*exec.ExitError)(nil); err == nil || !asExit(err, &exit) || exit.ExitCode() != 69 || !strings.Contains(string(out), c.why) {
				t.Errorf("%v: %s", err, out)
			}
			if text := heard(); text != "" {
				t.Errorf("it hears %q", text)
			}
		})
	}
}

func asExit(err error, to **exec.ExitError) (ok bool) {
	*to, ok = err.(*exec.ExitError)
	return ok
}

// mustListenFalsely listens by TLS, and tells what it has heard once the first
// client has gone.
func mustListenFalsely(t *testing.T, config *tls.Config) (address string, heard func() string) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	text := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			text <- ""
			return
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(30 * time.Second)) // a connection takes one
		all, _ := io.ReadAll(c)
		text <- string(all)
	}()
	return l.Addr().String(), func() string { return <-text }
}
