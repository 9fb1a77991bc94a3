package queue

import (
	"fmt"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// TestPeek: by number whatever the order of service, by page, without what has
// expired, and without any effect.
func TestPeek(t *testing.T) {
	m := New("q", 1)
	var eff fsm.Effects
	s := fsm.SessionID{Node: 1, Boot: 1, Num: 1}
	seq := uint64(0)
	do := func(c *logpb.Command) {
		seq++
		c.Session, c.Seq = s.Proto(), seq
		if r := m.Apply(fsm.Meta{Index: seq, Term: 1, Now: 1000, Session: s}, c, &eff); r.Code != fsm.OK {
			t.Fatalf("%v: %v", c, r)
		}
	}
	for i, e := range []*logpb.Enqueue{{}, {PriorityPlusOne: 9}, {TtlPlusOne: 101}, {PriorityPlusOne: 2}, {DelayPlusOne: 5001}, {DelayPlusOne: 101}} {
		e.Size = uint32(10 + i)
		do(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: e})
	}
	show := func(in Place, after uint64, limit int, now fsm.Time) string {
		list, more := m.Peek(in, after, limit, now)
		text := ""
		for _, x := range list {
			text += fmt.Sprint(x.Seq, " ")
		}
		return text + fmt.Sprint(more)
	}
	do(&logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{}}) // takes 2
	before := m.Hash()
	for _, c := range []struct {
		in    Place
		after uint64
		limit int
		now   fsm.Time
		want  string
	}{
		{Ready, 0, 10, 1000, "1 3 4 false"}, {Ready, 0, 2, 1000, "1 3 true"}, {Ready, 3, 2, 1000, "4 false"}, {Ready, 0, 1, 1000, "1 true"},
		{Ready, 0, 10, 1099, "1 3 4 false"}, {Ready, 0, 10, 1100, "1 4 false"}, {Ready, 0, 2, 1100, "1 4 false"},
		{CheckedOut, 0, 10, 1000, "2 false"}, {CheckedOut, 2, 10, 1000, "false"},
		{Scheduled, 0, 1, 1000, "5 true"}, {Scheduled, 5, 1, 1000, "6 false"}, {Delayed, 0, 9, 1000, "false"}, {Outbox, 0, 9, 1000, "false"},
	} {
		if got := show(c.in, c.after, c.limit, c.now); got != c.want {
			t.Errorf("%d after %d, %d of them at %d: %s, want %s", c.in, c.after, c.limit, c.now, got, c.want)
		}
	}
	if m.Hash() != before {
		t.Error("a peek has changed the queue")
	}
	do(&logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{Outcome: logpb.Settle_REQUEUE, Ranges: []uint64{1, 1}}})
	if got := show(Ready, 0, 10, 1000); got != "1 2 3 4 false" {
		t.Errorf("with a returned one: %s", got)
	}
}
