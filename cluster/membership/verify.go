package membership

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	replicated "github.com/quorate/quorate/cluster/catalog"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/proto/peerpb"
)

const (
	verifyEvery = time.Second     // between two rounds of requests by an isolated node
	verifyWait  = 3 * time.Second // for one answer of a near node
	// verifyTrips is how many round trips an answer without a link takes: DNS, TCP, TLS, HTTP/2, the question.
	verifyTrips = 5
)

// CodeRemoved is the exit code of a node that is no longer a member of its cluster.
const CodeRemoved = 77

// verifier checks this node's membership. A node that hears nothing of the others may have another
// address than they know: it announces its own, and learns theirs. Or it may have been removed:
// then it ends.
type verifier struct {
	config   *Config
	slog     *slog.Logger
	links    *links
	joiner   *joiner
	catalog  *replicated.Catalog
	guard    *worker.Guard
	isolated func() bool // nobody has been heard for a while
}

// run verifies the membership until ctx ends, or the node does.
func (v *verifier) run(ctx context.Context) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	moved := v.hasMoved()
	worker.Every(ctx.Done(), verifyEvery, func() {
		if v.catalog.Started() && (moved || v.isolated()) && v.removed(ctx) {
			v.config.Exit(CodeRemoved)
			end()
		}
		moved = false
	})
}

// hasMoved reports whether the others may know this node under another address.
func (v *verifier) hasMoved() bool {
	me, known := v.links.directory.record().Nodes[v.config.Node]
	return known && me.Address != v.config.Nodes[v.config.Node]
}

// removed reports whether this node has learned that it is no longer a member.
func (v *verifier) removed(ctx context.Context) bool {
	by := v.ask(ctx)
	if len(by) == 0 {
		return false
	}
	v.slog.Error("this node is no longer a member of the cluster: it was forgotten, or another data folder has taken its place. "+
		"To join again, start it with an empty data folder", "data_dir", v.config.DataDir, "told_by", strings.Join(by, " "), "code", CodeRemoved)
	return true
}

// answerWait is for how long an isolated node waits for answers, by the slack of the links that it had.
func answerWait(slack time.Duration) time.Duration { return verifyWait + verifyTrips*slack }

// ask asks all nodes about this one, and records what they know. It returns the nodes that say that
// this one is no member, if none knows better.
func (v *verifier) ask(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, answerWait(v.links.slack()))
	defer cancel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	answers := map[string]*peerpb.IntroduceReply{} // by node
	askAt := func(address string) {
		asking.Go(func() {
			v.guard.Try("verify the membership of this node", func() {
				reply, err := v.joiner.introduce(ctx, address, askMembership)
				if err != nil || !v.links.isKnownAs(reply.Node, reply.Identity) {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				answers[reply.Node] = reply
			})
		})
	}
	known := v.links.allAddresses()
	for _, address := range known {
		askAt(address)
	}
	contacts, _ := v.links.contacts(ctx) // without DNS the others remain, which are being asked
	for _, address := range contacts {
		if address != v.config.Nodes[v.config.Node] && !slices.Contains(known, address) {
			askAt(address)
		}
	}
	asking.Wait()
	me := v.links.directory.record()
	for _, reply := range answers {
		if bytes.Equal(reply.Known, me.Identity) && reply.Index > 0 {
			v.links.learn(reply.Index, membersOf(reply))
		}
	}
	return removedBy(answers, max(me.Index, v.catalog.View().Index()))
}

// removedBy evaluates answers, by node, for a node that has seen the catalog up to an index: it
// returns the nodes that say that it is no longer a member, unless another one with an equally
// current view knows it. An answer older than what the node has seen does not count: it may be from
// before the node was a member.
func removedBy(answers map[string]*peerpb.IntroduceReply, seen uint64) []string {
	var by []string
	for node, reply := range answers {
		switch {
		case !reply.Current:
		case !reply.Removed:
			return nil
		case reply.Index > seen:
			by = append(by, node)
		}
	}
	slices.Sort(by)
	return by
}
