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

// TestDefinitionFiles: what is exported goes into a file that only its owner can read, and an import
// fails if a part of it was not taken.
func TestDefinitionFiles(t *testing.T) {
	var got []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = append(got, r.Method+" "+r.URL.RequestURI()+" "+string(body))
		switch {
		case r.Method == http.MethodGet:
			_, _ = io.WriteString(w, `{"users":[]}`)
		case strings.Contains(string(body), "log"):
			_, _ = io.WriteString(w, `{"taken":{},"skipped_total":1,"skipped":[{"section":"queues","vhost":"v","name":"log","reason":"no"}]}`)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	defer s.Close()
	node := "-n=" + strings.TrimPrefix(s.URL, "http://")
	file := filepath.Join(t.TempDir(), "definitions.json")
	if err := os.WriteFile(file, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	try := func(want int, words ...string) string {
		t.Helper()
		code, out, errs := command(append([]string{node}, words...)...)
		if code != want {
			t.Errorf("%v: %d, %s%s", words, code, out, errs)
		}
		return out + errs
	}
	try(0, "export_definitions", file)
	content, err := os.ReadFile(file)
	info, statErr := os.Stat(file)
	if err != nil || statErr != nil || string(content) != "{\n  \"users\": []\n}\n" || info.Mode().Perm() != 0o600 {
		t.Errorf("%q, %v, %v, %v", content, info.Mode(), err, statErr)
	}
	if out := try(0, "export_definitions", "-"); out != string(content) {
		t.Errorf("the output is %q", out)
	}
	try(0, "import_definitions", file)
	if err := os.WriteFile(file, []byte("\ufeff"+`{"queues":[{"name":"log"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := try(exitData, "import_definitions", file); !strings.Contains(out, "queues\tv\tlog\tno") || !strings.Contains(out, "1 definitions were not imported") {
		t.Errorf("the report is %q", out)
	}
	try(exitData, "import_definitions")
	try(exitData, "import_definitions", filepath.Join(t.TempDir(), "none"))
	try(0, "delete_queue", "a/b", "-p=v")
	try(0, "purge_queue", "q")
	want := []string{
		"GET /api/definitions ", "GET /api/definitions ", `POST /api/definitions?partial=true {"users":[]}`, `POST /api/definitions?partial=true {"queues":[{"name":"log"}]}`,
		"DELETE /api/queues/v/a%2Fb ", "DELETE /api/queues/%2F/q/contents ",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("requests:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
