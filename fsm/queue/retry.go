package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// retry makes message h, which is set aside, the last one of the returned, or puts it back into
// its group. It keeps its number and its counts of deliveries. If it has expired
// meanwhile it is due at once.
func (it *intake) retry(h uint32) {
	if it.messages.get(h).place == Delayed {
		it.lease.touch()
		if it.members.doomed(h) {
			it.aside.take(h)
			it.messages.putAfter(0, h, Grouped)
			it.messages.watch(h)
			return // it dies with its group
		}
	}
	it.aside.take(h)
	it.tryAgain(h)
}

// tryAgain is retry for a message in no place.
func (it *intake) tryAgain(h uint32) {
	if len(it.members.regroup([]checkout{{grip: grip{handle: h}}})) == 0 {
		return // to its group
	}
	it.messages.returnLast(h)
	it.messages.watch(h)
}

// retryNow makes up to n of the delayed messages ready, those that are due next
// first, and no more than one command may; 0: all. Count of the answer is how
// many. The next call continues; nothing is remembered.
func (it *intake) retryNow(cmd *logpb.Kick) fsm.Result {
	n := uint64(it.bounds.Tick)
	if asked := cmd.GetCount(); asked > 0 {
		n = min(n, asked)
	}
	var r fsm.Result
	for ; r.Count < n; r.Count++ {
		h, ok := it.timers.nextDelayed()
		if !ok {
			break
		}
		it.retry(h)
	}
	it.counters.Kicked += r.Count
	return r
}
