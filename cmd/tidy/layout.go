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

// knownLicenses are the licences that modules linked into the server may have, with
// words that only their texts contain. The first match counts.
var knownLicenses = []struct {
	name  string
	words []string
}{
	{"Apache-2.0", []string{"Apache License", "Version 2.0"}},
	{"MPL-2.0", []string{"Mozilla Public License", "2.0"}},
	{"BSD-3-Clause", []string{"Redistribution and use in source and binary forms", "Neither the name"}},
	{"BSD-2-Clause", []string{"Redistribution and use in source and binary forms"}},
	{"MIT", []string{"Permission is hereby granted, free of charge", "The above copyright notice and this permission notice"}},
}

// isLicense reports whether a file in a module's root is its licence.
func isLicense(name string) bool {
	name, _, _ = strings.Cut(strings.ToLower(name), ".")
	return name == "license" || name == "licence" || name == "copying"
}

// licenseOf returns the name of the licence with a text; empty if it is not known.
func licenseOf(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	for _, l := range knownLicenses {
		has := true
		for _, w := range l.words {
			has = has && strings.Contains(strings.ToLower(text), strings.ToLower(w))
		}
		if has {
			return l.name
		}
	}
	return ""
}

// moduleList returns the lines of text, sorted and without duplicates, except the
// project itself.
func moduleList(text string) []string {
	var modules []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line != "" && line != module {
			modules = append(modules, line)
		}
	}
	slices.Sort(modules)
	return slices.Compact(modules)
}

// differences compares two module lists.
func differences(want, got []string) []breach {
	var found []breach
	for _, m := range got {
		if !slices.Contains(want, m) {
			found = append(found, breach{m, "a new dependency of the server; if it is meant, run go test ./cmd/tidy -rewrite"})
		}
	}
	for _, m := range want {
		if !slices.Contains(got, m) {
			found = append(found, breach{m, "no dependency of the server any more; run go test ./cmd/tidy -rewrite"})
		}
	}
	return found
}
