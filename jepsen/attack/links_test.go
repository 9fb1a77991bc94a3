package attack

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/long"
)

// mustCertify has an authority sign a certificate that is spoilt by change.
func mustCertify(t *testing.T, a *cluster.Authority, name string, change func(*x509.Certificate)) *tls.Certificate {
	t.Helper()
	c, err := a.Certify(name, change)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// mustForeign is the authority of another cluster.
func mustForeign(t *testing.T) *cluster.Authority {
	t.Helper()
	a, err := cluster.NewAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Who shows no certificate that is a node's gets nothing but the end of the
// connection.
func TestLinksRefuseStrangers(t *testing.T) {
	own, foreign := mustAuthority(t), mustForeign(t)
	for name, tc := range map[string]struct {
		cert *tls.Certificate
		says string
	}{
		"no certificate":    {nil, "certificate required"},
		"another authority": {mustCertify(t, foreign, "n2", nil), "unknown certificate authority"},
		"expired": {mustCertify(t, own, "n2", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }),
			"expired certificate"},
		"not good yet": {mustCertify(t, own, "n2", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }),
			"expired certificate"},
		"good to dial only": {mustCertify(t, own, "n2", func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[1:] }),
			"bad certificate"},
		"good to be dialled only": {mustCertify(t, own, "n2", func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[:1] }),
			"bad certificate"},
		"for mail": {mustCertify(t, own, "n2", func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageEmailProtection}
		}), "bad certificate"},
		"common name only": {mustCertify(t, own, "", func(c *x509.Certificate) {
			c.DNSNames, c.Subject = nil, pkix.Name{CommonName: "n2"}
		}), "bad certificate"},
		"address only": {mustCertify(t, own, "", func(c *x509.Certificate) {
			c.DNSNames, c.IPAddresses = nil, []net.IP{net.IPv4(127, 0, 0, 1)}
		}), "bad certificate"},
		"URI only": {mustCertify(t, own, "", func(c *x509.Certificate) {
			c.DNSNames, c.URIs = nil, []*url.URL{{Scheme: "node", Opaque: "n2"}}
		}), "bad certificate"},
	} {
		attack(t, "links", name, func(t *testing.T) {
			mustHold(t, fmt.Sprint(refusedBefore(t, 1, secured(tc.cert))), tc.says)
		})
	}
	attack(t, "links", "issuer and serial copied", func(t *testing.T) {
		real := mustCertify(t, own, "n2", nil)
		copied := mustCertify(t, foreign, "n2", func(c *x509.Certificate) {
			c.SerialNumber, c.Issuer, c.AuthorityKeyId = real.Leaf.SerialNumber, real.Leaf.Issuer, real.Leaf.AuthorityKeyId
		})
		mustHold(t, fmt.Sprint(refusedBefore(t, 2, secured(copied))), "unknown certificate authority", "bad certificate")
	})
	attack(t, "links", "another's certificate without its key", func(t *testing.T) {
		stolen, other := mustCertify(t, own, "n2", nil), mustCertify(t, own, "n3", nil)
		mustHold(t, fmt.Sprint(refusedBefore(t, 3, secured(&tls.Certificate{Certificate: stolen.Certificate, PrivateKey: other.PrivateKey}))),
			"error decrypting message")
	})
	mustStandAsBefore(t)
}

// Only TLS 1.3 is spoken, and no connection is resumed.
func TestLinksRefuseOldTLS(t *testing.T) {
	own := mustAuthority(t)
	for name, version := range map[string]uint16{"TLS 1.0": tls.VersionTLS10, "TLS 1.1": tls.VersionTLS11, "TLS 1.2": tls.VersionTLS12} {
		attack(t, "links", name, func(t *testing.T) {
			config := secured(mustCertify(t, own, "n2", nil))
			config.MinVersion, config.MaxVersion = version, version
			mustHold(t, fmt.Sprint(refusedBefore(t, 1, config)), "protocol version not supported")
		})
	}
	attack(t, "links", "resumption", func(t *testing.T) {
		config := secured(mustCertify(t, own, "n2", nil))
		config.ClientSessionCache = tls.NewLRUClientSessionCache(4)
		for range 3 {
			conn, err := dialLink(t, 1, config)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(conn, make([]byte, 9)); err != nil { // and with it any ticket
				t.Fatal(err)
			}
			if conn.(*tls.Conn).ConnectionState().DidResume {
				t.Error("a connection is resumed")
			}
			conn.Close()
		}
	})
	attack(t, "links", "another protocol", func(t *testing.T) {
		config := secured(mustCertify(t, own, "n2", nil))
		config.NextProtos = []string{"http/1.1"}
		mustHold(t, fmt.Sprint(refusedBefore(t, 1, config)), "bad certificate")
	})
}

// Who speaks the protocol of links without TLS is not answered.
func TestLinksRefusePlain(t *testing.T) {
	for name, tc := range map[string]struct {
		method  string
		message []byte
	}{
		"plain link":         {methodLink, helloOf("n2").frame()},
		"plain join":         {methodIntroduce, askToJoin("mallory")},
		"plain introduction": {methodIntroduce, linkFrame(1, 0, 0, protoField(1, []byte("quorate")))},
		"plain snapshot":     {methodSnapshot, linkFrame(8, 1, 0, nil)},
	} {
		attack(t, "links", name, func(t *testing.T) {
			mustHold(t, say(t, 1, nil, tc.method, tc.message), "Unavailable")
		})
	}
	mustStandAsBefore(t)
}

// A certificate is good for the node that it names, if that is a member, and for
// no other one.
func TestLinksBindNames(t *testing.T) {
	own := mustAuthority(t)
	member, stranger := secured(mustCertify(t, own, "n2", nil)), secured(mustCertify(t, own, "mallory", nil))
	wild := secured(mustCertify(t, own, "*", nil))
	loud := secured(mustCertify(t, own, "N2", nil))
	version, foreign, folder := helloOf("n2"), helloOf("n2"), helloOf("n2")
	version.version, foreign.cluster, folder.identity = 2, "another", []byte("another folder's")
	id := string(make([]byte, 16))
	for name, tc := range map[string]struct {
		as      *tls.Config
		method  string
		message []byte
		says    string
		pairs   []string
	}{
		"no member":                          {stranger, methodLink, helloOf("mallory").frame(), "PermissionDenied peer: unknown node", nil},
		"no member, as one":                  {stranger, methodLink, helloOf("n2").frame(), "PermissionDenied peer: unknown node", nil},
		"no member, snapshot":                {stranger, methodSnapshot, linkFrame(8, 1, 0, nil), "PermissionDenied peer: unknown node", []string{"quorate-node", "n2", "quorate-incarnation-bin", id}},
		"no member, other service":           {stranger, "/grpc.health.v1.Health/Watch", nil, "PermissionDenied peer: unknown node", nil},
		"wild card":                          {wild, methodLink, helloOf("n2").frame(), "PermissionDenied peer: unknown node", nil},
		"capital letters":                    {loud, methodLink, helloOf("n2").frame(), "PermissionDenied peer: unknown node", nil},
		"another member's name":              {member, methodLink, helloOf("n3").frame(), "FailedPrecondition peer: the node has not proved its name", nil},
		"the node's own name":                {member, methodLink, helloOf("n1").frame(), "FailedPrecondition peer: the node has not proved its name", nil},
		"no name":                            {member, methodLink, helloOf("").frame(), "FailedPrecondition peer: the node has not proved its name", nil},
		"member, snapshot in another's name": {member, methodSnapshot, linkFrame(8, 1, 0, nil), "FailedPrecondition peer: no link from this node", []string{"quorate-node", "n3", "quorate-incarnation-bin", id}},
		"member, other service":              {member, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", nil, "Unimplemented", nil},
		"another cluster's name":             {member, methodLink, foreign.frame(), `FailedPrecondition`, nil},
		"another version":                    {member, methodLink, version.frame(), `speaks version 2`, nil},
		"another data folder":                {member, methodLink, folder.frame(), `already registered with another data folder`, nil},
		"join in another's name":             {stranger, methodIntroduce, askToJoin("n4"), "Unavailable peer: the node has not proved its name", nil},
		"join in a member's name":            {stranger, methodIntroduce, askToJoin("n2"), "Unavailable peer: the node has not proved its name", nil},
		"question of another cluster":        {stranger, methodIntroduce, linkFrame(1, 0, 0, append(protoField(1, []byte("x")), protoField(2, []byte("mallory"))...)), "belongs to cluster", nil},
		"no hello":                           {member, methodLink, linkFrame(9, 16, 1, nil), "FailedPrecondition", nil},
		"a hello that is too long":           {member, methodLink, linkFrame(1, 0, 0, make([]byte, 8<<10)), "FailedPrecondition", nil},
		"a message that is too long":         {member, methodLink, make([]byte, 2<<20), "ResourceExhausted", nil},
		"headers that are too long":          {member, methodLink, nil, "header list size to send violates the maximum size", []string{"x", strings.Repeat("x", 16<<10)}},
		"no word on a stream":                {member, methodLink, nil, "FailedPrecondition", nil},
	} {
		attack(t, "links", name, func(t *testing.T) {
			if name == "no word on a stream" { // five seconds
				long.Test(t)
			}
			t.Parallel()
			mustHold(t, say(t, 1, tc.as, tc.method, tc.message, tc.pairs...), tc.says)
		})
	}
	t.Cleanup(func() { mustStandAsBefore(t) })
}

// Whatever else comes to where nodes reach each other is not answered, and held
// for a short while only.
func TestLinksRefuseNonsense(t *testing.T) {
	noise := make([]byte, 64<<10)
	_, _ = rand.Read(noise)
	noise[0] = 'x'
	for name, sent := range map[string][]byte{
		"noise":                  noise,
		"HTTP/1.1":               []byte("GET / HTTP/1.1\r\nHost: n1\r\n\r\n"),
		"AMQP":                   []byte("AMQP\x00\x00\x09\x01"),
		"SSL 2":                  []byte{0x80, 0x2e, 1, 0, 2, 0, 0x15, 0, 0, 0, 16},
		"a record of 64 KiB":     append([]byte{0x16, 3, 1, 0xff, 0xff}, make([]byte, 64<<10)...),
		"data before handshakes": append([]byte{0x17, 3, 3, 0, 16}, make([]byte, 16)...),
		"a hello of 16 MiB":      []byte{0x16, 3, 1, 0, 4, 1, 0xff, 0xff, 0xff},
		"half a hello":           []byte{0x16, 3, 1, 0x10, 0, 1, 0, 0x0f, 0xfc, 3, 3},
		"nothing":                nil,
	} {
		attack(t, "links", name, func(t *testing.T) {
			if name == "nothing" || name == "half a hello" { // five seconds
				long.Test(t)
			}
			t.Parallel()
			conn, err := dialLink(t, 2, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = conn.Write(sent) // the node may have hung up
			answer, err := io.ReadAll(io.LimitReader(conn, 1<<10))
			if isTimeout(err) {
				t.Error("the connection stays open")
			}
			if len(answer) > 7 || len(answer) > 0 && answer[0] != 0x15 {
				t.Errorf("the node answers %q, and may at most with an alert", answer)
			}
		})
	}
	t.Cleanup(func() { mustStandAsBefore(t) })
}

// Hundreds of connections that say nothing do not keep nodes from each other,
// and fill no log.
func TestLinksBoundStrangers(t *testing.T) {
	long.Test(t)
	c := shared.mustGet(t)
	attack(t, "links", "hundreds that say nothing", func(t *testing.T) {
		closed := make(chan error, 300)
		for range cap(closed) {
			conn, err := dialLink(t, 3, nil)
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				_, err := io.Copy(io.Discard, conn)
				closed <- err
			}()
		}
		for range cap(closed) {
			if err := <-closed; isTimeout(err) {
				t.Fatal("a connection stays open")
			}
		}
		mustStandAsBefore(t)
	})
	attack(t, "links", "log", func(t *testing.T) {
		for range 200 {
			_ = refusedBefore(t, 3, secured(nil))
		}
		minutes := int(time.Since(began)/time.Minute) + 1
		for _, cause := range []string{"handshake failed", "too many connections that have not proved"} {
			if n := c.Logged("level=WARN", "refused a connection", cause); n > minutes*len(c.Nodes) || n == 0 && cause == "handshake failed" {
				t.Errorf("%d log lines of %q after %d minutes", n, cause, minutes)
			}
		}
	})
}
