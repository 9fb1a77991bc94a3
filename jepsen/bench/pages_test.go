package main

import (
	"flag"
	"io"
	"strings"
	"testing"

	"github.com/quorate/quorate/cmd/tidy/page"
)

// TestPages: the command lines that the documentation shows have commands and flags of the program.
func TestPages(t *testing.T) {
	for _, line := range page.Commands(t, "../..", "quorate-bench") {
		for name := range strings.SplitSeq(line.Words[0], "|") {
			if why := wrongLine(t, name, line.Words[1:]); name != "COMMAND" && why != "" {
				t.Errorf("%s: %s: %s", line.At, strings.Join(line.Words, " "), why)
			}
		}
	}
	if wrongLine(t, "nothing", nil) == "" || wrongLine(t, "suite", []string{"-nothing"}) == "" {
		t.Error("nothing is wrong with what is not there")
	}
}

// wrongLine returns what is wrong with a command line; empty if nothing is.
func wrongLine(t *testing.T, name string, words []string) string {
	for _, c := range commands {
		if c.name != name {
			continue
		}
		fs := flag.NewFlagSet(name, flag.ContinueOnError)
		fs.SetOutput(io.Discard)
		_ = c.run(t.Context(), fs, []string{"-h"}) // which defines the flags, and does nothing
		for _, word := range words {
			if option, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "="); strings.HasPrefix(word, "-") && fs.Lookup(option) == nil && option != "h" {
				return "there is no flag " + option
			}
		}
		return ""
	}
	return "there is no such command"
}
