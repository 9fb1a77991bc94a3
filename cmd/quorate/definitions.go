package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/quorate/quorate/cluster/mgmt"
	"github.com/quorate/quorate/fsm"
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

// hashDefinitions hashes the contents of files: where one ends is part of it, their names are not.
func hashDefinitions(files []definitionFile) string {
	all := sha256.New()
	for _, f := range files {
		one := sha256.Sum256(f.text)
		_, _ = all.Write(one[:]) // never fails
	}
	return hex.EncodeToString(all.Sum(nil))
}

// loadDefinitions imports files, with skipUnchanged only if they are not what was imported last. It
// tries again until the catalog has taken all, or ctx ends.
func loadDefinitions(ctx context.Context, b mgmt.Backend, files []definitionFile, skipUnchanged bool, logger *slog.Logger) error {
	if len(files) == 0 {
		return nil
	}
	hash, last := hashDefinitions(files), b.ImportedHash()
	if skipUnchanged && hash == last {
		logger.Info("definitions are those imported last, and are not loaded", "files", len(files), "sha256", hash)
		return nil
	}
	if last != "" { // an import that ends halfway leaves no hash
		if err := setImportedHash(ctx, b, "", logger); err != nil {
			return err
		}
	}
	for _, f := range files {
		if err := loadFile(ctx, b, f, logger); err != nil {
			return err
		}
	}
	if !skipUnchanged && last == "" {
		return nil
	}
	return setImportedHash(ctx, b, hash, logger)
}

func loadFile(ctx context.Context, b mgmt.Backend, f definitionFile, logger *slog.Logger) error {
	logger = logger.With("file", f.name)
	return again(ctx, logger, func() error {
		report, err := b.LoadDefinitions(ctx, f.text)
		if err != nil {
			return err
		}
		logger.Info("definitions are loaded", "taken", report.Taken, "skipped", report.SkippedTotal)
		for _, s := range report.Skipped {
			logger.Warn("a definition is left out", "section", s.Section, "vhost", s.VHost, "name", s.Name, "reason", s.Reason)
		}
		for _, s := range report.Notes {
			logger.Warn("a definition means something else here", "section", s.Section, "vhost", s.VHost, "name", s.Name, "reason", s.Reason)
		}
		return nil
	})
}

func setImportedHash(ctx context.Context, b mgmt.Backend, hash string, logger *slog.Logger) error {
	return again(ctx, logger, func() error {
		err := b.SetImportedHash(ctx, hash)
		var refused *fsm.Refusal
		if errors.As(err, &refused) { // it does not help to try again
			logger.Warn("the next start loads the definitions even if they are unchanged", "reason", err)
			return nil
		}
		return err
	})
}

// again does a part of an import until the catalog has taken it, or ctx ends.
func again(ctx context.Context, logger *slog.Logger, part func() error) error {
	for {
		err := part()
		if err == nil {
			return nil
		}
		logger.Warn("definitions are not loaded yet", "error", err)
		pause := time.NewTimer(retryLoading)
		select {
		case <-ctx.Done():
			pause.Stop()
			return ctx.Err()
		case <-pause.C:
		}
	}
}
