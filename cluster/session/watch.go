package session

import (
	"time"

	"github.com/quorate/quorate/cluster/deadletter"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm/catalog"
)

// How often the watch repeats work that no event causes, in multiples of watchEvery; that is a duration.
const (
	watchEvery   = 250 * time.Millisecond
	watchRest    = 2  // all, while nothing waits
	suspectEvery = 4  // suspects, and queues with outdated knowledge of nodes
	reportEvery  = 20 // all queues, while there are suspects
)

// watch repeats what may have been lost: it searches for leaders that nobody has announced, sends
// unanswered commands again, has suspects declared dead, and tells queues again which nodes are
// dead, suspected or back.
type watch struct {
	*node
	*tasks
	routes   *stream.Table
	letters  *deadletter.Sender
	detector *detector
	reporter *reporter
	links    *links

	watched []*stream.Route
	sources *catalog.View // the last view at which no queue had a session of a queue that is gone
	rounds  int           // multiples of watchEvery that have passed
	wait    int           // of which the last round is ago
}

// run runs rounds until stop is closed.
func (w *watch) run(stop <-chan struct{}) {
	worker.Again(stop, func() time.Duration {
		w.wait = watchRest
		if w.round() {
			w.wait = 1
		}
		return time.Duration(w.wait) * watchEvery
	})
}

// round does all of it once, and reports whether something waits. A panic in one step does not affect
// the others.
func (w *watch) round() (waits bool) {
	now := w.now()
	w.watched = w.routes.Watch(w.watched)
	before := w.rounds
	w.rounds += max(1, w.wait)
	passed := func(every int) bool { return w.rounds/every != before/every }
	if passed(suspectEvery) {
		w.guard("check suspects", func() { w.detector.check(now) })
		if w.reporter.pending.Load() || passed(reportEvery) { // again, in case a proposal was lost
			w.guard("report nodes to queues", func() { w.reporter.reportAll(false) })
		}
	}
	if passed(reportEvery) {
		w.guard("end sources", w.endSources)
	}
	waits = len(w.watched) > 0
	w.guard("send again", func() { waits = w.links.repeat() || waits })
	w.guard("wake dead letters", func() { waits = w.letters.Wake() || waits })
	return waits
}

// endSources ends the sessions of queues that are gone, at all queues that this node leads, if the
// catalog has changed since the last check that found none.
func (w *watch) endSources() {
	v := w.view()
	if v == w.sources {
		return
	}
	more := false
	for _, g := range w.groups.Led() {
		if deadletter.EndSources(g, v) {
			more = true
		}
	}
	if !more {
		w.sources = v
	}
}
