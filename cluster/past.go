package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/quorate/quorate/cluster/raftlog"
)

// Folders of the data folder. Each has a ledger beside it.
const (
	queuesFolder  = "queues"
	catalogFolder = "catalog"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// missing names what a data folder that has been in use lacks altogether, store
// and ledger; empty: nothing. Of what is there in part the ledger, or the store,
// says what is in doubt.
func missing(dir string) (string, error) {
	for _, folder := range []string{catalogFolder, queuesFolder} {
		path := filepath.Join(dir, folder)
		none := 0
		for _, part := range []string{path, raftlog.LedgerPath(path)} {
			_, err := os.Stat(part)
			switch {
			case errors.Is(err, fs.ErrNotExist):
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

// checkPast finds out, before the stores are opened, whether the node has lost
// what shows how it voted and what it acknowledged. Then it must not go on as
// the member that it was: it takes another identity, and joins anew, as with an
// empty data folder. Nobody could bring the only node of a cluster up to date.
func (n *Node) checkPast() error {
	kept := n.directory.record()
	if kept.Index == 0 || kept.Rejoins {
		return nil
	}
	lost, err := missing(n.config.DataDir)
	if err != nil || lost == "" {
		return err
	}
	if len(n.others()) == 0 {
		return fmt.Errorf("data folder %s has lost its %s, and the cluster has no other node to get that from: restore it, or empty the folder to begin anew",
			n.config.DataDir, lost)
	}
	n.slog.Error("the data folder has lost what shows how this node voted: it joins anew, and the others bring it up to date", "lost", lost)
	return n.directory.renew()
}

// others lists the addresses of the nodes through which this one can join anew.
func (n *Node) others() (addresses []string) {
	for _, name := range slices.Sorted(maps.Keys(n.directory.record().Nodes)) {
		if name != n.config.Name {
			addresses = append(addresses, n.addressesOf(name)...)
		}
	}
	return addresses
}

// renew gives the folder another identity: it stands for another disk from now
// on, until it has joined.
func (d *directory) renew() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := d.kept
	next.Rejoins = true
	var err error
	if next.Identity, err = newIdentity(); err != nil {
		return err
	}
	d.kept = next
	return d.write(next)
}

// joined notes that it has.
func (d *directory) joined() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.kept.Rejoins {
		return nil
	}
	d.kept.Rejoins = false
	return d.write(d.kept)
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

// decodeRecord reads a record. One that was written by hand has no checksum.
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
		return record{}, errors.New("its checksum is another one")
	}
	return r, nil
}

// load reads the file, or its copy if that is damaged or missing, and makes both
// alike. found: there is one of them.
func (d *directory) load() (found bool, err error) {
	var errs []error
	for i, path := range []string{d.path, d.path + copySuffix} {
		raw, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			d.kept, err = decodeRecord(raw)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s is damaged: %w", path, err))
			continue
		}
		if i == 0 && len(errs) == 0 && alike(path+copySuffix, raw) {
			return true, nil
		}
		return true, d.write(d.kept)
	}
	return false, errors.Join(errs...)
}

func alike(path string, raw []byte) bool {
	other, err := os.ReadFile(path)
	return err == nil && string(other) == string(raw)
}
