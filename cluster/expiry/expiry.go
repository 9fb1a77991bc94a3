// Package expiry deletes exchanges that have been unused for as long as their
// argument x-auto-delete-on-idle says, as queues do themselves. Only the leader of
// the catalog does so, by what the leaders of the queues say that are bound to an
// exchange: it is kept until all of them have answered. Uses has the catalog note
// what clients of this node use.
package expiry

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

const (
	// interval is how often the catalog's leader checks exchanges.
	interval = 500 * time.Millisecond
	// commitWait bounds how long the catalog may take to commit.
	commitWait = 5 * time.Second
)

// Catalog is the catalog of this node.
type Catalog interface {
	View() *catalog.View
	Leader() string // the node that leads it; empty: none
	// Note commits commands, and returns their answers.
	Note(ctx context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error)
}

// Config is what exchanges are checked by.
type Config struct {
	Self    string // the name of this node
	Catalog Catalog
	Now     func() fsm.Time
	// Activity asks the leaders of queues when these were last in use. Queues
	// whose leader does not answer are missing.
	Activity func(ctx context.Context, ids ...fsm.QueueID) map[fsm.QueueID]*peerpb.QueueStats
	Logger   *slog.Logger
}

// Exchanges deletes exchanges.
type Exchanges struct {
	c       Config
	since   fsm.Time // when this node began to lead the catalog; 0: it does not
	expired atomic.Uint64
}

// New returns what has deleted no exchange yet.
func New(c Config) *Exchanges { return &Exchanges{c: c} }

// Expired counts the exchanges deleted so far.
func (e *Exchanges) Expired() uint64 { return e.expired.Load() }

// Run checks exchanges until ctx ends.
func (e *Exchanges) Run(ctx context.Context) {
	e.since = 0
	worker.Every(ctx.Done(), interval, func() { e.check(ctx) })
}

// check is one turn. While the catalog had no leader nobody could note the use of
// an exchange, so the time of all begins anew when this node begins to lead.
func (e *Exchanges) check(ctx context.Context) {
	switch leads := e.c.Catalog.Leader() == e.c.Self; {
	case !leads:
		e.since = 0
	case e.since == 0:
		e.since = e.c.Now()
	default:
		e.expireUnused(ctx)
	}
}

// candidate is an exchange that has been unused for too long by what the catalog
// knows.
type candidate struct {
	*catalog.Exchange
	active fsm.Time
	queues []fsm.QueueID            // whose use is use of it
	waits  map[fsm.QueueID]struct{} // those of them whose scheduled messages are going to use it
}

// expireUnused deletes the exchanges that have been unused, and notes the use of
// those that are in use all the same.
func (e *Exchanges) expireUnused(ctx context.Context) {
	now := e.c.Now()
	var candidates []candidate
	var queues []fsm.QueueID
	for x, active := range e.c.Catalog.View().IdleExchanges() {
		if x.IdleEnd(max(active, e.since)) <= now {
			i := candidate{Exchange: x, active: active}
			i.findQueues(e.c.Catalog.View())
			candidates, queues = append(candidates, i), append(queues, i.queues...)
		}
	}
	var activity map[fsm.QueueID]*peerpb.QueueStats
	if len(queues) > 0 {
		activity = e.c.Activity(ctx, queues...)
	}
	for _, i := range candidates {
		last, known := i.lastUse(activity, now)
		switch {
		case !known: // not yet
		case i.IdleEnd(last) <= now:
			e.expire(ctx, i, now)
		default:
			e.commit(ctx, touch(i.VHost, i.Name, last))
		}
	}
}

// findQueues lists the queues that are bound to the exchange, those that are parts of it, and
// the one that keeps what it delays.
func (i *candidate) findQueues(v *catalog.View) {
	i.waits = map[fsm.QueueID]struct{}{}
	for _, b := range v.BindingsFrom(i.VHost, i.Name) {
		if q, ok := v.Queue(i.VHost, b.Destination); ok && !b.ToExchange {
			i.queues = append(i.queues, q.ID)
		}
	}
	keeps := v.Parts(i.Exchange)
	if i.Store != nil {
		keeps = append(keeps, i.Store)
	}
	for _, q := range keeps {
		i.queues = append(i.queues, q.ID)
		i.waits[q.ID] = struct{}{}
	}
	slices.Sort(i.queues)
	i.queues = slices.Compact(i.queues)
}

// lastUse is when the exchange was last in use, as the leaders of its queues
// say. known: all of them do.
func (i *candidate) lastUse(activity map[fsm.QueueID]*peerpb.QueueStats, now fsm.Time) (last fsm.Time, known bool) {
	last = i.active
	for _, id := range i.queues {
		f, ok := activity[id]
		_, waits := i.waits[id]
		switch {
		case !ok:
			return 0, false
		case f.InUse || waits && f.MessagesScheduled > 0:
			last = now
		default:
			last = max(last, min(fsm.Time(f.LastActive), now))
		}
	}
	return last, true
}

func (e *Exchanges) expire(ctx context.Context, i candidate, now fsm.Time) {
	if !e.commit(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_ExpireExchange{
		ExpireExchange: &logpb.ExpireExchange{Vhost: i.VHost, Name: i.Name, At: int64(now)},
	}}) {
		return
	}
	e.expired.Add(1)
	e.c.Logger.Info("idle exchange deleted", "exchange", i.Name, "vhost", i.VHost,
		"idle", time.Duration(i.Idle())*time.Millisecond, "last_active", time.UnixMilli(int64(i.active)).UTC())
}

// commit commits a command about an exchange, and reports whether it has changed
// anything. What fails is tried again at the next check.
func (e *Exchanges) commit(ctx context.Context, c *logpb.CatalogCommand) bool {
	ctx, cancel := context.WithTimeout(ctx, commitWait)
	defer cancel()
	r, err := e.c.Catalog.Note(ctx, c)
	if err != nil {
		e.c.Logger.Debug("idle exchange: the catalog does not answer", "error", err)
		return false
	}
	return r[0].Changed
}
