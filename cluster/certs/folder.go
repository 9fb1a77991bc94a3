package certs

import (
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Names of files in a folder of certificates.
const (
	AuthorityFile    = "ca.pem" // the authority that signs, and behind it those that still count
	AuthorityKeyFile = "ca.key"
	NodeFile         = "node.pem" // in the folder of one node
	NodeKeyFile      = "node.key"
)

// authorityName cannot be a node's name: the files of both are in one folder.
const authorityName = "ca"

// authorityTitle is the authority's name for people, without the day of its creation.
const authorityTitle = "quorate authority of "

// Terms describe the certificates to be created.
type Terms struct {
	Algorithm Algorithm
	Now       time.Time
	Life      time.Duration
}

// NewTerms returns the default terms, from the current time on.
func NewTerms(life time.Duration) Terms { return Terms{ECDSA, time.Now(), life} }

// Init creates an authority in a folder that has none.
func Init(dir string, t Terms) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	a, err := NewAuthority(authorityTitle+t.Now.UTC().Format(time.DateOnly), t.Algorithm, t.Now, t.Life)
	if err != nil {
		return nil, err
	}
	key, err := encodeKey(a.key)
	if err != nil {
		return nil, err
	}
	// The key comes last: an authority without a key signs nothing.
	if err := create(filepath.Join(dir, AuthorityFile), encode(a.Certificate)); err != nil {
		return nil, err
	}
	return a, create(filepath.Join(dir, AuthorityKeyFile), key)
}

// LoadAuthority reads an authority: among the certificates in a file, the one that a key belongs
// to.
func LoadAuthority(certFile, keyFile string) (*Authority, error) {
	all, err := readCertificates(certFile)
	if err != nil {
		return nil, err
	}
	key, err := readKey(keyFile)
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		if c.IsCA && samePublic(c.PublicKey, key) {
			return &Authority{c, key}, nil
		}
	}
	return nil, fmt.Errorf("%s is not the key of any authority in %s", keyFile, certFile)
}

// open reads the authority of a folder.
func open(dir string) (*Authority, error) {
	return LoadAuthority(filepath.Join(dir, AuthorityFile), filepath.Join(dir, AuthorityKeyFile))
}

// nodeFiles are the paths of a node's certificate and key in the authority's folder.
func nodeFiles(dir, node string) (cert, key string, err error) {
	if node == authorityName || node != filepath.Base(node) || node == "." || node == ".." {
		return "", "", fmt.Errorf("%q cannot be the name of a node with a certificate", node)
	}
	return filepath.Join(dir, node+".pem"), filepath.Join(dir, node+".key"), nil
}

// Node creates the certificate of a node that has none in the folder.
func Node(dir, node string, t Terms) (*x509.Certificate, error) {
	cert, key, err := nodeFiles(dir, node)
	if err != nil {
		return nil, err
	}
	for _, path := range []string{cert, key} {
		if _, err := os.Lstat(path); err == nil {
			return nil, fmt.Errorf("%s: %w", path, os.ErrExist)
		}
	}
	return issue(dir, node, cert, key, t)
}

// serverPrefix begins the names of the files of Server, which no node's have.
const serverPrefix = "server-"

// Server creates a certificate for listeners for clients, which reach them by these names and addresses, or replaces
// the one in the files that are called by the first of them.
func Server(dir string, names []string, t Terms) (c *x509.Certificate, certFile string, err error) {
	for _, name := range names {
		if net.ParseIP(name) == nil && CheckNode(strings.TrimPrefix(name, "*.")) != nil {
			return nil, "", fmt.Errorf("%.300q is neither a host's name nor an address", name)
		}
	}
	a, err := open(dir)
	if err != nil {
		return nil, "", err
	}
	p, err := a.IssueServer(names, t.Now, t.Life)
	if err != nil {
		return nil, "", err
	}
	base := filepath.Join(dir, serverPrefix+strings.NewReplacer("*", "all", ":", "-").Replace(names[0]))
	return p.Certificate, base + ".pem", p.Write(base+".pem", base+".key")
}

// RotateNode replaces the certificate of a node, and its key.
func RotateNode(dir, node string, t Terms) (*x509.Certificate, error) {
	cert, key, err := nodeFiles(dir, node)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(cert); err != nil {
		return nil, err
	}
	return issue(dir, node, cert, key, t)
}

func issue(dir, node, certFile, keyFile string, t Terms) (*x509.Certificate, error) {
	a, err := open(dir)
	if err != nil {
		return nil, err
	}
	p, err := a.Issue(node, t.Now, t.Life)
	if err != nil {
		return nil, err
	}
	return p.Certificate, p.Write(certFile, keyFile)
}

// Write writes the pair into files, replacing their contents.
func (p *Pair) Write(certFile, keyFile string) error {
	key, err := encodeKey(p.key)
	if err != nil {
		return err
	}
	if err := WritePrivate(keyFile, key); err != nil {
		return err
	}
	return WritePrivate(certFile, encode(p.Certificate))
}

// RotateAuthority creates a new authority. The ones used so far stay valid until RetireAuthorities.
func RotateAuthority(dir string, t Terms) (*Authority, error) {
	certFile, keyFile := filepath.Join(dir, AuthorityFile), filepath.Join(dir, AuthorityKeyFile)
	old, err := readCertificates(certFile)
	if err != nil {
		return nil, err
	}
	a, err := NewAuthority(authorityTitle+t.Now.UTC().Format(time.DateOnly), t.Algorithm, t.Now, t.Life)
	if err != nil {
		return nil, err
	}
	key, err := encodeKey(a.key)
	if err != nil {
		return nil, err
	}
	// The key comes last: until it is written, the old one belongs to a valid authority.
	if err := WritePrivate(certFile, encode(append([]*x509.Certificate{a.Certificate}, old...)...)); err != nil {
		return nil, err
	}
	return a, WritePrivate(keyFile, key)
}

// RetireAuthorities leaves only the signing authority valid. It refuses while the folder has a
// certificate signed by another one.
func RetireAuthorities(dir string) (left *x509.Certificate, err error) {
	a, err := open(dir)
	if err != nil {
		return nil, err
	}
	all, err := List(dir)
	if err != nil {
		return nil, err
	}
	for _, f := range all {
		if !f.Certificate.IsCA && f.Certificate.CheckSignatureFrom(a.Certificate) != nil {
			return nil, fmt.Errorf("%s is signed by an earlier authority: rotate it first", f.Path)
		}
	}
	return a.Certificate, WritePrivate(filepath.Join(dir, AuthorityFile), encode(a.Certificate))
}

// File is a certificate in a file.
type File struct {
	Path        string
	Certificate *x509.Certificate
}

// List reads the certificates in files, and in the .pem files of folders.
func List(paths ...string) (all []File, err error) {
	for _, path := range paths {
		files := []string{path}
		if info, err := os.Stat(path); err != nil {
			return nil, err
		} else if info.IsDir() {
			if files, err = filepath.Glob(filepath.Join(path, "*.pem")); err != nil {
				return nil, err
			}
		}
		for _, f := range files {
			found, err := readCertificates(f)
			if err != nil {
				return nil, err
			}
			for _, c := range found {
				all = append(all, File{f, c})
			}
		}
	}
	return all, nil
}
