package session

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/stream/streamtest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// brittle is a channel whose calls panic as long as it is told so.
type brittle struct {
	recorder
	broken atomic.Bool
}

func (c *brittle) Confirmed(first, last uint64, why error) {
	if c.broken.Load() {
		panic("injected")
	}
	c.recorder.Confirmed(first, last, why)
}

// mustEnd: the channel is told once that its session is over, with 541.
func (r *recorder) mustEnd(t *testing.T) {
	t.Helper()
	grouptest.Eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.lost) > 0
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.lost) != 1 || !isKind(r.lost[0], fsm.Internal) {
		t.Errorf("the channel is told %v", r.lost)
	}
}

// mustSend publishes on a session, and waits until its stream has submitted that.
func mustSend(t *testing.T, s *Session, q *catalog.Queue, sent <-chan int) {
	t.Helper()
	l := streamTo(s, q)
	publish(s, l, 1, "m")
	if n := <-sent; n != 1 {
		t.Errorf("%d commands are submitted", n)
	}
}

// A panic while commands are submitted to a queue ends the channels that use it
// here. Who comes next uses it as ever, and other queues do not notice.
func TestSubmittingPanics(t *testing.T) {
	w, c, other := newWorld(t), &recorder{}, &recorder{}
	s, beside := w.mustSession(c), w.mustSession(other)
	q, q2 := w.MustQueue("q"), w.MustQueue("q2")
	target, sent := w.queues.Routes.Route(q), make(chan int, 9)
	submit := func(_ string, b group.Batch) error {
		sent <- b.Count
		return nil
	}
	w.submits(q.ID, func(string, group.Batch) error { panic("injected") })
	w.submits(q2.ID, submit)
	target.Lead("n1", 1)
	w.queues.Routes.Route(q2).Lead("n1", 1)
	l := streamTo(s, q)
	publish(s, l, 1, "m")
	c.mustEnd(t)
	if n := w.node.Panics(); n != 1 {
		t.Errorf("%d panics counted", n)
	}
	mustSend(t, beside, q2, sent)
	grouptest.Eventually(t, func() bool { leader, _, _ := target.Leader(); return leader == "" })
	w.submits(q.ID, submit)
	target.Lead("n1", 1)
	mustSend(t, w.mustSession(&recorder{}), q, sent)
	if len(other.lost) != 0 {
		t.Errorf("another channel is told %v", other.lost)
	}
	s.Close(context.Background()) // no lock is kept
}

// A panic of what a channel does with an event ends that channel. What others
// wait for is answered all the same.
func TestTellingPanics(t *testing.T) {
	w, c := newWorld(t), &brittle{}
	conn, err := w.sessions.Connect(context.Background(), "guest", "/")
	if err != nil {
		t.Fatal(err)
	}
	s, err := conn.OpenSession(c)
	if err != nil {
		t.Fatal(err)
	}
	q := w.MustQueue("q")
	s.mu.Lock()
	l := s.queue(q).stream
	call := l.Request(&logpb.Command{Kind: logpb.Command_PURGE})
	s.mu.Unlock()
	publish(s, l, 1, "m")
	publish(s, l, 2, "m")
	streamtest.Take(l)
	c.broken.Store(true)
	s.mu.Lock()
	s.confirm(9, nil) // before the answer of the call
	s.mu.Unlock()
	streamtest.Tell(l, grouptest.OK(1, 1))
	<-call.Done()
	c.mustEnd(t)
	c.broken.Store(false)
	streamtest.Tell(l, grouptest.OK(2, 1))
	if c.settled[1] != 1 || w.node.Panics() != 1 {
		t.Errorf("settled %v, %d panics", c.settled, w.node.Panics())
	}
}

// brokenCatalog panics instead of talking to the cluster.
type brokenCatalog struct {
	*world
	broken atomic.Bool
	blind  atomic.Bool // so does a look at the view
}

func (c *brokenCatalog) View() *catalog.View {
	if c.blind.Load() {
		panic("injected")
	}
	return c.world.View()
}

var errOnly = errors.New("once")

func (c *brokenCatalog) Refresh(ctx context.Context) error {
	if c.broken.Load() {
		panic("injected")
	}
	return c.world.Refresh(ctx)
}

func (c *brokenCatalog) Note(ctx context.Context, cs ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error) {
	if c.broken.Swap(false) {
		panic("injected")
	}
	return nil, errOnly
}

// A panic while a channel's publishes are routed again ends the channel.
func TestRoutingAgainPanics(t *testing.T) {
	w, c := newWorld(t), &recorder{}
	k := &brokenCatalog{world: w}
	w.node.Catalog = k
	s := w.mustSession(c)
	k.broken.Store(true)
	w.stale.Store(true)
	s.mu.Lock()
	s.strays = []stray{{}}
	s.unlock()
	c.mustEnd(t)
	s.mu.Lock()
	if s.refreshing || len(s.strays) != 0 || w.node.Panics() != 1 {
		t.Errorf("refreshing %v, %d strays, %d panics", s.refreshing, len(s.strays), w.node.Panics())
	}
	s.unlock()
}

// A panic while a channel's publishes are routed that have waited for a view
// ends the channel.
func TestRoutingStraysPanics(t *testing.T) {
	w, c := newWorld(t), &recorder{}
	s := w.mustSession(c)
	k := &brokenCatalog{world: w}
	w.node.Catalog = k
	k.blind.Store(true)
	s.mu.Lock()
	s.strays = []stray{{}}
	s.unlock()
	c.mustEnd(t)
	if n := w.node.Panics(); n != 1 {
		t.Errorf("%d panics", n)
	}
}

// A panic while a command is given up ends the channel: only a timer would hear
// of it. No lock is kept, wherever it panics.
func TestGivingUpPanics(t *testing.T) {
	for name, spoil := range map[string]func(s *Session, a *clientCommand){
		"before the lock": func(s *Session, a *clientCommand) {
			s.mu.Lock()
			a.parts[0].at = nil // and so without a way to the leader
			s.mu.Unlock()
			s.exchange.overdue(a) // as its timer does
		},
		"under the lock": func(s *Session, a *clientCommand) {
			s.mu.Lock()
			a.late = nil
			s.mu.Unlock()
			time.Sleep(commandWait)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, c := newWorld(t), &recorder{}
				s, q := w.mustSession(c), w.MustQueue("q")
				target, sent := w.queues.Routes.Route(q), make(chan int, 9)
				w.submits(q.ID, func(_ string, b group.Batch) error {
					sent <- b.Count
					return nil
				})
				target.Lead("n1", 1)
				routed, err := s.Publish(&fsm.Publish{
					Number: 1, Exchange: catalog.CommandExchange, RoutingKey: "schedule.cancel", Payload: grouptest.Payload(""),
					Headers: func() *fsm.Table {
						return &fsm.Table{Fields: []*logpb.Field{
							{Name: "x-queue", Value: &logpb.Value{Tag: 'S', Str: []byte("q")}},
							{Name: "x-schedule-id", Value: &logpb.Value{Tag: 'S', Str: []byte("id")}},
						}}
					},
				})
				if !routed || err != nil || <-sent != 1 {
					t.Fatalf("the command is not sent: %v, %v", routed, err)
				}
				synctest.Wait()
				s.mu.Lock()
				var late *clientCommand
				for p := range s.queues[q.ID].stream.Unanswered() {
					late = p.Note.(*commandPart).of
				}
				s.mu.Unlock()
				spoil(s, late)
				synctest.Wait()
				s.mu.Lock()
				defer s.mu.Unlock()
				if len(c.lost) != 1 || !isKind(c.lost[0], fsm.Internal) || w.node.Panics() != 1 {
					t.Errorf("the channel is told %v, %d panics", c.lost, w.node.Panics())
				}
			})
		})
	}
}

// A panic while a limit is shared anew ends the channel: only a timer would hear
// of it.
func TestSharingLimitsPanics(t *testing.T) {
	w, c := newWorld(t), &recorder{}
	s := w.mustSession(c)
	s.mu.Lock()
	s.limit = 1
	s.known[1] = &consumer{part: part{request: &logpb.Consume{}, shared: true, granted: 1, ceiling: 1}}
	s.known[2] = &consumer{part: part{request: &logpb.Consume{}, shared: true, wants: true}} // at no queue
	s.wait()
	s.mu.Unlock()
	c.mustEnd(t)
	if n := w.node.Panics(); n != 1 {
		t.Errorf("%d panics", n)
	}
}
