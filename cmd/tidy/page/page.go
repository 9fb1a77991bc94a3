// Package page checks that generated sections of the documentation are up to date. It
// is for tests, whose flag -rewrite regenerates the sections.
package page

import (
	"flag"
	"os"
	"strings"
	"testing"
)

// Hold fails the test unless the page at path has want between the lines
// "<!-- NAME -->" and "<!-- end of NAME -->". With -rewrite it writes it there.
func Hold(t testing.TB, path, name, want string) {
	t.Helper()
	begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->\n"
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(content), begin)
	have, tail, ended := strings.Cut(rest, end)
	switch {
	case !ok || !ended:
		t.Fatalf("%s: no place for the %s", path, name)
	case have == want:
	case rewrite():
		if err := os.WriteFile(path, []byte(head+begin+want+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s: the %s is not the program's; run this test with -rewrite", path, name)
	}
}

func rewrite() bool {
	f := flag.Lookup("rewrite")
	return f != nil && f.Value.String() == "true"
}
