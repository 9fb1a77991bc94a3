package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// maxAnswer bounds how much of an answer is read.
const maxAnswer = 64 << 20

// client talks to one node.
type client struct {
	base           string
	user, password string
	reason         string // reason for closing something; empty: not given
	http           *http.Client
	warnings       io.Writer // gets what the node warns of; nil: nobody does
}

// newClient takes a URL, or a host with or without a port: HTTPS is used if there are roots to
// check its certificate by.
func newClient(o *options) (*client, error) {
	base, scheme, port := o.node, "http", ":15672"
	if name, host, ok := strings.Cut(base, "@"); o.borrowed && ok && !strings.ContainsAny(name, ":/") {
		base = host // as in rabbit@HOST
	}
	if o.caFile != "" {
		scheme, port = "https", ":15671"
	}
	if !strings.Contains(base, "://") {
		base = scheme + "://" + base
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, usageError("--node must be an http or https URL, or HOST:PORT, not %q", o.node)
	}
	if u.User != nil {
		return nil, usageError("--node must not contain a user or a password: use --username, --password, QUORATECTL_USERNAME and QUORATECTL_PASSWORD")
	}
	if u.Port() == "" && !strings.Contains(o.node, "://") {
		u.Host += port
	}
	if u.Scheme == "http" && (o.caFile != "" || o.certFile != "") {
		return nil, usageError("--ca-file and --cert-file require https, but --node is %q", o.node)
	}
	secure, err := o.tls()
	if err != nil {
		return nil, err
	}
	way := http.DefaultTransport.(*http.Transport).Clone()
	way.TLSClientConfig = secure
	return &client{
		base: strings.TrimSuffix(u.String(), "/"), user: o.user, password: o.password, http: &http.Client{Transport: way},
	}, nil
}

// tls configures HTTPS. The node's certificate is checked by the given roots, or by those of this
// machine.
func (o *options) tls() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.caFile != "" {
		text, err := os.ReadFile(o.caFile)
		if err != nil {
			return nil, usageError("--ca-file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, usageError("--ca-file: no certificate in %s", o.caFile)
		}
	}
	if o.certFile != "" || o.keyFile != "" {
		pair, err := tls.LoadX509KeyPair(o.certFile, o.keyFile)
		if err != nil {
			return nil, usageError("--cert-file and --key-file: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// host is that of the node.
func (c *client) host() string {
	u, err := url.Parse(c.base)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// do sends body, if any, and reads the answer into out, if any.
func (c *client) do(ctx context.Context, method, path string, body, out any) error {
	_, err := c.ask(ctx, method, path, body, out)
	return err
}

// ask is do for requests where the status is part of the answer: the listed ones are read as
// successes.
func (c *client) ask(ctx context.Context, method, path string, body, out any, and ...int) (status int, err error) {
	var send io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return 0, err
		}
		send = bytes.NewReader(encoded)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, send)
	if err != nil {
		return 0, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.reason != "" {
		req.Header.Set("X-Reason", c.reason)
	}
	req.SetBasicAuth(c.user, c.password)
	res, err := c.http.Do(req)
	if untrusted := (*tls.CertificateVerificationError)(nil); errors.As(err, &untrusted) {
		return 0, &exitError{exitUnavailable, fmt.Errorf("the certificate of %s was not accepted: %w; --ca-file names the trusted root certificates", c.base, untrusted.Err)}
	}
	if err != nil {
		return 0, &exitError{exitUnavailable, fmt.Errorf("the node does not answer: %w", err)}
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return 0, &exitError{exitUnavailable, fmt.Errorf("the node's answer was cut off: %w", err)}
	}
	if res.StatusCode/100 != 2 && !slices.Contains(and, res.StatusCode) {
		return res.StatusCode, c.refused(res.StatusCode, path, answer)
	}
	for _, text := range res.Header.Values("Warning") {
		if _, quoted, ok := strings.Cut(text, " - "); ok && c.warnings != nil {
			fmt.Fprintln(c.warnings, "Warning:", strings.Trim(quoted, `"`))
		}
	}
	if out == nil || res.StatusCode == http.StatusNoContent {
		return res.StatusCode, nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return res.StatusCode, fmt.Errorf("the node's answer could not be parsed: %w", err)
	}
	return res.StatusCode, nil
}

// denied says why a node does not know who asks, and what to do.
func (c *client) denied(answer []byte) error {
	var f api.Failure
	if json.Unmarshal(answer, &f) == nil && strings.Contains(f.Reason, "loopback") {
		return errors.New(f.Reason)
	}
	return fmt.Errorf("user %q does not exist, has another password, or has no tag that allows the HTTP API: set -u and --password, or QUORATECTL_USERNAME and QUORATECTL_PASSWORD", c.user)
}

// kinds names what the first word of a path is about: objects of a vhost, and others.
var kinds = map[string]struct {
	name    string
	inVHost bool
}{
	"queues": {"queue", true}, "exchanges": {"exchange", true}, "policies": {"policy", true}, "operator-policies": {"operator policy", true}, "parameters": {"parameters of the component", false},
	"vhosts": {"vhost", false}, "users": {"user", false}, "nodes": {"node", false}, "connections": {"connection", false}, "global-parameters": {"global parameter", false},
	"feature-flags": {"feature flag", false}, "vhost-limits": {"vhost", false}, "user-limits": {"user", false},
}

// missing says what a path that leads nowhere is about.
func missing(path string) string {
	path, _, _ = strings.Cut(path, "?")
	words := strings.Split(strings.TrimPrefix(strings.TrimPrefix(path, "/api/"), "quorate/"), "/")
	for i, w := range words {
		if plain, err := url.PathUnescape(w); err == nil {
			words[i] = plain
		}
	}
	kind, known := kinds[words[0]]
	if known && words[0] == "queues" && len(words) > 1 && words[1] == "quorum" {
		words = words[1:]
	}
	switch {
	case known && kind.inVHost && len(words) > 2:
		return fmt.Sprintf("no %s %q in vhost %q", kind.name, words[2], words[1])
	case known && kind.inVHost && len(words) == 2:
		return fmt.Sprintf("no vhost %q", words[1])
	case known && len(words) > 1:
		return fmt.Sprintf("no %s %q", kind.name, words[1])
	}
	return "Not Found: " + strings.Join(words, "/")
}

// refused turns an unsuccessful answer into an error.
func (c *client) refused(status int, path string, answer []byte) error {
	if status == http.StatusUnauthorized {
		return &exitError{exitDenied, c.denied(answer)}
	}
	var f api.Failure
	reason := http.StatusText(status)
	if json.Unmarshal(answer, &f) == nil && f.Reason != "" {
		reason = f.Reason
	}
	if status == http.StatusNotFound && (reason == http.StatusText(status) || strings.HasSuffix(reason, "_not_found")) {
		reason = missing(path)
	}
	code := exitFailed
	switch status {
	case http.StatusForbidden:
		code = exitDenied
	case http.StatusBadRequest, http.StatusNotFound:
		code = exitData
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		code = exitTemporary
	}
	return &exitError{code, errors.New(reason)}
}
