package deadletter

import (
	"testing"

	"github.com/quorate/quorate/cluster/group/grouptest"

	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
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
