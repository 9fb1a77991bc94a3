package membership

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// directory is what this node knows about the cluster's nodes independently of its catalog: which
// nodes may have links with it. It is stored in the data folder. An identity stands for a folder: a
// node that comes under a known name with another folder has lost what it voted for and
// acknowledged, and gets no link until the cluster has admitted it anew.
type directory struct {
	fs   vfs.FS
	path string
	lock io.Closer // held as long as the node runs

	mu   sync.Mutex
	kept record
	// announced holds addresses that members have given this node and that the catalog may not
	// know.
	announced map[string]string
}

// openDirectory locks a data folder for a node, and reads its file or creates one. It refuses the
// folder of another node, and one that another process has locked. If name is empty it is that of
// the folder's owner.
func openDirectory(fs vfs.FS, dir, name string) (*directory, error) {
	d := &directory{fs: fs, path: filepath.Join(dir, nodeFile)}
	var err error
	if d.lock, err = possess(fs, filepath.Join(dir, lockFile)); err != nil {
		return nil, err
	}
	if err := d.read(name); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// makeFolder creates a folder, with the parents that it lacks, so that it outlasts a loss of power:
// what is stored in it is promised to do so.
func makeFolder(fs vfs.FS, dir string) error {
	above := fs.PathDir(dir)
	if _, err := fs.Stat(dir); !errors.Is(err, os.ErrNotExist) || above == dir {
		return err
	}
	if err := makeFolder(fs, above); err != nil {
		return err
	}
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return syncFolder(fs, above)
}

func syncFolder(fs vfs.FS, dir string) error {
	f, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// possess locks the folder and writes the number of this process into the lock file, for whoever
// finds it locked. The lock ends with the process.
func possess(fs vfs.FS, path string) (io.Closer, error) {
	if fs != vfs.Default { // no other process has it
		return fs.Lock(path)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		pid, _ := io.ReadAll(io.LimitReader(f, 20)) // without it the text is shorter
		return nil, fmt.Errorf("data folder %s is in use by process %s", filepath.Dir(path), strings.TrimSpace(string(pid)))
	}
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// close releases the folder.
func (d *directory) close() error { return d.lock.Close() }

// read reads the file, or creates one.
func (d *directory) read(name string) error {
	found, err := d.load()
	switch {
	case err != nil:
		return err
	case found:
		owner := d.kept.owner()
		if name == "" {
			name = owner
		}
		if owner != "" && owner != name {
			return fmt.Errorf("data folder %s belongs to node %s, but this node is %s", filepath.Dir(d.path), owner, name)
		}
		d.kept.Name = name
		return nil
	}
	d.kept.Name = name
	if d.kept.Identity, err = newIdentity(); err != nil {
		return err
	}
	return d.write(d.kept)
}

func (d *directory) record() record {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.kept
}

// learn records the list of nodes if it is newer than the known one. changed: it is different. A
// cluster has nodes: whoever lists none does not know them yet.
func (d *directory) learn(index uint64, nodes map[string]member) (changed bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if index < d.kept.Index || len(nodes) == 0 {
		return false, nil
	}
	next := record{Name: d.kept.Name, Identity: d.kept.Identity, Rejoins: d.kept.Rejoins, Index: index, Nodes: maps.Clone(nodes)}
	for _, name := range d.kept.Founders {
		if _, seen := nodes[name]; !seen {
			next.Founders = append(next.Founders, name)
			next.Nodes[name] = d.kept.Nodes[name]
		}
	}
	same := maps.EqualFunc(next.Nodes, d.kept.Nodes, func(a, b member) bool {
		return a.Address == b.Address && bytes.Equal(a.Identity, b.Identity)
	})
	if same && len(next.Founders) == len(d.kept.Founders) {
		d.kept.Index = index // it need not be on disk
		return false, nil
	}
	d.kept = next
	return !same, d.write(next)
}

// found records the nodes with which this one founds a cluster.
func (d *directory) found(nodes map[string]member) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kept.Nodes, d.kept.Founders = nodes, slices.Sorted(maps.Keys(nodes))
	return d.write(d.kept)
}

// announce records the address that a member, proven by its identity, says it has. It reports
// whether the address is new.
func (d *directory) announce(node string, identity []byte, address string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, known := d.kept.Nodes[node]
	if !known || len(m.Identity) == 0 || !bytes.Equal(m.Identity, identity) || address == "" || address == m.Address || address == d.announced[node] {
		return false
	}
	if d.announced == nil {
		d.announced = map[string]string{}
	}
	d.announced[node] = address
	return true
}

// addresses returns where a node may be, the most reliable first.
func (d *directory) addresses(node string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return []string{d.announced[node], d.kept.Nodes[node].Address}
}

// knows returns the identity under which a node is known.
func (d *directory) knows(node string) (identity []byte, ok bool) {
	m, ok := d.record().Nodes[node]
	return m.Identity, ok
}

// renew gives the folder a new identity: until it has joined, it stands for a different disk.
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

// joined records that the node has joined.
func (d *directory) joined() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.kept.Rejoins {
		return nil
	}
	d.kept.Rejoins = false
	return d.write(d.kept)
}

// alone records that this node is the whole cluster, as of an index of the catalog.
func (d *directory) alone(index uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	me := d.kept.Nodes[d.kept.Name]
	d.kept.Index, d.kept.Founders = max(index, d.kept.Index), nil
	d.kept.Nodes = map[string]member{d.kept.Name: {Address: me.Address, Identity: d.kept.Identity}}
	return d.write(d.kept)
}
