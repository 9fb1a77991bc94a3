package main

import (
	"bytes"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// mustMode gives a file a mode, whatever the umask is.
func mustMode(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// A file of settings that every user of the host can write is refused, and so is
// one they can read if there is a password in it.
func TestSettingsOfOthers(t *testing.T) {
	const plain, secret = "cluster_name = c\n", "# a password\n default_pass = p\n"
	for _, c := range []struct {
		text string
		mode fs.FileMode
		want string // empty: accepted
	}{
		{plain, 0o600, ""}, {plain, 0o644, ""}, {plain, 0o664, ""}, {secret, 0o600, ""}, {secret, 0o640, ""}, {secret, 0o660, ""},
		{plain, 0o646, "writable by every user of this host (-rw-r--rw-)"}, {plain, 0o666, "writable by every user of this host"}, {plain, 0o602, "writable by every user of this host"},
		{secret, 0o666, "writable by every user of this host"}, {secret, 0o644, "contains a secret and is readable by every user of this host (-rw-r--r--)"}, {secret, 0o604, "contains a secret and is readable by every user of this host"},
		{"# default_pass = p\n", 0o644, ""},
	} {
		file := filepath.Join(t.TempDir(), "quorate.conf")
		mustWrite(t, file, c.text)
		mustMode(t, file, c.mode)
		_, err := load(file, nil)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), file+": "+c.want)) {
			t.Errorf("%v %q: %v, want %q", c.mode, c.text, err, c.want)
		}
	}
}

func mustWrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Data that was open to others is closed, and nothing outside of it.
func TestDataOfOthers(t *testing.T) {
	parent := t.TempDir()
	dir, outside := filepath.Join(parent, "data"), filepath.Join(parent, "outside")
	if err := os.MkdirAll(filepath.Join(dir, "queues"), 0o755); err != nil {
		t.Fatal(err)
	}
	modes := map[string]fs.FileMode{
		dir: 0o755, filepath.Join(dir, "queues"): 0o777, filepath.Join(dir, "queues", "1.log"): 0o644,
		filepath.Join(dir, "mark"): 0o400, outside: 0o644,
	}
	for _, file := range []string{filepath.Join(dir, "queues", "1.log"), filepath.Join(dir, "mark"), outside} {
		mustWrite(t, file, "x")
	}
	for path, mode := range modes {
		mustMode(t, path, mode)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(parent, "way")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	var told bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&told, nil))
	if err := closeData(link, logger); err != nil {
		t.Fatal(err)
	}
	for path, mode := range modes {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if path != outside {
			mode &^= 0o077
		}
		if info.Mode().Perm() != mode {
			t.Errorf("%s has %v, want %v", path, info.Mode().Perm(), mode)
		}
	}
	if !strings.Contains(told.String(), "data was accessible to other users of this host") || !strings.Contains(told.String(), "files=3") {
		t.Errorf("it is told %q", &told)
	}
	told.Reset()
	if err := closeData(dir, logger); err != nil || told.Len() > 0 {
		t.Errorf("closed data: %v, %q", err, &told)
	}
	if err := closeData(filepath.Join(parent, "none"), logger); err != nil || told.Len() > 0 {
		t.Errorf("no data: %v, %q", err, &told)
	}
	mustMode(t, dir, 0o777|fs.ModeSticky)
	if err := closeData(dir, logger); err == nil || !strings.Contains(err.Error(), "is writable by everybody") {
		t.Errorf("everybody's folder: %v", err)
	}
}
