package cluster

import (
	"context"
	"time"

	"github.com/quorate/quorate/cluster/broker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// idlePace is how often the catalog's leader looks for idle exchanges.
const idlePace = 500 * time.Millisecond

// expireExchanges deletes exchanges that have been idle, while this node leads
// the catalog.
func (n *Node) expireExchanges() {
	tick := time.NewTicker(idlePace)
	defer tick.Stop()
	var began fsm.Time // to lead; 0: this node does not
	for {
		select {
		case <-n.loops.Life().Done():
			return
		case <-tick.C:
		}
		switch leads := n.catalog.Leader() == n.config.Name; {
		case !leads:
			began = 0
		case began == 0:
			began = n.clock.Now()
		default:
			n.expireIdle(began)
		}
	}
}

// idler is an exchange that nobody has used for long, by what the catalog
// knows.
type idler struct {
	*catalog.Exchange
	active fsm.Time
	queues []fsm.QueueID // whose use is use of it
}

// expireIdle deletes the exchanges that have been idle, and notes the use of
// those that are in use all the same. While the catalog had no leader nobody
// could note anything, so the time of all begins anew when this node began to
// lead.
func (n *Node) expireIdle(began fsm.Time) {
	now := n.clock.Now()
	var idlers []idler
	var ask []fsm.QueueID
	for x, active := range n.View().IdleExchanges() {
		if x.IdleEnd(max(active, began)) <= now {
			i := idler{Exchange: x, active: active}
			i.findQueues(n.View())
			idlers, ask = append(idlers, i), append(ask, i.queues...)
		}
	}
	var activity map[fsm.QueueID]*peerpb.QueueStats
	if len(ask) > 0 {
		activity = n.queues.Activity(n.loops.Life(), ask...)
	}
	for _, i := range idlers {
		last, known := i.lastUse(activity, now)
		switch {
		case !known: // not yet
		case i.IdleEnd(last) <= now:
			n.expire(i, now)
		default:
			n.proposeIdle(broker.TouchExchange(i.VHost, i.Name, last))
		}
	}
}

// findQueues lists the queues that are bound to the exchange, and the one that
// keeps what it delays.
func (i *idler) findQueues(v *catalog.View) {
	for _, b := range v.BindingsFrom(i.VHost, i.Name) {
		if q, ok := v.Queue(i.VHost, b.Destination); ok && !b.ToExchange {
			i.queues = append(i.queues, q.ID)
		}
	}
	if i.Store != nil {
		i.queues = append(i.queues, i.Store.ID)
	}
}

// lastUse is when the exchange was last in use, as the leaders of its queues
// say. known: all of them do.
func (i *idler) lastUse(activity map[fsm.QueueID]*peerpb.QueueStats, now fsm.Time) (last fsm.Time, known bool) {
	last = i.active
	for _, id := range i.queues {
		f, ok := activity[id]
		switch {
		case !ok:
			return 0, false
		case f.InUse || i.Store != nil && id == i.Store.ID && f.MessagesScheduled > 0:
			last = now
		default:
			last = max(last, min(fsm.Time(f.LastActive), now))
		}
	}
	return last, true
}

func (n *Node) expire(i idler, now fsm.Time) {
	if !n.proposeIdle(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_ExpireExchange{
		ExpireExchange: &logpb.ExpireExchange{Vhost: i.VHost, Name: i.Name, At: int64(now)},
	}}) {
		return
	}
	n.expired.Add(1)
	n.slog.Info("exchange deleted for being idle", "exchange", i.Name, "vhost", i.VHost,
		"idle", time.Duration(i.Idle())*time.Millisecond, "last_active", time.UnixMilli(int64(i.active)).UTC())
}

// proposeIdle proposes a command about an exchange, and reports whether it has
// changed anything. What fails is tried again at the next look.
func (n *Node) proposeIdle(c *logpb.CatalogCommand) bool {
	ctx, cancel := context.WithTimeout(n.loops.Life(), settleWait)
	defer cancel()
	r, err := n.Note(ctx, c)
	if err != nil {
		n.slog.Debug("idle exchange: the catalog does not answer", "error", err)
		return false
	}
	return r[0].Changed
}
