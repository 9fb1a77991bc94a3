package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
)

// keepPrivate makes everything that this process and its children write accessible to their user
// only, and prevents memory dumps when they crash.
func keepPrivate() error {
	syscall.Umask(0o077)
	if err := syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}); err != nil {
		return fmt.Errorf("core dumps: %w", err)
	}
	return nil
}

// Access rights to a file of users other than the owner, and of its group.
const (
	othersRead  fs.FileMode = 0o004
	othersWrite fs.FileMode = 0o002
	notOwner    fs.FileMode = 0o077
)

// checkPrivate returns an error if every user of this host can read or write a file with a secret.
func checkPrivate(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return private(path, info.Mode(), true)
}

// private returns an error if every user of this host can write a file or, if it holds a secret,
// read it. Access of its group is the operator's choice.
func private(path string, mode fs.FileMode, secret bool) error {
	switch {
	case mode&othersWrite != 0:
		return fmt.Errorf("%s: writable by every user of this host (%v); use chmod o-w", path, mode.Perm())
	case secret && mode&othersRead != 0:
		return fmt.Errorf("%s: contains a secret and is readable by every user of this host (%v); use chmod o-r", path, mode.Perm())
	}
	return nil
}

// closeData removes everyone's access but the owner's from existing data of a node, such as older
// or copied files. What cannot be changed is reported and left.
func closeData(dir string, logger *slog.Logger) error {
	root, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("setting data_dir: %w", err)
	}
	if info, err := os.Stat(root); err == nil && info.Mode()&fs.ModeSticky != 0 {
		return fmt.Errorf("setting data_dir: %s is writable by everybody (%v); a node needs a folder of its own", dir, info.Mode())
	}
	var closed int
	var failed error
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !d.Type().IsRegular() {
			return nil
		}
		var info fs.FileInfo
		if err == nil {
			info, err = d.Info()
		}
		if err == nil && info.Mode()&notOwner != 0 {
			if err = os.Chmod(path, info.Mode().Perm()&^notOwner); err == nil {
				closed++
			}
		}
		if err != nil && failed == nil {
			failed = err
		}
		if err != nil && d != nil && d.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
	if closed > 0 {
		logger.Warn("data was accessible to other users of this host; permissions were restricted", "dir", dir, "files", closed)
	}
	if err = errors.Join(err, failed); err != nil {
		logger.Warn("data may be accessible to other users of this host", "dir", dir, "error", err)
	}
	return nil
}

// warnOfRoot warns that the node could run with fewer privileges.
func warnOfRoot(logger *slog.Logger) {
	if os.Geteuid() == 0 {
		logger.Warn("the node runs as root; an unprivileged user is enough")
	}
}
