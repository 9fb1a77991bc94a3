// Command sum adds up the reports of fault tests: it reads every report.json below the
// folders in its arguments and prints a table in Markdown.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/quorate/quorate/jepsen/report"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: sum DIR…: folders that contain reports of fault tests")

func run(dirs []string, out io.Writer) error {
	if len(dirs) == 0 {
		return errUsage
	}
	var all []report.Report
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() != report.FileName {
				return err
			}
			r, err := read(path)
			all = append(all, r)
			return err
		})
		if err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "%d reports\n\n%s", len(all), report.Markdown(all))
	return err
}

// read reads a report. It refuses one of another version.
func read(path string) (report.Report, error) {
	var r report.Report
	text, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	if r.Version != report.Version {
		return r, fmt.Errorf("%s: version %d, not %d", path, r.Version, report.Version)
	}
	return r, nil
}
