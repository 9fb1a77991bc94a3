package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/certs"
)

// mustSettings are the defaults and some more.
func mustSettings(t *testing.T, sets ...string) *settings {
	t.Helper()
	s := defaults()
	for _, kv := range append([]string{"data_dir=" + t.TempDir()}, sets...) {
		key, value, _ := strings.Cut(kv, "=")
		if err := s.apply(key, value); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// Links for everybody who reaches the listener are refused where others than
// this host do, unless that is wanted.
func TestPlainLinksOffLoopback(t *testing.T) {
	for listener, loopback := range map[string]bool{
		"127.0.0.1:25672": true, "127.1.2.3:25672": true, "[::1]:25672": true, "localhost:25672": true,
		"10.0.0.1:25672": false, "0.0.0.0:25672": false, "[::]:25672": false, ":25672": false, "25672": false, "host:25672": false,
	} {
		for _, mode := range []string{linksNone, linksPrefer} {
			s := mustSettings(t, "cluster.listener="+listener, "cluster.ssl="+mode)
			if err := s.validate(); (err == nil) != loopback {
				t.Errorf("%s at %s: %v", mode, listener, err)
			} else if err != nil && !strings.Contains(err.Error(), "cluster.allow_plain_links") {
				t.Errorf("does not say what helps: %v", err)
			}
			if err := s.apply("cluster.allow_plain_links", "true"); err != nil {
				t.Fatal(err)
			}
			if err := s.validate(); err != nil {
				t.Errorf("%s at %s is wanted: %v", mode, listener, err)
			}
		}
		for _, mode := range []string{linksAuto, linksOn} {
			if err := mustSettings(t, "cluster.listener="+listener, "cluster.ssl="+mode).validate(); err != nil {
				t.Errorf("%s at %s: %v", mode, listener, err)
			}
		}
	}
}

// How links are secured follows from the settings and from the files there are.
func TestSecurityOfLinks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	if err := devCertificates(dir, 2); err != nil {
		t.Fatal(err)
	}
	given := []string{
		"cluster.ssl_options.cacertfile=" + filepath.Join(dir, "ca.pem"),
		"cluster.ssl_options.certfile=" + filepath.Join(dir, "n1.pem"), "cluster.ssl_options.keyfile=" + filepath.Join(dir, "n1.key"),
	}
	several := []string{nodesKey + "1=n1@h:1", nodesKey + "2=n2@h:2"}
	for _, tc := range []struct {
		name string
		sets []string
		want string // in the error
		is   string // plain, closed, mixed or on
		says string // in the log
	}{
		{"one node", nil, "", "closed", "accepts no links"},
		{"one node, on", []string{"cluster.ssl=on"}, "create one with quoratectl certs", "", ""},
		{"one node that joins", []string{"cluster_formation.join=h:1"}, "create one with quoratectl certs", "", ""},
		{"several nodes", several, "create one with quoratectl certs", "", ""},
		{"one node with a certificate", given, "", "on", "was loaded"},
		{"several with certificates", append(several, given...), "", "on", "was loaded"},
		{"another's certificate", append([]string{"node_name=n2"}, given...), `not for node "n2"`, "", ""},
		{"no authority", given[1:], "must be set together", "", ""},
		{"no key", given[:2], "must be set together", "", ""},
		{"no such file", []string{given[0], given[1], "cluster.ssl_options.keyfile=/nowhere"}, "/nowhere", "", ""},
		{"none", append([]string{"cluster.ssl=none"}, several...), "", "plain", "level=WARN"},
		{"none in spite of certificates", append([]string{"cluster.ssl=none"}, given...), "", "plain", "anyone who can reach the listener"},
		{"prefer", append([]string{"cluster.ssl=prefer"}, given...), "", "mixed", "level=WARN"},
		{"prefer without certificates", []string{"cluster.ssl=prefer"}, "create one with quoratectl certs", "", ""},
	} {
		var log bytes.Buffer
		s := mustSettings(t, tc.sets...)
		security, err := s.security(slog.New(slog.NewTextHandler(&log, nil)))
		is := "on"
		switch {
		case err != nil:
			is = ""
		case security == nil:
			is = "plain"
		case security.Keys == noKeys{}:
			is = "closed"
		case security.Mixed:
			is = "mixed"
		}
		if is != tc.is || (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) || !strings.Contains(log.String(), tc.says) {
			t.Errorf("%s: %q, %v; logged: %s", tc.name, is, err, &log)
		}
	}
}

// A certificate in the node's data folder counts without any setting.
func TestCertificateInDataFolder(t *testing.T) {
	s := mustSettings(t)
	dir := filepath.Join(s.dataDir, certsFolder)
	if err := devCertificates(dir, 1); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{"n1.pem": certs.NodeFile, "n1.key": certs.NodeKeyFile} {
		if err := os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)); err != nil {
			t.Fatal(err)
		}
	}
	if security, err := s.security(slog.New(slog.DiscardHandler)); err != nil || security.Mixed || security.Keys == (noKeys{}) {
		t.Errorf("%+v, %v", security, err)
	}
}

// A development cluster has its certificates made once, and replaced before
// they end.
func TestDevCertificates(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data", "certs")
	prints := func() (all []string) {
		t.Helper()
		list, err := certs.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range list {
			all = append(all, filepath.Base(f.Path)+" "+certs.Fingerprint(f.Certificate))
		}
		return all
	}
	if err := devCertificates(dir, 2); err != nil {
		t.Fatal(err)
	}
	first := prints()
	if err := devCertificates(dir, 3); err != nil {
		t.Fatal(err)
	}
	second := prints()
	if len(first) != 3 || len(second) != 4 || strings.Join(second[:3], " ") != strings.Join(first, " ") {
		t.Errorf("%q, then %q", first, second)
	}
	soon := certs.NewTerms(devRenew - time.Hour)
	if _, err := certs.RotateNode(dir, "n2", soon); err != nil {
		t.Fatal(err)
	}
	old := prints()[2]
	if err := devCertificates(dir, 3); err != nil {
		t.Fatal(err)
	}
	if third := prints(); third[2] == old || third[1] != second[1] {
		t.Errorf("%q, then %q", old, third)
	}
}
