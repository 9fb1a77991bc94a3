package fsmtest

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// witnessedGroups is what a witness knows of groups.
type witnessedGroups struct {
	last     map[string]uint64 // the newest message handed out for the first time
	deferred map[fsm.Ref]bool  // held since it was deferred and asked for
	together bool              // at some time messages of a group expired together
}

// groupDeliveries judges what of groups is handed out.
func (w *witness) groupDeliveries(b, now holding, c *logpb.Command, eff *fsm.Effects) {
	for i := range eff.Deliveries {
		d := &eff.Deliveries[i]
		x, ok := now.live[d.Ref]
		if !ok || x.Group == "" {
			continue
		}
		if was := b.live[d.Ref]; was.Place == queue.CheckedOut && was.Holder == d.To && was.Delivery == d.ID {
			continue // a repetition
		}
		if w.groups.deferred[d.Ref] = c.Kind == logpb.Command_RECEIVE_DEFERRED && x.Acquired > 0; w.groups.deferred[d.Ref] {
			continue
		}
		if d.Acquired == 0 {
			if x.Seq < w.groups.last[x.Group] {
				w.saw("message %d of group %q is delivered for the first time after %d", x.Seq, x.Group, w.groups.last[x.Group])
			}
			w.groups.last[x.Group] = x.Seq
		}
		if x.Place != queue.CheckedOut || x.Holder != d.To {
			continue // it is not there any more
		}
		for _, y := range now.live {
			if y.Place == queue.CheckedOut && y.Group == x.Group && y.Holder != x.Holder && !w.groups.deferred[y.Ref] {
				w.saw("group %q is at %v and %v", x.Group, x.Holder, y.Holder)
			}
		}
	}
}
