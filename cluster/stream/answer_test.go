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

func TestStreamAnswers(t *testing.T) {
	for _, tc := range []struct {
		name     string
		answers  []group.Outcome
		answered int
		resends  int // commands that go out again
	}{
		{"all at once", []group.Outcome{grouptest.OK(1, 3)}, 3, 0},
		{"one by one", []group.Outcome{grouptest.OK(1, 1), grouptest.OK(2, 1), grouptest.OK(3, 1)}, 3, 0},
		{"twice", []group.Outcome{grouptest.OK(1, 2), grouptest.OK(1, 2), grouptest.OK(1, 3)}, 3, 0},
		{"the first is missing", []group.Outcome{grouptest.OK(2, 2)}, 0, 3},
		{"a gap", []group.Outcome{grouptest.OK(1, 1), {First: 2, Run: 1, Result: fsm.Result{Code: fsm.Gap, Next: 2}}}, 1, 2},
		{"the same gap twice", []group.Outcome{
			{First: 2, Run: 1, Result: fsm.Result{Code: fsm.Gap, Next: 1}},
			{First: 3, Run: 1, Result: fsm.Result{Code: fsm.Gap, Next: 1}},
		}, 0, 3},
		{"unknown session before the first command", []group.Outcome{grouptest.Code(2, fsm.NoSession), grouptest.Code(3, fsm.NoSession)}, 0, 3},
		{"the queue is gone, and not from the view", []group.Outcome{grouptest.Code(1, fsm.Gone), grouptest.Code(2, fsm.Gone), grouptest.Code(3, fsm.Gone)}, 3, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &client{}
			s := newHost(t).mustStream(c)
			for n := range uint64(3) {
				c.publish(n+1, "m")
			}
			if got := len(take(s)); got != 1 {
				t.Fatalf("%d batches, want 1", got)
			}
			tell(s, tc.answers...)
			again := 0
			for _, b := range take(s) {
				again += b.Count
			}
			if len(c.answered) != tc.answered || again != tc.resends || c.lost != 0 {
				t.Errorf("%d answered, %d sent again, lost %d; want %d, %d", len(c.answered), again, c.lost, tc.answered, tc.resends)
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

// A queue that does not answer gets everything again, less and less often.
func TestStuckStream(t *testing.T) {
	h, c := newHost(t), &client{}
	s := h.mustStream(c)
	c.publish(1, "m")
	take(s)
	sends := func(d time.Duration) (n int) {
		for range d / (100 * time.Millisecond) {
			h.Clock.Add(100)
			c.stuck()
			n += len(take(s))
		}
		return n
	}
	if got := sends(time.Minute); got != 4 { // after 3, 9, 21 and 45 seconds
		t.Errorf("sent %d times in the first minute, want 4", got)
	}
	if got := sends(10 * time.Minute); got < 12 || got > 13 { // every 48 seconds
		t.Errorf("sent %d times in ten minutes", got)
	}
	tell(s, grouptest.OK(1, 1))
	c.publish(2, "m")
	take(s)
	if got := sends(4 * time.Second); got != 1 {
		t.Errorf("sent %d times after an answer, want 1", got)
	}
}

// A stream with much under way is not taken for stuck as soon as an empty one.
func TestStuckByBytes(t *testing.T) {
	for _, tc := range []struct {
		size   int
		passed int64
		again  bool
	}{
		{100, stuckAfter, false},
		{100, stuckAfter + 10, true},
		{16 << 20, stuckAfter + 10, false},
		{16 << 20, stuckAfter + 8300, true},
	} {
		h, c := newHost(t), &client{}
		s := h.mustStream(c)
		c.publish(1, string(make([]byte, tc.size)))
		take(s)
		h.Clock.Add(tc.passed)
		c.stuck()
		if again := len(take(s)) > 0; again != tc.again {
			t.Errorf("%d bytes after %d ms: sent again: %v", tc.size, tc.passed, again)
		}
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
		c.stuck()
		if n := len(take(s)); n != 1 {
			t.Errorf("answer %+v: sent again %d times after a stall", old, n)
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
