package deadletter

import (
	"fmt"
	"testing"

	"github.com/quorate/quorate/cluster/group/grouptest"

	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// A sender whose stream panics is replaced: letters are sent again from where the
// log of their queue says.
func TestOutboxIsReplaced(t *testing.T) {
	w := newWorld(t)
	q := w.MustQueue("q")
	x := newOutboxSender(w.sender, grouptest.NewQueue(t, w.Catalog, q))
	w.sender.outboxes[q.ID] = x
	to := w.table.Route(w.MustQueue("to"))
	tr := &transfers{from: x}
	tr.stream = stream.New(tr, nil, x.id, to)
	x.streams[to.Queue()] = tr
	to.Attach(tr.stream)
	w.broken.Store(true)
	tr.Lock()
	tr.stream.Add(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{}}, stream.Pending{Payload: grouptest.Payload("m")})
	tr.Unlock()
	to.Lead("n2", 1)
	grouptest.Eventually(t, func() bool {
		w.sender.mu.Lock()
		defer w.sender.mu.Unlock()
		next := w.sender.outboxes[q.ID]
		return next != nil && next != x
	})
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.stopped || !tr.stream.Over() || to.Stream(x.id) != nil {
		t.Errorf("stopped %v, the stream is over: %v", x.stopped, tr.stream.Over())
	}
}

// looked counts how often somebody looks into a queue.
type looked struct {
	*grouptest.Queue
	views int
}

func (l *looked) View(f func(m *queue.Machine)) {
	l.views++
	l.Queue.View(f)
}

// TestEmptyOutbox: nobody looks at an outbox that holds nothing, until a letter comes, a target is gone, or nobody
// knows whether one is.
func TestEmptyOutbox(t *testing.T) {
	b := newLetterbox(t, "a", "b")
	source := &looked{Queue: b.source}
	b.f.group = source
	s, id := b.w.sender, b.source.Spec().Queue
	s.outboxes[id] = b.f
	b.die(t, "1")
	s.Forward(source)
	if !s.Wake() || !s.Wake() {
		t.Fatal("a letter is forgotten")
	}
	b.drain(t)
	rests := func(after string) {
		t.Helper()
		if s.Wake() {
			t.Fatal("it holds something after", after)
		}
		if source.views = 0; s.Wake() || source.views > 0 {
			t.Fatalf("%d looks at an empty outbox, after %s", source.views, after)
		}
	}
	rests("the letter has arrived")
	b.w.deleteQueue(b.w.MustQueue("other"))
	rests("another queue is gone")
	if s.CheckAll(); s.Wake() || source.views == 0 {
		t.Error("it is not checked")
	}
	rests("a check")
	b.lose(b.target(t, "a"))
	if !s.Wake() || !s.Wake() {
		t.Fatal("a target that is gone is forgotten")
	}
	for s.Wake() {
		b.run()
		b.commit(t)
	}
	rests("that is settled")
	source.View(func(m *queue.Machine) {
		if left := m.DeadLetterTargets(0, 3); len(left) != 1 {
			t.Errorf("targets: %v", left)
		}
	})
	s.Drop(id)
	b.lose(b.target(t, "b"))
	if s.Wake() || len(s.busy)+len(s.sources) > 0 {
		t.Errorf("of a former leader: %d busy, %d targets", len(s.busy), len(s.sources))
	}
}

// TestTargetsComeAndGo: of targets that are gone nothing is kept, however it is learned that they are.
func TestTargetsComeAndGo(t *testing.T) {
	b := newLetterbox(t, "stays")
	s, id := b.w.sender, b.source.Spec().Queue
	s.outboxes[id] = b.f
	settle := func() {
		t.Helper()
		for range 9 {
			if !s.Wake() {
				return
			}
			b.run()
			b.commit(t)
		}
		t.Fatal("it never rests")
	}
	send := func(body string) {
		b.die(t, body)
		s.Forward(b.source)
		b.drain(t)
	}
	for i, lose := range []func(q *catalog.Queue){
		func(q *catalog.Queue) { b.lose(b.targets[q.ID]) },
		func(q *catalog.Queue) { // while there are letters
			b.die(t, "more")
			s.Forward(b.source)
			s.Wake()
			b.lose(b.targets[q.ID])
			b.drain(t)
		},
		func(q *catalog.Queue) { // of which nobody tells
			b.w.Delete(q)
			s.CheckAll()
		},
		func(q *catalog.Queue) { // it is gone when it is first noted
			s.Drop(id)
			b.start()
			s.outboxes[id] = b.f
			b.w.Delete(q)
			s.Forward(b.source)
			s.Wake()
			b.run()
			s.Wake() // once more before it is settled
			b.commit(t)
		},
	} {
		name := fmt.Sprint("t", i)
		q := b.addTarget(name)
		send(name)
		settle()
		if _, known := s.sources[q.ID]; !known {
			t.Fatalf("%d: it is not watched", i)
		}
		lose(q)
		settle()
		if len(s.sources) != 1 || len(b.f.targets) != 1 {
			t.Errorf("%d: %d targets are known, %d of the outbox", i, len(s.sources), len(b.f.targets))
		}
	}
}

// Only who leads sends, and nobody once the node closes.
func TestOutboxOfLeader(t *testing.T) {
	w := newWorld(t)
	q := w.MustQueue("q")
	g := grouptest.NewQueue(t, w.Catalog, q)
	has := func() bool {
		w.sender.mu.Lock()
		defer w.sender.mu.Unlock()
		return w.sender.outboxes[q.ID] != nil
	}
	follower := &follower{g}
	if w.sender.Forward(follower); has() {
		t.Error("a follower sends")
	}
	if w.sender.Forward(g); !has() {
		t.Error("the leader does not send")
	}
	if w.sender.Drop(q.ID); has() {
		t.Error("a former leader sends")
	}
	w.sender.Forward(g)
	w.sender.Close()
	if w.sender.Forward(g); has() {
		t.Error("a node that closes sends")
	}
}

type follower struct{ *grouptest.Queue }

func (*follower) Leading() uint64 { return 0 }

// What is sent once begins anew with the boot.
func TestOnceRestarts(t *testing.T) {
	w := newWorld(t)
	way, c := w.table.Route(w.MustQueue("q")), &w.sender.once
	open := func() *onceStream {
		c.mu.Lock()
		defer c.mu.Unlock()
		return w.sender.onceStream(way)
	}
	x := open()
	x.Lock()
	x.stream.Add(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{}}, stream.Pending{Payload: grouptest.Payload("m")})
	c.bytes += len(grouptest.Payload("m"))
	x.Unlock()
	w.boot.Store(9)
	w.sender.Restart()
	if c.bytes != 0 || w.sender.LostOnce() != 1 || !x.stream.Over() {
		t.Errorf("%d bytes, %d lost: the stream goes on", c.bytes, w.sender.LostOnce())
	}
	if next := open(); next == x || next.stream.ID() != (fsm.SessionID{Node: 1, Boot: 9, Num: onceNumber}) {
		t.Errorf("the next stream is %+v", next.stream.ID())
	}
}
