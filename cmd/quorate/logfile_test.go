package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// SIGHUP opens the log file again: who has renamed it gets a new one, and the
// process goes on.
func TestLogFileIsOpenedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log", "quorate.log")
	logger, file, err := openLog(&settings{logFile: path, nodeName: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	defer file.close()
	logger.Info("before")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGHUP
	close(signals)
	reopenOn(signals, logger, file)
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
