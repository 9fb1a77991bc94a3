package session

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/cluster/stream/streamtest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// A get takes its message under a token that settles it; one that nobody
// waits for goes back.
func TestGetToken(t *testing.T) {
	_, _, s, l := mustStream(t)
	k := request(s, l, &logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{}})
	streamtest.Take(l)
	l.Receive(messages(0, 1))
	streamtest.Tell(l, grouptest.OK(1, 1))
	if !isDone(k) || k.Got == nil || k.Got.Consumer&getToken == 0 {
		t.Fatalf("the get has %+v", k.Got)
	}
	l.Receive(messages(0, 1)) // again
	l.Receive(messages(0, 2)) // for nobody
	s.Settle(k.Got.Consumer, []uint64{1}, fsm.Ack)
	var told []string
	for _, c := range grouptest.Commands(t, streamtest.Take(l)[0]) {
		told = append(told, fmt.Sprint(c.Settle.Outcome, " ", c.Settle.Consumer, " ", ids(c.Settle.Ranges)))
	}
	if want := []string{"REQUEUE 0 [2]", "ACK 0 [1]"}; !slices.Equal(told, want) {
		t.Errorf("the queue is told %q, want %q", told, want)
	}
}

// The channel is told one thing at a time, in the order in which things
// happened, and an answer not before what came ahead of it.
func TestEventsKeepOrder(t *testing.T) {
	_, c, s, l := mustStream(t)
	c.gate = make(chan struct{})
	addConsumer(s, l, 5, false)
	publish(s, l, 1, "m")
	k := request(s, l, &logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: 5}})
	streamtest.Take(l)
	var wait sync.WaitGroup
	wait.Go(func() { l.Receive(messages(5, 1)) })
	for calling := false; !calling; {
		s.mu.Lock()
		calling = s.calling
		s.mu.Unlock()
	}
	streamtest.Tell(l, grouptest.OK(1, 2)) // returns although the channel is busy
	l.Receive(messages(5, 2))
	if isDone(k) {
		t.Error("the cancel is answered before the delivery ahead of it is made")
	}
	close(c.gate)
	wait.Wait()
	mustClose(t, k.Done())
	if want := []string{"deliver", "settled"}; !slices.Equal(c.log, want) {
		t.Errorf("told %q, want %q", c.log, want)
	}
	if got := grouptest.Commands(t, streamtest.Take(l)[0]); got[0].Settle.GetOutcome() != fsm.Requeue {
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
		u := s.queue(w.MustQueue(fmt.Sprint("q", i)))
		s.addConsumer(u, uint64(i)+1, false)
		l := u.stream
		s.mu.Unlock()
		for n := range uint64(each) {
			publish(s, l, uint64(i)*each+n+1, "m")
		}
		wait.Go(func() {
			streamtest.Take(l)
			for n := range uint64(each) {
				streamtest.Tell(l, grouptest.OK(n+1, 1))
				l.Receive(messages(uint64(i)+1, n+1))
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

// The end of a session is only believed from who leads now.
func TestFormerLeaderEndsNothing(t *testing.T) {
	w, c, s, l := mustStream(t)
	w.submits(l.Queue(), func(string, group.Batch) error { return nil })
	publish(s, l, 1, "m")
	streamtest.Take(l)
	streamtest.Tell(l, grouptest.OK(1, 1))
	publish(s, l, 2, "m")
	l.Route().Lead("n3", 9)
	w.queues.Routes.Stream(l.Queue(), s.id).Answer("n2", []group.Outcome{grouptest.Code(2, fsm.NoSession)})
	if len(c.lost) != 0 {
		t.Error("a former leader has ended the session")
	}
	w.queues.Routes.Stream(l.Queue(), s.id).Answer("n3", []group.Outcome{grouptest.Code(2, fsm.NoSession)})
	if len(c.lost) != 1 {
		t.Error("the leader has not ended the session")
	}
}

// Notices are passed on behind what was delivered before; what is repeated is told once.
func TestNoticesKeepOrder(t *testing.T) {
	w, c, s, l := mustStream(t)
	addConsumer(s, l, 5, false)
	q := l.Queue()
	l.Receive(messages(5, 1))
	w.queues.Routes.Stream(q, s.id).Notice(stream.Notice{Kind: peerpb.Notice_TIMED_OUT, Consumer: 5, IDs: []uint64{4}, Limit: 10})
	w.queues.Routes.Stream(q, s.id).Notice(stream.Notice{Kind: peerpb.Notice_CANCELLED, Consumer: 5})
	w.queues.Routes.Stream(q, s.id).Notice(stream.Notice{Kind: peerpb.Notice_CANCELLED, Consumer: 5})
	if want := []string{"deliver", "timed out", "cancelled"}; !slices.Equal(c.log, want) {
		t.Errorf("told %q, want %q", c.log, want)
	}
}

// What a group has done is passed on in the order of its log: messages before answers, and what a
// consumer holds between the deliveries before and after the moment that the queue was asked.
func TestPerformOrderOfWork(t *testing.T) {
	w, c, s, l := mustStream(t)
	q, _ := w.View().QueueByID(l.Queue())
	sent := make(chan struct{}, 8)
	w.submits(q.ID, func(string, group.Batch) error {
		sent <- struct{}{}
		return nil
	})
	g, ref := w.mustStore(t, q, []byte("m"))
	addConsumer(s, l, 5, false)
	publish(s, l, 1, "m")
	mustClose(t, sent)
	to := fsm.ConsumerID{Session: s.id, Number: 5}
	d := func(id uint64) fsm.Delivery { return fsm.Delivery{To: to, ID: id, Ref: ref} }
	w.queues.Perform(g, &group.Work{
		Effects:  fsm.Effects{Deliveries: []fsm.Delivery{d(1), d(4)}},
		Resyncs:  []group.Resynced{{To: to, At: 1, Last: 3, Held: []fsm.Delivery{d(2), d(3)}}},
		Outcomes: []group.Outcome{{Session: s.id, First: 1, Run: 1}},
	})
	var got []uint64
	for _, m := range c.messages {
		got = append(got, m.ID)
	}
	if !slices.Equal(got, []uint64{1, 2, 3, 4}) || !slices.Equal(c.log, []string{"deliver", "deliver", "deliver", "settled"}) {
		t.Errorf("delivered %v, told %q", got, c.log)
	}
}

func isKind(err error, k fsm.Kind) bool {
	r, ok := err.(*fsm.Refusal)
	return ok && r.Kind == k
}
