package fsmtest

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// nodeSilent begins or ends the silence of a life of a node.
func (q *model) nodeSilent(n *logpb.NodeSuspected) fsm.Result {
	of := fsm.SessionID{Node: fsm.NodeID(n.GetNode()), Boot: n.GetBoot()}
	if of.Node == 0 || of.Boot == 0 {
		return fsm.Result{Code: fsm.Invalid}
	}
	if (q.silenceOf(of) != nil) != n.Back || q.isDown(of) {
		return fsm.Result{}
	}
	b := queue.Boot{Node: of.Node, Boot: of.Boot}
	if n.Back {
		q.silent = slices.DeleteFunc(q.silent, func(x silence) bool { return x.of == b })
	} else {
		q.silent = append(q.silent, silence{b, q.heldUntil(q.disconnectedTimeout())})
		slices.SortFunc(q.silent, func(a, b silence) int {
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

// silenceOf is the silence of a session's node; nil: it is heard.
func (q *model) silenceOf(id fsm.SessionID) *silence {
	for i := range q.silent {
		if q.silent[i].of == (queue.Boot{Node: id.Node, Boot: id.Boot}) {
			return &q.silent[i]
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
func (q *model) heldUntil(d fsm.Millis) fsm.Time { return max(q.clock.Add(d), 1) }

// endSilences takes from consumers what they hold if nothing was heard from
// their node for too long.
func (q *model) endSilences() {
	for i := range q.silent {
		x := &q.silent[i]
		if x.until == 0 || x.until > q.clock {
			continue
		}
		x.until = 0
		for _, c := range slices.Clone(q.consumers) {
			if q.silenceOf(c.id.Session) == x && len(q.held(c)) > 0 {
				q.detach(c, false)
				q.dismiss(c)
			}
		}
	}
}

func (q *model) silentBoots() []queue.Boot {
	var list []queue.Boot
	for _, x := range q.silent {
		list = append(list, x.of)
	}
	return list
}

// consumerBoots lists the lives of nodes that have consumers or gets here.
func (q *model) consumerBoots() []queue.Boot {
	var list []queue.Boot
	for _, id := range q.sessionIDs() {
		has := slices.ContainsFunc(q.consumers, func(c *consumer) bool { return c.id.Session == id })
		if b := (queue.Boot{Node: id.Node, Boot: id.Boot}); has && !slices.Contains(list, b) {
			list = append(list, b)
		}
	}
	return list
}
