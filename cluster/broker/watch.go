package broker

import (
	"time"

	"github.com/quorate/quorate/cluster/deadletter"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm/catalog"
)

// How often the watch repeats work that no event causes, in rounds; the first is a duration.
const (
	watchEvery   = 250 * time.Millisecond
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
	rounds  int
}

// round does all of it once. A panic in one step does not affect the others.
func (w *watch) round() {
	now := w.now()
	w.watched = w.routes.Watch(w.watched)
	if w.rounds++; w.rounds%suspectEvery == 0 {
		w.guard("check suspects", func() { w.detector.check(now) })
		if w.reporter.pending.Load() || w.rounds%reportEvery == 0 { // again, in case a proposal was lost
			w.guard("tell queues of nodes", func() { w.reporter.reportAll(false) })
		}
	}
	if w.rounds%reportEvery == 0 {
		w.guard("end sources", w.endSources)
	}
	w.guard("send again", w.links.repeat)
	w.guard("wake dead letters", w.letters.Wake)
}

// endSources ends the sessions of queues that are gone, at all queues that this node leads, if the
// catalog has changed since the last check that found none.
func (w *watch) endSources() {
	v := w.view()
	if v == w.sources {
		return
	}
	more := false
	for _, g := range w.groups.Groups() {
		if g.Leading() != 0 && deadletter.EndSources(g, v) {
			more = true
		}
	}
	if !more {
		w.sources = v
	}
}
