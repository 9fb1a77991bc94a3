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
	dir := option{"dir", "`FOLDER` of the certificates", "certs"}
	made := []option{dir, {"days", "`NUMBER` of days that they are valid; 365, an authority 3650", ""}, {"algorithm", "`ALGORITHM` of an authority's key and those it signs: ecdsa or ed25519", ""}}
	shown := func(create func(c *call) ([]*x509.Certificate, error)) func(c *call) error {
		return func(c *call) error {
			made, err := create(c)
			showMade(c, made)
			return certsError(err)
		}
	}
	return []verb{{
		name: "certs", about: "manages the certificates of nodes, in a folder",
		verbs: []verb{
			{name: "init", about: "creates an authority for the cluster", options: made, run: shown(initAuthority), example: "--dir certs"},
			{name: "node", arguments: "NODE ...", least: 1, maxArguments: -1, about: "creates a certificate for each name", options: made, example: "n1 n2 n3",
				run: shown(func(c *call) ([]*x509.Certificate, error) { return certify(c, false, c.words) })},
			{name: "server", arguments: "NAME|ADDRESS ...", least: 1, maxArguments: -1, about: "creates a certificate for the listeners for clients, or replaces it", more: " It is for all the names and IP addresses by which clients reach a node, and in the file server-NAME.pem, called by the first of them; clients verify it with ca.pem. It does not identify a node.", options: made, example: "mq1.example.org 10.0.0.1 localhost", run: shown(certifyServer)},
			{name: "ensure", arguments: "NODE ...", least: 1, maxArguments: -1, about: "creates an authority and certificates where they are missing", more: " It can be repeated.", options: made, run: shown(ensureCerts), example: "n1 n2 n3 --dir /etc/quorate/certs"},
			{name: "rotate", arguments: "NODE ... or ca", least: 1, maxArguments: -1, about: "replaces certificates, or adds an authority", more: " The new authority signs from now on; the others stay valid.", options: made, example: "ca",
				run: shown(func(c *call) ([]*x509.Certificate, error) { return certify(c, true, c.words) })},
			{name: "retire", about: "removes all authorities but the newest", options: []option{dir}, example: "--dir certs",
				run: shown(func(c *call) ([]*x509.Certificate, error) { return one(certs.RetireAuthorities(c.option("dir"))) })},
			{name: "show", arguments: "[FILE ...]", maxArguments: -1, about: "shows the names, expiry dates and fingerprints of certificates", options: []option{dir}, run: showCerts, example: "--dir certs"},
		},
	}}
}

// Maximum validity of certificates, in days.
const maxDays = 36500

// showMade shows certificates that were created.
func showMade(c *call, made []*x509.Certificate) {
	for _, x := range made {
		c.say(fmt.Sprintf("%s, valid until %s, sha256 %s", nameIn(x), x.NotAfter.UTC().Format(time.DateOnly), certs.Fingerprint(x)))
	}
}

// one is a list of one certificate, or of none.
func one(x *x509.Certificate, err error) ([]*x509.Certificate, error) {
	if x == nil {
		return nil, err
	}
	return []*x509.Certificate{x}, err
}

// certTerms are the terms given by the options.
func certTerms(c *call, life time.Duration) (certs.Terms, error) {
	t := certs.NewTerms(life)
	if c.option("days") != "" {
		days, err := strconv.Atoi(c.option("days"))
		if err != nil || days < 1 || days > maxDays {
			return t, usageError("--days must be a number from 1 to %d, not %q", maxDays, c.option("days"))
		}
		t.Life = time.Duration(days) * 24 * time.Hour
	}
	if a := certs.Algorithm(c.option("algorithm")); a != "" {
		if a != certs.ECDSA && a != certs.Ed25519 {
			return t, usageError("--algorithm must be %s or %s, not %q", certs.ECDSA, certs.Ed25519, a)
		}
		t.Algorithm = a
	}
	return t, nil
}

func initAuthority(c *call) ([]*x509.Certificate, error) {
	t, err := certTerms(c, certs.AuthorityLife)
	if err != nil {
		return nil, err
	}
	a, err := certs.Init(c.option("dir"), t)
	if err != nil {
		return nil, err
	}
	return []*x509.Certificate{a.Certificate}, nil
}

// ensureCerts creates the authority, and the certificate of each node, unless it exists.
func ensureCerts(c *call) (made []*x509.Certificate, err error) {
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(c.option("dir"), name))
		return err == nil
	}
	if !exists(certs.AuthorityFile) {
		if made, err = initAuthority(c); err != nil {
			return made, err
		}
	}
	missing := slices.DeleteFunc(slices.Clone(c.words), func(name string) bool { return exists(name + ".pem") })
	more, err := certify(c, false, missing)
	return append(made, more...), err
}

// certify creates or replaces certificates of nodes; ca is the authority.
func certify(c *call, again bool, names []string) (made []*x509.Certificate, err error) {
	for _, name := range names {
		var x *x509.Certificate
		life := certs.NodeLife
		if again && name == "ca" {
			life = certs.AuthorityLife
		}
		t, err := certTerms(c, life)
		if err != nil {
			return made, err
		}
		switch {
		case again && name == "ca":
			var a *certs.Authority
			if a, err = certs.RotateAuthority(c.option("dir"), t); err == nil {
				x = a.Certificate
			}
		case again:
			x, err = certs.RotateNode(c.option("dir"), name, t)
		default:
			x, err = certs.Node(c.option("dir"), name, t)
		}
		if err != nil {
			return made, err
		}
		made = append(made, x)
	}
	return made, nil
}

func certifyServer(c *call) ([]*x509.Certificate, error) {
	t, err := certTerms(c, certs.NodeLife)
	if err != nil {
		return nil, err
	}
	x, file, err := certs.Server(c.option("dir"), c.words, t)
	if err == nil {
		c.say("Written to " + file + " and " + strings.TrimSuffix(file, ".pem") + ".key")
	}
	return one(x, err)
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
	all := slices.Clone(x.DNSNames)
	for _, ip := range x.IPAddresses {
		all = append(all, ip.String())
	}
	return strings.Join(all, " ")
}

var certColumns = columnsOf("name kind expires sha256 file",
	column[certs.File]{"name", func(f certs.File) any { return nameIn(f.Certificate) }},
	column[certs.File]{"kind", func(f certs.File) any {
		if f.Certificate.IsCA {
			return "authority"
		}
		if len(f.Certificate.ExtKeyUsage) == 1 {
			return "server"
		}
		return "node"
	}},
	column[certs.File]{"expires", func(f certs.File) any { return f.Certificate.NotAfter.UTC().Format(time.RFC3339) }},
	column[certs.File]{"sha256", func(f certs.File) any { return certs.Fingerprint(f.Certificate) }},
	column[certs.File]{"file", func(f certs.File) any { return f.Path }},
)

func showCerts(c *call) error {
	paths := c.words
	if len(paths) == 0 {
		paths = []string{c.option("dir")}
	}
	all, err := certs.List(paths...)
	if err != nil {
		return certsError(err)
	}
	return list(c, "Listing certificates ...", certColumns, nil, all)
}
