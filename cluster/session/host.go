package session

import (
	"github.com/quorate/quorate/cluster/deadletter"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// host is this node as used by command streams and dead letters.
type host struct {
	*node
	*tasks
	uses    *uses
	answers *answers
	// leads asks a node which queues it leads.
	leads func(of []*stream.Route, node string) (terms []uint64)
	// queueGone discards everything the broker knows about a queue.
	queueGone func(fsm.QueueID)
}

var (
	_ stream.Host     = (*host)(nil)
	_ deadletter.Host = (*host)(nil)
)

// Name is the name of this node.
func (h *host) Name() string { return h.name }

// NodeName returns the name of a node; empty: unknown.
func (h *host) NodeName(id fsm.NodeID) string { return h.nameOf(id) }

// View is the newest view of the catalog.
func (h *host) View() *catalog.View { return h.view() }

// Fresh reports whether the view holds every change that has been reported as done to anybody.
func (h *host) Fresh() bool { return h.catalog.Fresh() }

// Self is the number of this node and of its boot; 0: it has none yet.
func (h *host) Self() (node fsm.NodeID, boot uint64) {
	return fsm.NodeID(h.number.Load()), h.boot.Load()
}

// Used records the use of each exchange that a letter passes.
func (h *host) Used(x *catalog.Exchange) { h.uses.exchange(x) }

// OddAnswer records an answer that no command can get.
func (h *host) OddAnswer(queue fsm.QueueID, command string, code fsm.Code) {
	h.answers.unexpected(queue, command, code)
}

// Now is for durations, in milliseconds.
func (h *host) Now() int64 { return h.now() }

// Stamp is the current time, as used to stamp log entries.
func (h *host) Stamp() fsm.Time { return h.stamp() }

// Guard contains a panic.
func (h *host) Guard(doing string, f func()) bool { return h.guard(doing, f) }

// Spawn runs f until the broker closes.
func (h *host) Spawn(doing string, f func()) bool { return h.spawn(doing, f) }

// QueueGone discards everything the broker knows about a queue.
func (h *host) QueueGone(id fsm.QueueID) { h.queueGone(id) }

// Want tells a queue's members that somebody waits for a leader.
func (h *host) Want(of *stream.Route) {
	v := h.view()
	if q, ok := v.QueueByID(of.Queue()); ok && h.groups != nil {
		h.groups.Want(q.Group, h.namesOf(v.Members(q)))
	}
}

// Leads asks a node which queues it leads, and returns the term of each; 0: it does not lead it.
func (h *host) Leads(of []*stream.Route, node string) (terms []uint64) { return h.leads(of, node) }
