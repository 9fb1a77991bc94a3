package main

import (
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A node is spoken to over HTTPS if there are roots to check it by, and only if
// its certificate is of these roots and for its name.
func TestHTTPS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"product_version":"1.2.3"}`))
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	roots := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	host := strings.TrimPrefix(s.URL, "https://")
	_, port, _ := strings.Cut(host, ":")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--ca-file", roots, "-n", host}, exitOK, "1.2.3\n"},
		{[]string{"--ca-file", roots, "-n", s.URL}, exitOK, "1.2.3\n"},
		{[]string{"-n", s.URL}, exitUnavailable, "certificate signed by unknown authority"},
		{[]string{"--ca-file", roots, "-n", "localhost:" + port}, exitUnavailable, "certificate is valid for"},
		{[]string{"-n", host}, exitData, "Bad Request"},
	} {
		code, out, errOut := command(append(c.args, "version")...)
		if code != c.code || !strings.Contains(out+errOut, c.says) {
			t.Errorf("%v: %d %s%s, want %d %s", c.args, code, out, errOut, c.code, c.says)
		}
	}
}
