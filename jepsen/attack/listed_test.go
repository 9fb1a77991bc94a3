package attack

import (
	"path/filepath"
	"testing"
)

// A case that a page lists, and that there is not, is told.
func TestListed(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	mustWriteFile(t, page, "`http/one`, `http/tw…`, `docs/of/no/case`, `http/one more`, `login/…`, `frames/three`", 0o600)
	err := listed(page, []string{"http/one", "http/two", "frames/two"})
	want := page + ` lists the case "http/one more", which there is not` + "\n" + page + ` lists the case "frames/three", which there is not`
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if err := listed(page, []string{"http/one", "http/two", "http/one more", "frames/three", "login/x"}); err != nil {
		t.Error(err)
	}
}
