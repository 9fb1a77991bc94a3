// Package golden keeps logs, snapshots and the states they lead to as they
// were recorded once, so that later programs are held to them.
//
// A file is text, one record per line: entries in the order of the log, among
// them one snapshot of the state so far, at the end the hash of the state.
//
//	entry INDEX TERM BASE64
//	snapshot BASE64
//	hash HEX
//
// Files are added, never changed: go test PACKAGE -run TestGolden -golden
// records those that are missing.
package golden

import (
	"bufio"
	"encoding/base64"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var add = flag.Bool("golden", false, "record the golden files that are missing")

// Entry is one entry of a log.
type Entry struct {
	Index, Term uint64
	Data        []byte
}

// Record is a log and what it led to.
type Record struct {
	Before   []Entry // up to the snapshot
	Snapshot []byte
	After    []Entry
	Hash     string
}

// Adding reports whether missing files are to be recorded.
func Adding() bool { return *add }

// Add writes a record to a file, unless there is one of that name.
func Add(t *testing.T, path string, r *Record) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if os.IsExist(err) {
		return
	}
	if err == nil {
		_, err = f.WriteString(r.String())
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Each runs check on every record in a folder and those below it.
func Each(t *testing.T, dir string, check func(t *testing.T, r *Record)) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*", "*.golden"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no golden files in %s: %v", dir, err)
	}
	for _, path := range paths {
		t.Run(strings.TrimPrefix(path, dir+"/"), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			r, err := Parse(string(text))
			if err != nil {
				t.Fatal(err)
			}
			check(t, r)
		})
	}
}

// String is the content of the record's file.
func (r *Record) String() string {
	var b strings.Builder
	entries := func(list []Entry) {
		for _, e := range list {
			fmt.Fprintf(&b, "entry %d %d %s\n", e.Index, e.Term, base64.StdEncoding.EncodeToString(e.Data))
		}
	}
	entries(r.Before)
	fmt.Fprintf(&b, "snapshot %s\n", base64.StdEncoding.EncodeToString(r.Snapshot))
	entries(r.After)
	fmt.Fprintf(&b, "hash %s\n", r.Hash)
	return b.String()
}

// Parse is the inverse of String.
func Parse(text string) (*Record, error) {
	r := &Record{}
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		if err := r.parse(strings.Fields(lines.Text())); err != nil {
			return nil, fmt.Errorf("%w in %.100q", err, lines.Text())
		}
	}
	if r.Snapshot == nil || r.Hash == "" {
		return nil, fmt.Errorf("the file is incomplete")
	}
	return r, lines.Err()
}

func (r *Record) parse(words []string) (err error) {
	switch {
	case len(words) == 2 && words[0] == "hash":
		r.Hash = words[1]
	case len(words) == 2 && words[0] == "snapshot":
		r.Snapshot, err = base64.StdEncoding.DecodeString(words[1])
	case len(words) == 4 && words[0] == "entry":
		var e Entry
		if _, err = fmt.Sscan(words[1], &e.Index); err != nil {
			return err
		}
		if _, err = fmt.Sscan(words[2], &e.Term); err != nil {
			return err
		}
		e.Data, err = base64.StdEncoding.DecodeString(words[3])
		if r.Snapshot == nil {
			r.Before = append(r.Before, e)
		} else {
			r.After = append(r.After, e)
		}
	default:
		err = fmt.Errorf("no record")
	}
	return err
}
