package v091

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

// dropLog is a session that keeps which consumers it is told to drop.
type dropLog struct {
	amqp.Session
	dropped []uint64
}

func (l *dropLog) Drop(consumer uint64) { l.dropped = append(l.dropped, consumer) }

// side is the consuming side of a channel without the channel.
type side struct {
	consumers
	counts amqp.TimeoutCounts
	drops  dropLog
	tasks  []error // results of the tasks that were posted
	given  []fsm.Message
}

func newSide(notify bool) *side {
	s := &side{}
	s.consumers = consumers{
		channel: 1, session: &s.drops, out: outbox{amqp.NewOutbox(&amqp.Account{}, func() {})}, notify: notify, limit: 3, counts: &s.counts,
		post:     func(task func(context.Context) error) { s.tasks = append(s.tasks, task(context.Background())) },
		giveBack: func(m []fsm.Message) error { s.given = append(s.given, m...); return nil },
		byNumber: map[uint64]*consumer{}, byTag: map[string]*consumer{},
		deliveries: deliveries{gets: map[uint64]struct{}{}},
	}
	return s
}

func (s *side) mustAdd(t *testing.T, cons *consumer) *consumer {
	t.Helper()
	must(t, s.add(cons))
	return cons
}

// sent empties the outbox: methods by name, deliveries by the tag of their
// consumer.
func (s *side) sent(t *testing.T) (list []string) {
	t.Helper()
	var b amqp.Batch
	s.out.Take(&b)
	for _, it := range b.Items {
		switch it.Kind {
		case amqp.Frames:
			list = append(list, wire.MethodName(wire.PeekID(framePayload(b.Frames(&it)))))
		case outDeliver:
			list = append(list, it.Owner.(*consumer).tag)
		case outGet:
			list = append(list, "get")
		}
	}
	return list
}

func (s *side) expect(t *testing.T, sent ...string) {
	t.Helper()
	if got := s.sent(t); !slices.Equal(got, sent) {
		t.Errorf("sent %q, want %q", got, sent)
	}
}

// TestConsumersStart: nothing of a consumer is sent before its consume-ok, and
// all that came before follows it.
func TestConsumersStart(t *testing.T) {
	s := newSide(true)
	cons := s.mustAdd(t, &consumer{tag: "c"})
	s.deliver([]fsm.Message{{Consumer: 1, ID: 1}, {Consumer: 9, ID: 1}})
	s.cancelled(1)
	s.expect(t)
	if len(s.given) != 1 || s.given[0].Consumer != 9 {
		t.Errorf("given back: %v", s.given)
	}
	s.start(cons, false)
	s.expect(t, "basic.consume-ok", "c", "basic.cancel")
	if s.find("c") != nil {
		t.Error("a consumer whose queue is gone is still there")
	}
}

// TestConsumersAdd: tags are used once, and consumers are counted.
func TestConsumersAdd(t *testing.T) {
	s := newSide(true)
	first := s.mustAdd(t, &consumer{tag: "a"})
	if s.add(&consumer{tag: "a"}) == nil {
		t.Error("a tag is used twice")
	}
	s.mustAdd(t, &consumer{tag: "b"})
	s.mustAdd(t, &consumer{tag: "c"})
	if s.add(&consumer{tag: "d"}) == nil {
		t.Error("a consumer beyond the limit")
	}
	s.remove(first)
	if again := s.mustAdd(t, &consumer{tag: "a"}); again.number != 4 {
		t.Errorf("number %d is used again", again.number)
	}
	s.remove(first) // its tag is another consumer's
	if s.find("a") == nil {
		t.Error("a consumer of the same tag is removed")
	}
}

// TestConsumersDelete: what a queue.delete cancels is told after its answer.
func TestConsumersDelete(t *testing.T) {
	s := newSide(true)
	for _, tag := range []string{"a", "b"} {
		s.start(s.mustAdd(t, &consumer{tag: tag}), true)
	}
	s.deferCancels()
	s.cancelled(1)
	s.expect(t)
	s.sendCancels()
	s.expect(t, "basic.cancel")
	s.cancelled(2)
	s.expect(t, "basic.cancel")
}

// TestConsumersTimeOut: what becomes of a consumer that has held deliveries for
// too long.
func TestConsumersTimeOut(t *testing.T) {
	why := errors.New("too long")
	for name, c := range map[string]struct {
		notify, suspend, get, settled bool
		action                        amqp.TimeoutAction
		sent                          []string
		posted, dropped               int
	}{
		"cancelled":     {notify: true, action: amqp.TimeoutCancels, sent: []string{"basic.cancel"}, dropped: 1},
		"suspended":     {suspend: true, action: amqp.TimeoutSuspends},
		"not told":      {action: amqp.TimeoutCloses, posted: 2},
		"get":           {notify: true, get: true, action: amqp.TimeoutOfGet, posted: 2},
		"settled first": {notify: true, settled: true, action: amqp.TimeoutActions},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSide(c.notify)
			number := uint64(77)
			if c.get {
				s.got(&fsm.Message{Consumer: number, ID: 1}, false)
			} else {
				cons := s.mustAdd(t, &consumer{tag: "c"})
				s.start(cons, true)
				number = cons.number
				s.deliver([]fsm.Message{{Consumer: number, ID: 1}})
			}
			s.sent(t)
			if c.settled {
				s.settle(&settlement{tag: 1}, false, nil)
			}
			for range 2 { // it may be said again
				s.timeOut(number, []uint64{1}, c.suspend, why)
			}
			s.expect(t, c.sent...)
			for a := range amqp.TimeoutActions {
				if want := a == c.action; (s.counts[a].Load() == 1) != want {
					t.Errorf("action %d is counted %d times", a, s.counts[a].Load())
				}
			}
			if len(s.tasks) != c.posted || len(s.drops.dropped) != c.dropped {
				t.Errorf("posted %v, dropped %v", s.tasks, s.drops.dropped)
			}
		})
	}
}

// TestConsumersClosed: events of a closed channel mean nothing.
func TestConsumersClosed(t *testing.T) {
	s := newSide(false)
	s.start(s.mustAdd(t, &consumer{tag: "c"}), true)
	s.deliver([]fsm.Message{{Consumer: 1, ID: 1}})
	s.sent(t)
	s.close()
	s.deliver([]fsm.Message{{Consumer: 1, ID: 2}, {Consumer: 2, ID: 1}})
	s.cancelled(1)
	s.timeOut(1, []uint64{1}, false, amqp.ErrEnding)
	s.revoked(1, amqp.ErrEnding, func() { t.Error("a refusal is reported") })
	if s.lose(amqp.ErrEnding) {
		t.Error("it is taken for open")
	}
	s.expect(t)
	if len(s.tasks) != 0 {
		t.Errorf("posted %v", s.tasks)
	}
}

// TestDeliveries settles at random within transactions: what is rolled back can
// be settled again, what is committed is not there any more.
func TestDeliveries(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	d := deliveries{gets: map[uint64]struct{}{}}
	open, pending := map[uint64]bool{}, map[uint64]bool{} // by tag
	for step := range 20_000 {
		switch n := r.IntN(100); {
		case n < 50:
			noAck := r.IntN(4) == 0
			if tag := d.tag(1, uint64(step)+1, noAck); !noAck {
				open[tag] = true
			}
		case n < 95:
			tag := 1 + r.Uint64N(d.last+1)
			taken, ok := d.settle(&settlement{tag: tag, outcome: fsm.Ack}, true, nil)
			if ok != open[tag] || len(taken) != 0 {
				t.Fatalf("step %d: tag %d settled %v, %v now", step, tag, ok, taken)
			}
			if ok {
				delete(open, tag)
				pending[tag] = true
			}
		case n < 98:
			d.rollBack()
			for tag := range pending {
				open[tag] = true
			}
			clear(pending)
		default:
			for _, u := range d.commit() {
				if !pending[u.held.tag] || u.outcome != fsm.Ack {
					t.Fatalf("step %d: %+v is committed", step, u)
				}
				delete(pending, u.held.tag)
			}
			if len(pending) != 0 {
				t.Fatalf("step %d: %d are not committed", step, len(pending))
			}
		}
		if d.unacked.live != len(open) || len(d.uncommitted) != len(pending) {
			t.Fatalf("step %d: %d and %d, want %d and %d", step, d.unacked.live, len(d.uncommitted), len(open), len(pending))
		}
	}
}

// TestUnsettledIsBounded: a client that never settles what its consumers lose has
// its channel ended; one that holds as much as it may, by several consumers and by
// gets, has not.
func TestUnsettledIsBounded(t *testing.T) {
	s := newSide(true)
	for _, tag := range []string{"a", "b"} {
		s.start(s.mustAdd(t, &consumer{tag: tag}), true)
	}
	for id := range uint64(9) {
		s.got(&fsm.Message{Consumer: 1<<63 | id, ID: 1}, false)
	}
	for id := range uint64(4 * fsm.MaxHeld) {
		s.deliver([]fsm.Message{{Consumer: 1, ID: id + 1}})
		s.sent(t)
	}
	if len(s.tasks) > 0 {
		t.Fatalf("%d held: %v", s.deliveries.unacked.live, s.tasks)
	}
	s.deliver([]fsm.Message{{Consumer: 2, ID: 1}, {Consumer: 2, ID: 2}})
	s.deliver([]fsm.Message{{Consumer: 2, ID: 3}})
	if e := new(wire.Error); len(s.tasks) != 1 || !errors.As(s.tasks[0], &e) || e.Code != wire.CodePreconditionFailed {
		t.Errorf("the channel ends with %v", s.tasks)
	}
}
