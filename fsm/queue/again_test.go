package queue

import (
	"reflect"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// A leader answers a copy of a command as its repetition in the log would be answered, and where a stream
// stands decides that as well; neither changes anything.
func TestAnswerAgain(t *testing.T) {
	m := New("q", 1)
	id := fsm.SessionID{Node: 1, Boot: 5, Num: 7}
	index := uint64(0)
	apply := func(c *logpb.Command) (r fsm.Result, eff fsm.Effects) {
		index++
		c.Session = id.Proto()
		return m.Apply(fsm.Meta{Index: index, Term: 1, Now: 1000, Session: id}, c, &eff), eff
	}
	if p := PositionOf(m, id); p != (Position{}) {
		t.Errorf("before it begins: %+v", p)
	}
	commands := []*logpb.Command{
		{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 10}},
		{Kind: logpb.Command_GET, Get: &logpb.Get{}},
		{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{Ranges: []uint64{9, 1}}}, // nothing that it holds
		{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 10}},
		{Kind: logpb.Command_TOUCH, Touch: &logpb.Touch{}},
		{Kind: logpb.Command_GET, Get: &logpb.Get{}},
	}
	for i, c := range commands {
		c.Seq = uint64(i + 1)
		apply(c)
		p := PositionOf(m, id)
		if p.Next != c.Seq+1 || p.Ended || p.Over {
			t.Errorf("after command %d: %+v", c.Seq, p)
		}
		for _, c := range commands[:i+1] {
			var eff fsm.Effects
			before := m.Hash()
			got := AnswerAgain(m, id, c, &eff)
			if m.Hash() != before {
				t.Fatalf("to answer command %d again changes something", c.Seq)
			}
			if c.Seq != p.Call {
				if byNumber := AnswerAgain(m, id, &logpb.Command{Seq: c.Seq}, nil); byNumber != got {
					t.Errorf("command %d is answered %+v, by its number %+v", c.Seq, got, byNumber)
				}
			}
			want, log := apply(c)
			if got != want || !reflect.DeepEqual(eff.Deliveries, log.Deliveries) {
				t.Errorf("command %d is answered %+v and %v, its repetition %+v and %v", c.Seq, got, eff.Deliveries, want, log.Deliveries)
			}
		}
	}
	apply(&logpb.Command{Kind: logpb.Command_SESSION_DOWN, Seq: uint64(len(commands) + 1)})
	for range 10 {
		apply(&logpb.Command{Kind: logpb.Command_TICK})
	}
	if p := PositionOf(m, id); p != (Position{Ended: true}) {
		t.Errorf("when it has ended: %+v", p)
	}
	apply(&logpb.Command{Kind: logpb.Command_DELETE, Delete: &logpb.Delete{}})
	if p := PositionOf(m, id); p != (Position{Over: true}) {
		t.Errorf("when the queue has: %+v", p)
	}
}
