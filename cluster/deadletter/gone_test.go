package deadletter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/stream/streamtest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// strategy sets how the source's letters go.
func (b *letterbox) strategy(t grouptest.Fatal, how logpb.QueueConfig_DeadLetterStrategy) {
	b.settings(t, b.source, func(c *logpb.QueueConfig) { c.DeadLetterStrategy = how })
}

// target finds a living target by name.
func (b *letterbox) target(t grouptest.Fatal, name string) *grouptest.Queue {
	t.Helper()
	q, ok := b.w.View().Queue("/", name)
	if !ok {
		t.Fatalf("no queue %s", name)
	}
	return b.targets[q.ID]
}

// end ends a target in its own log: the catalog holds it still.
func (b *letterbox) end(t grouptest.Fatal, r *grouptest.Queue) {
	r.Apply(t, group.BatchOf(&logpb.Command{Kind: logpb.Command_DELETE, Delete: &logpb.Delete{}}))
}

// lose removes a target from the catalog, and tells the broker.
func (b *letterbox) lose(r *grouptest.Queue) {
	q, _ := b.w.View().QueueByID(r.Spec().Queue)
	b.w.deleteQueue(q)
	delete(b.targets, q.ID)
}

func (b *letterbox) counters() (c queue.Counters) {
	b.source.View(func(m *queue.Machine) { c = m.Stats().Counters })
	return c
}

// commit applies all that the sender has proposed.
func (b *letterbox) commit(t grouptest.Fatal) {
	for len(b.source.Waiting()) > 0 {
		b.source.Commit(t)
	}
}

// onTheWay is a letterbox whose only target has taken one letter, of two that
// are in the stream. The answer about the first has arrived.
func onTheWay(t grouptest.Fatal, how logpb.QueueConfig_DeadLetterStrategy) (b *letterbox, to *grouptest.Queue) {
	b = newLetterbox(t, "a")
	b.strategy(t, how)
	b.die(t, "1")
	b.run()
	b.commit(t)
	b.run()
	b.carry(t, func() bool { return false })
	b.die(t, "2")
	b.run()
	// What the source is told of the first letter gets lost on its way.
	for _, p := range b.source.Waiting() {
		if c := grouptest.Commands(t, p)[0]; c.Kind == logpb.Command_ROUTE_DEAD {
			b.source.Apply(t, p)
		}
	}
	b.source.Lose(len(b.source.Waiting()))
	b.run()
	return b, b.target(t, "a")
}

// A letter that finds its target gone has not arrived. One that must arrive goes
// to the target's next life; any other one is dropped, and counted so. What the
// target took before it was deleted has arrived.
func TestLetterToGoneTarget(t *testing.T) {
	for _, how := range []logpb.QueueConfig_DeadLetterStrategy{logpb.QueueConfig_AT_LEAST_ONCE, logpb.QueueConfig_TRANSACTIONAL} {
		for _, answered := range []bool{true, false} {
			t.Run(fmt.Sprint(how, ", answered ", answered), func(t *testing.T) {
				b, a := onTheWay(t, how)
				b.end(t, a)
				if answered {
					b.carry(t, func() bool { return false })
				}
				for range 3 {
					b.run()
					b.commit(t)
				}
				if c := b.counters(); c.DeadConfirmed > 1 || c.DeadDropped+c.DeadRefused != 0 {
					t.Fatalf("while the target is ending: %+v", c)
				}
				b.lose(a)
				next := b.targets[b.addTarget("a").ID]
				b.drain(t)
				want, dropped := []string{"2"}, uint64(0)
				if how != logpb.QueueConfig_AT_LEAST_ONCE {
					want, dropped = nil, 1
				}
				if got := next.Bodies(); !slices.Equal(got, want) {
					t.Errorf("the target's next life holds %q, want %q", got, want)
				}
				if c := b.counters(); c.DeadConfirmed != 2-dropped || c.DeadDropped != dropped || c.DeadRefused != 0 {
					t.Errorf("%d have arrived, %d dropped, %d refused", c.DeadConfirmed, c.DeadDropped, c.DeadRefused)
				}
			})
		}
	}
}

// What waits because its target has gone is looked at again at once, not when
// the catalog changes next.
func TestGoneTargetIsRetried(t *testing.T) {
	b, a := onTheWay(t, logpb.QueueConfig_AT_LEAST_ONCE)
	b.end(t, a)
	b.carry(t, func() bool { return false })
	b.lose(a)
	next := b.targets[b.addTarget("a").ID]
	b.w.Clock.Add(proposeAgain) // what was lost is proposed again
	for range 6 {
		b.run() // no time passes
		b.commit(t)
		b.carry(t, func() bool { return false })
	}
	if got := next.Bodies(); !slices.Equal(got, []string{"2"}) {
		t.Errorf("the target's next life holds %q", got)
	}
}

// An answer to a transfer that is neither yes nor no is no arrival.
func TestOddAnswerToLetter(t *testing.T) {
	b, a := onTheWay(t, logpb.QueueConfig_AT_LEAST_ONCE)
	l := b.w.table.Find(a.Spec().Queue).Streams()[0]
	streamtest.Take(l)
	streamtest.Tell(l, grouptest.Code(2, fsm.Invalid))
	b.run()
	b.commit(t)
	if c := b.counters(); c.DeadConfirmed != 1 || c.DeadRefused != 1 || b.source.Outbox() != 1 || b.w.odd.Load() != 1 {
		t.Errorf("%+v, %d in the outbox, %d odd answers", c, b.source.Outbox(), b.w.odd.Load())
	}
}

// A sender goes on behind what the log knows to have arrived, and sends no
// letter under the number of another one.
func TestLettersKeepTheirNumbers(t *testing.T) {
	b := newLetterbox(t, "a")
	a := b.target(t, "a")
	for i := range 3 {
		b.die(t, fmt.Sprint("old ", i))
	}
	b.run()
	b.commit(t)
	b.run()
	b.carry(t, func() bool { return false }) // the answers are with this sender
	b.start()                                // and here is another one
	q, _ := b.w.View().QueueByID(a.Spec().Queue)
	if b.f.stream(q, 0) == nil { // as of a log that knows of no answers yet
		t.Fatal("no stream")
	}
	b.source.Apply(t, group.BatchOf(&logpb.Command{Kind: logpb.Command_SETTLE_DEAD, SettleDead: &logpb.SettleDead{
		Target: uint64(q.ID), Last: 3,
	}}))
	b.die(t, "new")
	b.f.routeLetters()
	b.commit(t)
	b.f.sendTo(q, queue.DeadLetterTarget{ID: q.ID, Next: 5}) // it looked before the log was told
	if n := b.f.streams[q.ID].stream.Waiting(); n != 0 {
		t.Fatalf("%d letters are sent ahead of those that are missing", n)
	}
	b.drain(t)
	if got, want := a.Bodies(), []string{"old 0", "old 1", "old 2", "new"}; !slices.Equal(got, want) {
		t.Errorf("the target holds %q, want %q", got, want)
	}
}

// Letters that must arrive do so although their targets are deleted and declared
// again all the time; of the others, as many have arrived as are counted.
func TestOutboxDeletionStorm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newLetterbox(t, "a", "b")
		how := rapid.SampledFrom([]logpb.QueueConfig_DeadLetterStrategy{
			logpb.QueueConfig_AT_LEAST_ONCE, logpb.QueueConfig_TRANSACTIONAL,
		}).Draw(t, "strategy")
		b.strategy(t, how)
		chance := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		lose := func() bool { return chance.IntN(3) == 0 }
		letters := 0
		arrived := map[string]bool{}
		ended := map[*grouptest.Queue]bool{}
		note := func(r *grouptest.Queue) {
			for _, body := range r.Bodies() {
				arrived[body] = true
			}
		}
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			name := []string{"a", "b"}[chance.IntN(2)]
			switch chance.IntN(9) {
			case 0, 1:
				b.die(t, fmt.Sprint("letter ", letters))
				letters++
			case 2:
				b.source.Commit(t)
			case 3:
				if n := len(b.source.Waiting()); n > 0 && lose() {
					b.source.Lose(1)
				}
			case 4:
				b.carry(t, lose)
			case 5:
				q, ok := b.w.View().Queue("/", name)
				switch r := b.targets[idOf(q)]; {
				case !ok:
					b.addTarget(name)
				case !ended[r]:
					note(r)
					b.end(t, r)
					ended[r] = true
				default:
					b.lose(r)
				}
			case 6:
				if lose() {
					b.start()
				}
			case 7:
				b.w.Clock.Add(chance.Int64N(proposeAgain))
			default:
				b.run()
			}
		}
		for _, name := range []string{"a", "b"} {
			if q, ok := b.w.View().Queue("/", name); ok && ended[b.targets[q.ID]] {
				b.lose(b.targets[q.ID])
			}
			if _, ok := b.w.View().Queue("/", name); !ok {
				b.addTarget(name)
			}
		}
		b.drain(t)
		for _, r := range b.targets {
			note(r)
		}
		c := b.counters()
		if how == logpb.QueueConfig_AT_LEAST_ONCE && (len(arrived) != letters || c.DeadConfirmed != uint64(letters) || c.DeadDropped != 0) {
			t.Fatalf("%d of %d letters have arrived; %d confirmed, %d dropped", len(arrived), letters, c.DeadConfirmed, c.DeadDropped)
		}
		if c.DeadConfirmed+c.DeadDropped != uint64(letters) || int(c.DeadConfirmed) > len(arrived) {
			t.Fatalf("%d of %d letters have arrived; %d confirmed, %d dropped", len(arrived), letters, c.DeadConfirmed, c.DeadDropped)
		}
	})
}

// idOf is a queue's id; 0: there is none.
func idOf(q *catalog.Queue) fsm.QueueID {
	if q == nil {
		return 0
	}
	return q.ID
}

// Letters are not routed by a view that may be out of date: their target may be
// gone by now, or another one bound.
func TestLettersNeedFreshView(t *testing.T) {
	b := newLetterbox(t, "a")
	b.die(t, "one")
	b.w.stale.Store(true)
	b.f.routeLetters()
	if n := len(b.source.Waiting()); n != 0 {
		t.Errorf("%d proposals by a view that may be out of date", n)
	}
	b.w.stale.Store(false)
	b.drain(t)
	if got := b.target(t, "a").Bodies(); !slices.Equal(got, []string{"one"}) {
		t.Errorf("the target holds %q", got)
	}
}

// The same for those that wait because there was no target.
func TestWaitingLettersNeedFreshView(t *testing.T) {
	b := newLetterbox(t)
	b.strategy(t, logpb.QueueConfig_AT_LEAST_ONCE)
	b.die(t, "one")
	b.run()
	b.commit(t)
	var waiting uint64
	b.source.View(func(m *queue.Machine) { waiting = m.Stats().Waiting.Messages })
	if waiting != 1 {
		t.Fatalf("%d letters wait", waiting)
	}
	q := b.addTarget("late")
	b.w.stale.Store(true)
	b.f.retryLetters()
	if n := len(b.source.Waiting()); n != 0 {
		t.Errorf("%d proposals by a view that may be out of date", n)
	}
	b.w.stale.Store(false)
	b.drain(t)
	if got := b.targets[q.ID].Bodies(); !slices.Equal(got, []string{"one"}) {
		t.Errorf("the target holds %q", got)
	}
}
