package checker

import (
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// Promised is Locks for holders that were told until when they hold a message: nothing is excused, not even a wrong clock.
func Promised(h *history.History) Verdict { return locks(h, 0) }

// tenure is a group that a client has accepted. Each has a client of its own.
type tenure struct {
	history.Op
	renewed []history.Op
	lost    time.Duration // 0: it was not
}

// promised is what the holder knew before the call of an op: how long it holds the group. Before a call at 0: in the end.
func (t *tenure) promised(before time.Duration) time.Duration {
	end := t.Call + t.Lock
	for _, o := range t.renewed {
		if o.Result == history.OK && (before == 0 || o.Return <= before) {
			end = max(end, o.Call+o.Lock)
		}
	}
	if t.lost != 0 {
		end = min(end, t.lost)
	}
	return end
}

// Sessions finds groups that were accepted while somebody else held them, and holders that lost one too soon, by what holders
// were told. Nothing is excused.
func Sessions(h *history.History) Verdict {
	p := problems{name: "holders"}
	by, groups := map[string]*tenure{}, map[string][]*tenure{}
	for _, o := range h.Ops {
		if o.Kind == history.Accept && o.Result == history.OK {
			t := &tenure{Op: o}
			by[o.Client], groups[o.Group] = t, append(groups[o.Group], t)
		}
	}
	for _, o := range h.Ops {
		switch t := by[o.Client]; {
		case t == nil:
		case o.Kind == history.Renew:
			t.renewed = append(t.renewed, o)
		case o.Kind == history.Lost:
			t.lost = max(o.Call, 1)
		}
	}
	for _, o := range h.Ops {
		if t := by[o.Client]; t != nil && o.Result == history.No {
			if end := t.promised(o.Call); o.Return < end {
				p.add("group %s: %s is refused to %s at %v, who held it until %v", t.Group, o.Kind, o.Client, o.Return, end)
			}
		}
	}
	for _, o := range h.Ops { // in the order of the history, so that problems are
		if t := by[o.Client]; t != nil && o.Kind == history.Accept {
			for _, other := range groups[o.Group] {
				if end := other.promised(0); other != t && other.Return <= t.Return && t.Return < end && t.Return < t.promised(0) {
					p.add("group %s: %s got it at %v, and %s held it until %v", o.Group, t.Client, t.Return, other.Client, end)
				}
			}
		}
	}
	return p.found()
}

// Due finds scheduled messages that came before they were due by the clock of their publisher. Nothing is excused.
func Due(h *history.History) Verdict {
	p := problems{name: "early"}
	due := map[uint64]time.Duration{}
	for _, o := range h.Ops {
		if o.Kind == history.Schedule {
			due[o.Key] = o.Due
		}
	}
	for _, d := range h.Ops {
		if at := due[d.Key]; d.Kind == history.Deliver && d.Return < at {
			p.add("key %d came at %v, and was due at %v", d.Key, d.Return, at)
		}
	}
	return p.found()
}
