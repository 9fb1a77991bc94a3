package broker

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// lanes opens a session with one lane.
func mustLane(t fatal) (*world, *recorder, *Session, *lane) {
	t.Helper()
	w, c := newWorld(t), &recorder{}
	s := w.mustSession(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	return w, c, s, s.lane(w.mustQueue("q"))
}

func publish(s *Session, l *lane, number uint64, body string) {
	s.mu.Lock()
	l.addPublish(&fsm.Publish{Number: number, Payload: payload(body), TTL: -1, Priority: -1}, nil, 0, false)
	s.mu.Unlock()
}

func addCall(s *Session, l *lane, c *logpb.Command) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return l.addCall(c)
}

func isDone(k *call) bool {
	select {
	case <-k.done:
		return true
	default:
		return false
	}
}

// streamRules is a machine that knows nothing but the rules of a stream.
type streamRules struct {
	next    uint64 // 0: no session
	applied []string
	last    uint64 // the last call; it is answered with its number, also when repeated
	clock   int64
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

func ids(ranges []uint64) (all []uint64) {
	for ; len(ranges) > 0; ranges = ranges[2:] {
		for i := range ranges[1] {
			all = append(all, ranges[0]+i)
		}
	}
	return all
}

// outcomes applies a batch and answers as a group does.
func (m *streamRules) outcomes(t fatal, b group.Batch) []group.Outcome {
	var all []group.Outcome
	for _, c := range commands(t, b) {
		r := m.apply(c)
		if n := len(all); n > 0 && r == (fsm.Result{}) && all[n-1].Result == r {
			all[n-1].Run++
			continue
		}
		all = append(all, group.Outcome{First: c.Seq, Run: 1, Result: r})
	}
	return all
}

// Whatever gets lost, late or doubled on the way: every command is applied
// once and in order, and every publish and call is answered once.
func TestLaneProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, c, s, l := mustLane(t)
		m := &streamRules{}
		var wire []group.Batch
		var answers []group.Outcome
		var want []string
		var calls []*call
		var seqs []uint64 // of the calls
		publishes, settles := uint64(0), uint64(0)
		actions := map[string]func(){
			"publish": func() {
				publishes++
				body := fmt.Sprint("message ", publishes)
				publish(s, l, publishes, body)
				want = append(want, fmt.Sprintf("enqueue %d", len(payload(body))))
			},
			"settle": func() {
				settles++
				s.mu.Lock()
				l.addSettle(0, []uint64{2 * settles}, fsm.Ack)
				s.mu.Unlock()
				want = append(want, fmt.Sprint("settle ", 2*settles))
			},
			"call": func() {
				if n := len(calls); n == 0 || isDone(calls[n-1]) {
					seqs = append(seqs, l.next)
					calls = append(calls, addCall(s, l, &logpb.Command{Kind: logpb.Command_TOUCH}))
					want = append(want, "TOUCH")
				}
			},
			"send": func() { wire = append(wire, take(l)...) },
			"arrive": func() {
				if len(wire) > 0 {
					answers = append(answers, m.outcomes(t, wire[0])...)
					wire = wire[1:]
				}
			},
			"arrive out of order or twice": func() {
				if len(wire) > 0 {
					answers = append(answers, m.outcomes(t, wire[len(wire)-1])...)
				}
			},
			"lose batch": func() {
				if len(wire) > 0 {
					wire = wire[1:]
				}
			},
			"answer": func() {
				if len(answers) > 0 {
					tell(l, answers[0])
					answers = answers[1:]
				}
			},
			"lose answer": func() {
				if len(answers) > 0 {
					answers = answers[1:]
				}
			},
			"new leader": func() {
				s.mu.Lock()
				l.resend()
				s.mu.Unlock()
			},
			"queue's clock runs ahead": func() { m.clock = w.clock.Load() + 2*oldest },
			"time": func() {
				w.clock.Add(gapPause)
				s.mu.Lock()
				l.stuck(w.broker.now(), stuckAfter)
				s.mu.Unlock()
			},
		}
		names := slices.Sorted(maps.Keys(actions))
		names = append(names, "publish", "call", "send", "send", "arrive", "arrive", "answer", "answer", "answer")
		chance := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)) // rapid prefers the first of a list
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			actions[names[chance.IntN(len(names))]]()
		}
		// Nothing gets lost any more.
		for _, b := range wire {
			answers = append(answers, m.outcomes(t, b)...)
		}
		tell(l, answers...)
		for i := 0; l.waiting() > 0; i++ {
			if i == 5 {
				t.Fatalf("%d commands are never answered", l.waiting())
			}
			w.clock.Add(stuckAfter<<maxStalls + 1)
			s.mu.Lock()
			l.stuck(w.broker.now(), stuckAfter)
			s.mu.Unlock()
			for _, b := range take(l) {
				tell(l, m.outcomes(t, b)...)
			}
		}
		if !slices.Equal(m.applied, want) {
			t.Fatalf("applied:\n%q\nwant:\n%q", m.applied, want)
		}
		for n := uint64(1); n <= publishes; n++ {
			if c.settled[n] != 1 {
				t.Fatalf("publish %d is settled %d times", n, c.settled[n])
			}
		}
		for i, k := range calls {
			if !isDone(k) {
				t.Fatalf("call %d is never answered", i)
			}
			if k.result.Count != seqs[i] {
				t.Fatalf("call %d has the answer of command %d", seqs[i], k.result.Count)
			}
		}
		if len(c.lost) > 0 || c.refused > 0 || len(c.settled) != int(publishes) {
			t.Fatalf("lost %v, %d refused, %d settled of %d", c.lost, c.refused, len(c.settled), publishes)
		}
	})
}

func TestLaneAnswers(t *testing.T) {
	three := func(t *testing.T) (*world, *recorder, *Session, *lane) {
		w, c, s, l := mustLane(t)
		for n := range uint64(3) {
			publish(s, l, n+1, "m")
		}
		if got := len(take(l)); got != 1 {
			t.Fatalf("%d batches, want 1", got)
		}
		return w, c, s, l
	}
	for _, tc := range []struct {
		name    string
		answers []group.Outcome
		settled int
		resends int // commands that go out again
	}{
		{"all at once", []group.Outcome{ok(1, 3)}, 3, 0},
		{"one by one", []group.Outcome{ok(1, 1), ok(2, 1), ok(3, 1)}, 3, 0},
		{"twice", []group.Outcome{ok(1, 2), ok(1, 2), ok(1, 3)}, 3, 0},
		{"the first is missing", []group.Outcome{ok(2, 2)}, 0, 3},
		{"a gap", []group.Outcome{ok(1, 1), {First: 2, Run: 1, Result: fsm.Result{Code: fsm.Gap, Next: 2}}}, 1, 2},
		{"the same gap twice", []group.Outcome{
			{First: 2, Run: 1, Result: fsm.Result{Code: fsm.Gap, Next: 1}},
			{First: 3, Run: 1, Result: fsm.Result{Code: fsm.Gap, Next: 1}},
		}, 0, 3},
		{"unknown session before the first command", []group.Outcome{code(2, fsm.NoSession), code(3, fsm.NoSession)}, 0, 3},
		{"the queue is gone, and not from the view", []group.Outcome{code(1, fsm.Gone), code(2, fsm.Gone), code(3, fsm.Gone)}, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, c, _, l := three(t)
			tell(l, tc.answers...)
			again := 0
			for _, b := range take(l) {
				again += b.Count
			}
			if len(c.settled) != tc.settled || again != tc.resends || len(c.lost) != 0 {
				t.Errorf("%d settled, %d sent again, lost %v; want %d, %d", len(c.settled), again, c.lost, tc.settled, tc.resends)
			}
		})
	}
}

// A stream that has waited for long begins with the queue's time. One that has
// ended as far as its session knows does not begin again.
func TestLateLane(t *testing.T) {
	opened := func(b []group.Batch) (at []int64) {
		for _, b := range b {
			for _, c := range commands(t, b) {
				at = append(at, c.OpenedAt)
			}
		}
		return at
	}
	late := group.Outcome{First: 1, Run: 1, Result: fsm.Result{Code: fsm.Late, Next: 12345}}
	w, c, s, l := mustLane(t)
	publish(s, l, 1, "m")
	publish(s, l, 2, "m")
	if got, want := opened(take(l)), []int64{w.clock.Load(), 0}; !slices.Equal(got, want) {
		t.Fatalf("the commands were made at %v, not %v", got, want)
	}
	tell(l, late, code(2, fsm.NoSession))
	if got, want := opened(take(l)), []int64{12345, 0}; !slices.Equal(got, want) {
		t.Fatalf("sent again with %v, not %v", got, want)
	}
	tell(l, ok(1, 1), late)
	if len(c.settled) != 1 || len(take(l)) != 0 {
		t.Fatalf("an answer to a former try: settled %v", c.settled)
	}

	_, c, s, l = mustLane(t)
	publish(s, l, 1, "m")
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	k := addCall(s, l, &logpb.Command{Kind: logpb.Command_SESSION_DOWN})
	take(l)
	tell(l, late)
	if !isDone(k) || len(take(l)) != 0 || len(c.settled) != 0 {
		t.Fatalf("ended: answered %v, settled %v", isDone(k), c.settled)
	}
}

// A queue that does not answer gets everything again, less and less often.
func TestStuckLane(t *testing.T) {
	w, _, s, l := mustLane(t)
	publish(s, l, 1, "m")
	take(l)
	sends := func(d time.Duration) (n int) {
		for range d / (100 * time.Millisecond) {
			w.clock.Add(100)
			s.mu.Lock()
			l.stuck(w.broker.now(), stuckAfter)
			s.mu.Unlock()
			n += len(take(l))
		}
		return n
	}
	if got := sends(time.Minute); got != 4 { // after 3, 9, 21 and 45 seconds
		t.Errorf("sent %d times in the first minute, want 4", got)
	}
	if got := sends(10 * time.Minute); got < 12 || got > 13 { // every 48 seconds
		t.Errorf("sent %d times in ten minutes", got)
	}
	tell(l, ok(1, 1))
	publish(s, l, 2, "m")
	take(l)
	if got := sends(4 * time.Second); got != 1 {
		t.Errorf("sent %d times after an answer, want 1", got)
	}
}

// A publish that one of its queues refuses is settled once, as refused.
func TestFanout(t *testing.T) {
	w, c := newWorld(t), &recorder{}
	s := w.mustSession(c)
	s.mu.Lock()
	a, b := s.lane(w.mustQueue("a")), s.lane(w.mustQueue("b"))
	fan := &fanout{left: 2}
	for _, l := range []*lane{a, b} {
		l.addPublish(&fsm.Publish{Number: 1, Payload: payload("m"), TTL: -1, Priority: -1}, fan, 0, false)
	}
	s.mu.Unlock()
	take(a)
	take(b)
	tell(a, code(1, fsm.Rejected))
	if len(c.settled) != 0 {
		t.Fatal("settled by one of two queues")
	}
	tell(b, ok(1, 1))
	if c.settled[1] != 1 || c.refused != 1 {
		t.Errorf("settled %v, %d refused; want once, refused", c.settled, c.refused)
	}
}

// Batches stay within their bounds, whatever the messages' sizes.
func TestBatchBounds(t *testing.T) {
	_, _, s, l := mustLane(t)
	sizes := []int{1, maxBatchBytes + 1, 10, maxBatchBytes / 2, maxBatchBytes / 2, 10}
	for i, n := range sizes {
		publish(s, l, uint64(i+1), string(make([]byte, n)))
	}
	for i := range 3 * maxBatchCommands {
		publish(s, l, uint64(len(sizes)+i+1), "m")
	}
	seq := uint64(0)
	for _, b := range take(l) {
		bytes := 0
		for _, p := range b.Payloads {
			bytes += len(p)
		}
		if bytes != b.Bytes || b.Count > maxBatchCommands || b.Count > 1 && bytes > maxBatchBytes {
			t.Errorf("a batch of %d commands and %d bytes, said to be %d", b.Count, bytes, b.Bytes)
		}
		for _, c := range commands(t, b) {
			if seq++; c.Seq != seq {
				t.Fatalf("command %d where %d is next", c.Seq, seq)
			}
		}
	}
	if want := uint64(len(sizes) + 3*maxBatchCommands); seq != want {
		t.Errorf("%d commands, want %d", seq, want)
	}
}

// Settlements join while they wait, and never once they are on their way.
func TestSettlementsJoin(t *testing.T) {
	_, _, s, l := mustLane(t)
	settle := func(outcome fsm.Outcome, ids ...uint64) {
		s.mu.Lock()
		l.addSettle(0, ids, outcome)
		s.mu.Unlock()
	}
	settle(fsm.Ack, 1, 2)
	settle(fsm.Ack, 3, 7)
	settle(fsm.Requeue, 8)
	settle(fsm.Ack, 5)
	first := commands(t, take(l)[0])
	settle(fsm.Ack, 9)
	s.mu.Lock()
	l.resend()
	s.mu.Unlock()
	settle(fsm.Ack, 10)
	again := commands(t, take(l)[0])
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
			_, _, s, l := mustLane(t)
			k := addCall(s, l, &logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{NoAck: tc.noAck}})
			sends := 0
			for b := take(l); len(b) > 0; b = take(l) {
				sends++
				tell(l, ok(1, 1))
			}
			if sends != tc.sends || !isDone(k) || k.got != nil {
				t.Errorf("sent %d times, done %v, got %v; want %d times", sends, isDone(k), k.got, tc.sends)
			}
		})
	}
	_, _, s, l := mustLane(t)
	k := addCall(s, l, &logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{}})
	take(l)
	tell(l, ok(1, 1))
	take(l)
	s.deliver(l, delivered{consumer: []uint64{0}, messages: []fsm.Message{{ID: 1, Payload: payload("m")}}})
	tell(l, ok(1, 1))
	if !isDone(k) || k.got == nil || len(take(l)) != 0 {
		t.Error("a repeated get does not bring its message")
	}
}

// A queue that has ended a session ends it for the client, once; the streams
// to other queues go on, so that closing returns what it holds there.
func TestLostSession(t *testing.T) {
	w, c, s, l := mustLane(t)
	s.mu.Lock()
	other := s.lane(w.mustQueue("other"))
	other.addPublish(&fsm.Publish{Number: 1, Payload: payload("m"), TTL: -1, Priority: -1}, nil, 0, false)
	s.mu.Unlock()
	publish(s, l, 2, "m")
	take(l)
	tell(l, ok(1, 1))
	publish(s, l, 3, "m")
	k := addCall(s, l, &logpb.Command{Kind: logpb.Command_TOUCH})
	take(l)
	tell(l, code(2, fsm.NoSession), code(3, fsm.NoSession))
	if len(c.lost) != 1 || c.settled[3] != 0 || c.settled[2] != 1 {
		t.Fatalf("lost %v, settled %v", c.lost, c.settled)
	}
	if !isDone(k) || k.result.Code != fsm.NoSession {
		t.Error("the call is left waiting")
	}
	if k := addCall(s, l, &logpb.Command{Kind: logpb.Command_TOUCH}); !isDone(k) {
		t.Error("a later call is left waiting")
	}
	closed := make(chan struct{})
	go func() {
		s.Close(context.Background())
		close(closed)
	}()
	var last *logpb.Command
	for last == nil || last.Kind != logpb.Command_SESSION_DOWN {
		for _, b := range take(other) {
			cs := commands(t, b)
			last = cs[len(cs)-1]
		}
	}
	tell(other, ok(1, last.Seq))
	mustClose(t, closed)
	if got := take(l); len(got) != 0 {
		t.Errorf("%d batches for the queue that has ended the session", len(got))
	}
}

// The end of a session that is asked for twice is answered with «no session».
func TestCloseTwice(t *testing.T) {
	_, c, s, l := mustLane(t)
	publish(s, l, 1, "m")
	take(l)
	tell(l, ok(1, 1))
	closed := make(chan struct{})
	go func() {
		s.Close(context.Background())
		close(closed)
	}()
	for len(take(l)) == 0 {
	}
	tell(l, code(2, fsm.NoSession))
	mustClose(t, closed)
	if len(c.lost) != 0 || s.broker().session(s.id.Num) != nil || l.target.lane(s.id) != nil {
		t.Errorf("lost %v; session %v", c.lost, s.broker().session(s.id.Num))
	}
}

func mustClose(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("not in time")
	}
}

// A closed session is not waited for by anybody when the queue is gone.
func TestGoneQueue(t *testing.T) {
	w, c, s, l := mustLane(t)
	q, _ := w.View().QueueByID(l.target.id)
	publish(s, l, 1, "m")
	k := addCall(s, l, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 5}})
	s.mu.Lock()
	s.addConsumer(l, 5, false)
	s.mu.Unlock()
	w.deleteQueue(q)
	if c.settled[1] != 1 || !isDone(k) || k.result.Code != fsm.Gone {
		t.Errorf("settled %v, call %v", c.settled, k.result)
	}
	if want := []string{"settled", "cancelled"}; !slices.Equal(c.log, want) {
		t.Errorf("told %q, want %q", c.log, want)
	}
	s.Settle(getToken|l.index, []uint64{1}, fsm.Ack) // nowhere to go
	s.Settle(5, []uint64{1}, fsm.Ack)
	// A publisher that still has the old view.
	s.mu.Lock()
	s.sendCopy(q, &fsm.Publish{Number: 2, Payload: payload("m"), TTL: -1, Priority: -1}, nil, catalog.Ceilings{})
	late := s.lanes[q.ID]
	s.release()
	w.clock.Add(askAfter + 1)
	if late != nil { // else the queue's end was here first
		w.broker.watchTarget(late.target, w.broker.now())
	}
	mustEventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.settled[2] == 1 && w.broker.findTarget(q.ID) == nil
	})
	closed := make(chan struct{})
	go func() {
		s.Close(context.Background())
		close(closed)
	}()
	mustClose(t, closed)
}
