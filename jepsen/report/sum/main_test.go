package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Reports in any folder below the arguments are added up; one of another version is refused.
func TestSum(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("a/TestA/report.json", `{"version":1,"test":"TestA","sums":{"runs":1,"confirmed":1500,"faults":{"kill":2},"found":{"lost":1}}}`)
	write("b/report.json", `{"version":1,"test":"TestB","sums":{"runs":1,"confirmed":20,"faults":{"pause":1}}}`)
	write("b/other.json", `{}`)
	var out strings.Builder
	if err := run([]string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"2 reports", "| | all | TestA | TestB |", "| confirmed | 1,520 | 1,500 | 20 |", "| fault: kill | 2 | 2 | 0 |", "| lost | 1 | 1 | 0 |"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	write("c/report.json", `{"version":2}`)
	for _, args := range [][]string{nil, {filepath.Join(dir, "c")}, {filepath.Join(dir, "d")}} {
		if err := run(args, &out); err == nil {
			t.Errorf("%q is added up", args)
		}
	}
}
