package group

import (
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// fewUnapplied is how many entries hasUnapplied reads.
const fewUnapplied = 8

// hasUnapplied reports whether the log has commands of clients that are not applied here: a follower may
// learn late what is committed.
func hasUnapplied(is *raft.Raft, log raft.LogStore) bool {
	first, last := is.AppliedIndex()+1, is.LastIndex()
	if last >= first+fewUnapplied {
		return true
	}
	for i := first; i <= last; i++ {
		var l raft.Log
		if err := log.GetLog(i, &l); err != nil || l.Type == raft.LogCommand && !onlyConfigures(l.Data) {
			return true
		}
	}
	return false
}

// onlyConfigures reports whether an entry brings in settings and nothing else.
func onlyConfigures(data []byte) bool {
	e := logpb.EntryFromVTPool()
	defer e.ReturnToVTPool()
	if e.UnmarshalVT(data) != nil {
		return false
	}
	for _, c := range e.Commands {
		if c.Kind != logpb.Command_CONFIGURE {
			return false
		}
	}
	return true
}

// patience is Group.patience by the machine alone. A machine that is at work is not waited for.
func (a *applier) patience(now fsm.Time) (least time.Duration) {
	defer a.guard.contain("read what is due")
	if !a.mu.TryLock() {
		return 0
	}
	defer a.mu.Unlock()
	if a.given {
		return 0
	}
	s, due := a.machine.Stats(), a.machine.NextDeadline()
	switch {
	case s.Unacknowledged.Messages > 0, s.Outbox.Messages > 0, queue.GoesOn(a.machine.Outlook().Redrive):
		return 0
	case due == 0:
		return replica.Never
	}
	return max(0, time.Duration(due-now)*time.Millisecond)
}
