package stream

import (
	"sync"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
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
	// group.ErrFull and replica.ErrTransferring call for a pause; any other one means
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
	News     fsm.News // its deliveries are IDs
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

// Pending is one command that waits for its answer.
type Pending struct {
	// Payload of the messages that the command brings; nil: it brings none.
	Payload []byte
	// Call is who waits for the answer; nil: nobody.
	Call *Call
	// The owner's own: they come back with the answer.
	Number             uint64
	Mandatory, Confirm bool
	Note               any

	seq     uint64
	encoded []byte // nil: a settlement that is encoded when it is sent
	settle  settlement
}

// Command decodes the command again.
func (p *Pending) Command() (*logpb.Command, error) {
	var e logpb.Entry
	if err := e.UnmarshalVT(p.encoded); err != nil {
		return nil, err
	}
	return e.Commands[0], nil
}

// pendingList is a queue of commands, ascending by number.
//
// Invariant: 0 ≤ head ≤ len(list); what is before head has been answered.
type pendingList struct {
	list []Pending
	head int
}

func (l *pendingList) len() int { return len(l.list) - l.head }

// at returns the i-th command of those that wait.
func (l *pendingList) at(i int) *Pending { return &l.list[l.head+i] }

func (l *pendingList) push(p Pending) {
	if l.head == len(l.list) {
		l.list, l.head = l.list[:0], 0
	}
	l.list = append(l.list, p)
}

// pop leaves the first command out. It can still be read until compact.
func (l *pendingList) pop() { l.head++ }

// compact drops answered commands from the front of the list.
func (l *pendingList) compact() {
	if l.head > 64 && l.head*2 > len(l.list) {
		n := copy(l.list, l.list[l.head:])
		clear(l.list[n:])
		l.list, l.head = l.list[:n], 0
	}
}

// settlement is of deliveries to one consumer.
type settlement struct {
	consumer uint64
	outcome  fsm.Outcome
	ranges   []uint64 // alternating: first, length
}

// joins reports whether a settlement that begins with a delivery may be added.
func (x *settlement) joins(consumer, first uint64, outcome fsm.Outcome) bool {
	return x.consumer == consumer && x.outcome == outcome && lastOf(x.ranges) < first
}

// lastOf returns the last id in alternating (first, length) pairs.
func lastOf(r []uint64) uint64 { return r[len(r)-2] + r[len(r)-1] - 1 }

// AppendRanges appends ids, which ascend, to ranges as logpb.Settle has them.
func AppendRanges(r, ids []uint64) []uint64 {
	for _, id := range ids {
		if n := len(r); n > 0 && r[n-2]+r[n-1] == id {
			r[n-1]++
		} else {
			r = append(r, id, 1)
		}
	}
	return r
}

// Call is a command somebody waits for.
type Call struct {
	Kind    logpb.Command_Kind
	Cancels uint64 // consumer that is over with the answer; 0: none

	// Valid once Done is closed.
	Result fsm.Result
	Got    *fsm.Message  // by a get; nil: none
	Taken  []fsm.Message // without a consumer
	// Refused is what the client is told of the result; nil: success. It belongs to
	// who waits.
	Refused error

	get    bool
	takes  bool   // deferred messages, without a consumer
	before uint64 // the last delivery to gets before those; one such call waits at a time
	tries  int    // how often a get whose message got lost may be repeated
	done   chan struct{}
}

// getTries bounds the repetitions of a get whose message got lost.
const getTries = 5

func newCall(c *logpb.Command) *Call {
	k := &Call{
		Kind: c.Kind, done: make(chan struct{}), get: c.Kind == logpb.Command_GET, Cancels: c.GetCancel().GetConsumer(),
	}
	r := c.GetReceiveDeferred()
	k.takes = r != nil && r.Consumer == 0
	if k.get && !c.GetGet().GetNoAck() || k.takes && !r.NoAck {
		k.tries = getTries // without an acknowledgement the message is gone
	}
	return k
}

// Done is closed with the answer.
func (k *Call) Done() <-chan struct{} { return k.done }

// Finish gives whoever waits the answer. It is called once: by the owner, after
// what the stream has told it before.
func (k *Call) Finish(r fsm.Result) {
	k.Result = r
	close(k.done)
}

// again reports whether a get has to be repeated, and counts that: it was
// answered, and its message was lost on its way, or one of several that were taken.
func (k *Call) again(r fsm.Result) bool {
	switch {
	case k == nil || r.Code != fsm.OK || k.tries == 0:
		return false
	case k.takes && uint64(len(k.Taken)) < r.Count:
		k.Taken = nil
	case !k.get || k.Got != nil:
		return false
	}
	k.tries--
	return true
}
