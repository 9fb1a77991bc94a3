package membership

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/peerpb"
)

const (
	// refreshWait bounds how long the other nodes may take to answer askNodes.
	refreshWait = 5 * time.Second
	// refreshPause is the minimum time between two such requests.
	refreshPause = 50 * time.Millisecond
)

// links accepts and opens links by the directory: to each node listed there, and to no others. It
// keeps the directory up to date.
type links struct {
	config    *Config
	slog      *slog.Logger
	directory *directory
	refresh   *worker.Worker
	refused   atomic.Int64 // nodes that came with another data folder

	mesh     *peer.Mesh
	setNodes func(names []string)
	view     func() *catalog.View
}

func newLinks(c *Config, d *directory) *links {
	return &links{config: c, slog: c.Logger, directory: d, refresh: worker.New(worker.Options{Pause: refreshPause})}
}

// slack is that of the links to the nearest other nodes, see peer.Mesh.Slack.
func (l *links) slack() time.Duration {
	var others []string
	for _, p := range l.mesh.Peers() {
		others = append(others, p.Node)
	}
	return l.mesh.Slack(others...)
}

// admit decides for the mesh whether a node may have a link. A refused node may be right and this
// one outdated, so this one then asks the others.
func (l *links) admit(node string, identity []byte) error {
	known, ok := l.directory.knows(node)
	switch {
	case !ok:
		l.refresh.Wake()
		return fmt.Errorf("%w: %q is not a member of the cluster", peer.ErrUnknownNode, node)
	case len(known) > 0 && !bytes.Equal(known, identity):
		l.refresh.Wake()
		l.refused.Add(1)
		return fmt.Errorf("peer: node %q is already registered with another data folder; started with an empty one, it joins anew", node)
	}
	return nil
}

// names lists all nodes by name.
func (l *links) names() []string { return slices.Sorted(maps.Keys(l.directory.record().Nodes)) }

// addressesOf lists where another node may be: at the addresses it announces, and those in this
// node's configuration.
func (l *links) addressesOf(node string) []string {
	var all []string
	for _, a := range append(l.directory.addresses(node), l.config.Nodes[node]) {
		if a != "" && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// others lists the addresses of the nodes through which this one can join again.
func (l *links) others() (addresses []string) {
	for _, name := range l.names() {
		if name != l.config.Node {
			addresses = append(addresses, l.addressesOf(name)...)
		}
	}
	return addresses
}

// contacts lists the addresses that the configured contacts stand for at the moment, in their order.
// An error of one does not hide the others.
func (l *links) contacts(ctx context.Context) (addresses []string, err error) {
	if l.config.Resolve == nil {
		return l.config.Contacts, nil
	}
	var errs []error
	for _, contact := range l.config.Contacts {
		found, err := l.config.Resolve(ctx, contact)
		if err != nil {
			errs = append(errs, err)
		}
		for _, a := range found {
			if !slices.Contains(addresses, a) {
				addresses = append(addresses, a)
			}
		}
	}
	return addresses, errors.Join(errs...)
}

// allAddresses lists where other nodes may be: those this one knows, and those of its static list.
func (l *links) allAddresses() []string {
	all := map[string]bool{}
	for _, a := range l.others() {
		all[a] = true
	}
	for name, a := range l.config.Nodes {
		all[a] = name != l.config.Node
	}
	delete(all, l.config.Nodes[l.config.Node])
	delete(all, "")
	return slices.Sorted(maps.Keys(all))
}

// isKnownAs reports whether an answer comes from a node that this one knows by that identity.
func (l *links) isKnownAs(node string, identity []byte) bool {
	known, ok := l.directory.knows(node)
	return ok && node != l.config.Node && len(known) > 0 && bytes.Equal(known, identity)
}

// learn records the list of nodes as of an index of the catalog. If it cannot be stored, the node
// ends.
func (l *links) learn(index uint64, nodes map[string]member) {
	before := l.directory.record().Nodes
	changed, err := l.directory.learn(index, nodes)
	if err != nil {
		l.slog.Error("node must stop", "reason", err)
		l.config.Exit(codeStorage)
		select {}
	}
	if changed {
		l.update(before)
	}
}

// codeStorage is the exit code of a node whose durable state cannot be written.
const codeStorage = 74

// update opens links to the nodes that are new in the directory, and closes those to nodes that are
// no longer in it. before are the nodes that had links.
func (l *links) update(before map[string]member) {
	now := l.directory.record().Nodes
	for name, old := range before {
		next, stays := now[name]
		if name != l.config.Node && (!stays || len(old.Identity) > 0 && !bytes.Equal(old.Identity, next.Identity)) {
			l.mesh.RemovePeer(name)
		}
	}
	for name := range now {
		if name == l.config.Node {
			continue
		}
		if err := l.mesh.AddPeer(name, l.addressesOf(name)...); err != nil {
			l.slog.Error("no link to node", "node", name, "error", err)
		}
	}
	l.setNodes(l.names())
}

// askNodes asks the nodes that have links for their list of nodes.
func (l *links) askNodes(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, refreshWait)
	defer cancel()
	for _, p := range l.mesh.Peers() {
		if !p.Linked {
			continue
		}
		answer, err := l.mesh.Call(ctx, p.Node, l.config.KindNodes, nil)
		var reply peerpb.IntroduceReply
		if err == nil && proto.Unmarshal(answer, &reply) == nil && reply.Index > 0 {
			l.learn(reply.Index, membersOf(&reply))
		}
	}
}

// onNodes answers askNodes.
func (l *links) onNodes(context.Context, string, []byte) ([]byte, error) {
	reply := &peerpb.IntroduceReply{Node: l.config.Node}
	l.listNodes(reply)
	return proto.Marshal(reply)
}

// listNodes adds the nodes of the catalog to an answer.
func (l *links) listNodes(t *peerpb.IntroduceReply) {
	v := l.view()
	t.Index = v.Index()
	for _, s := range v.Nodes() {
		t.Members = append(t.Members, &peerpb.Member{Node: s.Name, Address: s.PeerAddress, Identity: s.Identity})
	}
}

// membersOf returns the nodes of an answer.
func membersOf(t *peerpb.IntroduceReply) map[string]member {
	nodes := map[string]member{}
	for _, m := range t.Members {
		nodes[m.Node] = member{Address: m.Address, Identity: m.Identity}
	}
	return nodes
}

// membersIn returns the nodes of a view.
func membersIn(v *catalog.View) map[string]member {
	nodes := map[string]member{}
	for _, s := range v.Nodes() {
		nodes[s.Name] = member{Address: s.PeerAddress, Identity: s.Identity}
	}
	return nodes
}
