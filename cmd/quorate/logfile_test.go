package main

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quorate/quorate/cluster/audit"
)

// SIGHUP opens the log file again: who has renamed it gets a new one, and the
// process goes on.
func TestLogFileIsOpenedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log", "quorate.log")
	logger, _, file, err := openLog(&settings{logSettings: logSettings{logFile: path}, nodeSettings: nodeSettings{nodeName: "n1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer file.close()
	logger.Info("before")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	reopen(logger, syscall.SIGHUP, file)
	logger.Info("after")
	for name, want := range map[string]string{path: "after", path + ".1": "before"} {
		text, err := os.ReadFile(name)
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %s, %v", name, text, err)
		}
	}
	// If it cannot be opened the log goes on where it went.
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Dir(path), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := file.open(); err == nil {
		t.Error("a file in a file")
	}
	if _, err := file.Write([]byte("x")); err != nil {
		t.Errorf("the former file: %v", err)
	}
}

// A log file is renamed before it gets larger than the setting says, and as many stay as it says.
func TestLogFileIsRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "quorate.log")
	if err := os.WriteFile(path, []byte("old one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := &logFile{path: path, when: rotation{size: 16, keep: 2}}
	if err := file.open(); err != nil {
		t.Fatal(err)
	}
	defer file.close()
	for _, line := range []string{"1234567\n", "2345678\n", "a line that is too long\n", "3456789\n", "4567890\n"} {
		if _, err := file.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{path: "3456789\n4567890\n", path + ".1": "a line that is too long\n", path + ".2": "2345678\n"} {
		if text, err := os.ReadFile(name); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v, want %q", name, text, err, want)
		}
	}
	if _, err := os.Stat(path + ".3"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a third file: %v", err)
	}
	// If it cannot be renamed the log goes on where it went.
	if err := errors.Join(os.Remove(path+".1"), os.MkdirAll(filepath.Join(path+".1", "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	file.bound(rotation{size: 16, keep: 1})
	if _, err := file.Write([]byte("5678901\n")); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "3456789\n4567890\n5678901\n" {
		t.Errorf("%q, %v", text, err)
	}
	// Without a bound it is never renamed.
	file.bound(rotation{})
	if _, err := file.Write([]byte(strings.Repeat("x", 100))); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || len(text) != 124 {
		t.Errorf("%q, %v", text, err)
	}
}

// The audit log goes where the setting says, is opened again like the log, and
// nobody but the user of the process may read it.
func TestAuditFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	s := defaults()
	if err := s.apply("log.audit.file", path); err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.DiscardHandler)
	log, file, err := openAudit(s, logger)
	if err != nil {
		t.Fatal(err)
	}
	defer file.close()
	event := audit.Event{Kind: audit.Cluster, Action: "before", Outcome: audit.OK}
	log.Write(event)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	reopen(logger, syscall.SIGHUP, &logFile{}, file)
	event.Action = "after"
	log.Write(event)
	for name, want := range map[string]string{path: "after", path + ".1": "before"} {
		text, err := os.ReadFile(name)
		info, statErr := os.Stat(name)
		if err != nil || statErr != nil || strings.Count(string(text), "\n") != 1 || !strings.Contains(string(text), `"action":"`+want+`"`) || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %s, %v, %v", name, text, err, info)
		}
	}
	for value, want := range map[string]*os.File{"stdout": os.Stdout, "stderr": os.Stderr} {
		if log, file, err := openAudit(&settings{logSettings: logSettings{auditFile: value}}, logger); err != nil || log == nil || file.to != want {
			t.Errorf("%s: %v", value, err)
		}
	}
	if log, _, err := openAudit(defaults(), logger); log != nil || err != nil {
		t.Errorf("by default: %v, %v", log, err)
	}
	if _, _, err := openAudit(&settings{logSettings: logSettings{auditFile: filepath.Join(path, "x")}}, logger); err == nil {
		t.Error("a file in a file")
	}
}

// A line of the log in JSON holds nothing that a terminal obeys.
func TestLogOfHostileNames(t *testing.T) {
	for _, format := range []string{"plaintext", "json"} {
		path := filepath.Join(t.TempDir(), "log")
		logger, _, file, err := openLog(&settings{logSettings: logSettings{logFile: path, logFormat: format}})
		if err != nil {
			t.Fatal(err)
		}
		logger.Info("m", "name", "a\nb\x1b[31m\x00\u009b31m\u202e\x7f\xff", "error", errors.New("x\ny"))
		file.close()
		text, err := os.ReadFile(path)
		if err != nil || strings.Count(string(text), "\n") != 1 {
			t.Errorf("%s: %q, %v", format, text, err)
		}
		for _, b := range strings.TrimSuffix(string(text), "\n") {
			if b < ' ' || b > '~' {
				t.Errorf("%s: %q holds %q", format, text, b)
			}
		}
	}
}
