package main

import (
	"bytes"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/amqp/amqptest"
)

// The health check of a node that is ready, one that is not, one that is dead, and one that is not
// there, over HTTP and HTTPS.
func TestHealthCommand(t *testing.T) {
	answers := map[string]string{}
	serve := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reason := answers[r.URL.Path]
		if reason != "" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, `{"status":"x","reason":"`+reason+`"}`)
	})
	dir, authority := t.TempDir(), amqptest.NewAuthority(t)
	own := authority.Issue("n1")
	mustWritePair(t, dir, own, time.Now())
	plain, secure, other := httptest.NewServer(serve), httptest.NewUnstartedServer(serve), httptest.NewUnstartedServer(serve)
	for s, c := range map[*httptest.Server]tls.Certificate{secure: own, other: authority.Issue("n1")} {
		s.TLS = &tls.Config{Certificates: []tls.Certificate{c}, ClientAuth: tls.RequireAnyClientCert}
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.StartTLS()
	}
	for _, s := range []*httptest.Server{plain, secure, other} {
		defer s.Close()
	}
	overHTTP := []string{"health", "--set", "management.tcp.listener=" + plain.Listener.Addr().String()}
	overTLS := func(s *httptest.Server) []string {
		_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
		return []string{
			"health", "--set", "management.tcp.listener=none", "--set", "management.ssl.port=" + port,
			"--set", "ssl_options.certfile=" + filepath.Join(dir, "cert.pem"), "--set", "ssl_options.keyfile=" + filepath.Join(dir, "key.pem"),
		}
	}
	const ready, alive = "/api/health/checks/ready-to-serve-clients", "/api/health/checks/is-alive"
	for _, c := range []struct {
		answers map[string]string
		args    []string
		says    string // the error; empty: none
	}{
		{nil, overHTTP, ""},
		{nil, overTLS(secure), ""},
		{nil, append(overTLS(secure), "--alive"), ""},
		{nil, overTLS(other), errOtherCertificate.Error()},
		{map[string]string{ready: "the disk hangs"}, overHTTP, "the disk hangs"},
		{map[string]string{ready: "the disk hangs"}, overTLS(secure), "the disk hangs"},
		{map[string]string{ready: "the disk hangs"}, append(overHTTP, "--alive"), ""},
		{map[string]string{alive: "the watchdog has not run"}, append(overHTTP, "--alive"), "has not run"},
		{nil, append(overHTTP, "now"), "unexpected argument"},
		{nil, []string{"health", "--set", "management.tcp.listener=none"}, "no HTTP listener"},
		{nil, []string{"health", "--set", "no.such=1"}, "unknown setting"},
		{nil, []string{"health", "--set", "management.tcp.listener=127.0.0.1:1"}, "does not answer"},
	} {
		answers = c.answers
		var out bytes.Buffer
		err := run(c.args, &out)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) || err == nil && out.String() != "ok\n" {
			t.Errorf("%v with %v: %q, %v; want %q", c.args, c.answers, out.String(), err, c.says)
		}
	}
}

// A node is reached at its own listener, whichever interfaces that is for.
func TestReachable(t *testing.T) {
	for listener, want := range map[string]string{
		":1": "127.0.0.1:1", "0.0.0.0:1": "127.0.0.1:1", "[::]:1": "[::1]:1", "10.0.0.1:1": "10.0.0.1:1", "[::1]:1": "[::1]:1", "node:1": "node:1",
	} {
		if got := reachable(listener); got != want {
			t.Errorf("%s is reached at %s, want %s", listener, got, want)
		}
	}
}
