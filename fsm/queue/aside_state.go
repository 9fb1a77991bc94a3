package queue

import (
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// restore puts message h, which messages.restore has left in no place, back.
// Only what would damage a table is checked here; the rest is Check's.
func (p *aside) restore(st *logpb.MessageState, h uint32) error {
	in := Place(st.Place)
	switch {
	case (in == Deferred) != (st.Deferral != "") || in == Delayed && st.DueAt == 0:
		return fmt.Errorf("%w: message %d was set aside for nothing", ErrSnapshot, st.Seq)
	case in == Deferred && p.find(st.Deferral) != 0:
		return fmt.Errorf("%w: two messages are deferred as %q", ErrSnapshot, st.Deferral)
	case p.timers.has(Ready, fsm.Time(st.ExpireAt), st.Seq):
		return fmt.Errorf("%w: message %d expires twice", ErrSnapshot, st.Seq)
	}
	p.put(h, in, fsm.Time(st.DueAt), st.Deferral)
	return nil
}

// check checks the tokens. That the messages are where their places say is
// checked by messages.
func (p *aside) check(k *checker) {
	n := uint64(len(p.tokens))
	k.that(n == p.messages.count(Deferred).Messages, "%d messages are deferred, under %d tokens", p.messages.count(Deferred).Messages, n)
	for h := p.messages.head(deferredList); h != 0 && k.err == nil; h = p.messages.get(h).next {
		token := p.messages.scheduleInfo(h).deferral
		k.that(token != "" && p.find(token) == h, "message %d is not found as %q", p.messages.get(h).seq, token)
	}
}
