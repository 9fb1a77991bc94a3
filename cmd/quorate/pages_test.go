package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/cmd/tidy/page"
)

// TestPages: the command lines that the documentation shows have commands, options and settings of the program.
func TestPages(t *testing.T) {
	for _, line := range page.Commands(t, "../..", "quorate") {
		if line.Words[0] == "backup" {
			continue // that is how a file of a backup begins
		}
		if why := wrongLine(line.Words); why != "" {
			t.Errorf("%s: %s: %s", line.At, strings.Join(line.Words, " "), why)
		}
	}
	for _, wrong := range []string{"serve", "server --nothing", "config nothing", "server --set cluster.nothing=1"} {
		if wrongLine(strings.Fields(wrong)) == "" {
			t.Errorf("nothing is wrong with %s", wrong)
		}
	}
}

var (
	option     = regexp.MustCompile(`--?[a-z][a-z-]*`)
	settingKey = regexp.MustCompile(`^[a-z_.]+[a-z0-9_.]*$`)
)

// wrongLine returns what is wrong with a command line; empty if nothing is.
func wrongLine(words []string) string {
	var known []string // what the usage says of this command
	for line := range strings.Lines(usage) {
		have := strings.Fields(line)
		if len(have) > 1 && have[0] == "quorate" && have[1] == words[0] && (len(have) < 3 || have[1] != "config" || len(words) > 1 && have[2] == words[1]) {
			known = append(known, append(option.FindAllString(line, -1), "-h", "--help")...)
		}
	}
	if known == nil {
		return "there is no such command"
	}
	for i, word := range words {
		name, value, assigned := strings.Cut(strings.Trim(word, "[]"), "=")
		if strings.HasPrefix(name, "-") && !slices.Contains(known, name) && !slices.Contains(known, "-"+name) {
			return "there is no option " + name
		}
		if !assigned && i > 0 && words[i-1] == "--set" {
			return "a setting without a value"
		}
		key := name
		if name == "--set" {
			key, _, _ = strings.Cut(value, "=")
		}
		if (name == "--set" && assigned || i > 0 && words[i-1] == "--set") && settingKey.MatchString(key) && !isSetting(key) {
			return "there is no setting " + key
		}
	}
	return ""
}

// dotted is what looks like a setting with a dot in its name.
var dotted = regexp.MustCompile(`^[a-z_]+(\.[a-z_]+)+$`)

// TestNamedSettings: settings that the documentation names are there. What begins as one does, is one.
func TestNamedSettings(t *testing.T) {
	begins := map[string]bool{}
	for _, row := range table {
		if first, _, ok := strings.Cut(row.key, "."); ok {
			begins[first] = true
		}
	}
	found := 0
	for name, text := range page.Pages(t, "../..") {
		for _, block := range page.Code(text) {
			key, _, _ := strings.Cut(block.Text, " = ")
			if first, _, _ := strings.Cut(key, "."); !dotted.MatchString(key) || !begins[first] || strings.HasSuffix(key, ".go") || strings.HasSuffix(key, ".md") {
				continue
			}
			if found++; !isSetting(key) {
				t.Errorf("%s:%d: there is no setting %s", name, block.Line, key)
			}
		}
	}
	if found < 80 {
		t.Errorf("%d settings are named", found)
	}
}

func isSetting(key string) bool {
	key = regexp.MustCompile(`\.\d+$`).ReplaceAllString(key, ".N")
	return slices.ContainsFunc(table, func(row setting) bool { return row.key == key }) ||
		slices.ContainsFunc(borrowedKeys(), func(row borrowed) bool { return row.key == key })
}
