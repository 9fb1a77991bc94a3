// Package stats reports the state of the nodes, queues and replicas of a cluster: of this node from
// its own knowledge, of the others by asking them. It changes nothing. A node that does not answer
// in time is missing from an answer, which is never filled in with zeros.
package stats

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/worker"
)

// maxParallel bounds how many nodes are asked at a time.
const maxParallel = 32

// Nodes are this node and its links to the others.
type Nodes struct {
	Self string // the name of this node
	Mesh *peer.Mesh
	// Try runs f, contains a panic, and reports whether there was none.
	Try    func(doing string, f func()) (returned bool)
	Logger *slog.Logger
}

// Online reports whether a node is up, as far as this one knows; it counts itself as up.
func (n *Nodes) Online(node string) bool { return n.Mesh.Alive(node) }

// Up lists by name the other nodes that are up, as far as this one knows.
func (n *Nodes) Up() (names []string) {
	for _, p := range n.Mesh.Peers() {
		if p.Alive {
			names = append(names, p.Node)
		}
	}
	return names
}

// Question is a question to several nodes.
type Question[R any] struct {
	Doing string        // its purpose, in the log
	Wait  time.Duration // for the other nodes' answers
	// Here is this node's own answer; nil: it is not asked.
	Here func() R
	// Ask asks another node. Several calls run concurrently.
	Ask func(ctx context.Context, node string) (R, error)
}

// Answers holds the answers of nodes, by name. Each node asked is in one of the two maps.
type Answers[R any] struct {
	Of     map[string]R
	Failed map[string]error
}

// AskAll asks this node and all others that are up.
func AskAll[R any](ctx context.Context, n *Nodes, q Question[R]) Answers[R] {
	return Ask(ctx, n, n.Up(), q)
}

// Ask asks this node and some others, and returns when all have answered or the time is up.
func Ask[R any](ctx context.Context, n *Nodes, others []string, q Question[R]) Answers[R] {
	ctx, cancel := context.WithTimeout(ctx, q.Wait)
	defer cancel()
	all := Answers[R]{Of: make(map[string]R, len(others)+1), Failed: map[string]error{}}
	nodes := others
	if q.Here != nil {
		nodes = append([]string{n.Self}, others...)
	}
	var mu sync.Mutex
	worker.Each(maxParallel, nodes, func(i int, node string) {
		var r R
		err := worker.ErrPanicked
		n.Try(q.Doing, func() {
			if q.Here != nil && i == 0 {
				r, err = q.Here(), nil
			} else {
				r, err = q.Ask(ctx, node)
			}
		})
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			all.Of[node] = r
			return
		}
		all.Failed[node] = err
		n.Logger.Debug("node does not answer", "node", node, "doing", q.Doing, "error", err)
	})
	return all
}
