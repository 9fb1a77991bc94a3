package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/quorate/quorate/cluster/mgmt"
)

// retryLoading is the pause after an import that the catalog has not taken.
const retryLoading = time.Second

// definitionFile is a file of definitions.
type definitionFile struct {
	name string
	text []byte
}

// readDefinitions reads a file, or all files *.json of a folder by name, and checks their form.
func readDefinitions(path string) (files []definitionFile, err error) {
	if path == "" {
		return nil, nil
	}
	names := []string{path}
	if about, err := os.Stat(path); err == nil && about.IsDir() {
		if names, err = filepath.Glob(filepath.Join(path, "*.json")); err != nil {
			return nil, fmt.Errorf("load_definitions: %w", err)
		}
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err == nil {
			err = mgmt.CheckDefinitions(text)
		}
		if err != nil {
			return nil, fmt.Errorf("load_definitions: %s: %w", name, err)
		}
		files = append(files, definitionFile{name, text})
	}
	return files, nil
}

// loadDefinitions imports files. It tries again until the catalog has taken all, or ctx ends.
func loadDefinitions(ctx context.Context, b mgmt.Backend, files []definitionFile, logger *slog.Logger) error {
	for _, f := range files {
		for {
			report, err := b.LoadDefinitions(ctx, f.text)
			if err == nil {
				logger.Info("definitions are loaded", "file", f.name, "taken", report.Taken, "skipped", report.SkippedTotal)
				for _, s := range report.Skipped {
					logger.Warn("a definition is left out", "file", f.name, "section", s.Section, "vhost", s.VHost, "name", s.Name, "reason", s.Reason)
				}
				break
			}
			logger.Warn("definitions are not loaded yet", "file", f.name, "error", err)
			pause := time.NewTimer(retryLoading)
			select {
			case <-ctx.Done():
				pause.Stop()
				return ctx.Err()
			case <-pause.C:
			}
		}
	}
	return nil
}
