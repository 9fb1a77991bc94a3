package stream

import (
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
)

// Answer takes outcomes of commands that a node has told. It takes the owner's
// lock.
func (s *Stream) Answer(from string, outcomes []group.Outcome) {
	s.owner.Lock()
	defer s.owner.Unlock()
	for i := range outcomes {
		if outcomes[i].Result.Code == fsm.NoSession && !s.route.IsLeader(from) {
			continue // of a former leader, about commands that have been sent again since
		}
		s.answered(outcomes[i].First, outcomes[i].Run, outcomes[i].Result)
	}
}

// answered takes the outcome of commands. The lock is held.
func (s *Stream) answered(first, run uint64, r fsm.Result) {
	if s.pending.len() == 0 || first+run <= s.pending.at(0).seq {
		return // an answer to something that was sent twice
	}
	switch oldest := s.pending.at(0).seq; {
	case r.Code == fsm.Gap:
		s.gap(r.Next)
		return
	case r.Code == fsm.NoSession && oldest == 1 && first > 1:
		// The command that begins the stream was lost, later ones were not.
		s.gap(1)
		return
	case r.Code == fsm.Late:
		s.reopen(fsm.Time(r.Next))
		return
	case r.Code == fsm.NoSession:
		s.owner.Lost()
		return
	case first > oldest:
		// Answers in between have been lost; ask for them again.
		s.gap(oldest)
		return
	}
	for s.pending.len() > 0 && s.pending.at(0).seq < first+run {
		p := s.pending.at(0)
		if p.Call.again(r) {
			s.sent = p.seq - 1
			s.wake()
			return
		}
		s.pending.pop()
		s.owner.Answered(p, r)
		*p = Pending{}
	}
	s.progress.at, s.progress.stalls = s.route.host.Now(), 0
	for _, u := range s.unseen {
		s.push(Pending{settle: u})
	}
	s.unseen = nil
	s.pending.compact()
}

// reopen begins a stream whose first command has waited for too long, with the
// queue's own time. The queue has never begun it, unless the stream has come to
// its end and the queue has forgotten that.
func (s *Stream) reopen(at fsm.Time) {
	first := s.pending.at(0)
	if first.seq != 1 {
		return // an answer to a former try
	}
	if s.ending {
		s.owner.Lost()
		return
	}
	c, err := first.Command()
	if err != nil {
		panic(err) // it was encoded here
	}
	c.OpenedAt = int64(at)
	first.encoded = s.encoder.encode(c)
	s.progress.at = s.route.host.Now()
	s.resend()
}

// end answers everything that waits, and tells the owner: the queue is gone. It
// takes the owner's lock.
func (s *Stream) end() {
	s.finish()
	s.owner.Gone()
}

func (s *Stream) finish() {
	s.owner.Lock()
	defer s.owner.Unlock()
	s.gone = true
	for s.pending.len() > 0 {
		p := s.pending.at(0)
		s.pending.pop()
		s.owner.Answered(p, fsm.Result{Code: fsm.Gone})
		*p = Pending{}
	}
	s.pending = pendingList{}
}

// fail ends a stream whose route has panicked, and what it belongs to. It takes
// the owner's lock.
func (s *Stream) fail() {
	s.owner.Lock()
	defer s.owner.Unlock()
	s.owner.Failed()
}

// Notice passes on what the leader has to say. It is called without the lock.
func (s *Stream) Notice(n Notice) {
	if s.receiver != nil {
		s.receiver.Noticed(n)
	}
}
