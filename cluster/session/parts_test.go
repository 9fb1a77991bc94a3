package session

import (
	"context"
	"testing"
	"time"

	"github.com/quorate/quorate/fsm"
)

// A window takes what begins below its bound, and reports hunger once.
func TestWindow(t *testing.T) {
	var w window
	for w.unwritten.Load() < maxUnwritten {
		if !w.accept(maxFrameBytes) {
			t.Fatalf("refused at %d", w.unwritten.Load())
		}
	}
	if w.accept(0) {
		t.Error("more than the bound is accepted")
	}
	if w.fits(1) {
		t.Error("an answer fits into a full window")
	}
	if w.written(1, maxFrameBytes) {
		t.Error("room for an answer is reported too early")
	}
	if !w.written(1, maxFrameBytes) {
		t.Error("who is hungry does not hear of room")
	}
	if w.written(1, maxFrameBytes) {
		t.Error("nobody is hungry any more")
	}
	if !w.fits(1) || w.fits(4) {
		t.Errorf("%d of %d are taken", w.unwritten.Load(), maxUnwritten)
	}
}

// A queue hears of a peek at most once in its time, also after a clock that went
// back, and is forgotten when it is gone.
func TestPeeks(t *testing.T) {
	p := peeks{at: map[fsm.QueueID]int64{}}
	for i, x := range []struct {
		now  int64
		want bool
	}{{100, true}, {109, false}, {110, true}, {110, false}, {50, true}, {59, false}} {
		if got := p.due(7, x.now, 10); got != x.want {
			t.Errorf("%d: at %d due: %v", i, x.now, got)
		}
	}
	if !p.due(8, 50, 10) {
		t.Error("another queue has to wait")
	}
	p.drop(7)
	if !p.due(7, 51, 10) || len(p.at) != 2 {
		t.Errorf("after the end of the queue: %v", p.at)
	}
}

// Sessions belong to the boot under which they began; connections are expelled by
// user and vhost, once.
func TestRegistry(t *testing.T) {
	n := &node{}
	n.number.Store(3)
	n.boot.Store(20)
	r := &registry{sessions: map[uint64]*Session{}, connections: map[*Connection]struct{}{}}
	ann, bob := &Connection{user: "ann", vhost: "/"}, &Connection{user: "bob", vhost: "v"}
	if r.enter(ann) != 1 || r.enter(bob) != 2 {
		t.Error("connections are counted wrong")
	}
	first, second := &Session{conn: ann}, &Session{conn: ann}
	r.add(first, n)
	if former, changed := r.renew(n, 20); changed || len(former) != 0 {
		t.Error("the same boot is another one")
	}
	former, changed := r.renew(n, 21)
	r.add(second, n)
	if !changed || len(former) != 1 || former[0] != first || first.id.Boot != 20 || second.id != (fsm.SessionID{Node: 3, Boot: 21, Num: 2}) {
		t.Errorf("with another boot %v have ended; %v, %v", former, first.id, second.id)
	}
	if r.session(2) != second || len(r.all()) != 2 || len(r.of(ann)) != 2 || len(r.of(bob)) != 0 {
		t.Error("sessions are not found")
	}
	r.remove(first)
	if r.session(1) != nil || len(r.of(ann)) != 1 {
		t.Error("a session that has ended is found")
	}
	r.expel([]string{"ann"}, []string{"v"})
	r.expel(nil, []string{"/"})
	if *ann.expelled.Load() != userIsGone("ann") || *bob.expelled.Load() != vhostIsDown("v") {
		t.Errorf("expelled because %s, %s", *ann.expelled.Load(), *bob.expelled.Load())
	}
	r.leave(ann)
	if r.enter(bob) != 1 {
		t.Error("a connection that has left counts")
	}
}

// A question goes to the leader until one answers; it ends with the grace, and with
// the queue.
func TestAskLeader(t *testing.T) {
	w := newWorld(t)
	x := w.broker.available
	q := w.MustQueue("q")
	x.grace = time.Millisecond
	if gone, err := x.askLeader(context.Background(), q, func(string) bool { return true }); gone || !isKind(err, fsm.Unavailable) {
		t.Errorf("without a leader: %v, %v", gone, err)
	}
	x.grace = time.Minute
	w.broker.routes.Lead(q.ID, "n1", 1)
	asked := 0
	gone, err := x.askLeader(context.Background(), q, func(leader string) bool {
		asked++
		return leader == "n1" && asked == 3
	})
	if gone || err != nil || asked != 3 {
		t.Errorf("after %d questions: %v, %v", asked, gone, err)
	}
	w.deleteQueue(q)
	if gone, err := x.askLeader(context.Background(), q, func(string) bool { return false }); !gone || err != nil {
		t.Errorf("of a queue that is gone: %v, %v", gone, err)
	}
}
