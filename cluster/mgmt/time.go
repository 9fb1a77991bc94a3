package mgmt

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/peerpb"
)

// ahead serves what comes next: in all queues that the user may see, and in each.
type ahead struct{ queues Queues }

// sum answers with the counts of all queues.
func (a ahead) sum(w *responder, r *request) {
	all := a.queues.Ahead(r.Context())
	t := api.Time{CountedAt: int64(all.At), Within: make([]api.TimeWithin, len(all.Within))}
	for i, ms := range all.Within {
		t.Within[i].WithinMS = ms
	}
	vhosts, _ := r.vhosts()
	for _, vhost := range vhosts {
		for _, q := range all.View.QueuesOf(vhost) {
			x, ok := all.Of[q.ID]
			if !ok {
				t.Unknown++
				continue
			}
			t.Queues++
			t.AtLeast = t.AtLeast || x.AtLeast
			for i := range t.Within {
				addTime(&t.Within[i].TimeCounts, all, x, i)
			}
		}
	}
	t.AtLeast = t.AtLeast || t.Unknown > 0
	t.Next = nextOf(all, func(i int) api.TimeCounts { return t.Within[i].TimeCounts })
	w.answer(http.StatusOK, t)
}

// list answers with the queues in which something comes within a day, those first in which it comes first.
func (a ahead) list(w *responder, r *request) {
	vhosts, ok := r.vhosts()
	if !ok {
		w.notFound()
		return
	}
	all := a.queues.Ahead(r.Context())
	items := []api.QueueTime{}
	for _, vhost := range vhosts {
		for _, q := range all.View.QueuesOf(vhost) {
			if x, ok := all.Of[q.ID]; ok {
				if row := timeOf(all, q, x); row.Day != (api.TimeCounts{}) {
					items = append(items, row)
				}
			}
		}
	}
	slices.SortStableFunc(items, func(a, b api.QueueTime) int { return cmp.Compare(a.NextAt, b.NextAt) })
	list(w, r, items)
}

// timeOf is what comes next in a queue.
func timeOf(all *stats.Ahead, q *catalog.Queue, x *peerpb.QueueTime) api.QueueTime {
	return api.QueueTime{
		VHost: q.VHost, Name: q.Name, Exchange: q.StoreOf, NextAt: x.NextAt, AtLeast: x.AtLeast,
		Next: nextOf(all, func(i int) (c api.TimeCounts) {
			addTime(&c, all, x, i)
			return c
		}),
	}
}

// nextOf takes the counts of a minute, an hour and a day.
func nextOf(all *stats.Ahead, counts func(i int) api.TimeCounts) (n api.Next) {
	for span, to := range map[time.Duration]*api.TimeCounts{time.Minute: &n.Minute, time.Hour: &n.Hour, day: &n.Day} {
		*to = counts(slices.Index(all.Within, uint64(span.Milliseconds())))
	}
	return n
}

// addTime adds what comes in a queue within one of the times that were asked about.
func addTime(to *api.TimeCounts, all *stats.Ahead, x *peerpb.QueueTime, i int) {
	at := func(counts []uint64) uint64 {
		if i < len(counts) {
			return counts[i]
		}
		return 0
	}
	to.Expire += at(x.Expire)
	if x.DeadLetters {
		to.DeadLetter += at(x.Expire)
	}
	to.Fire, to.TimeOut, to.Unlock = to.Fire+at(x.Fire), to.TimeOut+at(x.TimeOut), to.Unlock+at(x.Unlock)
	to.Retry, to.Return = to.Retry+at(x.Retry), to.Return+at(x.Return)
	if x.DeletedAt != 0 && x.DeletedAt <= int64(all.At)+int64(all.Within[i]) {
		to.Delete++
	}
}
