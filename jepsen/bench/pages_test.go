package main

import (
	"flag"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/cmd/tidy/page"
)

// TestPages: the command lines that the documentation shows have commands and flags of the program.
func TestPages(t *testing.T) {
	for _, line := range page.Commands(t, "../..", "quorate-bench") {
		for name := range strings.SplitSeq(line.Words[0], "|") {
			if why := wrongLine(name, line.Words[1:]); name != "COMMAND" && why != "" {
				t.Errorf("%s: %s: %s", line.At, strings.Join(line.Words, " "), why)
			}
		}
	}
	if wrongLine("nothing", nil) == "" || wrongLine("suite", []string{"-nothing"}) == "" {
		t.Error("nothing is wrong with what is not there")
	}
}

// wrongLine returns what is wrong with a command line; empty if nothing is.
func wrongLine(name string, words []string) string {
	i := slices.IndexFunc(verbs, func(v verb) bool { return v.name == name })
	if i < 0 {
		return "there is no such command"
	}
	f := flags{flag.NewFlagSet(name, flag.ContinueOnError)}
	verbs[i].prepare(f)
	for _, word := range words {
		if option, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "="); strings.HasPrefix(word, "-") && f.Lookup(option) == nil && option != "h" {
			return "there is no flag " + option
		}
	}
	return ""
}
