package main

import (
	"crypto/tls"
	"fmt"
	"net"
	"strings"
)

// httpsSettings are the settings of HTTP over TLS.
type httpsSettings struct {
	port string // empty: none
	ip   string // empty: all interfaces
	tlsFiles
}

// address is where to listen; empty: nowhere.
func (h *httpsSettings) address() string {
	if h.port == "" {
		return ""
	}
	return net.JoinHostPort(h.ip, h.port)
}

// check reports what is missing. prefix is the prefix of the settings; others are used for missing
// files.
func (h *httpsSettings) check(prefix string, others tlsFiles) error {
	files := h.or(others)
	switch {
	case h.port != "" && (files.cert == "" || files.key == ""):
		return fmt.Errorf("setting %[1]s.port needs %[1]s.certfile and %[1]s.keyfile, or those of ssl_options", prefix)
	case h.verify == "verify_peer" && files.roots == "":
		return fmt.Errorf("setting %[1]s.verify needs %[1]s.cacertfile, or that of ssl_options", prefix)
	}
	return nil
}

// httpsRows are the settings of one listener of HTTP over TLS.
func httpsRows(prefix, usually string, of func(*settings) *httpsSettings) []setting {
	file := func(field func(*tlsFiles) *string) func(*settings, string) error {
		return text(func(s *settings) *string { return field(&of(s).tlsFiles) })
	}
	return []setting{
		{prefix + ".port", "none", "the same over TLS: a port, usually " + usually + "; none: no listener", optional(port, func(s *settings) *string { return &of(s).port })},
		{prefix + ".ip", "", "its address; empty: all interfaces", ip(func(s *settings) *string { return &of(s).ip })},
		{prefix + ".certfile", "", "as ssl_options.certfile, which is used with its key if this is empty", file(func(f *tlsFiles) *string { return &f.cert })},
		{prefix + ".keyfile", "", "as ssl_options.keyfile", file(func(f *tlsFiles) *string { return &f.key })},
		{prefix + ".cacertfile", "", "as ssl_options.cacertfile, which is used if this is empty", file(func(f *tlsFiles) *string { return &f.roots })},
		{prefix + ".verify", "verify_none", "as ssl_options.verify; a certificate does not replace a login", oneOf(func(s *settings) *string { return &of(s).verify }, "verify_none", "verify_peer")},
		{prefix + ".fail_if_no_peer_cert", "false", "as ssl_options.fail_if_no_peer_cert", oneOf(func(s *settings) *string { return &of(s).insist }, "true", "false")},
	}
}

func port(field func(*settings) *string) func(*settings, string) error {
	return func(s *settings, v string) error {
		if strings.Contains(v, ":") {
			return fmt.Errorf("%q is not a port", v)
		}
		if err := address(field)(s, v); err != nil {
			return fmt.Errorf("%q is not a port", v)
		}
		*field(s) = v
		return nil
	}
}

func ip(field func(*settings) *string) func(*settings, string) error {
	return func(s *settings, v string) error {
		if v != "" && net.ParseIP(v) == nil {
			return fmt.Errorf("%q is not an IP address", v)
		}
		*field(s) = v
		return nil
	}
}

// setVersions parses a list of TLS versions, in any order.
func setVersions(s *settings, v string) error {
	var all tlsVersions
	for word := range strings.SplitSeq(v, ",") {
		var one uint16
		switch strings.TrimSpace(word) {
		case "tlsv1.2":
			one = tls.VersionTLS12
		case "tlsv1.3":
			one = tls.VersionTLS13
		default:
			return fmt.Errorf("%q is not one of tlsv1.2, tlsv1.3", word)
		}
		if all.oldest == 0 {
			all.oldest = one
		}
		all.oldest, all.newest = min(all.oldest, one), max(all.newest, one)
	}
	s.tlsVersions = all
	return nil
}
