package broker

import (
	"github.com/quorate/quorate/cluster/deadletter"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/peerpb"
)

// host is this node as used by command streams and dead letters.
type host struct {
	*node
	*tasks
	uses    *uses
	answers *answers
	// leads asks a node whether it leads a queue, and returns the term; 0: it does not.
	leads func(of *stream.Route, node string) (term uint64)
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

// Submit passes a batch to a queue's leader, through the local group or over the link to the
// leader's node.
func (h *host) Submit(to *stream.Route, leader string, b group.Batch) bool {
	if leader == h.name {
		g := h.groups.Group(to.Group())
		return g != nil && g.Submit(b) == nil
	}
	head, err := (&peerpb.Submit{
		Group: uint32(to.Group()), Queue: uint64(to.Queue()), Commands: b.Commands, Count: uint32(b.Count), Light: b.Light,
	}).MarshalVT()
	// Its streams are bounded: waiting here delays their clients and nobody else.
	return err == nil && h.mesh.SendWait(leader, kindSubmit, head, b.Payloads...) == nil
}

// Ask asks a queue's leader for deliveries.
func (h *host) Ask(to *stream.Route, leader string, q stream.Resync) {
	if leader == h.name {
		answerResync(h.groups, to.Group(), q)
		return
	}
	head, err := (&peerpb.Resync{
		Group: uint32(to.Group()), Queue: uint64(to.Queue()), Session: q.Session.Num, Boot: q.Session.Boot,
		Consumer: q.Consumer, After: q.After,
	}).MarshalVT()
	if err == nil {
		_ = h.mesh.Send(leader, kindResync, head) // after a broken link everything starts over
	}
}

// Leads asks a node whether it leads a queue.
func (h *host) Leads(of *stream.Route, node string) (term uint64) { return h.leads(of, node) }
