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

// errRising is why an import that would leave out what the next version takes waits.
var errRising = errors.New("fsm_version is about to rise")

// retryLoading is the pause after an import that the catalog has not taken.
const retryLoading = time.Second

// maxWaits is how often an import waits for a rise of fsm_version.
const maxWaits = 10

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

// loader imports files of definitions when a node starts.
type loader struct {
	backend       mgmt.Backend
	files         []definitionFile
	skipUnchanged bool             // nothing is imported if it is what was imported last
	partial       bool             // what cannot be taken is left out
	lacks         func(why string) // is told what the node waits for; empty: nothing any more
	logger        *slog.Logger
}

// load imports the files. It tries again until the catalog has taken all, or ctx ends: something that
// is left out may be taken later, such as what a later fsm_version brings.
func (l *loader) load(ctx context.Context) error {
	if len(l.files) == 0 {
		return nil
	}
	b, files, logger := l.backend, l.files, l.logger
	hash, last := hashDefinitions(files), b.ImportedHash()
	if l.skipUnchanged && hash == last {
		logger.Info("definitions are unchanged since the last import and are not loaded again", "files", len(files), "sha256", hash)
		return nil
	}
	if last != "" { // an import that ends halfway leaves no hash
		if err := l.setImportedHash(ctx, ""); err != nil {
			return err
		}
	}
	for _, f := range files {
		if err := l.loadFile(ctx, f); err != nil {
			return err
		}
	}
	if !l.skipUnchanged && last == "" {
		return nil
	}
	return l.setImportedHash(ctx, hash)
}

func (l *loader) loadFile(ctx context.Context, f definitionFile) error {
	logger := l.logger.With("file", f.name)
	waits := 0
	return again(ctx, logger, func() error {
		v := l.backend.Catalog.View()
		if common, _ := v.CommonVersion(); l.partial && common > v.FSMVersion() && waits < maxWaits {
			waits++
			return errRising
		}
		report, err := l.backend.LoadDefinitions(ctx, f.text, l.partial)
		var left *mgmt.LeftOut
		if errors.As(err, &left) {
			l.lacks(fmt.Sprintf("load_definitions: %s: %v (definitions.partial)", f.name, err))
		}
		if err != nil {
			return err
		}
		l.lacks("")
		logger.Info("definitions are loaded", "taken", report.Taken, "skipped", report.SkippedTotal)
		for _, s := range report.Skipped {
			logger.Warn("a definition was skipped", "section", s.Section, "vhost", s.VHost, "name", s.Name, "reason", s.Reason)
		}
		for _, s := range report.Notes {
			logger.Warn("a definition has a different meaning here", "section", s.Section, "vhost", s.VHost, "name", s.Name, "reason", s.Reason)
		}
		return nil
	})
}

func (l *loader) setImportedHash(ctx context.Context, hash string) error {
	return again(ctx, l.logger, func() error {
		err := l.backend.SetImportedHash(ctx, hash)
		var refused *fsm.Refusal
		if errors.As(err, &refused) { // it does not help to try again
			l.logger.Warn("the next start will load the definitions even if they are unchanged", "reason", err)
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
