package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// purge removes all messages that are ready, scheduled, set aside or parked, and letters
// that have no destination. They are not dead-lettered. O(1) for the messages
// themselves, see messages.discardList.
func (it *intake) purge() fsm.Result {
	n := it.messages.readyCount() + it.messages.count(Waiting).Messages
	for _, in := range [...]Place{Scheduled, Delayed, Deferred, Parked} {
		n += it.messages.count(in).Messages
	}
	it.counters.Purged += n
	it.counters.Unscheduled += it.messages.count(Scheduled).Messages
	it.ends.several(n, logpb.EndState_PURGED, it.outbox.nextLetter())
	it.dropReady()
	it.outbox.purge()
	return fsm.Result{Count: n}
}

// dropReady removes all messages that are ready, scheduled, set aside or parked. When the
// last scheduled or delayed message goes, the queue counts as active until now.
func (it *intake) dropReady() {
	if it.lease.expectant() {
		it.lease.touch()
	}
	it.messages.dropReady()
	it.aside.clear()
}

// sweep releases purged messages and forgets ids, as many as one command of this kind may. A
// draining queue is swept by end alone, and one that is gone has given up its
// entries as a whole.
func (it *intake) sweep(kind logpb.Command_Kind, eff *fsm.Effects) {
	n := it.bounds.Before
	if kind == logpb.Command_TICK || kind == logpb.Command_PURGE {
		n = it.bounds.Sweep
	}
	if it.lease.phase() != Active {
		return
	}
	if it.messages.head(purgedList) != 0 {
		it.messages.sweep(n, eff)
	}
	if it.seen.len() > 0 {
		it.seen.forget(n)
	}
}
