package session

import (
	"testing"

	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/fsm"
)

// A window takes what begins below its bound, and reports hunger once.
func TestWindow(t *testing.T) {
	var w window
	for w.unwritten.Load() < maxUnwritten {
		if !w.accept(queues.MaxFrameBytes) {
			t.Fatalf("refused at %d", w.unwritten.Load())
		}
	}
	if w.accept(0) {
		t.Error("more than the bound is accepted")
	}
	if w.fits(1) {
		t.Error("an answer fits into a full window")
	}
	if w.written(1, queues.MaxFrameBytes) {
		t.Error("room for an answer is reported too early")
	}
	if !w.written(1, queues.MaxFrameBytes) {
		t.Error("who is hungry does not hear of room")
	}
	if w.written(1, queues.MaxFrameBytes) {
		t.Error("nobody is hungry any more")
	}
	if !w.fits(1) || w.fits(4) {
		t.Errorf("%d of %d are taken", w.unwritten.Load(), maxUnwritten)
	}
}

// Sessions belong to the boot under which they began; connections are expelled by
// user and vhost, once.
func TestRegistry(t *testing.T) {
	n := &self.Node{}
	n.Serve(3, 20)
	r := &Sessions{node: n, sessions: map[uint64]*Session{}, connections: map[*Connection]struct{}{}}
	ann, bob := &Connection{user: "ann", vhost: "/"}, &Connection{user: "bob", vhost: "v"}
	if r.enter(ann) != 1 || r.enter(bob) != 2 {
		t.Error("connections are counted wrong")
	}
	first, second := &Session{conn: ann}, &Session{conn: ann}
	r.add(first)
	if former, changed := r.renew(20); changed || len(former) != 0 {
		t.Error("the same boot is another one")
	}
	former, changed := r.renew(21)
	r.add(second)
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
	r.Departed([]string{"ann"}, []string{"v"})
	r.Departed(nil, []string{"/"})
	if *ann.expelled.Load() != userIsGone("ann") || *bob.expelled.Load() != vhostIsDown("v") {
		t.Errorf("expelled because %s, %s", *ann.expelled.Load(), *bob.expelled.Load())
	}
	r.leave(ann)
	if r.enter(bob) != 1 {
		t.Error("a connection that has left counts")
	}
}
