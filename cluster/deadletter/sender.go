package deadletter

import (
	"log/slog"
	"maps"
	"slices"
	"sync"

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

// Properties reads what has to be known of an encoded AMQP property list, and
// changes what dying changes.
type Properties interface {
	// Expiration returns the expiration property, empty if there is none.
	Expiration(properties []byte) string
	// Headers returns the headers property, nil if there is none. deaths, if
	// any, show in it as in a delivery.
	Headers(properties []byte, deaths []*logpb.Death) *fsm.Table
	// Copies returns the routing keys of the header CC.
	Copies(properties []byte) []string
	// Property returns the text of one of the properties that exchanges may ask
	// for, nil if there is none.
	Property(properties []byte, name string) []byte
	// Delay returns what the header x-delay asks for in milliseconds; 0: nothing.
	Delay(properties []byte) fsm.Millis
	// Delayed returns the properties with that header negated. The result may be
	// the argument.
	Delayed(properties []byte) []byte
	// Deaths returns the history with which a message was published, newest
	// first, if its first death is to continue it.
	Deaths(properties []byte) []*logpb.Death
	// Redirected returns the properties of a dead letter that goes by the routing
	// key of its queue. The result may be the argument.
	Redirected(properties []byte) []byte
	// Remarked returns the properties of a dead letter with what its last receiver
	// has said, and without what an earlier one has. The result may be the
	// argument.
	Remarked(properties []byte, remark fsm.Remark) []byte
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
	Logger     *slog.Logger
}

// Sender sends the dead letters of the queues that this node leads.
type Sender struct {
	node       string
	host       Host
	routes     *stream.Table
	properties Properties
	slog       *slog.Logger
	once       *onceSender

	mu       sync.Mutex
	outboxes map[fsm.QueueID]*outboxSender // of queues that this node leads
	closed   bool
}

// New returns a sender that has nothing to send.
func New(c Config) *Sender {
	s := &Sender{
		node: c.Node, host: c.Host, routes: c.Routes, properties: c.Properties, slog: c.Logger,
		outboxes: map[fsm.QueueID]*outboxSender{},
	}
	s.once = &onceSender{all: s, streams: map[fsm.QueueID]*onceStream{}}
	return s
}

// Forward sees to it that the letters in the outbox of a led queue move.
func (s *Sender) Forward(g Group) {
	id := g.Spec().Queue
	s.mu.Lock()
	x := s.outboxes[id]
	if x == nil && g.Leading() != 0 && !s.closed { // else Drop has been here, or Close
		x = newOutboxSender(s, g)
		s.outboxes[id] = x
	}
	s.mu.Unlock()
	if x != nil {
		x.wake()
	}
}

// Drop forgets the outbox of a queue that this node does not lead any more, or
// that is gone.
func (s *Sender) Drop(id fsm.QueueID) {
	s.mu.Lock()
	x := s.outboxes[id]
	delete(s.outboxes, id)
	s.mu.Unlock()
	if x != nil {
		x.stop()
	}
}

// Wake has every outbox looked at again: a proposal may have been lost, or a way
// may have opened. It reports whether there is something in one.
func (s *Sender) Wake() (some bool) {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.outboxes))
	s.mu.Unlock()
	for _, x := range all {
		if x.waiting() {
			some = true
			x.wake()
		}
	}
	return some
}

// Close ends the sending from outboxes. Goroutines that are at it end soon.
func (s *Sender) Close() {
	s.mu.Lock()
	s.closed = true
	all := s.outboxes
	s.outboxes = map[fsm.QueueID]*outboxSender{}
	s.mu.Unlock()
	for _, x := range all {
		x.stop()
	}
}

// SendOnce routes dead messages of a led queue that are in no outbox, and sets
// them on their way. Their payloads can be read while it runs.
func (s *Sender) SendOnce(from Group, letters []fsm.DeadLetter) { s.once.send(from, letters) }

// Restart begins anew with the node's new boot: what is on its way at most once is
// lost.
func (s *Sender) Restart() { s.once.restart() }

// LostOnce counts the dead letters of no outbox that this node sent, or was to
// send, and that did not arrive: with each target that did not take one, or
// once if there was none.
func (s *Sender) LostOnce() uint64 { return s.once.missed.Load() }

// Bounds of one look at the queues that bring their dead letters to another.
const (
	sourcesAtOnce    = 512 // under the target's lock
	endSourcesAtOnce = 512 // sessions that one look ends
)

// Target is the group that dead letters come to: *group.Group.
type Target interface {
	View(f func(m *queue.Machine))
	Submit(b group.Batch) error
}

// EndSources ends the sessions of queues that are gone: nobody else does, for
// they live on no node. What such a queue has sent and is still on its way
// does not begin its session anew: the target remembers the end for as long as
// the first command of a stream is taken, and every later one needs a session.
// It reports whether there may be more to end.
func EndSources(g Target, v *catalog.View) (more bool) {
	var ends []*logpb.Command
	for after := fsm.QueueID(0); len(ends) < endSourcesAtOnce; {
		var ids []fsm.QueueID
		g.View(func(m *queue.Machine) { ids = m.Sources(after, sourcesAtOnce) })
		for _, id := range ids {
			if after = id; len(ends) < endSourcesAtOnce && stream.IsOver(v, id) {
				ends = append(ends, &logpb.Command{
					Kind: logpb.Command_SESSION_DOWN, Session: fsm.SessionID{Boot: uint64(id)}.Proto(),
				})
			}
		}
		if len(ids) < sourcesAtOnce {
			break
		}
	}
	if len(ends) == 0 {
		return false
	}
	_ = g.Submit(group.BatchOf(ends...)) // the next look finds what was lost
	return true
}
