package raftlog

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	chunks "github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const manifestPrefix = "MANIFEST-"

var errManifest = errors.New("its MANIFEST is incomplete")

// manifestNumber returns the number of a manifest, 0 if the file is none.
func manifestNumber(name string) uint64 {
	digits, is := strings.CutPrefix(name, manifestPrefix)
	if number, err := strconv.ParseUint(digits, 10, 64); is && err == nil {
		return number
	}
	return 0
}

// manifestSynced notes how long a manifest is on disk. Pebble takes damage in
// it for its end at times: tables and logs that are gone by then would leave a
// hole in what the store says, in the middle.
func (s *Store) manifestSynced(number, size uint64) {
	s.ledger.recordManifest(number, size)
}

// checkManifest reads the manifest that Pebble is about to read. It must be
// whole as far as it is known to have been synced.
func (s *Store) checkManifest(fs vfs.FS, dir string) error {
	h := s.ledger.getHead()
	d, err := pebble.Peek(dir, fs)
	if err != nil || !d.Exists {
		return err
	}
	name := fs.PathBase(d.ManifestFilename)
	if h.manifest == 0 || manifestNumber(name) != h.manifest {
		return nil
	}
	f, err := fs.Open(fs.PathJoin(dir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	whole := uint64(0)
	for r := chunks.NewReader(f, 0); ; {
		next, err := r.Next()
		if err == nil {
			_, err = io.Copy(io.Discard, next)
		}
		if err != nil {
			break
		}
		whole = uint64(r.Offset())
	}
	if whole < h.manifestSize {
		return fmt.Errorf("%w: %d bytes of %d are whole", errManifest, whole, h.manifestSize)
	}
	return nil
}
