package session

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
)

// loggedIDs bounds how many delivery ids a log line names.
const loggedIDs = 20

// getTag stands for the tag where a delivery is one of basic.get.
const getTag = "(basic.get)"

// lateness counts the messages that went back because consumers held them for too long, and those
// that were settled late all the same, while this node led their queues.
type lateness struct {
	*node
	timedOut, acks atomic.Uint64
	last           lastTimeouts
}

// note counts and logs deliveries that went back and those that were settled late, once per
// consumer, so that a consumer that is always late does not fill the log.
func (x *lateness) note(g *group.Group, w *group.Work) {
	for _, t := range w.Timeouts {
		if !t.Again {
			x.timedOut.Add(uint64(len(t.Deliveries)))
			x.last.led(g.Spec(), &t, x.stamp())
		}
		if t.First {
			x.log(g, "consumer timeout", t.To, t.Tag, t.Deliveries, t.Limit, t.Held)
		}
	}
	for _, l := range w.LateAcks {
		x.acks.Add(uint64(len(l.Deliveries)))
		if !l.First {
			continue
		}
		x.log(g, "acknowledgement after the consumer timeout", l.Of, l.Tag, l.Deliveries, l.Limit, l.Held)
	}
}

func (x *lateness) log(g *group.Group, what string, of fsm.ConsumerID, tag string, ids []uint64, limit, held fsm.Millis) {
	q, ok := x.view().QueueByID(g.Spec().Queue)
	if !ok {
		return
	}
	if of.Number == 0 {
		tag = getTag
	}
	x.slog.Info(what, "queue", q.Name, "vhost", q.VHost, "consumer", tag, "node", x.nameOf(of.Session.Node),
		"deliveries", ids[:min(len(ids), loggedIDs)], "count", len(ids),
		slog.Duration("held", time.Duration(held)*time.Millisecond), slog.Int64("timeout_ms", int64(limit)))
}
