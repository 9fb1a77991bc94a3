package servicebus

import (
	"context"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// Machine is what a session of the broker does besides, by numbers of messages. Its methods wait for the queue, whose name is
// one of the session's vhost.
type Machine interface {
	amqp.Session
	// Perform does all of a unit, or nothing: fsm.ErrNotHeld, *fsm.NotTaken. Messages are numbered from first on.
	Perform(ctx context.Context, queue string, u *fsm.Unit) (first uint64, err error)
	// Post is Perform without the wait: SessionEvents.Confirmed tells the outcome under a number, unless there is an error.
	Post(ctx context.Context, queue string, u *fsm.Unit, number uint64) error
	// RenewLocks lets locks begin anew, or none of them: fsm.ErrNotHeld. until is when the first one ends.
	RenewLocks(ctx context.Context, queue string, handles []fsm.Handle) (until fsm.Time, err error)
	// TakeDeferred hands out deferred messages, or none: fsm.ErrNoMessage.
	TakeDeferred(ctx context.Context, queue string, d fsm.Deferred) ([]fsm.Message, error)
	// CancelScheduled deletes scheduled messages, or none: fsm.ErrNoMessage.
	CancelScheduled(ctx context.Context, queue string, numbers []uint64) error
	// PeekFrom shows messages by number, of a group or of all; none only if there are none.
	PeekFrom(ctx context.Context, queue string, from uint64, limit int, group string) ([]fsm.Peeked, error)
	// DeleteBefore deletes messages that are ready and came before an instant.
	DeleteBefore(ctx context.Context, queue string, limit int, before fsm.Time, group string) (n uint64, err error)
	// Group does something with a group that a consumer of the session holds: fsm.ErrNotHeld.
	Group(ctx context.Context, consumer uint64, id string, action fsm.GroupAction, set []byte) (until fsm.Time, state []byte, err error)
	// Groups lists groups by id, after an id.
	Groups(ctx context.Context, queue, after string, limit int) ([]fsm.GroupInfo, error)
	// LockKey returns a secret of a queue, the same at every node; nil: there is none.
	LockKey(ctx context.Context, queue string) ([]byte, error)
}

// machineOf returns what the session of a link does. Every session of the cluster is a Machine.
func machineOf(l *v10.Link) Machine { return l.Broker().(Machine) }

// handleOf returns the handle of a message that is held.
func handleOf(m *fsm.Message) fsm.Handle { return fsm.Handle{Number: m.Sequence, Acquired: m.Acquired} }

// sealer returns what makes the lock tokens of a queue.
func (s *side) sealer(ctx context.Context, l *v10.Link, queue string) (*sealer, error) {
	key, err := machineOf(l).LockKey(ctx, queue)
	switch {
	case err != nil:
		return nil, err
	case len(key) != 16:
		return nil, wire.Errorf(conditionBusy, "The cluster has no secret for locks yet.")
	}
	return newSealer([16]byte(key)), nil
}
