package stream

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Whatever gets lost, late or doubled on the way: every command is applied
// once and in order, and every publish and call is answered once.
func TestStreamProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, c := newHost(t), &client{}
		s := h.mustStream(c)
		m := &leaderRules{keeps: rapid.Bool().Draw(t, "keeps cursors")}
		var wire []group.Batch
		var asks []Resync
		var answers []group.Outcome
		var want []string
		var calls []*Call
		var seqs []uint64 // of the calls
		publishes, settles := uint64(0), uint64(0)
		actions := map[string]func(){
			"publish": func() {
				publishes++
				body := fmt.Sprint("message ", publishes)
				c.publish(publishes, body)
				want = append(want, fmt.Sprintf("enqueue %d", len(grouptest.Payload(body))))
			},
			"settle": func() {
				settles++
				c.settle(fsm.Ack, 2*settles)
				want = append(want, fmt.Sprint("settle ", 2*settles))
			},
			"call": func() {
				if n := len(calls); n == 0 || isDone(calls[n-1]) {
					seqs = append(seqs, s.Next())
					calls = append(calls, c.request(&logpb.Command{Kind: logpb.Command_TOUCH}))
					want = append(want, "TOUCH")
				}
			},
			"send": func() { wire = append(wire, take(s)...) },
			"arrive": func() {
				if len(wire) > 0 {
					answers = append(answers, m.submit(t, wire[0])...)
					wire = wire[1:]
				}
			},
			"arrive out of order or twice": func() {
				if len(wire) > 0 {
					answers = append(answers, m.submit(t, wire[len(wire)-1])...)
				}
			},
			"lose batch": func() {
				if len(wire) > 0 {
					wire = wire[1:]
				}
			},
			"answer": func() {
				if len(answers) > 0 {
					s.Answer("", answers[:1])
					answers = answers[1:]
				}
			},
			"lose answer": func() {
				if len(answers) > 0 {
					answers = answers[1:]
				}
			},
			"new leader": func() {
				m.cursor = 0
				s.sendAgain()
			},
			"the leader loses what is queued": func() {
				m.queue, m.cursor = nil, 0
			},
			"apply": func() { answers = append(answers, m.applyNext(t)...) },
			"ask":   func() { asks = append(asks, s.resume()...) },
			"asked": func() {
				if len(asks) > 0 {
					answers = append(answers, m.recall(asks[0])...)
					asks = asks[1:]
				}
			},
			"lose question":            func() { asks = nil },
			"queue's clock runs ahead": func() { m.clock = h.Clock.Load() + 2*oldest },
			"time": func() {
				h.Clock.Add(stuckAfter / 2)
				asks = append(asks, c.overdue()...)
			},
		}
		names := slices.Sorted(maps.Keys(actions))
		names = append(names, "publish", "call", "send", "send", "arrive", "arrive", "apply", "apply", "asked", "answer", "answer", "answer")
		chance := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)) // rapid prefers the first of a list
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			actions[names[chance.IntN(len(names))]]()
			c.mustBeWhole(t)
		}
		// Nothing gets lost any more.
		for _, b := range wire {
			answers = append(answers, m.submit(t, b)...)
		}
		for i := 0; s.Waiting() > 0; i++ {
			if i == 10 {
				t.Fatalf("%d commands are never answered", s.Waiting())
			}
			for len(m.queue) > 0 {
				answers = append(answers, m.applyNext(t)...)
			}
			s.Answer("", answers)
			h.Clock.Add(stuckAfter<<maxResent + 1)
			answers = nil
			for _, q := range c.overdue() {
				answers = append(answers, m.recall(q)...)
			}
			for _, b := range take(s) {
				answers = append(answers, m.submit(t, b)...)
			}
		}
		if !slices.Equal(m.applied, want) {
			t.Fatalf("applied:\n%q\nwant:\n%q", m.applied, want)
		}
		for n := uint64(1); n <= publishes; n++ {
			if c.answered[n] != 1 {
				t.Fatalf("publish %d is answered %d times", n, c.answered[n])
			}
		}
		for i, k := range calls {
			if !isDone(k) {
				t.Fatalf("call %d is never answered", i)
			}
			if k.Result.Count != seqs[i] {
				t.Fatalf("call %d has the answer of command %d", seqs[i], k.Result.Count)
			}
		}
		if c.lost > 0 || c.refused > 0 || len(c.answered) != int(publishes) {
			t.Fatalf("lost %d times, %d refused, %d answered of %d", c.lost, c.refused, len(c.answered), publishes)
		}
	})
}

// streamRules is a machine that knows nothing but the rules of a stream.
type streamRules struct {
	next    uint64 // 0: no session
	applied []string
	last    uint64 // the last call; it is answered with its number, also when repeated
	clock   int64
}

// leaderRules is a leader of such a machine: it takes the commands of a session in order and once, if it
// keeps a cursor. One of an earlier version does not, and answers no questions.
type leaderRules struct {
	streamRules
	keeps   bool
	cursor  uint64 // next number that is taken; 0: the machine says
	queue   []group.Batch
	entered int // commands
}

func (m *leaderRules) expects() uint64 { return max(m.cursor, m.next, 1) }

// submit takes a batch, which is all of one session, and answers at once what is not taken.
func (m *leaderRules) submit(t grouptest.Fatal, b group.Batch) (all []group.Outcome) {
	commands := grouptest.Commands(t, b)
	first, end := commands[0].Seq, commands[len(commands)-1].Seq+1
	if !m.keeps {
		m.enter(b, len(commands))
		return nil
	}
	switch next := m.expects(); {
	case first > next && m.next == 0 && m.cursor == 0:
		return []group.Outcome{grouptest.Code(first, fsm.NoSession)}
	case first > next:
		return []group.Outcome{{First: first, Run: 1, Result: fsm.Result{Code: fsm.Gap, Next: next}}}
	default:
		var fresh group.Batch
		for _, c := range commands {
			if c.Seq < m.next {
				all = append(all, group.Outcome{First: c.Seq, Run: 1, Result: m.apply(c)})
			} else if c.Seq >= next {
				fresh.Commands = group.AppendCommand(fresh.Commands, c)
				fresh.Bytes += int(c.Enqueue.GetSize())
				fresh.Count++
			}
		}
		if m.cursor = max(next, end); fresh.Count > 0 {
			m.enter(fresh, fresh.Count)
		}
		return all
	}
}

func (m *leaderRules) enter(b group.Batch, commands int) {
	m.queue = append(m.queue, b)
	m.entered += commands
}

// applyNext applies the oldest batch that is queued.
func (m *leaderRules) applyNext(t grouptest.Fatal) (all []group.Outcome) {
	if len(m.queue) == 0 {
		return nil
	}
	all = m.outcomes(t, m.queue[0])
	m.queue = m.queue[1:]
	for i := range all {
		if code := all[i].Result.Code; code == fsm.Gap || code == fsm.NoSession || code == fsm.Late {
			m.cursor = 0
		}
	}
	return all
}

// recall answers a question, see group.Group.Recall.
func (m *leaderRules) recall(q Resync) (all []group.Outcome) {
	if !m.keeps {
		return nil
	}
	next, end := m.expects(), max(m.next, 1)
	if q.Commands <= m.last && m.last < end {
		end, next = m.last, m.last
	}
	all = append(all, group.Outcome{First: q.Commands, Run: 1, Result: fsm.Result{Code: fsm.Gap, Next: next}})
	for n := q.Commands; n < end; n++ {
		all = append(all, grouptest.OK(n, 1))
	}
	return all
}

// oldest is how old the first command of a stream may be.
const oldest = 60_000

func (m *streamRules) apply(c *logpb.Command) fsm.Result {
	switch {
	case m.next == 0 && c.Seq != 1:
		return fsm.Result{Code: fsm.NoSession}
	case m.next == 0 && c.OpenedAt < m.clock-oldest:
		return fsm.Result{Code: fsm.Late, Next: uint64(m.clock)}
	case m.next != 0 && c.Seq < m.next && c.Seq == m.last:
		return fsm.Result{Count: c.Seq}
	case m.next != 0 && c.Seq < m.next:
		return fsm.Result{}
	case m.next != 0 && c.Seq > m.next:
		return fsm.Result{Code: fsm.Gap, Next: m.next}
	}
	m.next = c.Seq + 1
	m.applied = append(m.applied, describe(c)...)
	if c.Kind == logpb.Command_TOUCH {
		m.last = c.Seq
		return fsm.Result{Count: c.Seq}
	}
	return fsm.Result{}
}

// describe says what a command does, each settled delivery for itself.
func describe(c *logpb.Command) (all []string) {
	switch c.Kind {
	case logpb.Command_ENQUEUE:
		return []string{fmt.Sprintf("enqueue %d", c.Enqueue.Size)}
	case logpb.Command_SETTLE:
		for _, id := range ids(c.Settle.Ranges) {
			all = append(all, fmt.Sprint("settle ", id))
		}
		return all
	}
	return []string{c.Kind.String()}
}

// outcomes applies a batch and answers as a group does.
func (m *streamRules) outcomes(t grouptest.Fatal, b group.Batch) []group.Outcome {
	var all []group.Outcome
	for _, c := range grouptest.Commands(t, b) {
		r := m.apply(c)
		if n := len(all); n > 0 && r == (fsm.Result{}) && all[n-1].Result == r {
			all[n-1].Run++
			continue
		}
		all = append(all, group.Outcome{First: c.Seq, Run: 1, Result: r})
	}
	return all
}

// A session that ends before a leader was there tells the queue nothing of consumers that have waited for one. What has an
// effect of its own, and what was sent, stays.
func TestForget(t *testing.T) {
	consume := func(c *client) {
		c.request(&logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1}})
	}
	for name, tc := range map[string]struct {
		do      func(c *client, s *Stream)
		forgets bool
	}{
		"a consumer":               {func(c *client, _ *Stream) { consume(c) }, true},
		"one that was sent":        {func(c *client, s *Stream) { consume(c); take(s) }, false},
		"one that is sent again":   {func(c *client, s *Stream) { consume(c); take(s); s.resend() }, false},
		"a consumer and a publish": {func(c *client, _ *Stream) { consume(c); c.publish(1, "m") }, false},
		"a purge":                  {func(c *client, _ *Stream) { c.request(&logpb.Command{Kind: logpb.Command_PURGE}) }, false},
	} {
		c := &client{}
		s := newHost(t).mustStream(c)
		tc.do(c, s)
		if got := s.Forget(); got != tc.forgets || s.Over() != tc.forgets || s.Waiting() > 0 == tc.forgets {
			t.Errorf("%s: forgotten %v, over %v, %d are waiting", name, got, s.Over(), s.Waiting())
		}
	}
}
