package tidy

import (
	"slices"
	"strings"
)

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
