package fsmtest

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// nodeSuspected begins or ends the suspicion of a life of a node.
func (q *model) nodeSuspected(n *logpb.NodeSuspected) fsm.Result {
	of := fsm.SessionID{Node: fsm.NodeID(n.GetNode()), Boot: n.GetBoot()}
	if of.Node == 0 || of.Boot == 0 {
		return fsm.Result{Code: fsm.Invalid}
	}
	if (q.suspicionOf(of) != nil) != n.Back || q.isDown(of) {
		return fsm.Result{}
	}
	b := queue.Boot{Node: of.Node, Boot: of.Boot}
	if n.Back {
		q.suspected = slices.DeleteFunc(q.suspected, func(x suspicion) bool { return x.of == b })
	} else {
		q.suspected = append(q.suspected, suspicion{b, q.heldUntil(q.disconnectedTimeout())})
		slices.SortFunc(q.suspected, func(a, b suspicion) int {
			return cmp.Or(cmp.Compare(a.of.Node, b.of.Node), cmp.Compare(a.of.Boot, b.of.Boot))
		})
	}
	for _, c := range q.consumers {
		if !q.hasCredit(c) {
			q.unserve(c)
		}
		q.serve(c)
	}
	q.out.SuspicionChanged = true
	return fsm.Result{}
}

// suspicionOf is the silence of a session's node; nil: it is heard.
func (q *modelSessions) suspicionOf(id fsm.SessionID) *suspicion {
	for i := range q.suspected {
		if q.suspected[i].of == (queue.Boot{Node: id.Node, Boot: id.Boot}) {
			return &q.suspected[i]
		}
	}
	return nil
}

func (q *model) disconnectedTimeout() fsm.Millis {
	if t := q.config.DisconnectedTimeoutPlusOne; t != 0 {
		return millis(t - 1)
	}
	return 60_000
}

// heldUntil is the deadline of what is held from now on for d.
func (q *modelTime) heldUntil(d fsm.Millis) fsm.Time { return max(q.clock.Add(d), 1) }

// endSuspicions takes from consumers what they hold if nothing was heard from
// their node for too long.
func (q *model) endSuspicions() {
	if q.nextLeft() != nil {
		return
	}
	for i := range q.suspected {
		x := &q.suspected[i]
		if x.until == 0 || x.until > q.clock {
			continue
		}
		x.until = 0
		for _, c := range slices.Clone(q.consumers) {
			if q.suspicionOf(c.id.Session) == x && len(q.held(c))+len(q.holds(c)) > 0 {
				q.detach(c, false)
				q.dropGroups(c)
				q.forgetConsumer(c)
			}
		}
	}
}

func (q *modelSessions) suspectedBoots() []queue.Boot {
	var list []queue.Boot
	for _, x := range q.suspected {
		list = append(list, x.of)
	}
	return list
}

// consumerBoots lists the lives of nodes that have consumers or gets here.
func (q *modelSessions) consumerBoots() []queue.Boot {
	var list []queue.Boot
	for _, id := range q.sessionIDs() {
		has := slices.ContainsFunc(q.consumers, func(c *consumer) bool { return c.id.Session == id })
		if b := (queue.Boot{Node: id.Node, Boot: id.Boot}); has && !slices.Contains(list, b) {
			list = append(list, b)
		}
	}
	return list
}
