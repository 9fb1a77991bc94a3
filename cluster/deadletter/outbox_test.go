package deadletter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
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
			case 2:
				b.source.Commit(t)
			case 3:
				if n := len(b.source.Waiting()); n > 0 && lose() {
					b.source.Lose(1)
				}
			case 4:
				b.carry(t, lose)
			case 5:
				if lose() {
					b.start()
				}
			case 6:
				b.w.Clock.Add(chance.Int64N(proposeAgain))
			default:
				b.run()
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
