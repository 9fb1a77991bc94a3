package queues

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/peerpb"
)

const (
	// hashWait bounds how long a replica waits for an entry in one attempt.
	hashWait = 2 * time.Second
	// hashAhead is how many entries ahead the replicas of a busy queue meet, at
	// first, and hashAheadCatalog those of the catalog, which has few entries a second.
	// Each attempt that comes too late takes four times as many.
	hashAhead        = 64
	hashAheadCatalog = 4
	// hashTime is how long a hash may take beyond the wait.
	hashTime = 20 * time.Second
)

// hash answers for this node's replica of a queue, or of the catalog.
func (x *Inspector) hash(r *peerpb.HashRequest) *peerpb.HashReply {
	var here interface {
		HashAt(at uint64, wait time.Duration) (index uint64, hash string, err error)
		Progress() replica.Progress
	} = x.node.Catalog
	if r.Queue != 0 {
		g := x.node.Groups.Group(fsm.GroupID(r.Group))
		if g == nil || uint64(g.Spec().Queue) != r.Queue {
			return &peerpb.HashReply{}
		}
		if r.At == 0 && (g.Leading() == 0 || g.Barrier(statsTimeout) != nil) {
			return &peerpb.HashReply{}
		}
		here = g
	}
	a := &peerpb.HashReply{Here: true}
	var err error
	a.Index, a.Hash, err = here.HashAt(r.At, time.Duration(min(r.Wait, uint64(hashWait.Milliseconds())))*time.Millisecond)
	if a.Last = here.Progress().Last; err != nil {
		a.Error, a.Passed = err.Error(), errors.Is(err, replica.ErrPassed)
	}
	return a
}

// askHash asks one node.
func (x *Inspector) askHash(ctx context.Context, node string, r *peerpb.HashRequest) *peerpb.HashReply {
	a, err := self.Ask(ctx, x.node, node, time.Duration(r.Wait)*time.Millisecond+hashTime, self.KindHash, r, func() *peerpb.HashReply { return x.hash(r) })
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

// compared are the replicas of a queue, or of the catalog, which has the numbers 0.
type compared struct {
	group  fsm.GroupID
	queue  fsm.QueueID
	nodes  []string
	ahead  uint64        // see hashAhead
	leader func() string // empty: there is none
}

// Verify compares the states of all replicas of a queue at one entry, and waits for
// replicas that lag until ctx ends.
//
// An idle queue is compared at its leader's newest entry. If a replica is already
// beyond that, because the queue is busy, all of them meet at an entry to come.
func (x *Inspector) Verify(ctx context.Context, q *catalog.Queue) api.Verification {
	of := compared{group: q.Group, queue: q.ID, ahead: hashAhead, leader: func() string {
		leader, _, _ := x.routes.Route(q).Leader()
		return leader
	}}
	for _, number := range x.node.View().Members(q) {
		of.nodes = append(of.nodes, x.node.NodeName(number))
	}
	found := x.verify(ctx, of)
	found.VHost, found.Queue = q.VHost, q.Name
	return found
}

// VerifyCatalog compares the states of all replicas of the catalog, as Verify does.
func (x *Inspector) VerifyCatalog(ctx context.Context) api.Verification {
	of := compared{ahead: hashAheadCatalog, leader: x.node.Catalog.Leader}
	for _, n := range x.node.View().Nodes() {
		of.nodes = append(of.nodes, n.Name)
	}
	slices.Sort(of.nodes)
	return x.verify(ctx, of)
}

// verify returns what the last attempt has found that ctx did not cut.
func (x *Inspector) verify(ctx context.Context, of compared) api.Verification {
	var found api.Verification
	for ahead := uint64(0); ; {
		leader, end, answers := x.hashAll(ctx, of, ahead)
		attempt, complete := api.Verification{Replicas: []api.VerifiedReplica{}}, leader != ""
		for i, a := range answers {
			attempt.Replicas = append(attempt.Replicas, api.VerifiedReplica{Node: of.nodes[i], StateHash: a.Hash, Error: a.Error})
			if complete = complete && a.Hash != ""; a.Hash != "" {
				attempt.Index = a.Index
			}
		}
		if attempt.Verdict = verdict(answers, complete); attempt.Verdict != "unknown" {
			return attempt
		}
		if found.Verdict == "" || ctx.Err() == nil {
			found = attempt
		}
		ahead = nextAhead(ahead, of.ahead, end, answers)
		select {
		case <-ctx.Done():
			return found
		case <-time.After(leaderRetry):
		}
	}
}

// nextAhead is how many entries ahead the replicas meet in the next attempt; end was that of the log. If none was beyond
// the entry, it came too late, or never comes: then they meet where the log gets in half the time of the attempt.
func nextAhead(ahead, least, end uint64, answers []*peerpb.HashReply) uint64 {
	if beyond(answers) {
		return max(4*ahead, least)
	}
	last := end
	for _, a := range answers {
		last = max(last, a.Last)
	}
	return (last - end) / 2
}

// verdict judges answers that are all about one entry: different as soon as two
// differ, equal only if all are there.
func verdict(answers []*peerpb.HashReply, complete bool) string {
	var first *peerpb.HashReply
	for _, a := range answers {
		switch {
		case a.Hash == "":
		case first == nil:
			first = a
		case a.Index == first.Index && a.Hash != first.Hash:
			return "different"
		case a.Index != first.Index:
			complete = false
		}
	}
	if complete && first != nil {
		return "equal"
	}
	return "unknown"
}

// beyond reports whether a replica had passed the entry.
func beyond(answers []*peerpb.HashReply) bool {
	for _, a := range answers {
		if a.Passed {
			return true
		}
	}
	return false
}

// hashAll asks all replicas for their states at one entry: the leader's newest one
// or, if ahead is not 0, one that is about so many entries behind the end of its log.
func (x *Inspector) hashAll(ctx context.Context, of compared, ahead uint64) (leader string, end uint64, answers []*peerpb.HashReply) {
	request := func(at uint64) *peerpb.HashRequest {
		return &peerpb.HashRequest{Group: uint32(of.group), Queue: uint64(of.queue), At: at, Wait: uint64(hashWait.Milliseconds())}
	}
	answers = make([]*peerpb.HashReply, len(of.nodes))
	var first *peerpb.HashReply
	if leader = of.leader(); leader != "" {
		first = x.askHash(ctx, leader, request(0))
	}
	if first == nil || first.Hash == "" {
		for i := range answers {
			answers[i] = &peerpb.HashReply{Error: "there is no leader that answers"}
		}
		return "", 0, answers
	}
	at := first.Index
	if ahead > 0 {
		at = first.Last + ahead
	}
	worker.Each(-1, of.nodes, func(i int, node string) {
		if ahead == 0 && node == leader {
			answers[i] = first
			return
		}
		answers[i] = x.askHash(ctx, node, request(at))
	})
	for _, a := range answers {
		switch {
		case a.Here || a.Error != "":
		case of.queue == 0:
			a.Error = "the node is too old to compare the catalog"
		default:
			a.Error = "the node has no replica of the queue"
		}
	}
	return leader, first.Last, answers
}
