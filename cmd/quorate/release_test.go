//go:build !testoptions

package main

import (
	"io"
	"strings"
	"testing"
)

// What users run has no switch for tests.
func TestReleaseHasNoTestOptions(t *testing.T) {
	for _, args := range [][]string{
		{"server", "--unsafe-test-options"}, {"dev", "--unsafe-test-options"}, {"server", "--set", "unsafe.test_clock_file=clock"},
	} {
		err := run(args, io.Discard)
		if err == nil || !strings.Contains(err.Error(), "flag provided but not defined") && !strings.Contains(err.Error(), "unknown setting") {
			t.Errorf("%v: %v", args, err)
		}
	}
	for _, row := range table {
		if strings.HasPrefix(row.key, "unsafe") {
			t.Errorf("there is a setting %s", row.key)
		}
	}
}
