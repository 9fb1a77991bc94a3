package membership

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/cluster/raftlog"
)

// Subfolders of the data folder. Each has a ledger beside it.
const (
	QueuesFolder  = "queues"
	CatalogFolder = "catalog"
)

// nodeFile is the file of the data folder that identifies its owner. It has a copy.
const (
	nodeFile   = "node.json"
	copySuffix = ".copy"
)

// lockFile is the file locked by the process that uses the folder.
const lockFile = "node.lock"

// identitySize is the number of bytes of an identity.
const identitySize = 16

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// member is a node as this one knows it.
type member struct {
	Address  string `json:"address"`
	Identity []byte `json:"identity,omitempty"` // of its data folder; empty: not known
}

// record is the content of the file.
type record struct {
	Name     string            `json:"name,omitempty"` // of the node
	Identity []byte            `json:"identity"`
	Index    uint64            `json:"index"` // of the catalog, at which Nodes are the members
	Nodes    map[string]member `json:"nodes,omitempty"`
	// Founders are nodes that founded the cluster together with this one and have not been seen in
	// the catalog since.
	Founders []string `json:"founders,omitempty"`
	// Rejoins: the folder has lost what its former identity stood for, and has not yet joined under
	// this one.
	Rejoins bool   `json:"rejoins,omitempty"`
	Sum     uint32 `json:"sum,omitempty"` // checksum of the others
}

// owner returns the node that owns the folder; empty if the record does not say.
func (r *record) owner() string {
	if r.Name != "" {
		return r.Name
	}
	for name, m := range r.Nodes { // at most one has it
		if bytes.Equal(m.Identity, r.Identity) {
			return name
		}
	}
	return ""
}

// encode writes a record with its checksum.
func (r record) encode() ([]byte, error) {
	r.Sum = 0
	raw, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	r.Sum = crc32.Checksum(raw, castagnoli)
	return json.MarshalIndent(r, "", "  ")
}

// decodeRecord reads a record. One written by hand has no checksum.
func decodeRecord(raw []byte) (r record, err error) {
	if err := json.Unmarshal(raw, &r); err != nil {
		return record{}, err
	}
	if len(r.Identity) != identitySize {
		return record{}, fmt.Errorf("identity of %d bytes", len(r.Identity))
	}
	was := r.Sum
	r.Sum = 0
	plain, err := json.Marshal(r)
	if err != nil {
		return record{}, err
	}
	if was != 0 && was != crc32.Checksum(plain, castagnoli) {
		return record{}, errors.New("its checksum does not match")
	}
	return r, nil
}

func newIdentity() ([]byte, error) {
	b := make([]byte, identitySize)
	if _, err := rand.Read(b); err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	return b, nil
}

// load reads the file, or its copy if the file is damaged or missing, and makes both equal. found:
// one of them exists.
func (d *directory) load() (found bool, err error) {
	var errs []error
	for i, path := range []string{d.path, d.path + copySuffix} {
		raw, err := readFile(d.fs, path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			d.kept, err = decodeRecord(raw)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s is damaged: %w", path, err))
			continue
		}
		if i == 0 && len(errs) == 0 && alike(d.fs, path+copySuffix, raw) {
			return true, nil
		}
		return true, d.write(d.kept)
	}
	return false, errors.Join(errs...)
}

// write replaces the file and then its copy, durably.
func (d *directory) write(r record) error {
	raw, err := r.encode()
	if err != nil {
		return err
	}
	return errors.Join(replace(d.fs, d.path, raw), replace(d.fs, d.path+copySuffix, raw))
}

func replace(fs vfs.FS, path string, raw []byte) error {
	next := path + ".next"
	f, err := fs.Create(next, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(append(raw, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", next, err)
	}
	if err := fs.Rename(next, path); err != nil {
		return err
	}
	return syncFolder(fs, filepath.Dir(path))
}

func readFile(fs vfs.FS, path string) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(f)
	return raw, errors.Join(err, f.Close())
}

func alike(fs vfs.FS, path string, raw []byte) bool {
	other, err := readFile(fs, path)
	return err == nil && string(other) == string(raw)
}

// missing names the part that a used data folder lacks completely, store and ledger; empty: none.
// If only one of the two is missing, the other one shows what is in doubt.
func missing(fs vfs.FS, dir string) (string, error) {
	for _, folder := range []string{CatalogFolder, QueuesFolder} {
		path := filepath.Join(dir, folder)
		none := 0
		for _, part := range []string{path, raftlog.LedgerPath(path)} {
			_, err := fs.Stat(part)
			switch {
			case errors.Is(err, os.ErrNotExist):
				none++
			case err != nil:
				return "", err
			}
		}
		if none == 2 {
			return folder, nil
		}
	}
	return "", nil
}
