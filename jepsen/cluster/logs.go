package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// logs lists the files with the output of the nodes.
func (c *Cluster) logs() []string {
	var all []string
	for _, pattern := range []string{"*.log", "data/*.log", "data/*/*.log"} {
		found, _ := filepath.Glob(filepath.Join(c.dir, pattern)) // the patterns are well-formed
		all = append(all, found...)
	}
	return all
}

// complaint matches lines that the log of a healthy server does not contain.
var complaint = regexp.MustCompile(`^(panic: |fatal error: |WARNING: DATA RACE)`)

// Complaints returns the log lines that report a crash or a data race.
func (c *Cluster) Complaints() []string {
	var found []string
	for _, path := range c.logs() {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for line := range bytes.Lines(text) {
			if complaint.Match(line) {
				found = append(found, fmt.Sprintf("%s: %.300s", filepath.Base(path), bytes.TrimSpace(line)))
			}
		}
	}
	return found
}

// lastWords returns how the logs of nodes end that have ended by themselves; nil: none has.
func (c *Cluster) lastWords() error {
	var errs []error
	for _, n := range c.Nodes {
		if n.Alive() {
			continue
		}
		for _, path := range []string{filepath.Join(n.DataDir(), "quorate.log"), filepath.Join(c.dir, fmt.Sprintf("node%d-restarted.log", n.Number))} {
			if text, err := os.ReadFile(path); err == nil && len(text) > 0 {
				errs = append(errs, fmt.Errorf("node %d has ended:\n%s", n.Number, text[max(0, len(text)-1000):]))
			}
		}
	}
	return errors.Join(errs...)
}

// Logged counts the log lines that contain all these words.
func (c *Cluster) Logged(words ...string) (n int) {
	for _, path := range c.logs() {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
				n++
			}
		}
	}
	return n
}

// CollectLogs copies every log of the cluster into dir.
func (c *Cluster) CollectLogs(dir string) error {
	var errs []error
	for _, path := range c.logs() {
		text, err := os.ReadFile(path)
		if err == nil {
			name := filepath.Base(path)
			if parent := filepath.Dir(path); parent != c.dir {
				name = filepath.Base(parent) + "-" + name
			}
			err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
