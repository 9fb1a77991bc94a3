package queues

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/peerpb"
)

const (
	// hashWait bounds how long a replica waits for an entry in one attempt.
	hashWait = 2 * time.Second
	// hashAhead is how many entries ahead the replicas of a busy queue meet, at
	// first. Each attempt that comes too late takes four times as many.
	hashAhead = 64
	// hashTime is how long a hash may take beyond the wait.
	hashTime = 20 * time.Second
)

// hash answers for this node's replica of a queue.
func (x *Inspector) hash(r *peerpb.HashRequest) *peerpb.HashReply {
	g := x.node.Groups.Group(fsm.GroupID(r.Group))
	if g == nil || uint64(g.Spec().Queue) != r.Queue {
		return &peerpb.HashReply{}
	}
	if r.At == 0 && (g.Leading() == 0 || g.Barrier(statsTimeout) != nil) {
		return &peerpb.HashReply{}
	}
	a := &peerpb.HashReply{Here: true}
	var err error
	a.Index, a.Hash, err = g.HashAt(r.At, time.Duration(min(r.Wait, uint64(hashWait.Milliseconds())))*time.Millisecond)
	if a.Last = g.Progress().Last; err != nil {
		a.Error, a.Passed = err.Error(), errors.Is(err, group.ErrPassed)
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

// Verify compares the states of all replicas of a queue at one entry, and waits for
// replicas that lag until ctx ends.
//
// An idle queue is compared at its leader's newest entry. If a replica is already
// beyond that, because the queue is busy, all of them meet at an entry to come.
func (x *Inspector) Verify(ctx context.Context, q *catalog.Queue) (api.Verification, error) {
	v := x.node.View()
	var nodes []string
	for _, number := range v.Members(q) {
		nodes = append(nodes, x.node.NodeName(number))
	}
	found := api.Verification{VHost: q.VHost, Queue: q.Name, Verdict: "unknown"}
	for ahead := uint64(0); ; ahead = max(4*ahead, hashAhead) {
		leader, answers := x.hashAll(ctx, q, nodes, ahead)
		found.Replicas, found.Index = []api.VerifiedReplica{}, 0
		complete := leader != ""
		for i, a := range answers {
			found.Replicas = append(found.Replicas, api.VerifiedReplica{Node: nodes[i], StateHash: a.Hash, Error: a.Error})
			if complete = complete && a.Hash != ""; a.Hash != "" {
				found.Index = a.Index
			}
		}
		found.Verdict = verdict(answers, complete)
		if found.Verdict != "unknown" {
			return found, nil
		}
		if !beyond(answers) {
			ahead = 0
		}
		select {
		case <-ctx.Done():
			return found, nil
		case <-time.After(leaderRetry):
		}
	}
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
func (x *Inspector) hashAll(ctx context.Context, q *catalog.Queue, nodes []string, ahead uint64) (leader string, answers []*peerpb.HashReply) {
	request := func(at uint64) *peerpb.HashRequest {
		return &peerpb.HashRequest{Group: uint32(q.Group), Queue: uint64(q.ID), At: at, Wait: uint64(hashWait.Milliseconds())}
	}
	answers = make([]*peerpb.HashReply, len(nodes))
	var first *peerpb.HashReply
	if leader, _, _ = x.routes.Route(q).Leader(); leader != "" {
		first = x.askHash(ctx, leader, request(0))
	}
	if first == nil || first.Hash == "" {
		for i := range answers {
			answers[i] = &peerpb.HashReply{Error: "the queue has no leader that answers"}
		}
		return "", answers
	}
	at := first.Index
	if ahead > 0 {
		at = first.Last + ahead
	}
	var all sync.WaitGroup
	for i, node := range nodes {
		if ahead == 0 && node == leader {
			answers[i] = first
			continue
		}
		all.Go(func() { answers[i] = x.askHash(ctx, node, request(at)) })
	}
	all.Wait()
	for _, a := range answers {
		if !a.Here && a.Error == "" {
			a.Error = "the node has no replica"
		}
	}
	return leader, answers
}
