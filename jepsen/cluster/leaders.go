package cluster

import (
	"context"
	"net/http"
	"time"
)

const (
	// watchEvery is the pause between two questions to a node. It is watchShare times as
	// long as the answer took, but no more than watchPause, if that is longer: a node
	// with very many queues is not kept busy.
	watchEvery   = 250 * time.Millisecond
	watchShare   = 4
	watchPause   = 2 * time.Second
	watchTimeout = time.Second
)

// WatchLeaders asks a node again and again which queues of the vhost "/" it leads, in
// which terms, until ctx ends, and passes that to seen, the same leadership each time
// anew. A leader for less than a quarter of a second may be missed; a term tells how
// many elections there were. It may run beside the other methods.
func WatchLeaders(ctx context.Context, n *Node, seen func(queue string, node int, term uint64)) {
	watched := &Node{Number: n.Number, HTTP: n.HTTP} // n changes when its process does
	for {
		began := time.Now()
		pause := watchEvery
		if all, err := unhashed(ctx, watched); err == nil {
			for _, r := range all {
				if r.Leader && r.Vhost == "/" {
					seen(r.Name, n.Number, r.Term)
				}
			}
			pause = max(pause, min(watchShare*time.Since(began), watchPause))
		}
		wait := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			wait.Stop()
			return
		case <-wait.C:
		}
	}
}

// unhashed asks a node about its replicas, but not for the hashes of their states.
func unhashed(ctx context.Context, n *Node) (all []Replica, err error) {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	err = n.Call(ctx, http.MethodGet, "/api/quorate/replicas?hash=false", nil, &all)
	return all, err
}
