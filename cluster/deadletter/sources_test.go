package deadletter

import (
	"testing"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// letterBox is a queue that others bring their dead letters to, without raft.
type letterBox struct {
	m     *queue.Machine
	index uint64
	eff   fsm.Effects
	ended int
}

func (l *letterBox) View(f func(*queue.Machine)) { f(l.m) }

func (l *letterBox) Submit(b group.Batch) error {
	var e logpb.Entry
	if err := e.UnmarshalVT(b.Commands); err != nil {
		return err
	}
	for _, c := range e.Commands {
		l.apply(c)
		l.ended++
	}
	return nil
}

func (l *letterBox) apply(c *logpb.Command) fsm.Code {
	l.index++
	return l.m.Apply(fsm.Meta{Index: l.index, Term: 1, Now: 1000, Session: fsm.SessionFrom(c.Session)}, c, &l.eff).Code
}

// bring is the first letter of a source.
func (l *letterBox) bring(from uint64) fsm.Code {
	return l.apply(&logpb.Command{
		Kind: logpb.Command_ENQUEUE, Session: fsm.SessionID{Boot: from}.Proto(), Seq: 1, OpenedAt: 1000, Enqueue: &logpb.Enqueue{Size: 9},
	})
}

// TestEndSources: the sessions of queues that are gone end at the queues they
// brought dead letters to, some at a time; those of others stay, known to the
// catalog's view or too new for it. What comes late of one that has ended is
// not taken a second time.
func TestEndSources(t *testing.T) {
	w := newWorld(t)
	w.MustQueue("source")
	v := w.View()
	box := &letterBox{m: queue.New("letters", 1)}
	var alive []uint64
	for _, q := range v.Queues() {
		alive = append(alive, uint64(q.ID))
	}
	alive = append(alive, (v.Index()+1)<<16)
	if len(alive) < 2 {
		t.Fatal("the catalog has no queue")
	}
	for _, id := range alive {
		box.bring(id)
	}
	const gone = 2*endSourcesAtOnce + 10
	for n := range uint64(gone) {
		box.bring(v.Index()<<16 - 1 - n)
	}
	looks := 1
	for ; EndSources(box, v); looks++ {
	}
	if box.ended != gone || looks != 4 {
		t.Fatalf("%d have ended in %d looks", box.ended, looks)
	}
	if left := box.m.Sources(0, gone); len(left) != len(alive) {
		t.Fatalf("left are %v, alive %v", left, alive)
	}
	if code := box.bring(v.Index()<<16 - 1); code != fsm.NoSession {
		t.Fatalf("a late letter is answered %d", code)
	}
	if n := box.m.Stats().Ready.Messages; n != uint64(gone+len(alive)) {
		t.Fatalf("%d letters", n)
	}
}
