package checker

import (
	"slices"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// atLeastFailed is how often a message has been delivered that is parked for the first time: it has
// failed once more than the default limit allows.
const atLeastFailed = 21

// Parked finds messages that are listed as parked and are not, or that came though nobody had put
// them back: what is parked was published, has failed often enough, was not settled, is listed once,
// and is handed out again only after an unpark.
func (c Lives) Parked(h *history.History) Verdict {
	p := problems{name: "parked"}
	all := lives(h)
	var unparks []history.Op
	for _, o := range h.Ops {
		if o.Kind == history.Unpark && o.Result != history.No {
			unparks = append(unparks, o)
		}
	}
	// unparked reports whether messages of a queue may have been put back between two moments.
	unparked := func(queue string, from, to time.Duration) bool {
		return slices.ContainsFunc(unparks, func(o history.Op) bool {
			return o.Queue == queue && o.Call < to && (o.Result == history.Unknown || o.Return > from)
		})
	}
	type line struct {
		client, queue string
		key           uint64
	}
	listed := map[line]bool{}
	for _, o := range h.Ops {
		if o.Kind != history.Parked {
			continue
		}
		at := line{o.Client, o.Queue, o.Key}
		if listed[at] {
			p.add("key %d is twice in a list of what is parked in queue %s at %v", o.Key, o.Queue, o.Return)
		}
		listed[at] = true
		l := all[place{o.Queue, o.Key}]
		if l == nil || l.Attempt.Queue != o.Queue {
			p.add("key %d is parked in queue %s at %v, and never came from it", o.Key, o.Queue, o.Return)
			continue
		}
		if o.Turn < atLeastFailed {
			p.add("key %d is parked in queue %s at %v after %d deliveries", o.Key, o.Queue, o.Return, o.Turn)
		}
		for _, d := range l.handed {
			if slices.ContainsFunc(d.then, func(s history.Op) bool {
				return s.Kind == history.Settle && s.Result == history.OK && s.Return < o.Call
			}) {
				p.add("key %d is parked in queue %s at %v, and %s has settled it", o.Key, o.Queue, o.Return, d.Client)
			}
			if d.Turn >= o.Turn && !unparked(o.Queue, o.Call, d.Return) {
				p.add("key %d is parked in queue %s at %v, and came to %s at %v", o.Key, o.Queue, o.Return, d.Client, d.Return)
			}
		}
	}
	return p.found()
}
