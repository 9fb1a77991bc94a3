package mgmt

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/proto/peerpb"
)

const (
	// dueWithin is within how many seconds a message is to become ready to count as work, if a request does not say.
	dueWithin = 60
	// longestWithin bounds what a request may say.
	longestWithin = 30 * 24 * 3600
)

// scaling answers autoscalers with the numbers of one queue. Whoever does not get them from its leader gets none: a 0
// that nobody has counted would scale the consumers down.
func (qs queues) scaling(w *responder, r *request) {
	q := w.queue(r)
	if q == nil {
		return
	}
	within := uint64(dueWithin)
	if text := r.URL.Query().Get("within"); text != "" {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil || n > longestWithin {
			w.badRequest(fmt.Sprintf("within must be a number of seconds from 0 to %d", longestWithin))
			return
		}
		within = n
	}
	var s stats.Queue
	var led bool
	var report *traffic.Report
	together(
		func() { s, led = qs.queues.StatsDue(r.Context(), q.ID, within*1000) },
		func() {
			report = qs.traffic.Traffic(r.Context(), traffic.Query{Of: peerpb.TrafficRequest_QUEUES, One: true, Queue: q.ID})
		},
	)
	if !led {
		w.unavailable(fmt.Errorf("no leader of %s answers", q))
		return
	}
	seconds := func(ms *uint64) float64 {
		if ms == nil {
			return 0
		}
		return float64(*ms) / 1000
	}
	d := api.Scaling{
		Ready: s.Ready, Unacknowledged: s.Unacknowledged, Backlog: s.Ready + s.Unacknowledged + s.Due, Scheduled: s.Scheduled, Due: s.Due,
		Within: within, Consumers: s.Consumers,
		OldestReadyAge: seconds(s.OldestReadyAge), OldestUnackedAge: seconds(s.OldestUnackedAge), OldestScheduledAge: seconds(s.OldestScheduledAge),
	}
	if s.Paused {
		d.Paused = 1
	}
	if s.ConsumerCapacity != nil {
		d.Capacity, d.Utilisation = *s.ConsumerCapacity, *s.ConsumerCapacity
	}
	if a := report.Queues[q.ID]; a != nil {
		d.PublishRate, d.AckRate = a.Rate[traffic.Publish], a.Rate[traffic.Ack]
		for _, c := range handedOut {
			d.DeliverRate += a.Rate[c]
		}
	}
	w.answer(http.StatusOK, d)
}
