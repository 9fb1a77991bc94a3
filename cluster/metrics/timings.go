package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/cluster/durations"
)

// timing is a row of the table that is a histogram of durations, which are counted elsewhere.
type timing struct {
	name, help string
	read       func(s *Stats) *durations.Counts
}

var timings = []timing{
	{"quorate_raft_apply_duration_seconds", "Time in which a replica of a queue applies a batch of committed entries, and hands their effects on", func(s *Stats) *durations.Counts { return &s.Meters.Applies }},
	{"quorate_raft_fsync_duration_seconds", "Time of a durable write to the queues' logs, from its begin until it is on disk", func(s *Stats) *durations.Counts { return &s.Log.Syncs }},
	{"quorate_raft_snapshot_duration_seconds", "Time in which a snapshot of a queue is written", func(s *Stats) *durations.Counts { return &s.Meters.Snapshots }},
}

// histograms lists the rows of the table that are histograms.
func histograms() []metric {
	rows := []metric{lateness, sizes}
	for _, t := range timings {
		rows = append(rows, metric{name: t.name, kind: histogram, help: t.help})
	}
	return rows
}

// timingDescs describes the timings.
func timingDescs() (descs []*prometheus.Desc) {
	for _, t := range timings {
		descs = append(descs, prometheus.NewDesc(t.name, t.help, nil, nil))
	}
	return descs
}

// timed is a histogram of durations.
func timed(c *durations.Counts, desc *prometheus.Desc) prometheus.Metric {
	return histogramOf(desc, c.Of[:], func(i int) float64 { return durations.Bounds[i].Seconds() }, c.Sum.Seconds())
}
