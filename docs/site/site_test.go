package site

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// loaded is what a page loads from elsewhere when it is shown.
var loaded = regexp.MustCompile(`<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"`)

// TestSite: the pages become a site without a warning, with a search, and nothing is loaded from elsewhere.
func TestSite(t *testing.T) {
	if testing.Short() {
		t.Skip("long: runs with make test-cluster")
	}
	if _, err := exec.LookPath("sphinx-build"); err != nil {
		t.Skip("Sphinx is not installed")
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sphinx-build", "-q", "-n", "-W", "--keep-going", "-d", filepath.Join(dir, "doctrees"), "-c", ".", "..", filepath.Join(dir, "html"))
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	out, err := cmd.CombinedOutput()
	if missing := regexp.MustCompile(`Could not import extension|no theme named`).Find(out); err != nil && missing != nil {
		t.Skipf("MyST and furo are not installed: %s", missing)
	}
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	pages, err := filepath.Glob("../*.md")
	evidence, err2 := filepath.Glob("../evidence/*.md")
	if err != nil || err2 != nil || len(pages) < 25 || len(evidence) < 5 {
		t.Fatal(len(pages), len(evidence), err, err2)
	}
	for _, page := range append(pages, evidence...) {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.ToSlash(page), "../"), ".md") + ".html"
		html, err := os.ReadFile(filepath.Join(dir, "html", name))
		if err != nil {
			t.Error(err)
		}
		if found := loaded.FindAll(html, -1); found != nil {
			t.Errorf("%s loads %q", name, found)
		}
	}
	index, err := os.ReadFile(filepath.Join(dir, "html", "searchindex.js"))
	if err != nil || !strings.Contains(string(index), "quarantin") {
		t.Errorf("the search does not find a word, %v", err)
	}
	search, err := os.ReadFile(filepath.Join(dir, "html", "search.html"))
	if err != nil || !strings.Contains(string(search), `src="searchindex.js"`) {
		t.Errorf("the index is not a script, %v", err)
	}
}
