package broker

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// brittle is a channel whose calls panic as long as it is told so.
type brittle struct {
	recorder
	broken atomic.Bool
}

func (c *brittle) Settled(first, last uint64, ok bool) {
	if c.broken.Load() {
		panic("injected")
	}
	c.recorder.Settled(first, last, ok)
}

// mustEnd: the channel is told once that its session is over, with 541.
func (r *recorder) mustEnd(t *testing.T) {
	t.Helper()
	mustEventually(t, func() bool {
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

// mustSend publishes on a session, and waits until its lane has submitted that.
func mustSend(t *testing.T, s *Session, q *catalog.Queue, sent <-chan int) {
	t.Helper()
	s.mu.Lock()
	l := s.lane(q)
	s.mu.Unlock()
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
	q, q2 := w.mustQueue("q"), w.mustQueue("q2")
	target, sent := w.broker.target(q), make(chan int, 9)
	submit := func(_ string, b group.Batch) bool {
		sent <- b.Count
		return true
	}
	target.submit = func(string, group.Batch) bool { panic("injected") }
	w.broker.target(q2).submit = submit
	target.lead("n1", 1)
	w.broker.target(q2).lead("n1", 1)
	s.mu.Lock()
	l := s.lane(q)
	s.mu.Unlock()
	publish(s, l, 1, "m")
	c.mustEnd(t)
	if n := w.broker.Panics(); n != 1 {
		t.Errorf("%d panics counted", n)
	}
	mustSend(t, beside, q2, sent)
	mustEventually(t, func() bool { leader, _, _ := target.leaderNow(); return leader == "" })
	target.submit = submit
	target.lead("n1", 1)
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
	conn, err := w.broker.Connect(context.Background(), "guest", "/")
	if err != nil {
		t.Fatal(err)
	}
	s, err := conn.OpenSession(c)
	if err != nil {
		t.Fatal(err)
	}
	q := w.mustQueue("q")
	s.mu.Lock()
	l := s.lane(q)
	call := l.addCall(&logpb.Command{Kind: logpb.Command_PURGE})
	s.mu.Unlock()
	publish(s, l, 1, "m")
	publish(s, l, 2, "m")
	take(l)
	c.broken.Store(true)
	s.mu.Lock()
	s.settledEvent(9, true) // before the answer of the call
	s.mu.Unlock()
	tell(l, ok(1, 1))
	<-call.done
	c.mustEnd(t)
	c.broken.Store(false)
	tell(l, ok(2, 1))
	if c.settled[1] != 1 || w.broker.Panics() != 1 {
		t.Errorf("settled %v, %d panics", c.settled, w.broker.Panics())
	}
}

// The watch goes on after a panic: over other queues at once, and over the one
// that it has met once that has been made anew.
func TestWatchPanics(t *testing.T) {
	w, c := newWorld(t), &recorder{}
	q, q2 := w.mustQueue("q"), w.mustQueue("q2")
	broken, whole := w.broker.target(q), w.broker.target(q2)
	s := w.mustSession(c)
	for _, q := range []*catalog.Queue{q, q2} {
		s.mu.Lock()
		l := s.lane(q)
		s.mu.Unlock()
		publish(s, l, 1, "m")
	}
	broken.mu.Lock()
	broken.lanes[fsm.SessionID{Num: 99}] = &lane{} // of nobody
	broken.mu.Unlock()
	look := watcher{broker: w.broker, boots: map[uint32]uint64{}}
	w.clock.Add(2 * askAfter)
	look.look()
	c.mustEnd(t)
	if n := len(broken.all()); n != 0 || w.broker.Panics() == 0 {
		t.Errorf("%d lanes are left, %d panics", n, w.broker.Panics())
	}
	again := 0
	for ; again < 20; again++ { // who asks for a leader panics as well, at any time: there are no other nodes
		panics := w.broker.Panics()
		w.clock.Add(2 * askAfter)
		if look.look(); w.broker.Panics() == panics {
			break
		}
	}
	if again == 20 {
		t.Error("each look panics")
	}
	if n := len(look.watched); n != 2 {
		t.Errorf("%d queues are watched", n)
	}
	if whole.lane(s.id) == nil {
		t.Error("another queue has lost its lane")
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
	w.broker.config.Catalog = k
	s := w.mustSession(c)
	k.broken.Store(true)
	w.stale.Store(true)
	s.mu.Lock()
	s.strays = []stray{{}}
	s.release()
	c.mustEnd(t)
	s.mu.Lock()
	if s.refreshing || len(s.strays) != 0 || w.broker.Panics() != 1 {
		t.Errorf("refreshing %v, %d strays, %d panics", s.refreshing, len(s.strays), w.broker.Panics())
	}
	s.release()
}

// A panic while uses are noted does not end that for good.
func TestNotingPanics(t *testing.T) {
	w := newWorld(t)
	k := &brokenCatalog{world: w}
	w.broker.config.Catalog = k
	k.broken.Store(true)
	u := &w.broker.uses
	for range 2 {
		u.mu.Lock()
		u.pending = map[exchangeName]fsm.Time{{"/", "x"}: 1}
		u.running = w.broker.spawn("note uses", w.broker.noteUses)
		u.mu.Unlock()
		mustEventually(t, func() bool {
			u.mu.Lock()
			defer u.mu.Unlock()
			return !u.running && u.noting == nil
		})
	}
	if n := w.broker.Panics(); n != 1 {
		t.Errorf("%d panics", n)
	}
}

// One whose lane panics at the end of a queue does not keep it from the others.
func TestEndOfQueuePanics(t *testing.T) {
	w := newWorld(t)
	q := w.mustQueue("q")
	target := w.broker.target(q)
	var channels []*recorder
	for range 3 {
		c := &recorder{}
		channels = append(channels, c)
		s := w.mustSession(c)
		s.mu.Lock()
		l := s.lane(q)
		l.addCall(&logpb.Command{Kind: logpb.Command_PURGE})
		s.consumers[4] = &consumer{lane: l}
		l.consumers[4] = s.consumers[4]
		s.mu.Unlock()
	}
	target.mu.Lock()
	for i := range uint64(20) { // of nobody
		target.lanes[fsm.SessionID{Num: 100 + i}] = &lane{}
	}
	target.mu.Unlock()
	w.deleteQueue(q)
	for i, c := range channels {
		c.mu.Lock()
		if len(c.log) != 1 || c.log[0] != "cancelled" {
			t.Errorf("channel %d is told %v", i, c.log)
		}
		c.mu.Unlock()
	}
}

// A forwarder whose lane panics is replaced: letters are forwarded again from
// where the log of their queue says.
func TestForwarderIsReplaced(t *testing.T) {
	w := newWorld(t)
	q := w.mustQueue("q")
	f := newForwarder(w.broker, newReplicated(q, w))
	w.broker.forwarders[q.ID] = f
	to := w.broker.target(w.mustQueue("to"))
	l := newLane(f, f.id, to)
	to.attach(l)
	to.rebuild()
	mustEventually(t, func() bool {
		w.broker.mu.Lock()
		defer w.broker.mu.Unlock()
		return w.broker.forwarders[q.ID] == nil
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.stopped || !l.lost || to.lane(f.id) != nil {
		t.Errorf("stopped %v, lane lost %v", f.stopped, l.lost)
	}
}

// A panic in one thing that the watch does leaves the others alone.
func TestLookPanics(t *testing.T) {
	w := newWorld(t)
	b, q := w.broker, w.mustQueue("q")
	k := &brokenCatalog{world: w}
	b.config.Catalog = k
	b.forwarders[q.ID] = &forwarder{} // of no queue
	b.unsent[unsent{queue: q.ID}] = struct{}{}
	b.unsettled.Store(true)
	k.blind.Store(true)
	look := watcher{broker: b, boots: map[uint32]uint64{}, looks: reapEvery - 1}
	look.look() // at suspects, nodes, sources, notices and forwarders
	if n := b.Panics(); n != 5 {
		t.Errorf("%d panics", n)
	}
}

// The watch goes on after a panic in what a change of the catalog has it do.
func TestWatchOfCatalogPanics(t *testing.T) {
	w := newWorld(t)
	b := w.broker
	k := &brokenCatalog{world: w}
	b.config.Catalog = k
	k.blind.Store(true)
	if !b.spawn("watch", b.watch) {
		t.Fatal("no watch")
	}
	for n := range uint64(2) {
		b.CatalogChanged()
		mustEventually(t, func() bool { return b.Panics() > n })
	}
	close(b.stop)
	b.done.Wait()
}

// A panic while a channel's publishes are routed that have waited for a view
// ends the channel.
func TestRoutingStraysPanics(t *testing.T) {
	w, c := newWorld(t), &recorder{}
	s := w.mustSession(c)
	k := &brokenCatalog{world: w}
	w.broker.config.Catalog = k
	k.blind.Store(true)
	s.mu.Lock()
	s.strays = []stray{{}}
	s.release()
	c.mustEnd(t)
	if n := w.broker.Panics(); n != 1 {
		t.Errorf("%d panics", n)
	}
}

// A panic while a command is given up ends the channel: only a timer would hear
// of it. No lock is kept, wherever it panics.
func TestGivingUpPanics(t *testing.T) {
	for name, spoil := range map[string]func(l *lane){
		"under the lock": func(l *lane) { l.pending[l.head].asked.late = nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, c := newWorld(t), &recorder{}
				s, q := w.mustSession(c), w.mustQueue("q")
				target, sent := w.broker.target(q), make(chan int, 9)
				target.submit = func(_ string, b group.Batch) bool {
					sent <- b.Count
					return true
				}
				target.lead("n1", 1)
				routed, err := s.Publish(&fsm.Publish{
					Number: 1, Exchange: catalog.CommandExchange, RoutingKey: "schedule.cancel", Payload: payload(""),
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
				spoil(s.lanes[q.ID])
				s.mu.Unlock()
				time.Sleep(commandWait)
				synctest.Wait()
				s.mu.Lock()
				defer s.mu.Unlock()
				if len(c.lost) != 1 || !isKind(c.lost[0], fsm.Internal) || w.broker.Panics() != 1 {
					t.Errorf("the channel is told %v, %d panics", c.lost, w.broker.Panics())
				}
			})
		})
	}
}
