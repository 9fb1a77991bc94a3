package cluster

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/proto/peerpb"
)

const (
	seekEvery   = time.Second     // between two rounds of questions of a node that is cut off
	seekWait    = 3 * time.Second // for one answer
	refreshWait = time.Second     // of who answers, for a view that is up to date
)

// codeGone ends a node that is no member of its cluster any more.
const codeGone = 77

// seekPlace looks after this node's place in the cluster. One that hears
// nothing of the others may have another address than they know: it tells them,
// and learns theirs. Or it has been forgotten: then it ends.
func (n *Node) seekPlace() {
	tick := time.NewTicker(seekEvery)
	defer tick.Stop()
	for moved := n.hasNewAddress(); ; moved = false {
		if n.catalog.Started() && (moved || n.Isolated() != "") {
			if by := n.askPlace(); len(by) > 0 {
				n.slog.Error("this node is no member of the cluster any more: it was forgotten, or another data folder has taken its place. "+
					"To join anew, start it with an empty data folder", "data_dir", n.config.DataDir, "told_by", strings.Join(by, " "), "code", codeGone)
				n.config.Exit(codeGone)
				return
			}
		}
		select {
		case <-n.life.Done():
			return
		case <-tick.C:
		}
	}
}

// hasNewAddress reports whether the others may know this node under another
// address.
func (n *Node) hasNewAddress() bool {
	me, known := n.directory.record().Nodes[n.config.Name]
	return known && me.Address != n.config.Nodes[n.config.Name]
}

// askPlace asks all nodes about this one's place, and takes up what they know.
// It returns who says that this node has none, if nobody knows better.
func (n *Node) askPlace() []string {
	ctx, cancel := context.WithTimeout(n.life, seekWait)
	defer cancel()
	var mu sync.Mutex
	var asked sync.WaitGroup
	answers := map[string]*peerpb.Told{} // by node
	for _, address := range n.addresses() {
		asked.Go(func() {
			n.guard.Try("ask for this node's place", func() {
				told, err := n.introduce(ctx, address, askForPlace)
				if err != nil || !n.isKnownAs(told.Node, told.Identity) {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				answers[told.Node] = told
			})
		})
	}
	asked.Wait()
	me := n.directory.record()
	for _, told := range answers {
		if bytes.Equal(told.Known, me.Identity) && told.Index > 0 {
			n.learnNodes(told.Index, n.membersTold(told))
		}
	}
	return whoSaysGone(answers, max(me.Index, n.View().Index()))
}

// whoSaysGone concludes from answers, by node, to a node that has seen the
// catalog up to an index: who says that it is no member any more, unless
// another one, whose view is as current, knows it. What is older than what it
// has seen counts for nothing: it may be from before the node was a member.
func whoSaysGone(answers map[string]*peerpb.Told, seen uint64) []string {
	var gone []string
	for node, told := range answers {
		switch {
		case !told.Current:
		case !told.Gone:
			return nil
		case told.Index > seen:
			gone = append(gone, node)
		}
	}
	slices.Sort(gone)
	return gone
}

// isKnownAs reports whether an answer is that of a node which this one knows
// by its identity.
func (n *Node) isKnownAs(node string, identity []byte) bool {
	known, ok := n.directory.knows(node)
	return ok && node != n.config.Name && len(known) > 0 && bytes.Equal(known, identity)
}

// addresses are those at which other nodes may be: of the nodes this one knows,
// of its list, and of the nodes it was to join at.
func (n *Node) addresses() []string {
	all := map[string]bool{}
	for name := range n.directory.record().Nodes {
		for _, a := range n.addressesOf(name) {
			all[a] = name != n.config.Name
		}
	}
	for name, a := range n.config.Nodes {
		all[a] = name != n.config.Name
	}
	for _, a := range n.config.Contacts {
		all[a] = true
	}
	delete(all, n.config.Nodes[n.config.Name])
	delete(all, "")
	return slices.Sorted(maps.Keys(all))
}

// answerPlace answers a node that asks for its place. That it has none is said
// only by a view that is up to date: a majority stands behind it.
func (n *Node) answerPlace(ctx context.Context, ask *peerpb.Ask, told *peerpb.Told) {
	if n.directory.announce(ask.Node, ask.Identity, ask.Address) {
		n.slog.Info("node has another address", "node", ask.Node, "address", ask.Address)
		n.meet(nil)
	}
	if !n.catalog.Started() {
		return
	}
	if bytes.Equal(told.Known, ask.Identity) {
		n.tellNodes(told)
	}
	ctx, cancel := context.WithTimeout(ctx, refreshWait)
	defer cancel()
	if n.Refresh(ctx) != nil {
		return
	}
	view := n.View()
	state, known := view.NodeByName(ask.Node)
	told.Current, told.Index = true, view.Index()
	told.Gone = !known || len(state.Identity) > 0 && !bytes.Equal(state.Identity, ask.Identity)
	if told.Gone {
		told.Known, told.Members = nil, nil
	}
}
