package stream

import "github.com/quorate/quorate/cluster/group"

// MaxBatchCommands bounds the commands of one submission.
const MaxBatchCommands = 256

// maxBatchBytes bounds the payloads of one submission of several commands.
const maxBatchBytes = 256 << 10

// Load is what a route submits at a time. What is light may overtake what is
// heavy, also what was submitted earlier.
type Load struct{ light, heavy group.Batch }

// NewLoad returns an empty load.
func NewLoad() Load { return Load{light: group.Batch{Light: true}} }

// Submit hands over what there is until it is refused.
func (b *Load) Submit(to func(group.Batch) bool) bool {
	return (b.light.Count == 0 || to(b.light)) && (b.heavy.Count == 0 || to(b.heavy))
}

// Take moves what has not been sent into batches and reports whether one of them
// is full. It takes the owner's lock.
func (s *Stream) Take(to *Load) (full bool) {
	s.owner.Lock()
	defer s.owner.Unlock()
	return s.collect(to)
}

// collect is Take with the lock held. Commands are light up to the stream's first
// payload: as long as one that is not is unanswered, what follows must stay
// behind it.
func (s *Stream) collect(to *Load) (full bool) {
	for i := s.firstUnsent(); i < s.pending.len(); i++ {
		p := s.pending.at(i)
		b := &to.light
		if p.Payload != nil || s.heavy >= s.pending.at(0).seq {
			b = &to.heavy
		}
		if b.Count > 0 && (b.Bytes+len(p.Payload) > maxBatchBytes || b.Count >= MaxBatchCommands) {
			return true
		}
		if p.encoded == nil {
			p.encoded = s.encoder.settle(p)
		}
		b.Commands = append(b.Commands, p.encoded...)
		b.Count++
		if p.Payload != nil {
			b.Payloads = append(b.Payloads, p.Payload)
			b.Bytes += len(p.Payload)
		}
		s.sent = p.seq
		if b == &to.heavy {
			s.heavy = p.seq
		}
	}
	s.dirty = false
	return false
}

// firstUnsent is the place in pending of the first command that has not been sent.
func (s *Stream) firstUnsent() int {
	n := s.pending.len()
	if n == 0 || s.sent < s.pending.at(0).seq {
		return 0
	}
	return min(n, int(s.sent-s.pending.at(0).seq)+1)
}

// resend makes everything unanswered go out again. The lock is held.
func (s *Stream) resend() {
	if s.pending.len() > 0 {
		s.sent = s.pending.at(0).seq - 1
		s.wake()
	}
}

// sendAgain is resend, and takes the lock: who is broken must not keep it.
func (s *Stream) sendAgain() {
	s.owner.Lock()
	defer s.owner.Unlock()
	s.resend()
}

// gapPause is how long repeated complaints about the same gap are ignored.
const gapPause = 50 // milliseconds

// maxStalls bounds how long a stream waits before it sends all again.
const maxStalls = 4

// stallRate is how many bytes a millisecond the slowest queue is thought to
// take: so much longer a stream waits for an answer that holds so much.
const stallRate = 2 << 10

// progress says when a stream sends again by itself.
type progress struct {
	at     int64  // when something was last answered, or sent again, ms
	stalls int    // how often all was sent again without an answer; ≤ maxStalls
	gapAt  uint64 // last gap that was answered by sending again
}

// gap sends again from next on, which is where the machine's stream ends.
func (s *Stream) gap(next uint64) {
	now := s.route.host.Now()
	if s.progress.gapAt == next && now-s.progress.at < gapPause {
		return
	}
	s.progress.gapAt, s.progress.at = next, now
	s.resend()
}

// stuck sends again if nothing was answered for a while: for limit and what
// the payloads take at first, then for twice as long each time. A queue that is
// merely slow must not get its work over and over. The lock is held.
func (s *Stream) stuck(now, limit int64) {
	p := &s.progress
	if s.pending.len() == 0 || now-p.at <= limit<<p.stalls {
		return
	}
	bytes := int64(0)
	for i := range s.pending.len() {
		bytes += int64(len(s.pending.at(i).Payload))
	}
	if now-p.at > (limit+bytes/stallRate)<<p.stalls {
		p.stalls = min(p.stalls+1, maxStalls)
		p.at = now
		s.resend()
	}
}
