package stream

import (
	"sync"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/peerpb"
)

// Owner is whose commands a stream carries: a session at one queue, or a queue
// that sends dead letters to one. Its lock guards the stream. Unlock passes on
// what the calls since Lock have gathered.
type Owner interface {
	sync.Locker
	// Answered is called with the lock held, once for each command, in order. p is
	// not valid any more afterwards.
	Answered(p *Pending, r fsm.Result)
	// Lost: the queue does not know the session any more. The lock is held.
	Lost()
	// Failed: work for the stream has panicked, and it may be half changed. The
	// lock is held.
	Failed()
	// Gone: the catalog has lost the queue, and everything has been answered. The
	// lock is not held.
	Gone()
}

// Receiver takes the deliveries of a stream, and what the queue's leader has to say
// about its consumers. It is called with the owner's lock held, unless it says
// otherwise.
type Receiver interface {
	// Accept counts a message that would be delivered, with a payload of so many
	// bytes, unless the receiver has
	// too many already.
	Accept(bytes int) bool
	// CanTake reports whether so many answers to questions of CatchUp would be
	// accepted. If not, the receiver calls CatchUp when they would be.
	CanTake(answers int) bool
	// Deliver takes messages in order. The slice is the receiver's.
	Deliver(messages []fsm.Message)
	// Passed says that deliveries to a consumer never come: they were taken back
	// on their way. Position tells how far it has come.
	Passed(consumer uint64)
	// Noticed takes a notice about a consumer. The lock is not held.
	Noticed(n Notice)
}

// Host is the node that streams begin at.
type Host interface {
	// Name is the name of this node, and NodeName that of any; empty: unknown.
	Name() string
	NodeName(fsm.NodeID) string
	// View is the newest view of the catalog.
	View() *catalog.View
	// Now is for durations, in milliseconds; Stamp is the instant, as entries of
	// logs are stamped.
	Now() int64
	Stamp() fsm.Time
	// Try does something and reports whether there was no panic.
	Try(doing string, f func()) bool
	// Spawn does it on a goroutine of its own, unless the node closes.
	Spawn(doing string, f func()) bool
	// Submit hands a batch to a queue's leader, which may be this node. Of its errors
	// group.ErrFull and group.ErrTransferring call for a pause; any other one means
	// that the node does not lead, or cannot be reached.
	Submit(to *Route, leader string, b group.Batch) error
	// Ask asks a queue's leader for deliveries. A question may get lost.
	Ask(to *Route, leader string, q Resync)
	// Leads asks a node which queues it leads, and returns the term of each; 0: it does not lead it. Empty:
	// there is no answer.
	Leads(of []*Route, node string) (terms []uint64)
	// Want tells a queue's members that somebody waits for a leader. It may be called under locks of routes
	// and owners. The message may get lost.
	Want(of *Route)
	// QueueGone ends a route, and all else that the node knows of the queue, which
	// the catalog has lost.
	QueueGone(id fsm.QueueID)
}

// Notice is what a queue's leader has to say about a consumer of a session.
type Notice struct {
	Kind     peerpb.Notice_Kind
	Consumer uint64
	IDs      []uint64
	Limit    fsm.Millis
}

// DeliveryBatch is messages for one session, from one queue. Consumer of a message
// is the number of its consumer, 0 for a get. A message without a payload is only
// announced: the session has to ask for it.
type DeliveryBatch struct {
	Messages []fsm.Message // the receiver's
	Resync   bool          // the batch answers a Resync about a consumer …
	Consumer uint64        // … which is this one, …
	Last     uint64        // … and is all that it holds up to this delivery
}

// Resync asks a leader for what a consumer holds after a delivery, or about the
// commands of a session.
type Resync struct {
	Session         fsm.SessionID
	Consumer, After uint64
	// Commands is the oldest unanswered command; 0: the question is about a consumer.
	Commands uint64
}
