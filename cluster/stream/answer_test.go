package stream

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// gapAt says that command next was expected when first came.
func gapAt(first, next uint64) group.Outcome {
	return group.Outcome{First: first, Run: 1, Result: fsm.Result{Code: fsm.Gap, Next: next}}
}

func TestStreamAnswers(t *testing.T) {
	for _, tc := range []struct {
		name     string
		answers  []group.Outcome
		answered int
		resends  int // commands that go out again
		asks     bool
	}{
		{"all at once", []group.Outcome{grouptest.OK(1, 3)}, 3, 0, false},
		{"one by one", []group.Outcome{grouptest.OK(1, 1), grouptest.OK(2, 1), grouptest.OK(3, 1)}, 3, 0, false},
		{"twice", []group.Outcome{grouptest.OK(1, 2), grouptest.OK(1, 2), grouptest.OK(1, 3)}, 3, 0, false},
		{"the first is missing", []group.Outcome{grouptest.OK(2, 2)}, 0, 0, true},
		{"the first is missing, twice", []group.Outcome{grouptest.OK(2, 1), grouptest.OK(3, 1)}, 0, 0, true},
		{"a gap", []group.Outcome{grouptest.OK(1, 1), gapAt(3, 2)}, 1, 2, false},
		{"one that is answered already", []group.Outcome{grouptest.OK(1, 2), gapAt(3, 1)}, 2, 0, false},
		{"nothing is missing, and nobody has asked", []group.Outcome{gapAt(1, 4)}, 0, 0, false},
		{"unknown session before the first command", []group.Outcome{grouptest.Code(2, fsm.NoSession), grouptest.Code(3, fsm.NoSession)}, 0, 3, false},
		{"the queue is gone, and not from the view", []group.Outcome{grouptest.Code(1, fsm.Gone), grouptest.Code(2, fsm.Gone), grouptest.Code(3, fsm.Gone)}, 3, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &client{}
			s := newHost(t).mustStream(c)
			for n := range uint64(3) {
				c.publish(n+1, "m")
			}
			take(s)
			tell(s, tc.answers...)
			again := 0
			for _, b := range take(s) {
				again += b.Count
			}
			if len(c.answered) != tc.answered || again != tc.resends || (s.wait.requested != 0) != tc.asks || c.lost != 0 {
				t.Errorf("%d answered, %d sent again, asked %v, lost %d; want %d, %d, %v", len(c.answered), again, s.wait.requested != 0, c.lost, tc.answered, tc.resends, tc.asks)
			}
		})
	}
}

// A stream that has waited for long begins with the queue's time. One that has
// ended as far as its session knows does not begin again.
func TestLateStream(t *testing.T) {
	opened := func(b []group.Batch) (at []int64) {
		for _, b := range b {
			for _, c := range grouptest.Commands(t, b) {
				at = append(at, c.OpenedAt)
			}
		}
		return at
	}
	late := group.Outcome{First: 1, Run: 1, Result: fsm.Result{Code: fsm.Late, Next: 12345}}
	h, c := newHost(t), &client{}
	s := h.mustStream(c)
	c.publish(1, "m")
	c.publish(2, "m")
	if got, want := opened(take(s)), []int64{h.Clock.Load(), 0}; !slices.Equal(got, want) {
		t.Fatalf("the commands were made at %v, not %v", got, want)
	}
	tell(s, late, grouptest.Code(2, fsm.NoSession))
	if got, want := opened(take(s)), []int64{12345, 0}; !slices.Equal(got, want) {
		t.Fatalf("sent again with %v, not %v", got, want)
	}
	tell(s, grouptest.OK(1, 1), late)
	if len(c.answered) != 1 || len(take(s)) != 0 {
		t.Fatalf("an answer to a former try: answered %v", c.answered)
	}

	c = &client{}
	s = newHost(t).mustStream(c)
	c.publish(1, "m")
	k := c.request(&logpb.Command{Kind: logpb.Command_SESSION_DOWN})
	take(s)
	tell(s, late)
	if !isDone(k) || len(take(s)) != 0 || len(c.answered) != 0 {
		t.Fatalf("ended: answered %v, publishes %v", isDone(k), c.answered)
	}
}

// However many commands were on their way behind one that got lost, it makes the stream go back once; so
// does each time that it gets lost again.
func TestGapIsReportedOnce(t *testing.T) {
	h, c := newHost(t), &client{}
	s := h.mustStream(c)
	for n := range uint64(10) {
		c.publish(n+1, "m")
	}
	sent := func() (numbers []uint64) {
		for _, b := range take(s) {
			for _, c := range grouptest.Commands(t, b) {
				numbers = append(numbers, c.Seq)
			}
		}
		return numbers
	}
	sent()
	for i, step := range []struct {
		answer group.Outcome
		sent   []uint64
	}{
		{gapAt(5, 3), []uint64{3, 4, 5, 6, 7, 8, 9, 10}},
		{gapAt(6, 3), nil}, // it was on its way
		{gapAt(10, 3), nil},
		{gapAt(5, 3), []uint64{3, 4, 5, 6, 7, 8, 9, 10}}, // sent again, and 3 was lost again
		{gapAt(10, 3), nil},
		{grouptest.OK(1, 4), nil},
		{gapAt(10, 7), []uint64{7, 8, 9, 10}},
		{gapAt(9, 7), []uint64{7, 8, 9, 10}},
	} {
		if tell(s, step.answer); !slices.Equal(sent(), step.sent) {
			t.Errorf("step %d: not %v are sent again", i, step.sent)
		}
	}
	c.publish(11, "m")
	sent()
	if tell(s, gapAt(11, 7)); !slices.Equal(sent(), []uint64{7, 8, 9, 10, 11}) {
		t.Error("a command that was sent later does not show that the repetition was lost")
	}
	if got := h.table.Resent(); got != 8+8+4+4+5 {
		t.Errorf("%d commands count as sent again", got)
	}
}

// A leader that answers nothing is asked which command it expects, and gets what it misses. To ask costs a slow
// queue nothing, however much it has to do.
func TestLeaderIsQuestioned(t *testing.T) {
	h, c := newHost(t), &client{}
	s := h.mustStream(c)
	for n := range uint64(5) {
		c.publish(n+1, "m")
	}
	take(s)
	ask := func() []Resync {
		h.Clock.Add(stuckAfter + 1)
		return c.overdue()
	}
	h.Clock.Add(stuckAfter)
	if asks := c.overdue(); len(asks) != 0 {
		t.Errorf("asked too early: %v", asks)
	}
	for range 20 {
		if asks := ask(); len(asks) != 1 || asks[0].Commands != 1 || len(take(s)) != 0 {
			t.Fatalf("asked %v", asks)
		}
		tell(s, gapAt(1, 6)) // it has all of it
	}
	ask()
	c.publish(6, "m") // behind the question: the answer does not speak of it
	take(s)
	if tell(s, gapAt(1, 6)); len(take(s)) != 0 {
		t.Error("what was sent after the question is sent again")
	}
	ask()
	tell(s, gapAt(1, 3), grouptest.OK(1, 2))
	b := take(s)
	if len(b) != 1 || grouptest.Commands(t, b[0])[0].Seq != 3 || len(c.answered) != 2 {
		t.Errorf("sent again %v, answered %v", b, c.answered)
	}
}

// A leader that does not answer questions, as one of an earlier version, gets everything again, less and
// less often.
func TestLeaderWithoutAnswers(t *testing.T) {
	h, c := newHost(t), &client{}
	s := h.mustStream(c)
	c.publish(1, "m")
	take(s)
	sends := func(d time.Duration) (n int) {
		for range d / (100 * time.Millisecond) {
			h.Clock.Add(100)
			c.overdue()
			n += len(take(s))
		}
		return n
	}
	if got := sends(time.Minute); got != 3 { // after 6, 18 and 42 seconds
		t.Errorf("sent %d times in the first minute, want 3", got)
	}
	if got := sends(10 * time.Minute); got < 6 || got > 7 { // every 96 seconds
		t.Errorf("sent %d times in ten minutes", got)
	}
	tell(s, grouptest.OK(1, 1))
	c.publish(2, "m")
	take(s)
	if got := sends(7 * time.Second); got != 1 {
		t.Errorf("sent %d times after an answer, want 1", got)
	}
}

// An answer to a command that has its answer changes nothing: it ends no stream,
// and does not pass for progress of those behind it.
func TestOldAnswers(t *testing.T) {
	for _, old := range []fsm.Result{{}, {Code: fsm.NoSession}, {Code: fsm.Gap, Next: 1}, {Code: fsm.Gone}} {
		h, c := newHost(t), &client{}
		s := h.mustStream(c)
		c.publish(1, "m")
		take(s)
		tell(s, grouptest.OK(1, 1))
		c.publish(2, "m")
		take(s)
		h.Clock.Add(stuckAfter / 2)
		tell(s, group.Outcome{First: 1, Run: 1, Result: old})
		if n := len(take(s)); n != 0 || c.lost != 0 || len(c.answered) != 1 {
			t.Errorf("answer %+v: sent again %d, lost %d, answered %v", old, n, c.lost, c.answered)
		}
		h.Clock.Add(stuckAfter/2 + 1)
		if asks := c.overdue(); len(asks) != 1 || asks[0].Commands != 2 {
			t.Errorf("answer %+v: asked %v after a while", old, asks)
		}
	}
}

// Batches stay within their bounds, whatever the messages' sizes.
func TestBatchBounds(t *testing.T) {
	c := &client{}
	s := newHost(t).mustStream(c)
	sizes := []int{1, maxBatchBytes + 1, 10, maxBatchBytes / 2, maxBatchBytes / 2, 10}
	for i, n := range sizes {
		c.publish(uint64(i+1), string(make([]byte, n)))
	}
	for i := range 3 * MaxBatchCommands {
		c.publish(uint64(len(sizes)+i+1), "m")
	}
	seq := uint64(0)
	for _, b := range take(s) {
		bytes := 0
		for _, p := range b.Payloads {
			bytes += len(p)
		}
		if bytes != b.Bytes || b.Count > MaxBatchCommands || b.Count > 1 && bytes > maxBatchBytes {
			t.Errorf("a batch of %d commands and %d bytes, said to be %d", b.Count, bytes, b.Bytes)
		}
		for _, c := range grouptest.Commands(t, b) {
			if seq++; c.Seq != seq {
				t.Fatalf("command %d where %d is next", c.Seq, seq)
			}
		}
	}
	if want := uint64(len(sizes) + 3*MaxBatchCommands); seq != want {
		t.Errorf("%d commands, want %d", seq, want)
	}
}

// Settlements join while they wait, and never once they are on their way.
func TestSettlementsJoin(t *testing.T) {
	c := &client{}
	s := newHost(t).mustStream(c)
	c.settle(fsm.Ack, 1, 2)
	c.settle(fsm.Ack, 3, 7)
	c.settle(fsm.Requeue, 8)
	c.settle(fsm.Ack, 5)
	first := grouptest.Commands(t, take(s)[0])
	c.settle(fsm.Ack, 9)
	s.sendAgain()
	c.settle(fsm.Ack, 10)
	again := grouptest.Commands(t, take(s)[0])
	var got []string
	for _, c := range again {
		got = append(got, fmt.Sprint(c.Settle.Outcome, ids(c.Settle.Ranges)))
	}
	want := []string{"ACK [1 2 3 7]", "REQUEUE [8]", "ACK [5]", "ACK [9 10]"}
	if len(first) != 3 || !slices.Equal(got, want) {
		t.Errorf("first %d commands, then %q; want 3, %q", len(first), got, want)
	}
	for i, c := range first {
		if fmt.Sprint(again[i]) != fmt.Sprint(c) {
			t.Errorf("command %d has changed on its way: %v, then %v", c.Seq, c, again[i])
		}
	}
}

// A get whose message got lost is repeated, but not for ever.
func TestGetAgain(t *testing.T) {
	for _, tc := range []struct {
		name  string
		noAck bool
		sends int
	}{{"with acknowledgement", false, 1 + getTries}, {"without", true, 1}} {
		t.Run(tc.name, func(t *testing.T) {
			c := &client{}
			s := newHost(t).mustStream(c)
			k := c.request(&logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{NoAck: tc.noAck}})
			sends := 0
			for b := take(s); len(b) > 0; b = take(s) {
				sends++
				tell(s, grouptest.OK(1, 1))
			}
			if sends != tc.sends || !isDone(k) || k.Got != nil {
				t.Errorf("sent %d times, done %v, got %v; want %d times", sends, isDone(k), k.Got, tc.sends)
			}
		})
	}
	c := &client{}
	s := newHost(t).mustStream(c)
	k := c.request(&logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{}})
	take(s)
	tell(s, grouptest.OK(1, 1))
	take(s)
	s.Receive(messages(0, 1))
	tell(s, grouptest.OK(1, 1))
	if !isDone(k) || k.Got == nil || len(take(s)) != 0 {
		t.Error("a repeated get does not bring its message")
	}
}

// The end of a session is only believed from who leads now. Then the stream is
// over, and nobody is left waiting.
func TestFormerLeaderEndsNothing(t *testing.T) {
	h, c := newHost(t), &client{}
	s := h.mustStream(c)
	c.publish(1, "m")
	take(s)
	tell(s, grouptest.OK(1, 1))
	c.publish(2, "m")
	k := c.request(&logpb.Command{Kind: logpb.Command_TOUCH})
	s.route.Lead("n3", 9)
	s.Answer("n2", []group.Outcome{grouptest.Code(2, fsm.NoSession)})
	if c.lost != 0 {
		t.Error("a former leader has ended the session")
	}
	s.Answer("n3", []group.Outcome{grouptest.Code(2, fsm.NoSession)})
	if c.lost != 1 || !isDone(k) || k.Result.Code != fsm.NoSession || c.answered[2] != 0 {
		t.Errorf("lost %d, the call %v, publishes %v", c.lost, isDone(k), c.answered)
	}
	if k := c.request(&logpb.Command{Kind: logpb.Command_TOUCH}); !isDone(k) || !s.Over() {
		t.Error("a later call is left waiting")
	}
}
