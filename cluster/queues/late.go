package queues

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// loggedIDs bounds how many delivery ids a log line names.
const loggedIDs = 20

// getTag stands for the tag where a delivery is one of basic.get.
const getTag = "(basic.get)"

// Timeouts counts the messages that went back because consumers held them for too long, and those
// that were settled late all the same, while this node led their queues. It remembers the last ones,
// and which consumers of this node's clients were told of one. A restart forgets them.
type Timeouts struct {
	node           *self.Node
	timedOut, acks atomic.Uint64

	mu   sync.Mutex
	here []*peerpb.ConsumerTimeout // in queues that this node led, by age
	late []*peerpb.LateConsumer    // by age, each consumer once
}

// note counts and logs deliveries that went back and those that were settled late, once per
// consumer, so that a consumer that is always late does not fill the log.
func (l *Timeouts) note(g *group.Group, w *group.Work) {
	for _, t := range w.Timeouts {
		if !t.Again {
			l.timedOut.Add(uint64(len(t.Deliveries)))
			l.led(g.Spec(), &t, l.node.Stamp())
		}
		if t.First {
			l.log(g, "consumer timeout", t.To, t.Tag, t.Deliveries, t.Limit, t.Held)
		}
	}
	for _, late := range w.LateAcks {
		l.acks.Add(uint64(len(late.Deliveries)))
		if !late.First {
			continue
		}
		l.log(g, "acknowledgement after the consumer timeout", late.Of, late.Tag, late.Deliveries, late.Limit, late.Held)
	}
}

func (l *Timeouts) log(g *group.Group, what string, of fsm.ConsumerID, tag string, ids []uint64, limit, held fsm.Millis) {
	q, ok := l.node.View().QueueByID(g.Spec().Queue)
	if !ok {
		return
	}
	if of.Number == 0 {
		tag = getTag
	}
	l.node.Logger.Info(what, "queue", q.Name, "vhost", q.VHost, "consumer", tag, "node", l.node.NodeName(of.Session.Node),
		"deliveries", ids[:min(len(ids), loggedIDs)], "count", len(ids),
		slog.Duration("held", time.Duration(held)*time.Millisecond), slog.Int64("timeout_ms", int64(limit)))
}

// maxTimeouts is how many consumer timeouts a node remembers, and of how many consumers of its own
// clients it remembers who they were: a channel may be closed because of a timeout.
const maxTimeouts = 256

// led records a timeout in a queue that this node leads.
func (l *Timeouts) led(of group.Spec, t *fsm.Timeout, at fsm.Time) {
	tag := t.Tag
	if t.To.Number == 0 {
		tag = getTag
	}
	x := &peerpb.ConsumerTimeout{
		At: int64(at), Queue: uint64(of.Queue), Vhost: of.VHost, Name: of.Name,
		Node: uint32(t.To.Session.Node), Boot: t.To.Session.Boot, Session: t.To.Session.Num, Number: t.To.Number, Tag: tag,
		Messages: uint64(len(t.Deliveries)), Held: uint64(t.Held), Timeout: uint64(t.Limit),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.here = append(lastOf(l.here), x)
}

// Noticed records a consumer of this node's clients that is told of a timeout. Messages of it may be told
// again.
func (l *Timeouts) Noticed(x *peerpb.LateConsumer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late = slices.DeleteFunc(l.late, func(o *peerpb.LateConsumer) bool {
		return o.Number == x.Number && o.Session.Session == x.Session.Session && o.Session.Boot == x.Session.Boot
	})
	l.late = append(lastOf(l.late), x)
}

// lastOf makes space for one more in a list, which drops its first.
func lastOf[T any](list []T) []T {
	return slices.Delete(list, 0, max(0, len(list)-maxTimeouts+1))
}

// List returns what is remembered, by age.
func (l *Timeouts) List() *peerpb.TimeoutsReply {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &peerpb.TimeoutsReply{Led: slices.Clone(l.here), Served: slices.Clone(l.late)}
}
