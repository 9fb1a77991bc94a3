package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/quorate/quorate/cluster"
	"github.com/quorate/quorate/cluster/certs"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/peer"
)

// Values of cluster.ssl.
const (
	linksAuto   = "auto"
	linksOn     = "on"
	linksPrefer = "prefer"
	linksNone   = "none"
)

// linkSettings configure how links to other nodes are secured.
type linkSettings struct {
	mode             string
	roots, cert, key string
	authorityKey     string // empty: none
	allowPlain       string // true or false
}

// certsFolder is the folder in the data folder where a node looks for its certificate when no
// setting names one.
const certsFolder = "certs"

// files returns the paths of the node's certificate, its key and the authorities; ok: they were
// provided.
func (s *settings) certificates() (f certs.Files, ok bool, err error) {
	l := s.links
	f = certs.Files{Authorities: l.roots, Certificate: l.cert, Key: l.key, AuthorityKey: l.authorityKey}
	switch {
	case l.roots != "" && l.cert != "" && l.key != "":
		return f, true, nil
	case l.roots != "" || l.cert != "" || l.key != "":
		return f, false, errors.New("settings cluster.ssl_options: cacertfile, certfile and keyfile must be set together")
	}
	dir := filepath.Join(s.dataDir, certsFolder)
	f = certs.Files{
		Authorities: filepath.Join(dir, certs.AuthorityFile),
		Certificate: filepath.Join(dir, certs.NodeFile), Key: filepath.Join(dir, certs.NodeKeyFile), AuthorityKey: l.authorityKey,
	}
	if _, err := os.Stat(f.Certificate); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return f, false, err
	}
	return f, true, nil
}

// checkLinks returns an error if the links would let everybody in.
func (s *settings) checkLinks() error {
	if s.links.mode != linksNone && s.links.mode != linksPrefer || s.links.allowPlain == "true" || onLoopback(s.peers) {
		return nil
	}
	return fmt.Errorf("setting cluster.ssl: %s is refused while cluster.listener is %s: anyone who can reach it would be trusted as a node; set cluster.allow_plain_links = true to accept the risk",
		s.links.mode, s.peers)
}

// onLoopback reports whether an address can be reached from this host only.
func onLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// security opens what secures the links; nil: they are plain.
func (s *settings) security(logger *slog.Logger) (*peer.Security, error) {
	mode := s.links.mode
	if mode == linksNone {
		logger.Warn("links to other nodes are not encrypted: anyone who can reach the listener is trusted as a node",
			"listener", s.peers, "setting", "cluster.ssl = none")
		return nil, nil
	}
	files, ok, err := s.certificates()
	if err != nil {
		return nil, err
	}
	open := func() (*certs.Keys, error) { return s.openKeys(files, logger) }
	if !ok {
		switch {
		case len(s.contacts) > 0 && s.hasToken():
			logger.Info("node has no certificate and will request one when it joins")
			return &peer.Security{Keys: certs.Wait(s.nodeName, files, open), Mixed: mode == linksPrefer}, nil
		case mode == linksAuto && len(s.nodes) <= 1 && len(s.contacts) == 0:
			logger.Info("node has no certificate and accepts no links from other nodes")
			return &peer.Security{Keys: noKeys{}}, nil
		}
		return nil, fmt.Errorf("settings cluster.ssl_options: nodes authenticate each other by certificates, and there is none at %s; create one with quoratectl certs", files.Certificate)
	}
	keys, err := open()
	if err != nil {
		return nil, err
	}
	if mode == linksPrefer {
		logger.Warn("links to other nodes may be unencrypted: anyone who can reach the listener is trusted as a node",
			"listener", s.peers, "setting", "cluster.ssl = prefer")
	}
	return &peer.Security{Keys: keys, Mixed: mode == linksPrefer}, nil
}

// openKeys reads a node's certificate, its key and the authorities.
func (s *settings) openKeys(files certs.Files, logger *slog.Logger) (*certs.Keys, error) {
	for _, key := range []string{files.Key, files.AuthorityKey} {
		if key == "" {
			continue
		}
		if err := checkPrivate(key); err != nil {
			return nil, fmt.Errorf("settings cluster.ssl_options: %w", err)
		}
	}
	keys, err := certs.Open(s.nodeName, files, func(err error) {
		logger.Error("certificate of this node was not reloaded", "error", err)
	})
	if err != nil {
		return nil, fmt.Errorf("settings cluster.ssl_options: %w", err)
	}
	logger.Info("certificate of this node was loaded", "file", files.Certificate, "expires", keys.Expires())
	return keys, nil
}

// hasToken reports whether the node has been given a token.
func (s *settings) hasToken() bool { return s.token != "" || s.tokenFile != "" }

// joinToken is the token of a joining node; zero: it has none.
func (s *settings) joinToken() (certs.Token, error) {
	text := s.token
	if s.tokenFile != "" {
		if text != "" {
			return certs.Token{}, errors.New("settings cluster_formation.token and cluster_formation.token_file: only one may be set")
		}
		if err := checkPrivate(s.tokenFile); err != nil {
			return certs.Token{}, fmt.Errorf("setting cluster_formation.token_file: %w", err)
		}
		raw, err := os.ReadFile(s.tokenFile)
		if err != nil {
			return certs.Token{}, fmt.Errorf("setting cluster_formation.token_file: %w", err)
		}
		text = string(raw)
	}
	if text == "" {
		return certs.Token{}, nil
	}
	t, err := certs.ParseToken(text)
	if err != nil {
		return t, fmt.Errorf("setting cluster_formation.token: %w", err)
	}
	return t, nil
}

// admission configures the node to join by its token, to let others join, and to know when
// certificates expire.
func (s *settings) admission(c *cluster.Config, sockets listeners, security *peer.Security) (err error) {
	c.Security, c.PlainTokens = security, s.links.allowPlain == "true"
	c.Certificates = func() []api.Certificate { return s.certificateEnds(sockets, security) }
	if c.Token, err = s.joinToken(); err != nil || security == nil {
		return err
	}
	switch k := security.Keys.(type) {
	case *certs.Waiting:
		c.Enrolment = k
	case *certs.Keys:
		if s.links.authorityKey != "" {
			c.Signer = k
		}
	}
	return nil
}

// watchKeys makes the node record each replacement of its certificate.
func watchKeys(security *peer.Security, node *cluster.Node) {
	if security == nil {
		return
	}
	switch k := security.Keys.(type) {
	case *certs.Waiting:
		k.SetChanged(node.CertificateTaken)
	case *certs.Keys:
		k.SetChanged(node.CertificateTaken)
	}
}

// prepare protects the node's data, then opens its listeners and the security of its links.
func prepare(s *settings, logger *slog.Logger) (sockets listeners, security *peer.Security, err error) {
	warnOfRoot(logger)
	if err = closeData(s.dataDir, logger); err != nil {
		return sockets, nil, err
	}
	if security, err = s.security(logger); err == nil {
		sockets, err = listen(s, logger)
	}
	return sockets, security, err
}

// noKeys are the keys of a node without a certificate, which is a cluster by itself.
type noKeys struct{}

var errNoKeys = errors.New("this node has no certificate and accepts no links; see cluster.ssl_options")

// Server implements peer.Keys.
func (noKeys) Server() (*tls.Config, error) { return nil, errNoKeys }

// Client implements peer.Keys.
func (noKeys) Client(string) (*tls.Config, error) { return nil, errNoKeys }

// Invited implements peer.Keys.
func (noKeys) Invited([]byte) (*tls.Config, error) { return nil, errNoKeys }

// Authority implements peer.Keys.
func (noKeys) Authority() ([]byte, error) { return nil, errNoKeys }
