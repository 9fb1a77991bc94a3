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
)

// directory is what this node knows of the cluster's nodes before and beside
// its catalog: who may have links with it. It goes with the data folder. An
// identity stands for a folder: whoever comes under a known name with another
// folder has lost what it voted for and acknowledged, and gets no link before
// the cluster has given it a new place.
type directory struct {
	path string
	lock *os.File // held as long as the node runs

	mu   sync.Mutex
	kept record
	// announced are addresses that members have given this node, and that the
	// catalog may not know.
	announced map[string]string
}

// openDirectory takes possession of a data folder for a node, and reads its
// file, or makes one. It refuses the folder of another node, and one that
// another process has. Without a name it is that of whoever owns the folder.
func openDirectory(dir, name string) (*directory, error) {
	d := &directory{path: filepath.Join(dir, nodeFile)}
	if err := d.possess(filepath.Join(dir, lockFile)); err != nil {
		return nil, err
	}
	if err := d.read(name); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// possess locks the folder and leaves the number of this process in the lock's
// file, for whoever finds it locked. The lock ends with the process.
func (d *directory) possess(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return fmt.Errorf("lock %s: %w", path, err)
		}
		pid, _ := io.ReadAll(io.LimitReader(f, 20)) // without it the text is shorter
		return fmt.Errorf("data folder %s is in use by process %s", filepath.Dir(path), strings.TrimSpace(string(pid)))
	}
	d.lock = f
	if err := f.Truncate(0); err != nil {
		return errors.Join(err, d.close())
	}
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return errors.Join(err, d.close())
	}
	return nil
}

// close gives the folder free.
func (d *directory) close() error { return d.lock.Close() }

// read reads the file, or makes one.
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
			return fmt.Errorf("data folder %s belongs to node %s, this one is called %s", filepath.Dir(d.path), owner, name)
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

// learn takes up which nodes there are, if that is newer than what is known.
// changed: it is different. A cluster has nodes: who lists none does not know
// them yet.
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

// found notes with whom this node founds a cluster.
func (d *directory) found(nodes map[string]member) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kept.Nodes, d.kept.Founders = nodes, slices.Sorted(maps.Keys(nodes))
	return d.write(d.kept)
}

// announce takes a member's word, which its identity proves, for the address at
// which it is. It reports whether that is news.
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

// addresses are where a node may be, beginning with what is known best.
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

// alone notes that this node is all there is, as of an index of the catalog.
func (d *directory) alone(index uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	me := d.kept.Nodes[d.kept.Name]
	d.kept.Index, d.kept.Founders = max(index, d.kept.Index), nil
	d.kept.Nodes = map[string]member{d.kept.Name: {Address: me.Address, Identity: d.kept.Identity}}
	return d.write(d.kept)
}
