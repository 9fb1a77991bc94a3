package session

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/cluster/stream/streamtest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// strays is a session that publishes to queues which come and go.
type strays struct {
	*world
	t *testing.T
	c *recorder
	s *Session
	n uint64
}

func newStrays(t *testing.T) *strays {
	w, c := newWorld(t), &recorder{}
	return &strays{world: w, t: t, c: c, s: w.mustSession(c)}
}

// publish publishes a message with its number for body.
func (x *strays) publish(exchange, key string, mandatory bool) {
	x.t.Helper()
	x.n++
	p := fsm.Publish{
		Number: x.n, Exchange: exchange, RoutingKey: key, Mandatory: mandatory, TTL: 1000, Priority: 3, HasExpiration: true,
		Payload: append(fsm.AppendPayloadHead(nil, exchange, key, nil), 'm'),
	}
	if routed, err := x.s.Publish(&p); err != nil || !routed {
		x.t.Fatalf("publish: %v, %v", routed, err)
	}
}

func (x *strays) bind(exchange string, q *catalog.Queue) {
	x.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Bind{Bind: &logpb.Bind{Vhost: "/", Source: exchange, Destination: q.Name}}})
}

// stream is the session's stream to a queue; nil: there is none.
func (x *strays) stream(q *catalog.Queue) *stream.Stream {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	if u := x.s.queues[q.ID]; u != nil {
		return u.stream
	}
	return nil
}

// answer sends what waits for a queue, and answers all of it.
func (x *strays) answer(q *catalog.Queue, c fsm.Code) (sent []*logpb.Command) {
	x.t.Helper()
	l := x.stream(q)
	if l == nil {
		return nil
	}
	for _, b := range streamtest.Take(l) {
		sent = append(sent, grouptest.Commands(x.t, b)...)
	}
	for _, c := range sent {
		if c.Kind != logpb.Command_ENQUEUE {
			x.t.Fatalf("%s is sent to %s", c.Kind, q.Name)
		}
	}
	if n := len(sent); n > 0 {
		streamtest.Tell(l, group.Outcome{First: sent[0].Seq, Run: uint64(n), Result: fsm.Result{Code: c}})
	}
	return sent
}

func (x *strays) expect(want ...string) {
	x.t.Helper()
	x.c.mu.Lock()
	defer x.c.mu.Unlock()
	if !slices.Equal(x.c.log, want) || x.c.refused != 0 {
		x.t.Errorf("the client is told %q, %d refused; want %q", x.c.log, x.c.refused, want)
	}
}

// A publish that comes too late for its queue goes where a view without that
// queue leads: to the queue's next life, as it went to the former one, and never
// before the view has lost that.
func TestStrayFollowsRedeclare(t *testing.T) {
	for _, seen := range []string{"answered", "deleted before the answer", "deleted before it is sent"} {
		t.Run(seen, func(t *testing.T) {
			x := newStrays(t)
			q := x.MustQueue("q")
			for range 3 {
				x.publish("", "q", true)
			}
			var first []*logpb.Command
			switch seen {
			case "answered":
				first = x.answer(q, fsm.Gone)
				x.publish("", "q", true) // by the same view
				x.expect()
			case "deleted before the answer":
				for _, b := range streamtest.Take(x.stream(q)) {
					first = append(first, grouptest.Commands(t, b)...)
				}
			}
			x.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteQueue{DeleteQueue: &logpb.DeleteQueue{Vhost: "/", Name: "q"}}})
			next := x.MustQueue("q")
			x.queues.QueueGone(q.ID)
			again := x.answer(next, fsm.OK)
			if len(again) != int(x.n) {
				t.Fatalf("%d messages reach the next life of the queue, want %d", len(again), x.n)
			}
			for i := range first {
				if !proto.Equal(first[i].Enqueue, again[i].Enqueue) {
					t.Errorf("was %v, is %v", first[i].Enqueue, again[i].Enqueue)
				}
			}
			for n := range x.n {
				if x.c.settled[n+1] != 1 {
					t.Errorf("publish %d is settled %d times", n+1, x.c.settled[n+1])
				}
			}
			if x.c.refused != 0 || slices.ContainsFunc(x.c.log, func(e string) bool { return e != "settled" }) {
				t.Errorf("the client is told %q, %d refused", x.c.log, x.c.refused)
			}
		})
	}
}

// What leads nowhere once its queue is gone is unroutable.
func TestStrayUnroutable(t *testing.T) {
	for _, tc := range []struct {
		name      string
		mandatory bool
		code      fsm.Code // NotFound: none before the queue is deleted
		want      []string
	}{
		{"mandatory, answered", true, fsm.Gone, []string{"returned m", "settled"}},
		{"mandatory, not answered", true, fsm.NotFound, []string{"returned m", "settled"}},
		{"answered", false, fsm.Gone, []string{"settled"}},
		{"not answered", false, fsm.NotFound, []string{"settled"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newStrays(t)
			q := x.MustQueue("q")
			x.publish("", "q", tc.mandatory)
			if tc.code == fsm.Gone {
				x.answer(q, fsm.Gone)
			}
			x.expect()
			x.deleteQueue(q)
			x.expect(tc.want...)
		})
	}
}

// A publish to several queues goes to those of the new route that have not been
// sent it, and is unroutable only if no queue has it.
func TestStrayOfSeveral(t *testing.T) {
	for _, tc := range []struct {
		name    string
		a, b    fsm.Code
		next    bool // b is declared and bound again
		later   bool // and another queue is bound
		want    []string
		refused bool
	}{
		{"the other one has it", fsm.OK, fsm.Gone, false, false, []string{"settled"}, false},
		{"the next life gets it", fsm.OK, fsm.Gone, true, false, []string{"settled"}, false},
		{"a new queue gets it", fsm.OK, fsm.Gone, true, true, []string{"settled"}, false},
		{"the other one refuses", fsm.Rejected, fsm.Gone, true, false, []string{"settled"}, true},
		{"both are gone", fsm.Gone, fsm.Gone, false, false, []string{"returned m", "settled"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newStrays(t)
			a, b := x.MustQueue("a"), x.MustQueue("b")
			x.bind("amq.fanout", a)
			x.bind("amq.fanout", b)
			x.publish("amq.fanout", "k", true)
			x.answer(a, tc.a)
			x.answer(b, tc.b)
			x.expect()
			x.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteQueue{DeleteQueue: &logpb.DeleteQueue{Vhost: "/", Name: "b"}}})
			var fresh []*catalog.Queue
			if tc.next {
				fresh = append(fresh, x.MustQueue("b"))
			}
			if tc.later {
				fresh = append(fresh, x.MustQueue("c"))
			}
			for _, q := range fresh {
				x.bind("amq.fanout", q)
			}
			x.queues.QueueGone(b.ID)
			if tc.a == fsm.Gone {
				x.deleteQueue(a)
			}
			for _, q := range fresh {
				if got := x.answer(q, fsm.OK); len(got) != 1 {
					t.Errorf("%s is sent %v", q.Name, got)
				}
			}
			if got := x.answer(a, fsm.OK); len(got) != 0 {
				t.Errorf("a is sent %v once more", got)
			}
			if !slices.Equal(x.c.log, tc.want) || (x.c.refused != 0) != tc.refused {
				t.Errorf("the client is told %q, %d refused; want %q", x.c.log, x.c.refused, tc.want)
			}
		})
	}
}

// A copy that a stray was sent to is not sent again by the next stray of the same
// publish.
func TestStraysOfOnePublish(t *testing.T) {
	x := newStrays(t)
	a, b := x.MustQueue("a"), x.MustQueue("b")
	x.bind("amq.fanout", a)
	x.bind("amq.fanout", b)
	x.publish("amq.fanout", "k", true)
	x.answer(a, fsm.Gone)
	x.answer(b, fsm.Gone)
	c := x.MustQueue("c")
	x.bind("amq.fanout", c)
	x.deleteQueue(a)
	x.deleteQueue(b)
	if got := x.answer(c, fsm.OK); len(got) != 1 {
		t.Errorf("the new queue is sent %v", got)
	}
	x.expect("settled")
}

// A stray goes by an alternate exchange as any publish does.
func TestStrayTakesAlternate(t *testing.T) {
	x := newStrays(t)
	x.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareExchange{DeclareExchange: &logpb.DeclareExchange{
		Vhost: "/", Name: "x", Type: "fanout", Arguments: &fsm.Table{Fields: []*logpb.Field{
			{Name: "alternate-exchange", Value: &logpb.Value{Tag: 'S', Str: []byte("amq.fanout")}},
		}},
	}}})
	q, other := x.MustQueue("q"), x.MustQueue("other")
	x.bind("x", q)
	x.bind("amq.fanout", other)
	x.publish("x", "k", true)
	x.answer(q, fsm.Gone)
	x.deleteQueue(q)
	if got := x.answer(other, fsm.OK); len(got) != 1 {
		t.Errorf("the alternate's queue is sent %v", got)
	}
	x.expect("settled")
}

// A publish whose queue goes while it is being routed is routed again at once,
// also if the next view leads to a queue that has gone meanwhile, too.
func TestStrayWhileRouted(t *testing.T) {
	x := newStrays(t)
	q := x.MustQueue("q")
	p := fsm.Publish{Number: 1, RoutingKey: "q", Payload: grouptest.Payload("m"), TTL: -1, Priority: -1, Mandatory: true}
	p.Payload = append(fsm.AppendPayloadHead(nil, "", "q", nil), 'm')
	limits, err := x.s.routePublish(&p)
	if err != nil {
		t.Fatal(err)
	}
	ended := x.queues.Routes.Route(q)
	x.deleteQueue(q)
	u := &sessionQueue{session: x.s} // the publisher has found the route a moment before
	u.stream = stream.New(u, u, x.s.id, ended)
	ended.Attach(u.stream)
	x.s.queues[q.ID] = u
	next := x.MustQueue("q")
	x.s.enqueue(&p, limits)
	x.expect()
	if got := x.answer(next, fsm.OK); len(got) != 1 {
		t.Errorf("the next life is sent %v", got)
	}
	x.expect("settled")
}

// No answer but OK confirms a publish.
func TestOddAnswers(t *testing.T) {
	for c := fsm.OK; c <= fsm.TooMany; c++ {
		switch c {
		case fsm.OK, fsm.Gap, fsm.Gone, fsm.NoSession, fsm.Late:
			continue // see above, and the tests of streams
		}
		x := newStrays(t)
		q := x.MustQueue("q")
		x.publish("", "q", true)
		x.answer(q, c)
		if x.c.settled[1] != 1 || x.c.refused != 1 {
			t.Errorf("code %d: settled %d times, %d refused", c, x.c.settled[1], x.c.refused)
		}
		if odd := x.queues.Counts().OddAnswers; (odd == 1) != (c != fsm.Rejected) {
			t.Errorf("code %d: %d unexpected answers counted", c, odd)
		}
	}
}

// A session that is closed sends its strays on before it is forgotten, and
// leaves nothing behind at the queue that gets them.
func TestStrayOfClosedSession(t *testing.T) {
	x := newStrays(t)
	q := x.MustQueue("q")
	x.publish("", "q", false)
	x.answer(q, fsm.Gone)
	closed := make(chan struct{})
	go func() {
		x.s.Close(context.Background())
		close(closed)
	}()
	old := x.stream(q)
	grouptest.Eventually(t, func() bool { return len(streamtest.Take(old)) > 0 })
	streamtest.Tell(old, grouptest.Code(2, fsm.Gone))
	x.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteQueue{DeleteQueue: &logpb.DeleteQueue{Vhost: "/", Name: "q"}}})
	next := x.MustQueue("q")
	x.queues.QueueGone(q.ID)
	var sent []logpb.Command_Kind
	grouptest.Eventually(t, func() bool {
		l := x.stream(next)
		if l == nil {
			return false
		}
		for _, b := range streamtest.Take(l) {
			for _, c := range grouptest.Commands(t, b) {
				sent = append(sent, c.Kind)
				streamtest.Tell(l, grouptest.OK(c.Seq, 1))
			}
		}
		return len(sent) >= 2
	})
	if want := []logpb.Command_Kind{logpb.Command_ENQUEUE, logpb.Command_SESSION_DOWN}; !slices.Equal(sent, want) {
		t.Errorf("the next life is sent %v, want %v", sent, want)
	}
	mustClose(t, closed)
	if x.sessions.session(x.s.id.Num) != nil {
		t.Error("the session is not forgotten")
	}
}

// Whatever a session consumed from, and whatever it used, is forgotten when that
// is over: of a consumer with the last settlement of what it was handed.
func TestSessionForgets(t *testing.T) {
	x := newStrays(t)
	for n := range uint64(300) {
		q := x.MustQueue("q")
		x.s.mu.Lock()
		u := x.s.queue(q)
		for number := 2 * n; number < 2*n+2; number++ {
			x.s.addConsumer(u, number+1, number%2 == 1)
		}
		x.s.mu.Unlock()
		l := u.stream
		l.Receive(messages(2*n+1, 1, 2))
		l.Receive(messages(2*n+2, 1))
		for number := 2 * n; number < 2*n+2; number++ {
			request(x.s, l, &logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: number + 1}})
		}
		streamtest.Take(l)
		streamtest.Tell(l, grouptest.OK(1, 2))
		if got := len(x.s.known); got != 1 {
			t.Fatalf("%d consumers are known, want the one that owes settlements", got)
		}
		x.s.Settle(2*n+1, []uint64{1}, fsm.Ack)
		x.s.Settle(2*n+1, []uint64{2}, fsm.Ack)
		if got := grouptest.Commands(t, streamtest.Take(l)[0]); len(got) != 1 || got[0].Settle.GetConsumer() != 2*n+1 {
			t.Fatalf("the queue is told %v", got)
		}
		if len(x.s.known) != 0 {
			t.Fatalf("%d consumers are known", len(x.s.known))
		}
		if n%2 == 0 {
			x.s.mu.Lock()
			x.s.addConsumer(u, 2*n+1, false) // that the queue's end finds
			x.s.mu.Unlock()
		}
		x.deleteQueue(q)
	}
	if s := x.s; len(s.known)+len(s.queues)+len(s.order) != 0 || len(x.queues.Routes.All()) != 0 {
		t.Errorf("left: %d consumers, %d and %d queues, %d routes", len(s.known), len(s.queues), len(s.order), len(x.queues.Routes.All()))
	}
}

// What a consumer holds whose right to consume was taken away can be settled.
func TestSettleAfterNotice(t *testing.T) {
	x := newStrays(t)
	x.s.mu.Lock()
	u := x.s.queue(x.MustQueue("q"))
	x.s.addConsumer(u, 5, false)
	l := u.stream
	x.s.mu.Unlock()
	l.Receive(messages(5, 1))
	l.Notice(stream.Notice{Kind: peerpb.Notice_CANCELLED, Consumer: 5})
	x.s.Settle(5, []uint64{1}, fsm.Ack)
	if got := streamtest.Take(l); len(got) != 1 || len(grouptest.Commands(t, got[0])) != 1 {
		t.Errorf("the queue is told %v", got)
	}
	if len(x.s.known) != 0 {
		t.Errorf("%d consumers are known", len(x.s.known))
	}
}

// A stray waits for a view that is up to date: by an older one its queue's next
// life is not there, and the publish would go nowhere.
func TestStrayWaitsForFreshView(t *testing.T) {
	x := newStrays(t)
	q := x.MustQueue("q")
	x.publish("", "q", true)
	x.stale.Store(true)
	x.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteQueue{DeleteQueue: &logpb.DeleteQueue{Vhost: "/", Name: "q"}}})
	x.queues.QueueGone(q.ID)
	x.expect()
	next := x.MustQueue("q")
	x.stale.Store(false)
	limit := time.Now().Add(time.Minute)
	for x.stream(next) == nil {
		if time.Now().After(limit) {
			t.Fatal("the stray never goes on")
		}
		runtime.Gosched()
	}
	if again := x.answer(next, fsm.OK); len(again) != 1 {
		t.Fatalf("%d messages reach the next life of the queue", len(again))
	}
	x.expect("settled")
}
