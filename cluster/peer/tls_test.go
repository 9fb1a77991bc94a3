package peer

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
)

// issuer signs certificates for node names.
type issuer struct {
	cert *x509.Certificate
	key  ed25519.PrivateKey
	pool *x509.CertPool
}

func mustIssuer(t *testing.T) *issuer {
	t.Helper()
	ca := &issuer{pool: x509.NewCertPool()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "issuer"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	ca.cert, ca.key = ca.mustSign(t, template, template, nil)
	ca.pool.AddCert(ca.cert)
	return ca
}

func (ca *issuer) mustSign(t *testing.T, template, parent *x509.Certificate, signer ed25519.PrivateKey) (*x509.Certificate, ed25519.PrivateKey) {
	t.Helper()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// credentials for a node that proves to be name.
func (ca *issuer) credentials(t *testing.T, name string) credentials.TransportCredentials {
	t.Helper()
	cert, key := ca.mustSign(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, ca.cert, ca.key)
	return credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}},
		RootCAs:      ca.pool, ClientCAs: ca.pool, ClientAuth: tls.RequireAndVerifyClientCert,
		MinVersion: tls.VersionTLS13,
	})
}

func TestTLS(t *testing.T) {
	ca := mustIssuer(t)
	c := newCluster(t, true, 2, func(cfg *Config) {
		cfg.ServerCredentials = ca.credentials(t, cfg.Node)
		cfg.ClientCredentials = cfg.ServerCredentials
	})
	c.startAll(echo)
	req := strings.Repeat("x", 1<<20)
	reply, err := c.members["n1"].Call(t.Context(), "n2", testEcho, []byte(req))
	if err != nil || string(reply) != "n1 "+req {
		t.Fatalf("%d bytes, %v", len(reply), err)
	}
}

func TestTLSRefusesAWrongName(t *testing.T) {
	ca := mustIssuer(t)
	c := newCluster(t, true, 2, func(cfg *Config) {
		cfg.ServerCredentials = ca.credentials(t, "somebody")
		cfg.ClientCredentials = cfg.ServerCredentials
	})
	m := c.create("n1")
	c.create("n2").Start()
	m.Start()
	p := m.sortedPeers()[0]
	mustWait(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return strings.Contains(p.complaints[p.addressNow()], "somebody")
	}, "no complaint about the name")
	if p.isAlive() {
		t.Error("somebody passes for n2")
	}
}
