package session

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/group/grouptest"

	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/cluster/stream/streamtest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

func isDone(k *stream.Call) bool {
	select {
	case <-k.Done():
		return true
	default:
		return false
	}
}

func ids(ranges []uint64) (all []uint64) {
	for ; len(ranges) > 0; ranges = ranges[2:] {
		for i := range ranges[1] {
			all = append(all, ranges[0]+i)
		}
	}
	return all
}

// Publishes wait for consumers unless their connection has asked for messages: what it settles may
// stand behind them.
func TestPatientPublishes(t *testing.T) {
	w, c := newWorld(t), &recorder{}
	s := w.mustSession(c)
	other, err := s.conn.OpenSession(c)
	if err != nil {
		t.Fatal(err)
	}
	to := streamTo(s, w.MustQueue("q"))
	patient := func(number uint64) bool {
		t.Helper()
		publish(s, to, number, "m")
		all := streamtest.Take(to)
		if len(all) != 1 || all[0].Count != 1 || all[0].Light {
			t.Fatalf("submitted: %+v", all)
		}
		return all[0].Patient
	}
	if !patient(1) {
		t.Error("a connection that consumes nothing does not wait")
	}
	if _, _, err := other.Get(t.Context(), "none", false); err == nil {
		t.Error("a get from a queue that does not exist succeeds")
	}
	if patient(2) {
		t.Error("a connection that has asked for messages waits")
	}
}

// A publish that one of its queues refuses is settled once, as refused.
func TestFanout(t *testing.T) {
	for _, tc := range []struct {
		first, second fsm.Code
		refused       int
	}{{fsm.OK, fsm.OK, 0}, {fsm.OK, fsm.Rejected, 1}, {fsm.Rejected, fsm.OK, 1}, {fsm.Rejected, fsm.Rejected, 1}} {
		w, c := newWorld(t), &recorder{}
		s := w.mustSession(c)
		s.mu.Lock()
		queues := []*sessionQueue{s.queue(w.MustQueue("a")), s.queue(w.MustQueue("b"))}
		a, b := queues[0].stream, queues[1].stream
		fan := &fanout{left: 2}
		for _, q := range queues {
			q.publish(&fsm.Publish{Number: 1, Payload: grouptest.Payload("m"), TTL: -1, Priority: -1}, 0, false, "", fan)
		}
		s.mu.Unlock()
		streamtest.Take(a)
		streamtest.Take(b)
		streamtest.Tell(a, grouptest.Code(1, tc.first))
		if len(c.settled) != 0 {
			t.Fatalf("%v: settled by one of two queues", tc)
		}
		streamtest.Tell(b, grouptest.Code(1, tc.second))
		if c.settled[1] != 1 || c.refused != tc.refused {
			t.Errorf("%v: settled %v, %d refused; want once", tc, c.settled, c.refused)
		}
	}
}

// A queue that has ended a session ends it for the client, once; the streams
// to other queues go on, so that closing returns what it holds there.
func TestLostSession(t *testing.T) {
	w, c, s, l := mustStream(t)
	other := streamTo(s, w.MustQueue("other"))
	publish(s, other, 1, "m")
	publish(s, l, 2, "m")
	streamtest.Take(l)
	streamtest.Tell(l, grouptest.OK(1, 1))
	publish(s, l, 3, "m")
	k := request(s, l, &logpb.Command{Kind: logpb.Command_TOUCH})
	streamtest.Take(l)
	streamtest.Tell(l, grouptest.Code(2, fsm.NoSession), grouptest.Code(3, fsm.NoSession))
	if len(c.lost) != 1 || c.settled[3] != 0 || c.settled[2] != 1 {
		t.Fatalf("lost %v, settled %v", c.lost, c.settled)
	}
	if !isDone(k) || k.Result.Code != fsm.NoSession {
		t.Error("the call is left waiting")
	}
	if k := request(s, l, &logpb.Command{Kind: logpb.Command_TOUCH}); !isDone(k) {
		t.Error("a later call is left waiting")
	}
	closed := make(chan struct{})
	go func() {
		s.Close(context.Background())
		close(closed)
	}()
	var last *logpb.Command
	for last == nil || last.Kind != logpb.Command_SESSION_DOWN {
		for _, b := range streamtest.Take(other) {
			cs := grouptest.Commands(t, b)
			last = cs[len(cs)-1]
		}
	}
	streamtest.Tell(other, grouptest.OK(1, last.Seq))
	mustClose(t, closed)
	if got := streamtest.Take(l); len(got) != 0 {
		t.Errorf("%d batches for the queue that has ended the session", len(got))
	}
}

// The end of a session that is asked for twice is answered with «no session».
func TestCloseTwice(t *testing.T) {
	_, c, s, l := mustStream(t)
	publish(s, l, 1, "m")
	streamtest.Take(l)
	streamtest.Tell(l, grouptest.OK(1, 1))
	closed := make(chan struct{})
	go func() {
		s.Close(context.Background())
		close(closed)
	}()
	for len(streamtest.Take(l)) == 0 {
	}
	streamtest.Tell(l, grouptest.Code(2, fsm.NoSession))
	mustClose(t, closed)
	if len(c.lost) != 0 || s.conn.in.session(s.id.Num) != nil || l.Route().Stream(s.id) != nil {
		t.Errorf("lost %v; session %v", c.lost, s.conn.in.session(s.id.Num))
	}
}

// Every queue that may know a session learns that it ends, one that has not answered as well.
func TestEndOfSessionReachesQueues(t *testing.T) {
	w, _, s, l := mustStream(t)
	slow, unused, unled := streamTo(s, w.MustQueue("slow")), streamTo(s, w.MustQueue("unused")), streamTo(s, w.MustQueue("unled"))
	publish(s, l, 1, "m")
	streamtest.Take(l)
	streamtest.Tell(l, grouptest.OK(1, 1))
	publish(s, slow, 2, "m")
	request(s, unled, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1}})
	s.mu.Lock()
	s.streams.end()
	s.mu.Unlock()
	for what, c := range map[string]struct {
		to   *stream.Stream
		want []logpb.Command_Kind
	}{
		"one that has answered":                   {l, []logpb.Command_Kind{logpb.Command_SESSION_DOWN}},
		"one that has not answered":               {slow, []logpb.Command_Kind{logpb.Command_ENQUEUE, logpb.Command_SESSION_DOWN}},
		"one that knows nothing":                  {unused, nil},
		"one with a consumer that was never sent": {unled, nil},
	} {
		if got := kinds(t, c.to); !slices.Equal(got, c.want) {
			t.Errorf("%s is sent %v, want %v", what, got, c.want)
		}
	}
}

func mustClose(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("not in time")
	}
}

// A closed session is not waited for by anybody when the queue is gone.
func TestGoneQueue(t *testing.T) {
	w, c, s, l := mustStream(t)
	q, _ := w.View().QueueByID(l.Queue())
	publish(s, l, 1, "m")
	k := request(s, l, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 5}})
	addConsumer(s, l, 5, false)
	w.deleteQueue(q)
	if c.settled[1] != 1 || !isDone(k) || k.Result.Code != fsm.Gone {
		t.Errorf("settled %v, call %v", c.settled, k.Result)
	}
	if want := []string{"settled", "cancelled"}; !slices.Equal(c.log, want) {
		t.Errorf("told %q, want %q", c.log, want)
	}
	s.Settle(getToken|1, []uint64{1}, fsm.Ack) // nowhere to go
	s.Settle(5, []uint64{1}, fsm.Ack)
	// A publisher that still has the old view.
	s.mu.Lock()
	s.sendCopy(q, &fsm.Publish{Number: 2, Payload: grouptest.Payload("m"), TTL: -1, Priority: -1}, nil, catalog.Ceilings{})
	s.unlock()
	w.queues.Routes.Watch(nil)
	grouptest.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.settled[2] == 1 && w.queues.Routes.Find(q.ID) == nil
	})
	closed := make(chan struct{})
	go func() {
		s.Close(context.Background())
		close(closed)
	}()
	mustClose(t, closed)
}
