package tidy

import (
	"io/fs"
	"path"
	"slices"
	"strings"
)

// topLevel lists what may be at the root of the repository.
var topLevel = []string{
	"cmd", "fsm", "amqp", "cluster", "proto", "jepsen", "docs", "deploy",
	"go.mod", "go.sum", "Makefile", "README*", "CHANGELOG*", "LICENSE", "SECURITY*",
	".ci", ".git", ".gitignore",
}

// vagueNames are folder names that say nothing about the content.
var vagueNames = []string{"util", "utils", "common", "helper", "helpers", "misc", "pkg", "base", "shared"}

// checkTopLevel finds entries that do not belong at the root. ignored holds the
// patterns of .gitignore.
func checkTopLevel(tree fs.FS, ignored []string) ([]breach, error) {
	entries, err := fs.ReadDir(tree, ".")
	if err != nil {
		return nil, err
	}
	var found []breach
	for _, e := range entries {
		if !anyGlob(topLevel, e.Name()) && !anyGlob(ignored, e.Name()) {
			found = append(found, breach{e.Name(), "does not belong at the top level"})
		}
	}
	return found, nil
}

// checkFolders finds packages in folders with vague names.
func checkFolders(files []*source) []breach {
	var found []breach
	seen := map[string]bool{}
	for _, s := range files {
		if seen[s.dir] {
			continue
		}
		seen[s.dir] = true
		for part := range strings.SplitSeq(s.dir, "/") {
			if slices.Contains(vagueNames, part) {
				found = append(found, breach{s.dir, "a folder named " + part + " says nothing about what it holds"})
			}
		}
	}
	return found
}

// gitignored returns the patterns of a .gitignore that can match an entry of the root,
// as globs.
func gitignored(text string) []string {
	var globs []string
	for line := range strings.Lines(text) {
		line = strings.Trim(strings.TrimSpace(line), "/")
		if line != "" && line[0] != '#' && !strings.Contains(line, "/") {
			globs = append(globs, line)
		}
	}
	return globs
}

func anyGlob(globs []string, name string) bool {
	return slices.ContainsFunc(globs, func(g string) bool {
		ok, err := path.Match(g, name)
		return ok && err == nil
	})
}
