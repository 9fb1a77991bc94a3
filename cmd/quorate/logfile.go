package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/audit"
)

// logFile is the destination of the log: a file that can be reopened after it was renamed, or the
// writer it was created with.
type logFile struct {
	path string // empty: no file

	mu   sync.Mutex
	to   io.Writer
	file *os.File // nil: none is open
	size int64    // of the file
	when rotation
}

// rotation says when a log file is renamed, and what becomes of it.
type rotation struct {
	size int // bytes that it may have; 0: it is never renamed
	keep int // renamed files that stay: FILE.1, the newest, to FILE.keep
}

// Write implements io.Writer.
func (l *logFile) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil && l.when.size > 0 && l.size > 0 && l.size+int64(len(line)) > int64(l.when.size) {
		l.rotate()
	}
	n, err := l.to.Write(line)
	l.size += int64(n)
	return n, err
}

// bound sets when the file is renamed.
func (l *logFile) bound(when rotation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.when = when
}

// rotate renames the file, and those before it, and opens a new one. If that fails the log continues
// where it went, and it is tried again when as much has been written once more. The caller holds l.mu.
func (l *logFile) rotate() {
	name := func(i int) string { return fmt.Sprintf("%s.%d", l.path, i) }
	for i := l.when.keep - 1; i > 0; i-- {
		_ = os.Rename(name(i), name(i+1)) // one that is missing leaves a gap
	}
	l.size = 0
	if os.Rename(l.path, name(1)) == nil {
		_ = l.replace()
	}
}

// asciiWriter escapes, in lines of JSON, characters that terminals would interpret.
type asciiWriter struct{ to io.Writer }

func (w asciiWriter) Write(line []byte) (int, error) {
	if _, err := w.to.Write(audit.ASCII(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}

// open opens or reopens the file. If that fails the log continues where it went.
func (l *logFile) open() error {
	if l.path == "" {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replace()
}

// replace opens the file and leaves the one before. The caller holds l.mu.
func (l *logFile) replace() error {
	if err := os.MkdirAll(filepath.Dir(l.path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if l.file != nil {
		l.file.Close()
	}
	l.to, l.file, l.size = f, f, 0
	if info, err := f.Stat(); err == nil {
		l.size = info.Size()
	}
	return nil
}

// reopen opens files again, whether or not that works.
func reopen(logger *slog.Logger, s os.Signal, files ...*logFile) {
	for _, l := range files {
		if err := l.open(); err != nil {
			logger.Error("log file was not reopened", "file", l.path, "error", err)
		} else if l.path != "" {
			logger.Info("log file was reopened", "file", l.path, "signal", s.String())
		}
	}
}

// openAudit opens the audit log; nil: there is none. to is its file.
func openAudit(s *settings, logger *slog.Logger) (l *audit.Log, to *logFile, err error) {
	to = &logFile{}
	switch s.auditFile {
	case "":
		return nil, to, nil
	case "stdout":
		to.to = os.Stdout
	case "stderr":
		to.to = os.Stderr
	default:
		to.path = s.auditFile
	}
	if err := to.open(); err != nil {
		return nil, nil, fmt.Errorf("setting log.audit.file: %w", err)
	}
	return audit.New(s.nodeName, to, time.Now, func(err error) { logger.Error("audit log not written", "error", err) }), to, nil
}

func (l *logFile) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		l.file.Close()
	}
	l.to, l.file = os.Stderr, nil
}
