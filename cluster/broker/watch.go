package broker

import (
	"time"

	"github.com/quorate/quorate/cluster/deadletter"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm/catalog"
)

// How often the watch does what no event causes, in rounds but the first.
const (
	watchEvery   = 250 * time.Millisecond
	suspectEvery = 4  // suspects, and queues that disagree about nodes
	reportEvery  = 20 // all queues, while there are suspects
)

// watch repeats what may have got lost: it asks for leaders that nobody has
// announced, sends again what is not answered, has suspects declared dead, and
// tells queues again of nodes that are dead, suspected or back.
type watch struct {
	*node
	*tasks
	routes   *stream.Table
	letters  *deadletter.Sender
	detector *detector
	reporter *reporter
	links    *links

	watched []*stream.Route
	sources *catalog.View // the last one with which no queue had a session of a queue that is gone
	rounds  int
}

// round does everything once. A panic in one thing leaves the others alone.
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

// endSources ends the sessions of queues that are gone at all queues that this
// node leads, if the catalog has changed since all were seen to have none.
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
