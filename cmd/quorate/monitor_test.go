package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestMonitored(t *testing.T) {
	for _, tc := range []struct {
		name       string
		have, want []string // want nil: nothing changes
	}{
		{"no options", []string{"A=1", "B="}, []string{"A=1", "B=", "GODEBUG=" + monitorOption}},
		{"other options", []string{"GODEBUG=gctrace=0,madvdontneed=1", "A=1"}, []string{"A=1", "GODEBUG=gctrace=0,madvdontneed=1," + monitorOption}},
		{"empty options", []string{"GODEBUG="}, []string{"GODEBUG=" + monitorOption}},
		{"the option", []string{"GODEBUG=" + monitorOption}, nil},
		{"turned off", []string{"GODEBUG=gctrace=0,schedtrace=0"}, nil},
	} {
		got, changed := monitored(slices.Clone(tc.have))
		if want := tc.want; want == nil && (changed || !slices.Equal(got, tc.have)) || want != nil && (!changed || !slices.Equal(got, want)) {
			t.Errorf("%s: %q, %v; want %q", tc.name, got, changed, want)
		}
	}
}

// TestMonitorAgain starts this test as a program that does what a server does first: it goes on as the
// same process, with its arguments.
func TestMonitorAgain(t *testing.T) {
	if os.Getenv("QUORATE_TEST_MONITOR") != "" {
		pid := os.Getenv("QUORATE_TEST_MONITOR")
		if pid == "first" { // an environment of the second start would not come from here
			if err := os.Setenv("QUORATE_TEST_MONITOR", strings.TrimSpace(mustPid(t))); err != nil {
				t.Fatal(err)
			}
			keepMonitorAwake()
			t.Fatal("it was not started again")
		}
		if pid != mustPid(t) || !strings.Contains(os.Getenv("GODEBUG"), monitorOption) {
			t.Fatalf("process %s was %s, options %q", mustPid(t), pid, os.Getenv("GODEBUG"))
		}
		keepMonitorAwake()
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Skip(err)
	}
	c := exec.Command(self, "-test.run", "^TestMonitorAgain$", "-test.v")
	c.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GODEBUG=") }), "QUORATE_TEST_MONITOR=first")
	out, err := c.CombinedOutput()
	if err != nil || strings.Count(string(out), "=== RUN") != 2 || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("%v:\n%s", err, out)
	}
}

// mustPid is the number of this process as the system knows it.
func mustPid(t *testing.T) string {
	t.Helper()
	to, err := os.Readlink("/proc/self")
	if err != nil {
		t.Skip("no /proc:", err)
	}
	return to
}
