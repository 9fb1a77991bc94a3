package raftlog

import (
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// A store keeps the format of its files, whatever the library's newest one is: docs/operations.md.
func TestStoreFormat(t *testing.T) {
	const documented = 24
	fs, dir := vfs.NewMem(), "store"
	must(t, mustOpen(t, fs, dir).Close())
	d, err := pebble.Peek(dir, fs)
	if must(t, err); !d.Exists || d.FormatMajorVersion != documented {
		t.Errorf("a store of format %v", d.FormatMajorVersion)
	}
}
