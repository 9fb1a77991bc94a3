package fsmtest

import (
	"cmp"
	"slices"
)

// elect finds the single active consumer and serves it.
func (q *model) elect() {
	if !q.config.SingleActive || q.phase != live {
		return
	}
	best := q.firstUp()
	old := q.single
	switch {
	case old == nil || old.cancelled || !slices.Contains(q.consumers, old) || q.isDown(old.id.Session):
		q.single = best
	case len(q.held(old)) > 0: // it keeps its place
	case !q.isUp(old) || best.priority > old.priority:
		q.single = best
	}
	if old != q.single {
		for _, c := range []*consumer{old, q.single} {
			if c != q.consumed {
				q.tellServed(c)
			}
		}
	}
	q.service = slices.DeleteFunc(q.service, func(c *consumer) bool { return !q.hasCredit(c) })
	if q.single != nil {
		q.serve(q.single)
	}
}

// firstUp is the first of those that may be served: the highest priority, and
// among equals the one that has been there for longest.
func (q *modelSessions) firstUp() *consumer {
	up := slices.DeleteFunc(slices.Clone(q.consumers), func(c *consumer) bool { return !q.isUp(c) })
	if len(up) == 0 {
		return nil
	}
	slices.SortStableFunc(up, func(a, b *consumer) int { return cmp.Compare(b.priority, a.priority) })
	return up[0]
}

func (q *modelSessions) isUp(c *consumer) bool {
	return c.id.Number != 0 && !c.cancelled && len(c.timedOut) == 0 && q.suspicionOf(c.id.Session) == nil && !q.isDown(c.id.Session)
}

// quiescing: the active consumer makes way for one with a higher priority.
func (q *model) quiescing() bool {
	best := q.firstUp()
	return q.single != nil && best != nil && q.isUp(q.single) && len(q.held(q.single)) > 0 && best.priority > q.single.priority
}
