package session

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/cluster/stream/streamtest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// What a client is told of each answer that its command may get. Whatever is not
// listed is no success.
func TestAnswerTable(t *testing.T) {
	w := newWorld(t)
	q := w.MustQueue("q")
	type table map[fsm.Code]fsm.Kind // 0: success
	for kind, want := range map[logpb.Command_Kind]table{
		logpb.Command_CONSUME:          {fsm.OK: 0, fsm.Gone: fsm.NotFoundKind, fsm.InUse: fsm.AccessRefused, fsm.Crowded: fsm.Precondition, fsm.Forwards: fsm.Locked, fsm.TooMany: fsm.Precondition, fsm.Reserved: fsm.Locked},
		logpb.Command_CANCEL:           {fsm.OK: 0, fsm.Gone: 0, fsm.NotFound: 0},
		logpb.Command_GET:              {fsm.OK: 0, fsm.Empty: 0, fsm.NotYet: 0, fsm.Gone: fsm.NotFoundKind, fsm.Reserved: fsm.Locked, fsm.Crowded: fsm.Precondition, fsm.Forwards: fsm.Locked},
		logpb.Command_PURGE:            {fsm.OK: 0, fsm.Gone: fsm.NotFoundKind},
		logpb.Command_DELETE:           {fsm.OK: 0, fsm.Gone: 0, fsm.InUse: fsm.Precondition, fsm.NotEmpty: fsm.Precondition},
		logpb.Command_TOUCH:            {fsm.OK: 0, fsm.Gone: fsm.NotFoundKind},
		logpb.Command_SCHEDULE:         {fsm.OK: 0, fsm.NotFound: fsm.NotFoundKind, fsm.Rejected: fsm.NotFoundKind, fsm.Gone: fsm.NotFoundKind},
		logpb.Command_RENEW:            {fsm.OK: 0, fsm.NotFound: fsm.NotFoundKind, fsm.Rejected: fsm.NotFoundKind, fsm.Gone: fsm.NotFoundKind},
		logpb.Command_SETTLE:           {fsm.OK: 0, fsm.NotFound: fsm.NotFoundKind, fsm.Rejected: fsm.NotFoundKind, fsm.InUse: fsm.Locked, fsm.Gone: fsm.NotFoundKind},
		logpb.Command_RECEIVE_DEFERRED: {fsm.OK: 0, fsm.NotFound: fsm.NotFoundKind, fsm.Rejected: fsm.NotFoundKind, fsm.InUse: fsm.Locked, fsm.Reserved: fsm.Locked, fsm.Crowded: fsm.Precondition, fsm.Gone: fsm.NotFoundKind},
		logpb.Command_UNIT:             {fsm.OK: 0, fsm.NotFound: fsm.NotFoundKind, fsm.Rejected: fsm.NotFoundKind, fsm.InUse: fsm.Locked, fsm.Gone: fsm.NotFoundKind},
		logpb.Command_GROUP:            {fsm.OK: 0, fsm.NotFound: fsm.NotFoundKind, fsm.Rejected: fsm.NotFoundKind, fsm.InUse: fsm.Locked, fsm.Gone: fsm.NotFoundKind},
		logpb.Command_KICK:             {fsm.OK: 0, fsm.Gone: fsm.NotFoundKind},
		logpb.Command_UNPARK:           {fsm.OK: 0, fsm.Gone: fsm.NotFoundKind},
		logpb.Command_TAKE:             {fsm.OK: 0, fsm.Gone: fsm.NotFoundKind},
		logpb.Command_CONFIGURE:        {}, // none of a client's
	} {
		for c := fsm.OK; c <= fsm.TooMany; c++ {
			want, listed := want[c]
			switch {
			case listed:
			case c == fsm.NoSession:
				want = fsm.Forced // the connection is to be made anew
			default:
				want = fsm.Internal
			}
			odd := w.queues.Counts().OddAnswers
			err := w.sessions.answers.refusal(kind, q, c)
			if want == 0 && err != nil || want != 0 && !isKind(err, want) {
				t.Errorf("%s answered with %d: %v", kind, c, err)
			}
			if counted := w.queues.Counts().OddAnswers > odd; counted != (!listed && c != fsm.NoSession) {
				t.Errorf("%s answered with %d: counted as unexpected %v", kind, c, counted)
			}
		}
	}
}

// A consumer that is not served is told so, and not that the message is somebody else's.
func TestAnswerToOneNotServed(t *testing.T) {
	w := newWorld(t)
	err := w.sessions.answers.refusal(logpb.Command_RECEIVE_DEFERRED, w.MustQueue("q"), fsm.Reserved)
	if text := fmt.Sprint(err); !strings.Contains(text, "it has timed out") || strings.Contains(text, "somebody else") {
		t.Error(text)
	}
}

// No request of a session is done when its queue answers that it was not.
func TestRequestsTellAnswers(t *testing.T) {
	ctx := context.Background()
	for name, request := range map[string]func(*Session) error{
		"consume": func(s *Session) error { return s.Consume(ctx, fsm.ConsumeSpec{Queue: "q", Number: 1, Tag: "c"}) },
		"get": func(s *Session) error {
			_, _, err := s.Get(ctx, "q", false)
			return err
		},
		"purge": func(s *Session) error {
			_, err := s.PurgeQueue(ctx, "q")
			return err
		},
		"delete": func(s *Session) error {
			_, err := s.DeleteQueue(ctx, "q", false, false)
			return err
		},
		"command": func(s *Session) error {
			v := s.conn.in.node.View()
			q, _ := v.Queue("/", "q")
			_, err := s.conn.in.Command(ctx, q, &logpb.Command{Kind: logpb.Command_SCHEDULE, Schedule: &logpb.Schedule{}})
			return err
		},
	} {
		w, c := newWorld(t), &recorder{}
		s := w.mustSession(c)
		q := w.MustQueue("q")
		target := w.queues.Routes.Route(q)
		w.submits(q.ID, func(_ string, b group.Batch) error {
			for _, c := range grouptest.Commands(t, b) {
				id := fsm.SessionFrom(c.Session)
				w.node.Spawn("answer", func() {
					w.queues.Routes.Stream(q.ID, id).Answer("n1", []group.Outcome{grouptest.Code(c.Seq, fsm.Invalid)})
				})
			}
			return nil
		})
		target.Lead("n1", 1)
		if err := request(s); !isKind(err, fsm.Internal) {
			t.Errorf("%s: %v", name, err)
		}
		if _, there := w.View().Queue("/", "q"); !there {
			t.Errorf("%s: the queue's record is gone", name)
		}
		s.mu.Lock()
		if len(s.known) != 0 {
			t.Errorf("%s: a consumer is left", name)
		}
		s.mu.Unlock()
	}
}

// A publish is confirmed by what the queue's log holds and not before: neither
// when it is sent, nor when it is applied and nobody has answered.
func TestConfirmFollowsCommit(t *testing.T) {
	x := newStrays(t)
	q := x.MustQueue("q")
	r := grouptest.NewQueue(t, x.world.Catalog, q)
	for range 3 {
		x.publish("", "q", false)
	}
	x.expect()
	batches := streamtest.Take(x.stream(q))
	x.expect()
	if got := r.Bodies(); len(batches) != 1 || len(got) != 0 {
		t.Fatalf("%d batches, the queue holds %q", len(batches), got)
	}
	answers := r.Apply(t, batches[0])
	x.expect()
	streamtest.Tell(x.stream(q), answers...)
	if got := r.Bodies(); len(got) != 3 || len(x.c.settled) != 3 || x.c.refused != 0 {
		t.Errorf("the queue holds %q, settled are %v", got, x.c.settled)
	}
}

// Who hears its leader again sends again what is unanswered.
func TestLostAnswers(t *testing.T) {
	w, _, s, l := mustStream(t)
	w.submits(l.Queue(), func(string, group.Batch) error { return nil })
	publish(s, l, 1, "m")
	streamtest.Take(l)
	sends := make(chan int, 10)
	w.submits(l.Queue(), func(_ string, b group.Batch) error {
		sends <- b.Count
		return nil
	})
	l.Route().Lead("n2", 5)
	select {
	case got := <-sends:
		if got != 1 {
			t.Errorf("%d commands are sent to a new leader", got)
		}
	case <-time.After(time.Minute):
		t.Fatal("nothing is sent to a new leader")
	}
	w.host.mu.Lock()
	w.host.requested = nil
	w.host.mu.Unlock()
	l.Route().Lead("n2", 5) // which announces itself because it could not send something
	w.host.mu.Lock()
	defer w.host.mu.Unlock()
	if want := []stream.Resync{{Session: s.id, After: ^uint64(0), Commands: 1}}; !slices.Equal(w.host.requested, want) {
		t.Errorf("the leader that is known is asked %+v, want %+v", w.host.requested, want)
	}
}

// A get whose queue cannot say yet whether it has a message asks again, and
// tells what comes of that: never that the queue is empty when it did not say so.
// One without acknowledgement whose message was lost on its way with a leader
// takes the next message.
func TestGetAsksAgain(t *testing.T) {
	for name, c := range map[string]struct {
		answers []fsm.Code
		noAck   bool
		waits   int64 // ms, before each answer
		asked   int
		is      fsm.Kind // 0: the queue is empty
	}{
		"twice, then empty":    {[]fsm.Code{fsm.NotYet, fsm.NotYet, fsm.Empty}, false, 0, 3, 0},
		"then gone":            {[]fsm.Code{fsm.NotYet, fsm.Gone}, false, 0, 2, fsm.NotFoundKind},
		"for ever":             {[]fsm.Code{fsm.NotYet}, false, getWait/3 + 1, 3, fsm.Precondition},
		"lost, then empty":     {[]fsm.Code{fsm.OK, fsm.OK, fsm.Empty}, true, 0, 3, 0},
		"lost again and again": {[]fsm.Code{fsm.OK}, true, getWait/3 + 1, 3, fsm.Unavailable},
	} {
		w := newWorld(t)
		s, q := w.mustSession(&recorder{}), w.MustQueue("q")
		target, asked := w.queues.Routes.Route(q), 0
		w.submits(q.ID, func(_ string, b group.Batch) error {
			for _, x := range grouptest.Commands(t, b) {
				a := grouptest.Code(x.Seq, c.answers[min(asked, len(c.answers)-1)])
				asked++
				w.Clock.Add(c.waits)
				w.node.Spawn("answer", func() { w.queues.Routes.Stream(q.ID, s.id).Answer("n1", []group.Outcome{a}) })
			}
			return nil
		})
		target.Lead("n1", 1)
		_, got, err := s.Get(context.Background(), "q", c.noAck)
		if got || (err == nil) != (c.is == 0) || err != nil && !isKind(err, c.is) || asked != c.asked {
			t.Errorf("%s: %v, %v after %d gets", name, got, err, asked)
		}
	}
}

// Each try of a get is an entry in the queue's log: they become rarer, and end
// with the client that waits.
func TestGetRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s, q := w.mustSession(&recorder{}), w.MustQueue("q")
		target, began, zero := w.queues.Routes.Route(q), time.Now(), w.Clock.Load()
		var tries []time.Duration
		w.submits(q.ID, func(_ string, b group.Batch) error {
			for _, x := range grouptest.Commands(t, b) {
				passed := time.Since(began)
				tries = append(tries, passed)
				w.Clock.Store(zero + passed.Milliseconds())
				w.node.Spawn("answer", func() {
					w.queues.Routes.Stream(q.ID, s.id).Answer("n1", []group.Outcome{grouptest.Code(x.Seq, fsm.NotYet)})
				})
			}
			return nil
		})
		target.Lead("n1", 1)
		if _, _, err := s.Get(context.Background(), "q", false); !isKind(err, fsm.Precondition) {
			t.Errorf("it ends with %v", err)
		}
		const ms = time.Millisecond
		if want := []time.Duration{0, 5 * ms, 15 * ms, 35 * ms, 75 * ms, 155 * ms, 255 * ms}; len(tries) < 7 || !slices.Equal(tries[:7], want) {
			t.Errorf("it begins with tries at %v, want %v", tries[:min(7, len(tries))], want)
		}
		if n := len(tries); n < 90 || n > 120 {
			t.Errorf("%d tries in %v", n, time.Since(began))
		}
		tries = nil
		began, zero = time.Now(), w.Clock.Load()
		ctx, cancel := context.WithTimeout(context.Background(), 170*ms)
		defer cancel()
		if _, _, err := s.Get(ctx, "q", false); err == nil || time.Since(began) != 170*ms || len(tries) != 6 {
			t.Errorf("a client that waits no longer: %v after %v, %d tries", err, time.Since(began), len(tries))
		}
	})
}
