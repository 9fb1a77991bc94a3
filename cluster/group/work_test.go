package group

import (
	"slices"
	"testing"

	"github.com/quorate/quorate/fsm"
)

// Who gets nothing else is answered first; the answers of one session stay in order.
func TestSplitOutcomes(t *testing.T) {
	publisher, taker, late := fsm.SessionID{Node: 1, Num: 1}, fsm.SessionID{Node: 1, Num: 2}, fsm.SessionID{Node: 1, Num: 3}
	of := func(s fsm.SessionID, first uint64) Outcome { return Outcome{Session: s, First: first, Run: 1} }
	w := &Work{Outcomes: []Outcome{of(taker, 1), of(publisher, 1), of(late, 1), of(taker, 2), of(publisher, 2)}}
	if first, rest := w.SplitOutcomes(); len(first) != 5 || rest != nil {
		t.Errorf("without messages %v come first, then %v", first, rest)
	}
	w.Deliveries, w.Timeouts = []fsm.Delivery{{To: fsm.ConsumerID{Session: taker}}}, []fsm.Timeout{{To: fsm.ConsumerID{Session: late}}}
	first, rest := w.SplitOutcomes()
	if !slices.Equal(first, []Outcome{of(publisher, 1), of(publisher, 2)}) || !slices.Equal(rest, []Outcome{of(taker, 1), of(late, 1), of(taker, 2)}) {
		t.Errorf("%v come first, then %v", first, rest)
	}
	w.Deliveries, w.Timeouts, w.Resyncs = nil, nil, []Resynced{{To: fsm.ConsumerID{Session: publisher}}}
	if first, rest = w.SplitOutcomes(); len(first) != 3 || len(rest) != 2 {
		t.Errorf("%v come first, then %v", first, rest)
	}
}

// Outcomes of one stream join into runs, but only plain ones.
func TestOutcomeRuns(t *testing.T) {
	o := &outgoing{next: &Work{}}
	other := fsm.SessionID{Node: 2, Boot: 1, Num: 1}
	for seq := uint64(1); seq <= 3; seq++ {
		o.outcome(session, seq, fsm.Result{})
	}
	o.outcome(session, 4, fsm.Result{Count: 1})
	o.outcome(session, 5, fsm.Result{})
	o.outcome(other, 6, fsm.Result{})
	o.outcome(other, 8, fsm.Result{})
	want := []Outcome{
		{session, 1, 3, fsm.Result{}}, {session, 4, 1, fsm.Result{Count: 1}}, {session, 5, 1, fsm.Result{}},
		{other, 6, 1, fsm.Result{}}, {other, 8, 1, fsm.Result{}},
	}
	if !slices.Equal(o.next.Outcomes, want) {
		t.Errorf("outcomes %+v, want %+v", o.next.Outcomes, want)
	}
}
