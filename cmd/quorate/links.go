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

	"github.com/quorate/quorate/cluster/certs"
	"github.com/quorate/quorate/cluster/peer"
)

// Values of cluster.ssl.
const (
	linksAuto   = "auto"
	linksOn     = "on"
	linksPrefer = "prefer"
	linksNone   = "none"
)

// linkSettings is how links to other nodes are secured.
type linkSettings struct {
	mode             string
	roots, cert, key string
	allowPlain       string // true or false
}

// certsFolder is where in its data folder a node looks for its certificate when
// no setting names one.
const certsFolder = "certs"

// files are the node's certificate, its key and the authorities; ok: somebody
// has provided them.
func (s *settings) certificates() (f certs.Files, ok bool, err error) {
	l := s.links
	f = certs.Files{Authorities: l.roots, Certificate: l.cert, Key: l.key}
	switch {
	case l.roots != "" && l.cert != "" && l.key != "":
		return f, true, nil
	case l.roots != "" || l.cert != "" || l.key != "":
		return f, false, errors.New("settings cluster.ssl_options: cacertfile, certfile and keyfile need each other")
	}
	dir := filepath.Join(s.dataDir, certsFolder)
	f = certs.Files{
		Authorities: filepath.Join(dir, certs.AuthorityFile),
		Certificate: filepath.Join(dir, certs.NodeFile), Key: filepath.Join(dir, certs.NodeKeyFile),
	}
	if _, err := os.Stat(f.Certificate); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return f, false, err
	}
	return f, true, nil
}

// checkLinks refuses links that would let everybody in.
func (s *settings) checkLinks() error {
	if s.links.mode != linksNone && s.links.mode != linksPrefer || s.links.allowPlain == "true" || onLoopback(s.peers) {
		return nil
	}
	return fmt.Errorf("setting cluster.ssl: %s is refused while cluster.listener is %s: whoever reaches that would be taken for a node, and may do everything; cluster.allow_plain_links = true takes the risk",
		s.links.mode, s.peers)
}

// onLoopback reports whether only this host reaches an address.
func onLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// security opens what the links are secured with; nil: they are plain.
func (s *settings) security(logger *slog.Logger) (*peer.Security, error) {
	mode := s.links.mode
	if mode == linksNone {
		logger.Warn("links to other nodes are plain: whoever reaches the listener is taken for a node, and may do everything",
			"listener", s.peers, "setting", "cluster.ssl = none")
		return nil, nil
	}
	files, ok, err := s.certificates()
	if err != nil {
		return nil, err
	}
	if !ok {
		if mode == linksAuto && len(s.nodes) <= 1 && len(s.contacts) == 0 {
			logger.Info("node has no certificate, so it takes no links to other nodes")
			return &peer.Security{Keys: noKeys{}}, nil
		}
		return nil, fmt.Errorf("settings cluster.ssl_options: nodes know each other by certificates, and there is none at %s; quoratectl certs makes them", files.Certificate)
	}
	if err := checkPrivate(files.Key); err != nil {
		return nil, fmt.Errorf("settings cluster.ssl_options: %w", err)
	}
	keys, err := certs.Open(s.nodeName, files, func(err error) {
		logger.Error("certificate of this node is not read again", "error", err)
	})
	if err != nil {
		return nil, fmt.Errorf("settings cluster.ssl_options: %w", err)
	}
	if mode == linksPrefer {
		logger.Warn("links to other nodes may be plain: whoever reaches the listener is taken for a node, and may do everything",
			"listener", s.peers, "setting", "cluster.ssl = prefer")
	}
	logger.Info("certificate of this node is read", "file", files.Certificate, "expires", keys.Expires())
	return &peer.Security{Keys: keys, Mixed: mode == linksPrefer}, nil
}

// prepare sees to the node's data, then opens its ways in, and what those of other nodes are secured with.
func prepare(s *settings, logger *slog.Logger) (ways listeners, security *peer.Security, err error) {
	warnOfRoot(logger)
	if err = closeData(s.dataDir, logger); err != nil {
		return ways, nil, err
	}
	if security, err = s.security(logger); err == nil {
		ways, err = listen(s, logger)
	}
	return ways, security, err
}

// noKeys are those of a node without a certificate, which is a cluster by itself.
type noKeys struct{}

var errNoKeys = errors.New("this node has no certificate and takes no links; see cluster.ssl_options")

// Server implements peer.Keys.
func (noKeys) Server() (*tls.Config, error) { return nil, errNoKeys }

// Client implements peer.Keys.
func (noKeys) Client(string) (*tls.Config, error) { return nil, errNoKeys }
