package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// messages of one consumer, by their delivery numbers.
func messages(consumer uint64, ids ...uint64) delivered {
	var d delivered
	for _, id := range ids {
		d.consumer = append(d.consumer, consumer)
		d.messages = append(d.messages, fsm.Message{ID: id, Payload: payload(fmt.Sprint(id))})
	}
	return d
}

func answerOf(consumer, upto uint64, ids ...uint64) delivered {
	d := messages(consumer, ids...)
	d.resync, d.who, d.upto = true, consumer, upto
	return d
}

func TestDeliveries(t *testing.T) {
	for _, tc := range []struct {
		name  string
		come  []delivered
		want  []uint64
		asked bool // the leader is asked and has not answered
	}{
		{"in order", []delivered{messages(5, 1, 2), messages(5, 3)}, []uint64{1, 2, 3}, false},
		{"twice", []delivered{messages(5, 1, 2), messages(5, 1, 2, 3)}, []uint64{1, 2, 3}, false},
		{"a gap", []delivered{messages(5, 1), messages(5, 3, 4)}, []uint64{1}, true},
		{"a gap is closed", []delivered{messages(5, 1), messages(5, 3, 4), answerOf(5, 4, 2, 3, 4), messages(5, 5)}, []uint64{1, 2, 3, 4, 5}, false},
		{"what is settled stays away", []delivered{messages(5, 3), answerOf(5, 4, 2, 4), messages(5, 5)}, []uint64{2, 4, 5}, false},
		{"nothing is held", []delivered{messages(5, 3), answerOf(5, 3), messages(5, 4)}, []uint64{4}, false},
		{"an answer in two parts", []delivered{messages(5, 9), answerOf(5, 2, 1, 2), answerOf(5, 9, 7, 9), messages(5, 10)}, []uint64{1, 2, 7, 9, 10}, false},
		{"an answer that comes late", []delivered{messages(5, 1, 2), answerOf(5, 1, 1), messages(5, 3)}, []uint64{1, 2, 3}, false},
		{"the next one before the answer", []delivered{messages(5, 2), messages(5, 1), messages(5, 2), answerOf(5, 2, 1, 2)}, []uint64{1, 2}, false},
		{"a gap behind an answer", []delivered{answerOf(5, 2, 1, 2), messages(5, 4)}, []uint64{1, 2}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, c, s, l := mustLane(t)
			s.mu.Lock()
			s.addConsumer(l, 5, false)
			s.mu.Unlock()
			for _, d := range tc.come {
				s.deliver(l, d)
			}
			var got []uint64
			for _, m := range c.messages {
				got = append(got, m.ID)
				if m.Consumer != 5 || string(m.Payload.Body()) != fmt.Sprint(m.ID) {
					t.Errorf("delivery %d is %+v", m.ID, m)
				}
			}
			if !slices.Equal(got, tc.want) || (l.consumers[5].asked != 0) != tc.asked {
				t.Errorf("delivered %v, asked %d; want %v, %v", got, l.consumers[5].asked, tc.want, tc.asked)
			}
		})
	}
}

// What comes for a consumer that is no more goes back to the queue.
func TestUnknownConsumer(t *testing.T) {
	_, c, s, l := mustLane(t)
	s.deliver(l, messages(5, 1, 2))
	got := commands(t, take(l)[0])
	if len(got) != 1 || got[0].Settle.GetOutcome() != fsm.Requeue || !slices.Equal(ids(got[0].Settle.Ranges), []uint64{1, 2}) {
		t.Errorf("the queue is told %v", got)
	}
	if len(c.messages) != 0 {
		t.Errorf("the client is given %v", c.messages)
	}
}

// A get takes its message under a token that settles it; one that nobody
// waits for goes back.
func TestGetToken(t *testing.T) {
	_, _, s, l := mustLane(t)
	k := addCall(s, l, &logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{}})
	take(l)
	s.deliver(l, messages(0, 1))
	tell(l, ok(1, 1))
	if !isDone(k) || k.got == nil || k.got.Consumer&getToken == 0 {
		t.Fatalf("the get has %+v", k.got)
	}
	s.deliver(l, messages(0, 1)) // again
	s.deliver(l, messages(0, 2)) // for nobody
	s.Settle(k.got.Consumer, []uint64{1}, fsm.Ack)
	var told []string
	for _, c := range commands(t, take(l)[0]) {
		told = append(told, fmt.Sprint(c.Settle.Outcome, " ", c.Settle.Consumer, " ", ids(c.Settle.Ranges)))
	}
	if want := []string{"REQUEUE 0 [2]", "ACK 0 [1]"}; !slices.Equal(told, want) {
		t.Errorf("the queue is told %q, want %q", told, want)
	}
}

// A question to the leader that is not answered is asked again.
func TestAskAgain(t *testing.T) {
	w, _, s, l := mustLane(t)
	s.mu.Lock()
	s.addConsumer(l, 5, false)
	s.mu.Unlock()
	s.deliver(l, messages(5, 2))
	s.mu.Lock()
	defer s.mu.Unlock()
	now := w.broker.now()
	if asks := l.unanswered(now+stuckAfter, stuckAfter); len(asks) != 0 {
		t.Errorf("asked too early: %v", asks)
	}
	if asks := l.unanswered(now+stuckAfter+1, stuckAfter); len(asks) != 1 || asks[0] != (resyncAsk{l.id, 5, 0}) {
		t.Errorf("asks %v", asks)
	}
	if asks := l.unanswered(now+stuckAfter+2, stuckAfter); len(asks) != 0 {
		t.Errorf("asked twice: %v", asks)
	}
}

// The channel is told one thing at a time, in the order in which things
// happened, and an answer not before what came ahead of it.
func TestEventsKeepOrder(t *testing.T) {
	_, c, s, l := mustLane(t)
	c.gate = make(chan struct{})
	s.mu.Lock()
	s.addConsumer(l, 5, false)
	s.mu.Unlock()
	publish(s, l, 1, "m")
	k := addCall(s, l, &logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: 5}})
	take(l)
	var wait sync.WaitGroup
	wait.Go(func() { s.deliver(l, messages(5, 1)) })
	for calling := false; !calling; {
		s.mu.Lock()
		calling = s.calling
		s.mu.Unlock()
	}
	tell(l, ok(1, 2)) // returns although the channel is busy
	s.deliver(l, messages(5, 2))
	if isDone(k) {
		t.Error("the cancel is answered before the delivery ahead of it is made")
	}
	close(c.gate)
	wait.Wait()
	mustClose(t, k.done)
	if want := []string{"deliver", "settled"}; !slices.Equal(c.log, want) {
		t.Errorf("told %q, want %q", c.log, want)
	}
	if got := commands(t, take(l)[0]); got[0].Settle.GetOutcome() != fsm.Requeue {
		t.Errorf("what comes behind the cancel is not returned: %v", got)
	}
}

// Many goroutines tell a session things; the channel hears each once.
func TestEventsFromManyGoroutines(t *testing.T) {
	w, c := newWorld(t), &recorder{}
	s := w.mustSession(c)
	var wait sync.WaitGroup
	const queues, each = 4, 200
	for i := range queues {
		s.mu.Lock()
		l := s.lane(w.mustQueue(fmt.Sprint("q", i)))
		s.addConsumer(l, uint64(i)+1, false)
		s.mu.Unlock()
		for n := range uint64(each) {
			publish(s, l, uint64(i)*each+n+1, "m")
		}
		wait.Go(func() {
			take(l)
			for n := range uint64(each) {
				tell(l, ok(n+1, 1))
				s.deliver(l, messages(uint64(i)+1, n+1))
			}
		})
	}
	wait.Wait()
	if len(c.settled) != queues*each || len(c.messages) != queues*each || c.overlap.Load() {
		t.Errorf("%d settled, %d delivered, at the same time: %v", len(c.settled), len(c.messages), c.overlap.Load())
	}
	last := map[uint64]uint64{}
	for _, m := range c.messages {
		if m.ID != last[m.Consumer]+1 {
			t.Fatalf("consumer %d gets %d after %d", m.Consumer, m.ID, last[m.Consumer])
		}
		last[m.Consumer] = m.ID
	}
}

// submissions records what a target hands to leaders.
type submissions struct {
	mu   sync.Mutex
	made []string
	gate chan struct{}
	came chan struct{}
	ok   bool
}

func (s *submissions) submit(t fatal) func(string, group.Batch) bool {
	return func(leader string, b group.Batch) bool {
		s.came <- struct{}{}
		<-s.gate
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, c := range commands(t, b) {
			s.made = append(s.made, fmt.Sprint(leader, " ", c.Seq))
		}
		return s.ok
	}
}

// Commands that were on their way to a leader when another one took over are
// sent to that one too, whether the former took them or not.
func TestLeaderMovesDuringSubmit(t *testing.T) {
	for _, taken := range []bool{true, false} {
		t.Run(fmt.Sprint("taken ", taken), func(t *testing.T) {
			_, _, s, l := mustLane(t)
			sub := &submissions{gate: make(chan struct{}), came: make(chan struct{}, 10), ok: taken}
			l.target.submit = sub.submit(t)
			l.target.lead("n2", 5)
			publish(s, l, 1, "m")
			<-sub.came
			l.target.lead("n3", 6)
			sub.gate <- struct{}{}
			<-sub.came
			sub.mu.Lock()
			sub.ok = true
			sub.mu.Unlock()
			close(sub.gate)
			for running := true; running; {
				l.target.mu.Lock()
				running = l.target.running
				l.target.mu.Unlock()
			}
			if want := []string{"n2 1", "n3 1"}; !slices.Equal(sub.made, want) {
				t.Errorf("submitted %q, want %q", sub.made, want)
			}
		})
	}
}

// A target takes the leader of the highest term it has heard of.
func TestLeaders(t *testing.T) {
	_, _, _, l := mustLane(t)
	target := l.target
	target.submit = func(string, group.Batch) bool { return true }
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() { target.lead("n2", 5) }, "n2"},
		{func() { target.lead("n3", 4) }, "n2"},
		{func() { target.lose("n3") }, "n2"},
		{func() { target.lose("n2") }, ""},
		{func() { target.lead("n2", 5) }, "n2"},
		{func() { target.lead("n3", 6) }, "n3"},
		{func() { target.lead("n2", 5) }, "n3"},
	} {
		step.do()
		if got, _, _ := target.leaderNow(); got != step.want {
			t.Fatalf("leader is %q, want %q", got, step.want)
		}
	}
}

// A leader that this node hears of before the catalog holds its queue is
// remembered; one of a queue that is gone is not.
func TestEarlyLeader(t *testing.T) {
	w := newWorld(t)
	old := w.mustQueue("old")
	w.deleteQueue(old)
	w.broker.noteLeader(old.ID, "n2", 3)
	next := fsm.QueueID((w.index + 1) << 16)
	w.broker.noteLeader(next, "n3", 4)
	q := w.mustQueue("new")
	if q.ID != next {
		t.Fatalf("the queue has the id %d, expected %d", q.ID, next)
	}
	w.broker.QueueAdded(q)
	if got, _, _ := w.broker.findTarget(next).leaderNow(); got != "n3" {
		t.Errorf("the leader is %q", got)
	}
	if len(w.broker.early) != 0 || w.broker.findTarget(old.ID) != nil {
		t.Errorf("left behind: %v, %v", w.broker.early, w.broker.findTarget(old.ID))
	}
}

// The end of a session is only believed from who leads now.
func TestFormerLeaderEndsNothing(t *testing.T) {
	w, c, s, l := mustLane(t)
	l.target.submit = func(string, group.Batch) bool { return true }
	publish(s, l, 1, "m")
	take(l)
	tell(l, ok(1, 1))
	publish(s, l, 2, "m")
	l.target.lead("n3", 9)
	w.broker.answer("n2", l.target.id, s.id, []group.Outcome{code(2, fsm.NoSession)})
	if len(c.lost) != 0 {
		t.Error("a former leader has ended the session")
	}
	w.broker.answer("n3", l.target.id, s.id, []group.Outcome{code(2, fsm.NoSession)})
	if len(c.lost) != 1 {
		t.Error("the leader has not ended the session")
	}
}

// hostClock is the world's time for a host of groups.
func (w *world) hostClock() *clock.Clock {
	return clock.New(clock.Config{
		Node: "n1", Nodes: []string{"n1"}, Wall: func() time.Time { return time.UnixMilli(w.clock.Load()) }, Logger: w.broker.slog,
		Monotonic: func() time.Duration { return time.Duration(w.clock.Load()) * time.Millisecond },
		MaxSkew:   func() fsm.Millis { return 1000 },
	})
}

// stored are payloads by the index of their entry.
type stored map[uint64]fsm.Payload

func (p stored) Payload(ref fsm.Ref) ([]byte, error) {
	if p[ref.Index] == nil {
		return nil, errors.New("no payload")
	}
	return p[ref.Index], nil
}

// Perform passes deliveries, questions' answers and outcomes on in log order.
func TestPerformOrder(t *testing.T) {
	w, c, s, l := mustLane(t)
	s.mu.Lock()
	s.addConsumer(l, 5, false)
	s.mu.Unlock()
	q := l.target.id
	to := fsm.ConsumerID{Session: s.id, Number: 5}
	d := func(id uint64) fsm.Delivery { return fsm.Delivery{To: to, ID: id, Ref: fsm.Ref{Index: id}} }
	p := stored{1: payload("a"), 2: payload("b"), 4: payload("c")}
	w.broker.performDeliveries(p, q, []fsm.Delivery{d(1)})
	w.broker.performResync(p, q, &group.Resynced{To: to, UpTo: 3, Held: []fsm.Delivery{d(2), d(3)}})
	w.broker.performDeliveries(p, q, []fsm.Delivery{d(4), {To: fsm.ConsumerID{Session: fsm.SessionID{Node: 1, Boot: 6, Num: s.id.Num}, Number: 5}, ID: 5}})
	var got []uint64
	for _, m := range c.messages {
		got = append(got, m.ID)
	}
	if want := []uint64{1, 2, 4}; !slices.Equal(got, want) {
		t.Errorf("delivered %v, want %v: 3 has no payload any more, 5 is for an earlier boot", got, want)
	}
	o, target := s, l.target
	o.told(target.lane(s.id), told{kind: peerpb.Notice_TIMED_OUT, consumer: 5, ids: []uint64{4}, limit: 10})
	o.told(target.lane(s.id), told{kind: peerpb.Notice_CANCELLED, consumer: 5})
	o.told(target.lane(s.id), told{kind: peerpb.Notice_CANCELLED, consumer: 5})
	if want := []string{"deliver", "deliver", "deliver", "timed out", "cancelled"}; !slices.Equal(c.log, want) {
		t.Errorf("told %q, want %q", c.log, want)
	}
}

// Waiting for a queue without a leader ends with the context, or the queue.
func TestAwaitLeader(t *testing.T) {
	w := newWorld(t)
	q := w.mustQueue("q")
	ctx, cancel := context.WithCancel(context.Background())
	answers := make(chan error, 1)
	go func() { answers <- w.broker.awaitLeader(ctx, q) }()
	cancel()
	if err := <-answers; !isKind(err, fsm.Unavailable) {
		t.Errorf("without a leader: %v", err)
	}
	go func() { answers <- w.broker.awaitLeader(context.Background(), q) }()
	w.broker.target(q).lead("n1", 1)
	if err := <-answers; err != nil {
		t.Errorf("with a leader: %v", err)
	}
	w.broker.target(q).lose("n1")
	go func() { answers <- w.broker.awaitLeader(context.Background(), q) }()
	w.deleteQueue(q)
	if err := <-answers; !isKind(err, fsm.NotFoundKind) {
		t.Errorf("of a deleted queue: %v", err)
	}
}

func isKind(err error, k fsm.Kind) bool {
	r, ok := err.(*fsm.Refusal)
	return ok && r.Kind == k
}
