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
}

// Write implements io.Writer.
func (l *logFile) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(line)
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
	if err := os.MkdirAll(filepath.Dir(l.path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		l.file.Close()
	}
	l.to, l.file = f, f
	return nil
}

// reopenOn reopens files at each signal. The process continues whether or not that works.
func reopenOn(signals <-chan os.Signal, logger *slog.Logger, files ...*logFile) {
	for s := range signals {
		for _, l := range files {
			if err := l.open(); err != nil {
				logger.Error("log file is not opened again", "file", l.path, "error", err)
			} else if l.path != "" {
				logger.Info("log file is opened again", "file", l.path, "signal", s.String())
			}
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
