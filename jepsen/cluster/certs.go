package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Authority signs certificates of nodes, and of clients that impersonate nodes. Its
// files and the nodes' are in a folder with the layout of quorate dev.
type Authority struct {
	Dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// certsFolder is the authority's folder in a cluster's data folder.
const certsFolder = "certs"

// NewAuthority creates an authority in a folder.
func NewAuthority(dir string) (*Authority, error) {
	a := &Authority{Dir: dir}
	now := time.Now()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "jepsen"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	made, err := a.sign(template)
	if err != nil {
		return nil, err
	}
	a.cert, a.key = made.Leaf, made.PrivateKey.(*ecdsa.PrivateKey)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return a, writePair(made, filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca.key"))
}

// LoadAuthority reads an authority from its folder.
func LoadAuthority(dir string) (*Authority, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca.key"))
	if err != nil {
		return nil, err
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s: a key of type %T", dir, pair.PrivateKey)
	}
	return &Authority{Dir: dir, cert: pair.Leaf, key: key}, nil
}

// Authority returns the authority of the cluster's nodes.
func (c *Cluster) Authority() (*Authority, error) {
	return LoadAuthority(filepath.Join(c.dir, "data", certsFolder))
}

// Pool returns a pool that contains the authority.
func (a *Authority) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// Certify creates a valid certificate for a node with this name. change, if not nil,
// alters it before it is signed.
func (a *Authority) Certify(name string, change func(*x509.Certificate)) (*tls.Certificate, error) {
	now := time.Now()
	template := &x509.Certificate{
		DNSNames: []string{name}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if change != nil {
		change(template)
	}
	return a.sign(template)
}

// CertifyNode creates or replaces a node's certificate in the authority's folder.
func (a *Authority) CertifyNode(name string) error {
	made, err := a.Certify(name, nil)
	if err != nil {
		return err
	}
	return writePair(made, filepath.Join(a.Dir, name+".pem"), filepath.Join(a.Dir, name+".key"))
}

// sign creates a key and its certificate; the authority's is self-signed.
func (a *Authority) sign(template *x509.Certificate) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}

// writePair replaces the files of a certificate and its key, each atomically.
func writePair(pair *tls.Certificate, certFile, keyFile string) error {
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		return err
	}
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})
	return errors.Join(replaceFile(keyFile, key), replaceFile(certFile, cert))
}

func replaceFile(path string, text []byte) error {
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// certificateOf returns the settings that name a node's certificate.
func (c *Cluster) certificateOf(name string) []string {
	dir := filepath.Join(c.dir, "data", certsFolder)
	return []string{
		"--set=cluster.ssl_options.cacertfile=" + filepath.Join(dir, "ca.pem"),
		"--set=cluster.ssl_options.certfile=" + filepath.Join(dir, name+".pem"),
		"--set=cluster.ssl_options.keyfile=" + filepath.Join(dir, name+".key"),
	}
}

// Rotate creates another authority, which signs from now on. The previous one
// remains valid until Retire.
func (a *Authority) Rotate() (*Authority, error) {
	old, err := os.ReadFile(filepath.Join(a.Dir, "ca.pem"))
	if err != nil {
		return nil, err
	}
	next, err := NewAuthority(filepath.Join(a.Dir, "next"))
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(next.Dir, "ca.pem"))
	if err != nil {
		return nil, err
	}
	next.Dir = a.Dir
	return next, replaceFile(filepath.Join(a.Dir, "ca.pem"), append(text, old...))
}

// Retire makes this the only valid authority.
func (a *Authority) Retire() error {
	return replaceFile(filepath.Join(a.Dir, "ca.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

// Signed reports whether the authority has signed a certificate.
func (a *Authority) Signed(c *x509.Certificate) bool { return c.CheckSignatureFrom(a.cert) == nil }

// LinkAddress returns the address at which other nodes reach a node.
func (c *Cluster) LinkAddress(number int) string { return c.at(3, number) }

// DialLink connects to a node's listener for other nodes, as the node that a
// certificate names.
func (c *Cluster) DialLink(number int, with *tls.Certificate) (*tls.Conn, error) {
	return tls.DialWithDialer(&net.Dialer{Timeout: StartTimeout}, "tcp", c.LinkAddress(number), &tls.Config{
		InsecureSkipVerify: true, // the caller checks the certificate
		NextProtos:         []string{"h2"},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return with, nil
		},
	})
}
