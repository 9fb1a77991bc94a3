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
}

// newClient takes a URL, or a host with or without a port: HTTPS is used if there are roots to
// check its certificate by.
func newClient(o *options) (*client, error) {
	base, scheme, port := o.node, "http", ":15672"
	if o.caFile != "" {
		scheme, port = "https", ":15671"
	}
	if !strings.Contains(base, "://") {
		base = scheme + "://" + base
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, usageError("--node is an http or https URL, or HOST:PORT, not %q", o.node)
	}
	if u.User != nil {
		return nil, usageError("--node must not hold a user or a password: these are --username, --password, QUORATECTL_USERNAME and QUORATECTL_PASSWORD")
	}
	if u.Port() == "" && !strings.Contains(o.node, "://") {
		u.Host += port
	}
	if u.Scheme == "http" && (o.caFile != "" || o.certFile != "") {
		return nil, usageError("--ca-file and --cert-file are for https, and --node is %q", o.node)
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
	if err != nil {
		return 0, &exitError{exitUnavailable, fmt.Errorf("the node does not answer: %w", err)}
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return 0, &exitError{exitUnavailable, fmt.Errorf("the node's answer breaks off: %w", err)}
	}
	if res.StatusCode/100 != 2 && !slices.Contains(and, res.StatusCode) {
		return res.StatusCode, refused(res.StatusCode, path, answer)
	}
	if out == nil || res.StatusCode == http.StatusNoContent {
		return res.StatusCode, nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return res.StatusCode, fmt.Errorf("the node's answer is not understood: %w", err)
	}
	return res.StatusCode, nil
}

// refused turns an unsuccessful answer into an error.
func refused(status int, path string, answer []byte) error {
	var f api.Failure
	reason := http.StatusText(status)
	if json.Unmarshal(answer, &f) == nil && f.Reason != "" {
		reason = f.Reason
	}
	if object, err := url.PathUnescape(strings.TrimPrefix(path, "/api/")); status == http.StatusNotFound && reason == http.StatusText(status) && err == nil {
		reason += ": " + object
	}
	code := exitFailed
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		code = exitDenied
	case http.StatusBadRequest, http.StatusNotFound:
		code = exitData
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		code = exitTemporary
	}
	return &exitError{code, errors.New(reason)}
}
