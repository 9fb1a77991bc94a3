package report

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The table in jepsen/README.md has every promise, with its text or a longer one.
func TestReadmeHasPromises(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\| ([SL]\d+) \| (.*)$`).FindAllStringSubmatch(string(text), -1) {
		rows[m[1]] = m[2]
	}
	for _, p := range Promises {
		if !strings.Contains(rows[p.ID], p.Text) {
			t.Errorf("%s is %q in the README, and %q here", p.ID, rows[p.ID], p.Text)
		}
		delete(rows, p.ID)
	}
	for id := range rows {
		t.Errorf("%s is in the README alone", id)
	}
}

var checkerName = regexp.MustCompile(`(?:problems\{name: |linear\(h, )"([a-z -]+)"`)

// Each checker is evidence for a promise.
func TestCheckersHavePromises(t *testing.T) {
	files, err := filepath.Glob("../checker/*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range checkerName.FindAllStringSubmatch(string(text), -1) {
			found++
			if !slices.ContainsFunc(Promises, func(p Promise) bool { return slices.Contains(p.Checkers, m[1]) }) {
				t.Errorf("%s: %s has no promise", file, m[1])
			}
		}
	}
	if found < 20 {
		t.Errorf("%d checkers", found)
	}
}
