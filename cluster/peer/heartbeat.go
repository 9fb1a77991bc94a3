package peer

import (
	"time"

	"github.com/hashicorp/raft"
)

// beats is what the answers to the heartbeats of a prompt group come to. Guarded by follower.mu.
type beats struct {
	term  uint64    // of the leader
	heard time.Time // when the last one was answered in that term; before, when the first one was sent
}

// beat is a heartbeat of a prompt group on its way.
type beat struct {
	t      *transport
	f      *follower
	link   *link
	args   *raft.AppendEntriesRequest
	answer chan beatAnswer // buffer 1
}

type beatAnswer struct {
	resp raft.AppendEntriesResponse
	err  error
}

// heartbeat sends one of a prompt group. Raft sends the next one 100 to 200 ms after this has returned, and
// gives a leadership up for which no majority has answered within the lease, which cannot be changed while
// it runs. With the answers a second away it could not lead. So heartbeat returns at once, with the answer
// on its way, while the last answer is not older than the slack of the link: a leader's lease is longer by
// that. Where there is none it returns when the heartbeat has been answered.
func (t *transport) heartbeat(p *peer, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	l, err := p.waitLink(t.shutdown)
	if err != nil {
		return shutError(err)
	}
	b := &beat{t: t, f: t.followers.of(p.name), link: l, args: args, answer: make(chan beatAnswer, 1)}
	number, err := l.register(b, true)
	if err != nil {
		return err
	}
	if err := l.out.push(header{kind: kindAppend, arg: uint32(t.group), number: number}, appendBody{args, false}, classOwn, urgent); err != nil {
		l.unregister(number)
		return err
	}
	if b.f.lives(args.Term, time.Now()) <= time.Duration(p.slack.Load()) {
		*resp = raft.AppendEntriesResponse{RPCHeader: args.RPCHeader, Term: args.Term, Success: true}
		return nil
	}
	select {
	case a := <-b.answer:
		*resp = a.resp
		return a.err
	case <-t.shutdown:
		l.unregister(number)
		return ErrClosed
	}
}

// complete implements completer.
func (b *beat) complete(fr frame, err error) {
	a := beatAnswer{err: err}
	if a.err == nil {
		a.err = b.link.answered(fr, &a.resp, b.args.Term)
	}
	if a.err == nil {
		b.f.beat(b.args.Term, time.Now())
		b.t.heed(&a.resp, b.args, b.link.p.name)
	}
	b.answer <- a
}

// heed looks at the term in the answer to a heartbeat. Raft does not, and would go on to lead nobody.
func (t *transport) heed(resp *raft.AppendEntriesResponse, args *raft.AppendEntriesRequest, from string) {
	if resp.Term > args.Term {
		t.stepDown(resp.Term, from, true)
	}
}

// lives returns for how long the member has not answered a heartbeat in a term of this leader.
func (f *follower) lives(term uint64, now time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.alive.term != term {
		f.alive = beats{term, now}
	}
	return now.Sub(f.alive.heard)
}

// beat notes an answer.
func (f *follower) beat(term uint64, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.alive.term == term {
		f.alive.heard = now
	}
}
