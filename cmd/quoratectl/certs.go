package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/certs"
)

// certsVerbs create the certificates by which nodes know each other. They need no node.
func certsVerbs() []verb {
	return []verb{{
		name: "certs", arguments: "init | node NODE ... | ensure NODE ... | rotate NODE ... | rotate ca | retire | show [FILE ...]", least: 1, maxArguments: -1,
		about: "certificates of nodes, in the folder --dir (certs): init creates an authority for the cluster; node creates a certificate for each name; ensure does what is missing of both, and can be repeated; rotate replaces certificates, or adds a new authority that signs from now on while the others stay valid; retire removes all authorities but the newest; show prints names, expiry dates and fingerprints. --days N: their validity (365; an authority 3650), --algorithm ecdsa or ed25519: of an authority's key and those it signs",
		run:   runCerts, options: []string{"dir", "days", "algorithm"},
	}}
}

// Maximum validity of certificates, in days.
const maxDays = 36500

func runCerts(c *call) error {
	what, names := c.words[0], c.words[1:]
	count := map[string]string{"init": "nothing", "node": "NODE ...", "ensure": "NODE ...", "rotate": "NODE ... or ca", "retire": "nothing", "show": "any"}[what]
	switch {
	case count == "":
		return usageError("certs init, node, ensure, rotate, retire or show, not %q", what)
	case count == "nothing" && len(names) > 0, strings.HasPrefix(count, "NODE") && len(names) == 0:
		return usageError("certs %s takes %s", what, count)
	}
	var made []*x509.Certificate
	var err error
	switch what {
	case "init":
		made, err = c.initAuthority()
	case "ensure":
		made, err = c.ensureCerts(names)
	case "retire":
		made, err = one(certs.RetireAuthorities(c.options.dir))
	case "show":
		if len(names) == 0 {
			names = []string{c.options.dir}
		}
		return showCerts(c, names)
	default:
		made, err = c.certify(what == "rotate", names)
	}
	for _, x := range made {
		if !c.options.quiet && !c.options.bare {
			fmt.Fprintf(c.out, "%s, good until %s, sha256 %s\n", nameIn(x), x.NotAfter.UTC().Format(time.DateOnly), certs.Fingerprint(x))
		}
	}
	return certsError(err)
}

// one is a list of one certificate, or of none.
func one(x *x509.Certificate, err error) ([]*x509.Certificate, error) {
	if x == nil {
		return nil, err
	}
	return []*x509.Certificate{x}, err
}

// terms are the terms given by the options.
func (c *call) terms(life time.Duration) (certs.Terms, error) {
	t := certs.NewTerms(life)
	if c.options.days != "" {
		days, err := strconv.Atoi(c.options.days)
		if err != nil || days < 1 || days > maxDays {
			return t, usageError("--days is a number from 1 to %d, not %q", maxDays, c.options.days)
		}
		t.Life = time.Duration(days) * 24 * time.Hour
	}
	if a := certs.Algorithm(c.options.algorithm); a != "" {
		if a != certs.ECDSA && a != certs.Ed25519 {
			return t, usageError("--algorithm is %s or %s, not %q", certs.ECDSA, certs.Ed25519, a)
		}
		t.Algorithm = a
	}
	return t, nil
}

func (c *call) initAuthority() ([]*x509.Certificate, error) {
	t, err := c.terms(certs.AuthorityLife)
	if err != nil {
		return nil, err
	}
	a, err := certs.Init(c.options.dir, t)
	if err != nil {
		return nil, err
	}
	return []*x509.Certificate{a.Certificate}, nil
}

// ensureCerts creates the authority, and the certificate of each node, unless it exists.
func (c *call) ensureCerts(names []string) (made []*x509.Certificate, err error) {
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(c.options.dir, name))
		return err == nil
	}
	if !exists(certs.AuthorityFile) {
		if made, err = c.initAuthority(); err != nil {
			return made, err
		}
	}
	missing := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return exists(name + ".pem") })
	more, err := c.certify(false, missing)
	return append(made, more...), err
}

// certify creates or replaces certificates of nodes; ca is the authority.
func (c *call) certify(again bool, names []string) (made []*x509.Certificate, err error) {
	for _, name := range names {
		var x *x509.Certificate
		life := certs.NodeLife
		if again && name == "ca" {
			life = certs.AuthorityLife
		}
		t, err := c.terms(life)
		if err != nil {
			return made, err
		}
		switch {
		case again && name == "ca":
			var a *certs.Authority
			if a, err = certs.RotateAuthority(c.options.dir, t); err == nil {
				x = a.Certificate
			}
		case again:
			x, err = certs.RotateNode(c.options.dir, name, t)
		default:
			x, err = certs.Node(c.options.dir, name, t)
		}
		if err != nil {
			return made, err
		}
		made = append(made, x)
	}
	return made, nil
}

// certsError gives files that already exist, or do not exist, the exit code of other wrong input.
func certsError(err error) error {
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		return &exitError{exitData, err}
	}
	return err
}

// nameIn returns the name in a certificate.
func nameIn(x *x509.Certificate) string {
	if x.IsCA {
		return x.Subject.CommonName
	}
	return strings.Join(x.DNSNames, " ")
}

var certColumns = []column[certs.File]{
	{"name", "of the node or the authority", func(f certs.File) any { return nameIn(f.Certificate) }},
	{"kind", "node or authority", func(f certs.File) any {
		if f.Certificate.IsCA {
			return "authority"
		}
		return "node"
	}},
	{"expires", "", func(f certs.File) any { return f.Certificate.NotAfter.UTC().Format(time.RFC3339) }},
	{"sha256", "fingerprint", func(f certs.File) any { return certs.Fingerprint(f.Certificate) }},
	{"file", "", func(f certs.File) any { return f.Path }},
}

func showCerts(c *call, paths []string) error {
	all, err := certs.List(paths...)
	if err != nil {
		return certsError(err)
	}
	return list(c, "Listing certificates ...", certColumns, nil, len(certColumns), all)
}
