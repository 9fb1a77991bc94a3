package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An import sends the file as it is, comments and all, and lists what the node says.
func TestImportOfEntities(t *testing.T) {
	asked, answer, status := "", `[{"entity":"q","outcome":"changed","differs":["LockDuration: PT2M, was PT1M"]}]`, 200
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		user, key, _ := r.BasicAuth()
		asked = strings.Join([]string{r.Method, r.URL.Path, user, key, string(body)}, " ")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	defer node.Close()
	file := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(file, []byte("// a\n{,}"), 0o600); err != nil {
		t.Fatal(err)
	}
	try := func(words ...string) (int, string, string) {
		return command(append([]string{"servicebus", "import", "-n", node.URL, "-u", "rule", "--password", "key"}, words...)...)
	}
	code, out, errs := try("--dry-run", file)
	if code != exitOK || !strings.Contains(out, `["LockDuration: PT2M, was PT1M"]`) {
		t.Error(code, out, errs)
	}
	if want := `POST /$import rule key {"file":"// a\n{,}","emulator":false,"dry_run":true}`; asked != want {
		t.Error(asked)
	}
	if try("--emulator-defaults", file); !strings.HasSuffix(asked, `"emulator":true,"dry_run":false}`) {
		t.Error(asked)
	}
	answer, status = `{"error":"Bad Request","reason":"UserConfig: this key is not known"}`, 400
	if code, _, errs := try(file); code != exitData || !strings.Contains(errs, "UserConfig: this key is not known") {
		t.Error(code, errs)
	}
	if code, _, _ := try(file + "x"); code != exitData {
		t.Error(code)
	}
}
