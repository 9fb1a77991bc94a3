package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/quorate/quorate/cluster/broker"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/peerpb"
)

// nodeFile is the file of the data folder that says whose it is.
const nodeFile = "node.json"

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

	mu   sync.Mutex
	kept record
}

// record is the content of the file.
type record struct {
	Identity []byte            `json:"identity"`
	Index    uint64            `json:"index"` // of the catalog, at which Nodes are the members
	Nodes    map[string]member `json:"nodes,omitempty"`
	// Founders are nodes that have founded the cluster together with this one
	// and were not seen in the catalog since.
	Founders []string `json:"founders,omitempty"`
}

// openDirectory reads the data folder's file, or makes one.
func openDirectory(dir string) (*directory, error) {
	d := &directory{path: filepath.Join(dir, nodeFile)}
	raw, err := os.ReadFile(d.path)
	switch {
	case err == nil:
		if err := json.Unmarshal(raw, &d.kept); err != nil || len(d.kept.Identity) != identitySize {
			return nil, fmt.Errorf("%s is damaged: %v", d.path, err)
		}
		return d, nil
	case !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	d.kept.Identity = make([]byte, identitySize)
	if _, err := rand.Read(d.kept.Identity); err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	return d, d.write(d.kept)
}

// write replaces the file, durably.
func (d *directory) write(r record) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	next := d.path + ".next"
	f, err := os.OpenFile(next, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(raw, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", next, err)
	}
	if err := os.Rename(next, d.path); err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(d.path))
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
// changed: it is different.
func (d *directory) learn(index uint64, nodes map[string]member) (changed bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if index < d.kept.Index {
		return false, nil
	}
	next := record{Identity: d.kept.Identity, Index: index, Nodes: maps.Clone(nodes)}
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

// membersIn lists the nodes of a view. The addresses of the configuration go
// before those that nodes have given themselves.
func (n *Node) membersIn(v *catalog.View) map[string]member {
	nodes := map[string]member{}
	for _, s := range v.Nodes() {
		nodes[s.Name] = member{Address: n.addressOf(s.Name, s.PeerAddress), Identity: s.Identity}
	}
	return nodes
}

func (n *Node) addressOf(node, told string) string {
	if address := n.config.Nodes[node]; address != "" {
		return address
	}
	return told
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
	for name, m := range now {
		if name == n.config.Name {
			continue
		}
		if err := n.mesh.AddPeer(name, m.Address); err != nil {
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
	go func() {
		defer n.asking.Store(false)
		ctx, cancel := context.WithTimeout(n.life, askWait)
		defer cancel()
		for _, p := range n.mesh.Peers() {
			if !p.Linked {
				continue
			}
			answer, err := n.mesh.Call(ctx, p.Node, broker.KindNodes, nil)
			var told peerpb.Told
			if err == nil && told.UnmarshalVT(answer) == nil && told.Index > 0 {
				n.learnNodes(told.Index, n.membersTold(&told))
			}
		}
	}()
}

func (n *Node) membersTold(t *peerpb.Told) map[string]member {
	nodes := map[string]member{}
	for _, m := range t.Members {
		nodes[m.Node] = member{Address: n.addressOf(m.Node, m.Address), Identity: m.Identity}
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
	return n.tellNodes(&peerpb.Told{Node: n.config.Name}).MarshalVT()
}
