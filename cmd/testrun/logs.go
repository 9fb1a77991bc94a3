package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// logs are the files with all that tests write, one per package. Without a folder there are none.
type logs struct {
	dir   string
	files map[string]*os.File // of packages that run
	errs  []error
}

// openLogs empties the folder.
func openLogs(dir string) (*logs, error) {
	l := &logs{dir: dir, files: map[string]*os.File{}}
	if dir == "" {
		return l, nil
	}
	return l, errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755))
}

// path is where the output of a package is kept; empty: nowhere.
func (l *logs) path(pkg string) string {
	if l.dir == "" {
		return ""
	}
	return filepath.Join(l.dir, strings.ReplaceAll(short(pkg), "/", "-")+".log")
}

func (l *logs) write(pkg, text string) error {
	if l.dir == "" {
		return nil
	}
	f := l.files[pkg]
	if f == nil {
		var err error
		if f, err = os.Create(l.path(pkg)); err != nil {
			return err
		}
		l.files[pkg] = f
	}
	_, err := f.WriteString(text)
	return err
}

// ends closes the file of a package.
func (l *logs) ends(pkg string) {
	if f := l.files[pkg]; f != nil {
		l.errs = append(l.errs, f.Close())
		delete(l.files, pkg)
	}
}

// close closes what is open still, and returns what went wrong.
func (l *logs) close() error {
	for pkg := range l.files {
		l.ends(pkg)
	}
	return errors.Join(l.errs...)
}
