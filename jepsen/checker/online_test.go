package checker

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// event is something that a client did or saw.
type event struct {
	at    time.Duration
	order int // of events at the same time
	do    func(o *Online)
}

// replay shows a history to an Online checker in the order of its times. A subscription
// begins with its first delivery.
func replay(h *history.History) *Online {
	o := NewOnline(history.New())
	keys := map[uint64]uint64{}
	var events []event
	for _, a := range h.Attempts {
		events = append(events, event{a.Call, 0, func(o *Online) { keys[a.Key] = o.Begin(a) }})
		if a.Result != history.Unknown {
			events = append(events, event{a.Return, 1, func(o *Online) { o.End(keys[a.Key], a.Result) }})
		}
	}
	seen := map[session]bool{}
	deliveries := slices.Clone(h.Deliveries)
	slices.SortStableFunc(deliveries, func(a, b history.Delivery) int { return cmp.Compare(a.At, b.At) })
	for _, d := range deliveries {
		if s := (session{d.Consumer, d.Epoch}); !seen[s] {
			seen[s] = true
			events = append(events, event{d.At, 2, func(o *Online) { o.Subscribes(d.Consumer, d.Epoch) }})
		}
		at := 0
		events = append(events, event{d.At, 3, func(o *Online) {
			switch key, known := keys[d.Key]; {
			case known:
				d.Key = key
			case d.Key != 0:
				d.Key = 1<<63 | d.Key
			}
			at = o.Deliver(d)
		}})
		if d.Settled != 0 {
			events = append(events, event{d.Settled, 4, func(o *Online) { o.Settled([]int{at}) }})
		}
	}
	slices.SortStableFunc(events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.order, b.order))
	})
	for _, e := range events {
		o.now = func() time.Duration { return e.at }
		e.do(o)
	}
	return o
}

// online is an Online checker as a function from a history.
func online(h *history.History) Verdict {
	all := Verdict{Checker: "online"}
	for _, v := range replay(h).Verdicts() {
		all.Problems, all.Count = append(all.Problems, v.Problems...), all.Count+v.Count
	}
	return all
}

// An Online checker and those that have whole histories agree on all golden histories
// that are not about dead letters, and about what the last consumer has settled.
func TestOnlineAgrees(t *testing.T) {
	compared := 0
	for _, folder := range []string{"lost", "unanswered", "ghosts", "doubled", "disorder"} {
		files, err := filepath.Glob(filepath.Join("testdata", folder, "*.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			h, err := history.Read(f)
			if f.Close(); err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(h.Deliveries, func(d history.Delivery) bool { return d.Death != nil }) {
				continue
			}
			compared++
			want := checkers[folder](h)
			for _, v := range replay(h).Verdicts() {
				if v.Checker == want.Checker && v.Held() != want.Held() {
					t.Errorf("%s: found %q, and %q in the whole history", path, v.Problems, want.Problems)
				}
			}
		}
	}
	if compared < 12 {
		t.Errorf("%d histories compared", compared)
	}
}

// What is missing is known at any time, and what is counted is in the history.
func TestOnlineCounts(t *testing.T) {
	h := history.New()
	o := NewOnline(h)
	var keys []uint64
	for range 200 {
		keys = append(keys, o.Begin(history.Attempt{Message: o.NextMessage(), Publisher: "p", Epoch: 1, Queue: "q"}))
	}
	for i, key := range keys {
		o.End(key, history.OK)
		if i%2 == 0 {
			o.Deliver(history.Delivery{Key: key, Queue: "q", Consumer: "c"})
		}
	}
	if o.Missing() != 100 || h.Answers() != 200 || h.Past != (history.Counts{Published: 200, Confirmed: 200, Delivered: 100}) {
		t.Errorf("missing %d, answers %d, counted %+v", o.Missing(), h.Answers(), h.Past)
	}
	if lost := o.Verdicts()[0]; lost.Checker != "lost" || lost.Count != 100 {
		t.Errorf("%+v", lost)
	}
}
