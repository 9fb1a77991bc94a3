package fsmtest

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// tally is by which value of a header a message counts; no 0: by none.
type tally struct {
	no    int
	value string
}

// other is the number of the tally of all values that are too many.
const other = 101

// tallied are the messages that count by a value.
func (q *model) tallied() []*message {
	return slices.DeleteFunc(slices.Clone(q.messages), func(x *message) bool { return x.no == 0 || x.place == purged })
}

// tallyOf is the tally of a new message: that of its value, the first one that no message has, or that of others.
func (q *model) tallyOf(e *logpb.Enqueue) tally {
	if e.Tally == "" || q.version < 3 {
		return tally{}
	}
	used := map[int]bool{}
	for _, x := range q.tallied() {
		if used[x.no] = true; x.tally.value == e.Tally && x.no != other {
			return x.tally
		}
	}
	for no := 1; no <= q.bounds.Tallies; no++ {
		if !used[no] {
			return tally{no, e.Tally}
		}
	}
	return tally{no: other}
}

func (q *model) tallyList() (list []queue.Tally) {
	of := map[int]*queue.Tally{}
	oldest := map[int]*message{}
	for _, x := range q.tallied() {
		t := of[x.no]
		if t == nil {
			t = &queue.Tally{Value: x.tally.value, Other: x.no == other}
			of[x.no] = t
		}
		switch x.place {
		case ready, returned, grouped:
			t.Ready++
			if o := oldest[x.no]; o == nil || x.seq < o.seq {
				oldest[x.no], t.OldestReady = x, x.readySince()
			}
		case checkedOut:
			t.Unacked++
		case scheduled:
			t.Scheduled++
		}
	}
	for no := 1; no <= other; no++ {
		if t := of[no]; t != nil && t.Ready+t.Unacked+t.Scheduled > 0 {
			list = append(list, *t)
		}
	}
	return list
}

// readySince is from when on the age of a ready message counts.
func (x *message) readySince() fsm.Time { return max(x.came, x.scheduledFor, 1) }

func (q *model) oldest() (o queue.Oldest) {
	var first, planned *message
	for _, x := range q.messages {
		switch x.place {
		case ready, returned, grouped:
			if first == nil || x.seq < first.seq {
				first, o.Ready = x, x.readySince()
			}
		case scheduled:
			if planned == nil || x.seq < planned.seq {
				planned, o.Scheduled = x, max(x.came, 1)
			}
		case checkedOut:
			if o.Unacked == 0 || x.since < o.Unacked {
				o.Unacked = x.since
			}
		}
	}
	return o
}
