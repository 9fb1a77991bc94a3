package broker

import (
	"log/slog"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
)

// loggedIDs bounds how many delivery ids a log line names.
const loggedIDs = 20

// noteLateness counts and logs deliveries that went back, and those that were
// settled all the same: of each consumer once, so that a consumer that always
// is late does not fill the log.
func (b *Broker) noteLateness(g *group.Group, w *group.Work) {
	for _, t := range w.Timeouts {
		if !t.Again {
			b.timedOut.Add(uint64(len(t.Deliveries)))
		}
		if t.First {
			b.logLate(g, "consumer timeout", t.To, t.Tag, t.Deliveries, t.Limit, t.Held)
		}
	}
	for _, l := range w.LateAcks {
		b.lateAcks.Add(uint64(len(l.Deliveries)))
		if !l.First {
			continue
		}
		b.logLate(g, "acknowledgement after the consumer timeout", l.Of, l.Tag, l.Deliveries, l.Limit, l.Held)
	}
}

// Lateness counts the messages that went back while this node led their
// queues, and those that were settled all the same.
func (b *Broker) Lateness() (timedOut, lateAcks uint64) { return b.timedOut.Load(), b.lateAcks.Load() }

func (b *Broker) logLate(g *group.Group, what string, of fsm.ConsumerID, tag string, ids []uint64, limit, held fsm.Millis) {
	q, ok := b.view().QueueByID(g.Spec().Queue)
	if !ok {
		return
	}
	if of.Number == 0 {
		tag = "(basic.get)"
	}
	b.slog.Info(what, "queue", q.Name, "vhost", q.VHost, "consumer", tag, "node", b.nodeName(of.Session.Node),
		"deliveries", ids[:min(len(ids), loggedIDs)], "count", len(ids),
		slog.Duration("held", time.Duration(held)*time.Millisecond), slog.Int64("timeout_ms", int64(limit)))
}
