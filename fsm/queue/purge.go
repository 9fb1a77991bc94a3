package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// purge removes all messages that are ready, scheduled or delayed, and letters
// that have no destination. They are not dead-lettered. O(1) for the messages
// themselves, see messages.discardList.
func (it *intake) purge() fsm.Result {
	n := it.messages.readyCount() + uint64(it.timers.timed()) + it.messages.count(Waiting).Messages
	it.counters.Purged += n
	it.counters.Unscheduled += it.messages.count(Scheduled).Messages
	it.dropReady()
	it.outbox.purge()
	return fsm.Result{Count: n}
}

// dropReady removes all messages that are ready, scheduled or delayed. When the
// last scheduled message goes, the queue counts as active until now.
func (it *intake) dropReady() {
	if it.messages.count(Scheduled).Messages > 0 {
		it.lease.touch()
	}
	it.messages.dropReady()
}

// sweep releases purged messages, as many as one command of this kind may. A
// draining queue is swept by end alone, and one that is gone has given up its
// entries as a whole.
func (it *intake) sweep(kind logpb.Command_Kind, eff *fsm.Effects) {
	switch {
	case it.lease.phase() != Active:
	case kind == logpb.Command_TICK || kind == logpb.Command_PURGE:
		it.messages.sweep(it.bounds.Sweep, eff)
	default:
		it.messages.sweep(it.bounds.Before, eff)
	}
}
