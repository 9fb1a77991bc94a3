package deadletter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// Letters arrive at every target once and in order, although proposals,
// transfers and answers get lost and leaders change in between.
func TestOutboxProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newLetterbox(t, "a", "b")
		chance := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		lose := func() bool { return chance.IntN(3) == 0 }
		var want []string
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch chance.IntN(8) {
			case 0, 1:
				want = append(want, fmt.Sprint("letter ", len(want)))
				b.die(t, want[len(want)-1])
			default:
				b.disturb(t, chance, lose)
			}
		}
		b.drain(t)
		for id, r := range b.targets {
			if got := r.Bodies(); !slices.Equal(got, want) {
				t.Fatalf("target %d holds %q, want %q", id, got, want)
			}
		}
	})
}

// disturb commits, loses or carries something, makes another node the leader, or lets
// time pass.
func (b *letterbox) disturb(t *rapid.T, chance *rand.Rand, lose func() bool) {
	switch chance.IntN(6) {
	case 0:
		b.source.Commit(t)
	case 1:
		if n := len(b.source.Waiting()); n > 0 && lose() {
			b.source.Lose(1)
		}
	case 2:
		b.carry(t, lose)
	case 3:
		if lose() {
			b.start()
		}
	case 4:
		b.w.Clock.Add(chance.Int64N(proposeAgain))
	default:
		b.run()
	}
}

// What a queue forwards arrives at every target once, although proposals, transfers and answers get
// lost, leaders change, and the settings begin to forward, forward to nowhere, or forward no more:
// then what has no route comes back, and dies.
func TestForwardsProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newLetterbox(t, "a", "b")
		chance := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		lose := func() bool { return chance.IntN(3) == 0 }
		forward := func(to string) {
			b.settings(t, b.source, func(c *logpb.QueueConfig) { c.Forward, c.ForwardExchange = to != "", to })
		}
		forward("amq.fanout")
		var want []string
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch chance.IntN(9) {
			case 0, 1:
				want = append(want, fmt.Sprintf("message %02d", len(want)))
				b.die(t, want[len(want)-1])
			case 2:
				forward([]string{"amq.fanout", "amq.topic", ""}[chance.IntN(3)])
			default:
				b.disturb(t, chance, lose)
			}
		}
		forward("amq.fanout")
		b.drain(t)
		for id, r := range b.targets {
			got := r.Bodies()
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Fatalf("target %d holds %q, want %q", id, got, want)
			}
		}
	})
}

// A sender that waits for an effect proposes nothing twice.
func TestOutboxIsPatient(t *testing.T) {
	b := newLetterbox(t, "a")
	for i := range 10 {
		b.die(t, fmt.Sprint(i))
	}
	for range 5 {
		b.run()
	}
	if n := len(b.source.Waiting()); n != 1 {
		t.Fatalf("%d routes are proposed, want 1", n)
	}
	b.source.Commit(t)
	b.run()
	b.carry(t, func() bool { return false })
	for range 5 {
		b.run()
	}
	if n := len(b.source.Waiting()); n != 1 {
		t.Fatalf("%d settlements are proposed, want 1", n)
	}
	b.source.Commit(t)
	for range 5 {
		b.run()
	}
	if n := len(b.source.Waiting()); n != 0 || b.source.Outbox() != 0 {
		t.Errorf("%d proposals at the end, %d letters left", n, b.source.Outbox())
	}
}

// Letters to a target that goes away are over; those to another one are not.
func TestOutboxTargetDeleted(t *testing.T) {
	b := newLetterbox(t, "a")
	gone := b.addTarget("gone")
	b.die(t, "1")
	b.run()
	b.source.Commit(t)
	b.run()
	b.w.deleteQueue(gone)
	b.die(t, "2")
	b.drain(t)
	var left []queue.DeadLetterTarget
	b.w.Clock.Add(proposeAgain)
	b.run()
	b.source.Commit(t)
	b.run()
	b.source.View(func(m *queue.Machine) { left = m.DeadLetterTargets(0, 100) })
	if len(left) != 1 || left[0].ID == gone.ID || len(b.f.streams) != 1 {
		t.Errorf("targets %v and %d streams are left", left, len(b.f.streams))
	}
	for id, r := range b.targets {
		want := []string{"1", "2"}
		if id == gone.ID {
			want = nil
		}
		if got := r.Bodies(); !slices.Equal(got, want) {
			t.Errorf("target %d holds %q, want %q", id, got, want)
		}
	}
}

// A target that this node's catalog does not know yet is waited for, not
// taken for gone.
func TestOutboxUnknownTarget(t *testing.T) {
	b := newLetterbox(t)
	next := b.w.NextQueue()
	b.die(t, "1")
	b.source.Apply(t, group.BatchOf(&logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: &logpb.RouteDead{
		First: 1, Routes: []*logpb.DeadRoute{{Targets: []uint64{uint64(next)}}}, // by a leader that knows more
	}}))
	for range 3 {
		b.w.Clock.Add(proposeAgain)
		b.run()
	}
	if len(b.source.Waiting()) != 0 {
		t.Fatalf("the source is told %v", grouptest.Commands(t, b.source.Waiting()[0]))
	}
	q := b.addTarget("a")
	if q.ID != next {
		t.Fatalf("the queue has the id %d, expected %d", q.ID, next)
	}
	b.drain(t)
	if got := b.targets[next].Bodies(); !slices.Equal(got, []string{"1"}) {
		t.Errorf("the target holds %q", got)
	}
}

// What the log settles that a stream has not got to yet, by a former leader's
// answers, is left out; but not before the stream has heard of what it has sent.
func TestOutboxBehindItsLog(t *testing.T) {
	b := newLetterbox(t, "a")
	a := b.target(t, "a")
	b.die(t, "1")
	b.run()
	b.source.Commit(t)
	b.run() // letter 1 is in the stream
	l := b.w.table.Find(a.Spec().Queue).Streams()[0]
	b.die(t, "2")
	b.die(t, "3")
	to := &logpb.DeadRoute{Targets: []uint64{uint64(a.Spec().Queue)}}
	b.source.Apply(t, group.BatchOf(
		&logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: &logpb.RouteDead{First: 2, Routes: []*logpb.DeadRoute{to, to}}},
		&logpb.Command{Kind: logpb.Command_SETTLE_DEAD, SettleDead: &logpb.SettleDead{Target: uint64(a.Spec().Queue), Last: 2}},
	))
	for seq, body := range []string{"1", "2"} { // what the former leader has sent
		p := grouptest.Payload(body)
		batch := group.BatchOf(&logpb.Command{
			Kind: logpb.Command_ENQUEUE, Session: b.f.id.Proto(), Seq: uint64(seq + 1), Enqueue: &logpb.Enqueue{Size: uint32(len(p))},
		})
		batch.Payloads, batch.Bytes = [][]byte{p}, len(p)
		a.Apply(t, batch)
	}
	b.run()
	b.f.mu.Lock()
	waiting := l.Waiting()
	b.f.mu.Unlock()
	if waiting != 1 {
		t.Errorf("%d letters wait for answers, want the first one only", waiting)
	}
	for range 2 { // no time passes
		b.carry(t, func() bool { return false })
		b.run()
	}
	b.carry(t, func() bool { return false })
	if got := a.Bodies(); !slices.Equal(got, []string{"1", "2", "3"}) {
		t.Errorf("the target holds %q", got)
	}
}

// What is on its way to one target is bounded by bytes.
func TestOutboxBytes(t *testing.T) {
	b := newLetterbox(t, "a")
	const size = sendBytes / 3
	for range 12 {
		b.die(t, string(make([]byte, size)))
	}
	b.run()
	b.source.Commit(t)
	b.run()
	for _, tr := range b.f.streams {
		if tr.bytes < sendBytes || tr.bytes > sendBytes+2*size {
			t.Errorf("%d bytes are on their way", tr.bytes)
		}
	}
	b.drain(t)
	for _, r := range b.targets {
		if got := len(r.Bodies()); got != 12 {
			t.Errorf("%d letters have arrived", got)
		}
	}
}

func TestCycle(t *testing.T) {
	death := func(queue string, reason logpb.Death_Reason) *logpb.Death {
		return &logpb.Death{Queue: queue, Reason: reason}
	}
	const expired, rejected = logpb.Death_EXPIRED, logpb.Death_REJECTED
	for _, tc := range []struct {
		name   string
		deaths []*logpb.Death
		want   bool
	}{
		{"first death", []*logpb.Death{death("a", expired)}, false},
		{"back to where it died", []*logpb.Death{death("a", expired), death("b", expired)}, true},
		{"to itself", []*logpb.Death{death("b", expired)}, true},
		{"rejected on the way", []*logpb.Death{death("a", rejected), death("b", expired)}, false},
		{"rejected before", []*logpb.Death{death("a", expired), death("b", expired), death("c", rejected)}, true},
		{"rejected there", []*logpb.Death{death("b", rejected)}, false},
	} {
		if got := cycle(tc.deaths, "b"); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// What a queue forwards arrives once, as it was, and one hop further; without a
// way it waits for one.
func TestForwards(t *testing.T) {
	b := newLetterbox(t, "a")
	b.source.Apply(t, group.BatchOf(&logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{
		Config: &logpb.QueueConfig{Forward: true, ForwardExchange: "amq.topic"},
	}}))
	b.die(t, "on its way")
	for range 3 {
		b.run()
		b.source.Commit(t)
	}
	if n := b.source.Outbox(); n != 1 {
		t.Fatalf("%d letters without a way", n)
	}
	b.w.Commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Bind{Bind: &logpb.Bind{
		Vhost: "/", Source: "amq.topic", Destination: "a", RoutingKey: "#",
	}}})
	b.drain(t)
	for _, r := range b.targets {
		if got := r.Bodies(); !slices.Equal(got, []string{"on its way"}) {
			t.Errorf("it holds %q", got)
		}
	}
	var c queue.Counters
	b.source.View(func(m *queue.Machine) { c = m.Stats().Counters })
	if c.Forwarded != 1 || c.DeadConfirmed != 0 {
		t.Errorf("%d forwarded, %d dead letters", c.Forwarded, c.DeadConfirmed)
	}
	to := b.target(t, "a")
	b.settings(t, to, func(c *logpb.QueueConfig) { c.Forward = true })
	to.View(func(m *queue.Machine) {
		if all := m.UnroutedLetters(2); len(all) != 1 || all[0].Hops != 2 {
			t.Errorf("its second hop: %v", all)
		}
	})
}

// What somebody sends to a queue arrives there once, whatever its queue does with dead letters; if that queue is gone it is
// ready again.
func TestTaken(t *testing.T) {
	b := newLetterbox(t, "a", "b")
	b.settings(t, b.source, func(c *logpb.QueueConfig) { c.TtlPlusOne = 0 })
	a, gone := b.target(t, "a"), b.target(t, "b")
	for _, body := range []string{"1", "2", "3"} {
		b.die(t, body)
	}
	take := func(as logpb.Take_Action, to *grouptest.Queue, n uint64) {
		b.source.Apply(t, group.BatchOf(&logpb.Command{Kind: logpb.Command_TAKE, Take: &logpb.Take{
			Action: as, Messages: []uint64{n}, Target: uint64(to.Spec().Queue),
		}}))
	}
	take(logpb.Take_REDRIVE, a, 1)
	take(logpb.Take_COPY, a, 3)
	take(logpb.Take_MOVE, gone, 2)
	q, _ := b.w.View().QueueByID(gone.Spec().Queue)
	b.w.deleteQueue(q)
	delete(b.targets, q.ID)
	b.drain(t)
	if got := a.Bodies(); !slices.Equal(got, []string{"1", "3"}) {
		t.Errorf("it holds %q", got)
	}
	if got := b.source.Bodies(); !slices.Equal(got, []string{"3", "2"}) {
		t.Errorf("the source holds %q", got)
	}
	b.source.View(func(m *queue.Machine) {
		if c := m.Stats().Counters; c.Redriven != 1 || c.Copied != 1 || c.Forwarded != 1 {
			t.Errorf("%+v", c)
		}
	})
}

// What waits for a way becomes ready again if its queue forwards no more.
func TestForwardsNoMore(t *testing.T) {
	b := newLetterbox(t, "a")
	b.settings(t, b.source, func(c *logpb.QueueConfig) {
		c.Forward, c.ForwardExchange, c.TtlPlusOne = true, "amq.topic", 0
	})
	b.die(t, "1")
	for range 3 {
		b.run()
		b.commit(t)
	}
	b.settings(t, b.source, func(c *logpb.QueueConfig) { c.Forward = false })
	b.run()
	b.commit(t)
	b.source.View(func(m *queue.Machine) {
		if s := m.Stats(); s.Ready.Messages != 1 || s.Outbox.Messages != 0 {
			t.Errorf("%d ready, %d letters", s.Ready.Messages, s.Outbox.Messages)
		}
	})
}

// A message whose route is in the log goes there even if its queue no longer forwards, as it came.
func TestForwardsWhatIsRouted(t *testing.T) {
	b := newLetterbox(t, "a")
	b.settings(t, b.source, func(c *logpb.QueueConfig) {
		c.Forward, c.ForwardExchange, c.ForwardRoutingKey, c.HasForwardRoutingKey = true, "amq.fanout", "new", true
	})
	b.die(t, "1")
	b.run()
	b.commit(t)
	b.settings(t, b.source, func(c *logpb.QueueConfig) { c.Forward = false })
	b.drain(t)
	to := b.target(t, "a")
	was := fsm.Readable(grouptest.Payload("1"))
	to.View(func(m *queue.Machine) {
		for x := range m.Messages() {
			p, err := to.Payload(x.Ref)
			if p := fsm.Readable(p); err != nil || string(p.RoutingKey()) != string(was.RoutingKey()) || string(p.Exchange()) != string(was.Exchange()) {
				t.Errorf("it came by %q with %q: %v", p.Exchange(), p.RoutingKey(), err)
			}
		}
	})
	if got := to.Bodies(); !slices.Equal(got, []string{"1"}) {
		t.Errorf("it holds %q", got)
	}
}
