package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
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

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/broker"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/peerpb"
)

// nodeFile is the file of the data folder that says whose it is. It has a copy.
const (
	nodeFile   = "node.json"
	copySuffix = ".copy"
)

// lockFile is the file that the process locks which has the folder.
const lockFile = "node.lock"

// identitySize is the number of bytes of an identity.
const identitySize = 16

// member is a node as this one knows it.
type member struct {
	Address  string `json:"address"`
	Identity []byte `json:"identity,omitempty"` // of its data folder; empty: not known
}

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
	// announced are addresses that members have told this node, and that the
	// catalog may not know.
	announced map[string]string
}

// record is the content of the file.
type record struct {
	Name     string            `json:"name,omitempty"` // of the node
	Identity []byte            `json:"identity"`
	Index    uint64            `json:"index"` // of the catalog, at which Nodes are the members
	Nodes    map[string]member `json:"nodes,omitempty"`
	// Founders are nodes that have founded the cluster together with this one
	// and were not seen in the catalog since.
	Founders []string `json:"founders,omitempty"`
	// Rejoins: the folder has lost what its former identity stood for, and has not
	// joined with this one yet.
	Rejoins bool   `json:"rejoins,omitempty"`
	Sum     uint32 `json:"sum,omitempty"` // checksum of the others
}

// owner names the node whose folder it is, empty if the record does not tell.
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

func newIdentity() ([]byte, error) {
	b := make([]byte, identitySize)
	if _, err := rand.Read(b); err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	return b, nil
}

// write replaces the file and then its copy, durably.
func (d *directory) write(r record) error {
	raw, err := r.encode()
	if err != nil {
		return err
	}
	return errors.Join(replace(d.path, raw), replace(d.path+copySuffix, raw))
}

func replace(path string, raw []byte) error {
	next := path + ".next"
	f, err := os.OpenFile(next, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(raw, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", next, err)
	}
	if err := os.Rename(next, path); err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
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

// admit is the mesh's question whether a node may have a link. Who is refused
// may be right and this node behind: it asks the others.
func (n *Node) admit(node string, identity []byte) error {
	known, ok := n.directory.knows(node)
	switch {
	case !ok:
		n.askDirectory()
		return fmt.Errorf("%w: %q is no member of the cluster", peer.ErrUnknownNode, node)
	case len(known) > 0 && !bytes.Equal(known, identity):
		n.askDirectory()
		n.refused.Add(1)
		return fmt.Errorf("peer: node %q is known with another data folder; started with an empty one, it joins anew", node)
	}
	return nil
}

// nodeNames are the names of all nodes, in order.
func (n *Node) nodeNames() []string { return slices.Sorted(maps.Keys(n.directory.record().Nodes)) }

// membersIn lists the nodes of a view.
func (n *Node) membersIn(v *catalog.View) map[string]member {
	nodes := map[string]member{}
	for _, s := range v.Nodes() {
		nodes[s.Name] = member{Address: s.PeerAddress, Identity: s.Identity}
	}
	return nodes
}

// addressesOf lists where another node may be: where it says it is, and where
// this node's configuration says so.
func (n *Node) addressesOf(node string) []string {
	var all []string
	for _, a := range append(n.directory.addresses(node), n.config.Nodes[node]) {
		if a != "" && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// learnNodes takes up which nodes there are.
func (n *Node) learnNodes(index uint64, nodes map[string]member) {
	before := n.directory.record().Nodes
	changed, err := n.directory.learn(index, nodes)
	if err != nil {
		n.slog.Error("node must stop", "reason", err)
		n.config.Exit(codeStorage)
		select {}
	}
	if changed {
		n.meet(before)
	}
}

// codeStorage ends a node whose durable state cannot be written.
const codeStorage = 74

// meet gives links to those nodes that are to have one, and takes them from
// others. before are those that had.
func (n *Node) meet(before map[string]member) {
	now := n.directory.record().Nodes
	for name, old := range before {
		next, stays := now[name]
		if name != n.config.Name && (!stays || len(old.Identity) > 0 && !bytes.Equal(old.Identity, next.Identity)) {
			n.mesh.RemovePeer(name)
		}
	}
	for name := range now {
		if name == n.config.Name {
			continue
		}
		if err := n.mesh.AddPeer(name, n.addressesOf(name)...); err != nil {
			n.slog.Error("no link to node", "node", name, "error", err)
		}
	}
	n.clock.SetNodes(n.nodeNames())
}

// askDirectory asks the nodes that have links which nodes there are, unless
// that is being done.
func (n *Node) askDirectory() {
	if n.asking.Swap(true) {
		return
	}
	go n.guard.Try("ask which nodes there are", func() {
		defer n.asking.Store(false)
		ctx, cancel := context.WithTimeout(n.life, askWait)
		defer cancel()
		for _, p := range n.mesh.Peers() {
			if !p.Linked {
				continue
			}
			answer, err := n.mesh.Call(ctx, p.Node, broker.KindNodes, nil)
			var told peerpb.Told
			if err == nil && proto.Unmarshal(answer, &told) == nil && told.Index > 0 {
				n.learnNodes(told.Index, n.membersTold(&told))
			}
		}
	})
}

func (n *Node) membersTold(t *peerpb.Told) map[string]member {
	nodes := map[string]member{}
	for _, m := range t.Members {
		nodes[m.Node] = member{Address: m.Address, Identity: m.Identity}
	}
	return nodes
}

// tellNodes answers which nodes the catalog holds.
func (n *Node) tellNodes(t *peerpb.Told) *peerpb.Told {
	v := n.View()
	t.Index = v.Index()
	for _, s := range v.Nodes() {
		t.Members = append(t.Members, &peerpb.Member{Node: s.Name, Address: s.PeerAddress, Identity: s.Identity})
	}
	return t
}

func (n *Node) onNodes(context.Context, string, []byte) ([]byte, error) {
	return proto.Marshal(n.tellNodes(&peerpb.Told{Node: n.config.Name}))
}
