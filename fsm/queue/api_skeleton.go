// Package queue is the replicated queue machine.
package queue

import (
	"io"
	"iter"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Machine is one queue. See fsm.Machine.
type Machine struct{}

// Snapshot is an immutable view of a machine.
type Snapshot struct{}

// New returns an empty queue.
func New(name string, id fsm.QueueID) *Machine { return &Machine{} }

// Apply implements fsm.Machine.
func (m *Machine) Apply(meta fsm.Meta, cmd *logpb.Command, eff *fsm.Effects) fsm.Result {
	return fsm.Result{}
}

// NextDeadline implements fsm.Machine.
func (m *Machine) NextDeadline() fsm.Time { return 0 }

// Resume implements fsm.Machine.
func (m *Machine) Resume(eff *fsm.Effects) {}

// Held appends the deliveries that a consumer holds with an ID above after.
func (m *Machine) Held(to fsm.ConsumerID, after uint64, eff *fsm.Effects) {}

// Name of the queue.
func (m *Machine) Name() string { return "" }

// ID of the queue.
func (m *Machine) ID() fsm.QueueID { return 0 }

// Clock is the machine's time.
func (m *Machine) Clock() fsm.Time { return 0 }

// Stats returns the figures of the moment.
func (m *Machine) Stats() Stats { return Stats{} }

// Config returns the settings in force. Nobody changes the value.
func (m *Machine) Config() *logpb.QueueConfig { return nil }

// Consumers iterates in order of registration.
func (m *Machine) Consumers() iter.Seq[Consumer] { return nil }

// Messages iterates over all messages: ready by priority, highest first,
// returned, checked out, outbox.
func (m *Machine) Messages() iter.Seq[Message] { return nil }

// Sessions lists the sessions with a stream, ascending.
func (m *Machine) Sessions() []fsm.SessionID { return nil }

// SessionNodes lists the boots of nodes that sessions live on, ascending.
func (m *Machine) SessionNodes() []Boot { return nil }

// Live reports whether the entry at index has live messages.
func (m *Machine) Live(index uint64) bool { return false }

// LiveIndexes iterates over the entries with live messages, ascending.
func (m *Machine) LiveIndexes() iter.Seq[uint64] { return nil }

// UnroutedLetters returns up to max letters without a route, oldest first.
func (m *Machine) UnroutedLetters(max int) []Letter { return nil }

// PendingTransfers returns up to max unsettled transfers to target from
// number from on.
func (m *Machine) PendingTransfers(target fsm.QueueID, from uint64, max int) []Outgoing { return nil }

// Targets lists the queues that letters were routed to, ascending.
func (m *Machine) Targets() []Target { return nil }

// Snapshot returns a view that stays as it is.
func (m *Machine) Snapshot() *Snapshot { return nil }

// WriteTo writes the canonical encoding.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) { return 0, nil }

// LiveIndexes iterates over the entries with live messages at that moment.
func (s *Snapshot) LiveIndexes() iter.Seq[uint64] { return nil }

// Restore replaces the state by what WriteTo has written.
func (m *Machine) Restore(r io.Reader) error { return nil }

// Hash is the SHA-256 of the canonical encoding.
func (m *Machine) Hash() [32]byte { return [32]byte{} }

// Check walks the whole state and reports the first broken invariant.
func (m *Machine) Check() error { return nil }

// String returns stable text.
func (m *Machine) String() string { return "" }
