package group

import (
	"cmp"
	"container/heap"
	"time"

	"github.com/quorate/quorate/fsm"
)

// agenda holds the elections of a node, those first that are looked at first: each when something has changed
// for it, or at a time that it has named.
type agenda struct{ byTime electionHeap }

// add has an election looked at by a time; zero: at once.
func (a *agenda) add(v *election, at time.Time) {
	if v.place < 0 || at.Before(v.at) {
		v.at = at
		a.byTime.put(v)
	}
}

// take removes and returns the elections that are due.
func (a *agenda) take(now time.Time) (due []*election) {
	for a.byTime.Len() > 0 && !a.byTime.list[0].at.After(now) {
		due = append(due, heap.Pop(&a.byTime).(*election))
	}
	return due
}

// next is how long it takes until the first one is due; 0: there is none.
func (a *agenda) next() time.Duration {
	if a.byTime.Len() == 0 {
		return 0
	}
	return max(time.Until(a.byTime.list[0].at), electionPause)
}

// scheduled is where an election is on the agenda, and among those that wait for the window.
type scheduled struct {
	at               time.Time // when it is checked, while it is on the agenda
	place, waitPlace int       // -1: it is not there
}

// electionHeap is a heap of elections that knows where each is.
type electionHeap struct {
	list  []*election
	less  func(v, w *election) bool
	place func(v *election) *int // in the list; -1: it is not there
}

func newAgenda() agenda {
	return agenda{electionHeap{
		less:  func(v, w *election) bool { return v.at.Before(w.at) },
		place: func(v *election) *int { return &v.place },
	}}
}

// newWaiting returns the elections in which it is this node's turn, those first that somebody waits for, then in
// order of time.
func newWaiting() electionHeap {
	return electionHeap{
		less: func(v, w *election) bool {
			if v.urgent != w.urgent {
				return v.urgent
			}
			return cmp.Or(v.ready.Compare(w.ready), cmp.Compare(v.group.Spec().Group, w.group.Spec().Group)) < 0
		},
		place: func(v *election) *int { return &v.waitPlace },
	}
}

// put adds an election, or moves it to where it belongs now.
func (h *electionHeap) put(v *election) {
	if i := *h.place(v); i >= 0 {
		heap.Fix(h, i)
	} else {
		heap.Push(h, v)
	}
}

// remove takes an election out if it is there.
func (h *electionHeap) remove(v *election) {
	if i := *h.place(v); i >= 0 {
		heap.Remove(h, i)
	}
}

// Len implements heap.Interface.
func (h *electionHeap) Len() int { return len(h.list) }

// Less implements heap.Interface.
func (h *electionHeap) Less(i, j int) bool { return h.less(h.list[i], h.list[j]) }

// Swap implements heap.Interface.
func (h *electionHeap) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	*h.place(h.list[i]), *h.place(h.list[j]) = i, j
}

// Push implements heap.Interface.
func (h *electionHeap) Push(v any) {
	*h.place(v.(*election)) = len(h.list)
	h.list = append(h.list, v.(*election))
}

// Pop implements heap.Interface.
func (h *electionHeap) Pop() any {
	last := len(h.list) - 1
	v := h.list[last]
	h.list[last], h.list = nil, h.list[:last]
	*h.place(v) = -1
	return v
}

// termShown is when raft shows a term that it has stored.
const termShown = 5 * time.Millisecond

// termChanged has the election of a group looked at, if there is one: raft is about to show another term.
func (e *elections) termChanged(id fsm.GroupID) { e.touch(id, e.now().Add(termShown)) }

// touch has the election of a group looked at by a time, if there is one.
func (e *elections) touch(id fsm.GroupID, at time.Time) {
	e.mu.Lock()
	v := e.running[id]
	if v != nil {
		e.agenda.add(v, at)
	}
	e.mu.Unlock()
	if v != nil {
		e.worker.Wake()
	}
}

// peersChanged has all elections looked at: a node has come up or gone down.
func (e *elections) peersChanged() {
	e.mu.Lock()
	for _, v := range e.running {
		e.agenda.add(v, time.Time{})
	}
	e.mu.Unlock()
	e.worker.Wake()
}
