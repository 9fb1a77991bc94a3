package main

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
)

// logFile is where the log goes: a file that can be opened again, after
// somebody has renamed it, or what it was made with.
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

// open opens the file, for the first time or again. If that fails the log goes
// on where it went.
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

// reopenOn opens the file again at each signal: the process goes on whether or
// not that works.
func (l *logFile) reopenOn(signals <-chan os.Signal, logger *slog.Logger) {
	for s := range signals {
		if err := l.open(); err != nil {
			logger.Error("log file is not opened again", "error", err)
			continue
		}
		logger.Info("log file is opened again", "signal", s.String())
	}
}

func (l *logFile) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		l.file.Close()
	}
	l.to, l.file = os.Stderr, nil
}
