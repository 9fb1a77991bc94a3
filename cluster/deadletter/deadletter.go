// Package deadletter sends the dead letters of the queues that a node leads to their targets, and
// what they forward.
//
// Letters in a queue's outbox arrive at each target exactly once and in the order in which they
// died, also across changes of leader. A letter leaves the outbox when the log records that all
// its targets have it, or that it has none. Letters that are in no outbox are sent at most once,
// and counted if they do not arrive.
//
// The package decides where letters go, by the catalog's view, and what they carry. What a queue
// does with dying messages is decided by its machine (fsm/queue); cluster/stream ensures that
// commands reach a queue once.
package deadletter

import (
	"log/slog"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// Host is the node that letters are sent by.
type Host interface {
	// View is the newest view of the catalog, and Fresh whether one that is read
	// after that holds all that anybody has been told.
	View() *catalog.View
	Fresh() bool
	// Self is the number of this node and of its boot; 0: it has none yet.
	Self() (node fsm.NodeID, boot uint64)
	// Now is for durations, in milliseconds.
	Now() int64
	// Spawn does something on a goroutine of its own, unless the node closes.
	Spawn(doing string, f func()) bool
	// Used is told of each exchange that a letter passes.
	Used(x *catalog.Exchange)
	// OddAnswer notes an answer that no command should be given.
	OddAnswer(queue fsm.QueueID, command string, code fsm.Code)
	// QueueGone ends what the node knows of a queue that the catalog has lost.
	QueueGone(id fsm.QueueID)
}

// Properties reads what has to be known of stored messages, and changes what dying
// changes.
type Properties interface {
	// Expiration returns the time-to-live with which a message was published, empty
	// if it has none.
	Expiration(p fsm.Payload) string
	// Headers returns what exchanges compare, nil if there is nothing. deaths, if
	// any, show in it as in a delivery.
	Headers(p fsm.Payload, deaths []*logpb.Death) *fsm.Table
	// Copies returns the other routing keys of a message that receivers may see.
	Copies(p fsm.Payload) []string
	// Property returns the text of one of the properties that the broker asks for,
	// nil if there is none.
	Property(p fsm.Payload, name string) []byte
	// Delay returns what x-delay asks for in milliseconds; 0: nothing.
	Delay(p fsm.Payload) fsm.Millis
	// Deaths returns the history with which a message was published, newest
	// first, if its first death is to continue it.
	Deaths(p fsm.Payload) []*logpb.Death
	// Rewritten returns what a payload that leaves its queue has for Payload.List.
	// The result may be a part of p.
	Rewritten(p fsm.Payload, how fsm.Rewrite) []byte
}

// Group is a led queue whose letters are sent: *group.Group.
type Group interface {
	Spec() group.Spec
	// Leading is the term in which this node leads the group; 0: it does not.
	Leading() uint64
	View(f func(m *queue.Machine))
	Submit(b group.Batch) error
	Payload(ref fsm.Ref) ([]byte, error)
	// Guard does something for the group; false: it has panicked.
	Guard(doing string, f func()) bool
}

var _ Group = (*group.Group)(nil)

// Config is what a Sender needs.
type Config struct {
	Node       string // name of this node
	Host       Host
	Routes     *stream.Table
	Properties Properties
	Filters    fsm.Filters // nil: exchanges of type x-filter make no copies
	Logger     *slog.Logger
}

// Target is the group that dead letters come to: *group.Group.
type Target interface {
	View(f func(m *queue.Machine))
	Submit(b group.Batch) error
}
