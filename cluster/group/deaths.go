package group

import (
	"sync"

	"github.com/quorate/quorate/fsm/queue"
)

// deaths counts what has died in queues while this node led them. A death is
// counted by the node that led when it was applied, and by no other.
type deaths struct {
	mu    sync.Mutex
	queue Deaths
}

// Deaths are the deaths in replicated queues and in those of one node.
type Deaths struct{ Replicated, Local queue.Dead }

// note counts what one entry has added.
func (d *deaths) note(local bool, before, after queue.Dead) {
	if before == after {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	of := &d.queue.Replicated
	if local {
		of = &d.queue.Local
	}
	*of = of.Plus(after.Minus(before))
}

// Deaths returns what has died in queues that this node led, since it started.
func (h *Host) Deaths() Deaths {
	h.dead.mu.Lock()
	defer h.dead.mu.Unlock()
	return h.dead.queue
}
