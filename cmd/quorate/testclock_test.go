//go:build testoptions

package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestTestClock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "clock")
	now := time.UnixMilli(1_000_000)
	c, err := newTestClock(path, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	is := func(when string, want int64) {
		t.Helper()
		if got := c.wall().UnixMilli(); got != want {
			t.Errorf("%s: %d, want %d", when, got, want)
		}
	}
	read := func(text string) {
		t.Helper()
		mustWrite(t, path, text)
		if err := c.read(); err != nil {
			t.Fatal(err)
		}
	}
	is("without a file", 1_000_000)
	read("3600000\n")
	is("ahead", 4_600_000)
	read("-3600000 1.5")
	is("behind", 1_000_000-3_600_000)
	now = now.Add(10 * time.Second)
	is("behind and quick", 1_015_000-3_600_000)
	read("-3600000 1.5")
	is("read again", 1_015_000-3_600_000)
	read("0 0")
	now = now.Add(10 * time.Second)
	is("standing still", 1_010_000)
	for _, bad := range []string{"x", "1 2 3", "1 -1", "1 NaN", "9999999999999999", "1.5"} {
		mustWrite(t, path, bad)
		if err := c.read(); err == nil {
			t.Errorf("%q is taken", bad)
		}
		is("after "+bad, 1_010_000)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := c.read(); err != nil {
		t.Fatal(err)
	}
	is("the file removed", 1_020_000)
	mustWrite(t, path, "nonsense")
	if _, err := newTestClock(path, time.Now); err == nil {
		t.Error("a start with nonsense in the file")
	}
}

func TestTestClockReadsAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "clock")
	c, err := newTestClock(path, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		c.run(stop, slog.New(slog.DiscardHandler))
	}()
	mustWrite(t, path, "86400000")
	deadline, look := time.After(time.Minute), time.NewTicker(10*time.Millisecond)
	defer look.Stop()
	for c.wall().Before(time.Now().Add(time.Hour)) {
		select {
		case <-look.C:
		case <-deadline:
			t.Fatal("the file is not read again")
		}
	}
	close(stop)
	<-done
}

func TestTestSettingsAreRefused(t *testing.T) {
	dir := t.TempDir()
	for key, value := range map[string]string{"unsafe.test_clock_file": "clock", "unsafe.test_fsm_version": "2"} {
		err := run([]string{"server", "--data-dir", dir, "--set", key + "=" + value}, os.Stderr)
		if err == nil || err.Error() != "setting "+key+": refused without --unsafe-test-options" {
			t.Errorf("%v", err)
		}
	}
}
