package v10

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// awaited is a settlement of which the broker tells what has become.
type awaited struct {
	link     *outgoingLink
	of       []delivery         // ascending by number
	state    *wire.State        // of what took effect
	lost     func() *wire.State // of what did not
	outcome  fsm.Outcome
	answered bool // the client waits for it
}

// States of answers that say no more than their kind.
var (
	acceptedState = &wire.State{Kind: wire.StateAccepted}
	releasedState = &wire.State{Kind: wire.StateReleased}
)

func isReleased() *wire.State { return releasedState }

// stateFor returns the state with which an outcome is answered. It keeps little of what the client has said: many may
// wait for a queue without a leader.
func stateFor(state *wire.State) *wire.State {
	switch state.Kind {
	case wire.StateAccepted:
		return acceptedState
	case wire.StateReleased:
		return releasedState
	}
	own := &wire.State{Kind: state.Kind, Modified: state.Modified}
	own.Modified.MessageAnnotations = nil
	if e := state.Rejected.Error; e != nil && state.Kind == wire.StateRejected {
		own.Rejected.Error = &wire.Error{Condition: strings.Clone(fsm.Cut(e.Condition, fsm.MaxSettleReason))}
	}
	return own
}

// await gives a settlement its number.
func (c *counts) await(a *awaited) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.awaited == nil {
		c.awaited = map[uint64]*awaited{}
	}
	c.lastAwaited++
	c.awaited[c.lastAwaited] = a
	return c.lastAwaited
}

// forget forgets a settlement that is not made.
func (c *counts) forget(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.awaited, number)
}

// settled answers what the client has settled, with what has become of it.
func (c *counts) settled(number uint64, lost []uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.awaited[number]
	if delete(c.awaited, number); a == nil || c.closed {
		return
	}
	if a.answered {
		c.answer(a, lost)
	}
	var err *wire.Error
	switch {
	case len(lost) == 0 || a.link.quiet:
		return
	case a.outcome == fsm.Defer:
		err = wire.Errorf(wire.ConditionPreconditionFailed, "the delivery is not held any more, or its %s is in use", deferralToken)
	case a.link.strict && a.outcome != fsm.Requeue:
		err = wire.Errorf(wire.ConditionPreconditionFailed, "a delivery on link '%s' was settled after it had been lost", a.link.name)
	default:
		return
	}
	c.session.post(c.session.detachConsumer(a.link.consumer, err))
}

// answerShown answers the outcomes of what was only shown to the client: they change nothing.
func (c *counts) answerShown(a *awaited) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.answer(a, nil)
	}
}

// awaits reports whether the client waits for the answer to an outcome of a range of ids.
func awaits(all map[uint64]*awaited, from, to int64) bool {
	for _, a := range all {
		if a.answered && slices.ContainsFunc(a.of, func(d delivery) bool { return from <= int64(d.id) && int64(d.id) <= to }) {
			return true
		}
	}
	return false
}

// answer tells the client the outcomes of deliveries. mu is held.
func (c *counts) answer(a *awaited, lost []uint64) {
	slices.SortFunc(a.of, func(a, b delivery) int { return cmp.Compare(a.id, b.id) })
	queue, late := false, (*wire.State)(nil)
	for _, d := range a.of {
		state := a.state
		if _, is := slices.BinarySearch(lost, d.number); is {
			if late == nil {
				late = a.lost()
			}
			state = late
		}
		queue = c.answers.add(uint32(d.id), state) || queue
	}
	if queue {
		c.out.Lock()
		defer c.out.Unlock()
		c.out.PushLast(&c.answers)
	}
}

// answers are deliveries that the server settles, and that the client has not been told of.
type answers struct {
	channel uint16 // fixed

	mu     sync.Mutex
	runs   []answerRun
	queued bool // in the outbox's list of what has frames to make
}

// answerRun are deliveries with consecutive ids and the same state.
type answerRun struct {
	first, last uint32
	state       *wire.State
}

// add adds a delivery. queue: AppendFrames is to be called.
func (t *answers) add(id uint32, state *wire.State) (queue bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.runs); n > 0 && t.runs[n-1].last+1 == id && t.runs[n-1].state == state {
		t.runs[n-1].last = id
	} else {
		t.runs = append(t.runs, answerRun{id, id, state})
	}
	queue, t.queued = !t.queued, true
	return queue
}

// AppendFrames appends a disposition for each run.
func (t *answers) AppendFrames(dst []byte) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queued = false
	for _, r := range t.runs {
		dst = wire.AppendDisposition(dst, t.channel, &wire.Disposition{First: r.first, Last: wire.Some(r.last), Settled: true, State: *r.state})
	}
	clear(t.runs)
	t.runs = t.runs[:0]
	return dst
}

// flushAnswers pushes what the client is to be told before what follows. mu is held.
func (c *counts) flushAnswers() {
	c.out.Lock()
	defer c.out.Unlock()
	if frames := c.answers.AppendFrames(c.out.Encoded()); c.out.Takes(false) {
		c.out.PushFrames(frames)
	}
}
