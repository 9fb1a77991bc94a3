package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/report"
)

// column is a number that is watched: one of it for each interval.
type column struct {
	report.Series
	// slack is by how much it may exceed what it was, beside flatFactor; 0: it is not judged.
	slack   float64
	latency bool
}

// flatFactor is by how much a number may exceed what it was early.
const flatFactor = 1.3

// gauges are read of each node. A number of an interval is the least that was read in it, so that what a collection
// frees does not count. Queues that are awake have goroutines, and how many are awake varies.
var gauges = []struct {
	name, unit string
	slack      float64
	of         func(n *cluster.Node, page map[string]float64) (float64, error)
}{
	{"resident memory", "MiB", 64, func(n *cluster.Node, _ map[string]float64) (float64, error) {
		bytes, err := n.RSSBytes()
		return float64(bytes) / (1 << 20), err
	}},
	{"live heap", "MiB", 32, func(_ *cluster.Node, page map[string]float64) (float64, error) {
		bytes, known := page["go_memstats_heap_alloc_bytes"]
		if !known {
			return 0, errors.New("no metric of the heap")
		}
		return bytes / (1 << 20), nil
	}},
	{"disk", "MiB", 512, func(n *cluster.Node, _ map[string]float64) (float64, error) {
		bytes, err := cluster.DiskBytes(n.DataDir())
		return float64(bytes) / (1 << 20), err
	}},
	{"goroutines", "", 500, func(_ *cluster.Node, page map[string]float64) (float64, error) { return page[goroutines], nil }},
	{"open files", "", 100, func(n *cluster.Node, _ map[string]float64) (float64, error) {
		files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.PID))
		return float64(len(files)), err
	}},
}

// latencySlack are milliseconds.
const latencySlack = 5

// watch is what a soak sees.
type watch struct {
	*soak
	columns []*column
	rolled  []bool // by interval: nodes were restarted in it
}

// watch reads the numbers of all intervals.
func (w *watch) watch(ctx context.Context, began time.Duration) {
	for _, g := range gauges {
		for _, n := range w.own.Nodes {
			w.columns = append(w.columns, &column{Series: report.Series{Name: g.name, Unit: g.unit, Of: n.Name()}, slack: g.slack})
		}
	}
	for _, name := range []string{"confirm", "delivery"} {
		for k, of := range []string{"p50", "p99", "max"} {
			c := &column{Series: report.Series{Name: name + " latency", Unit: "ms", Of: of}, slack: latencySlack, latency: true}
			if k == 2 {
				c.slack = 0 // the worst of all is only shown
			}
			w.columns = append(w.columns, c)
		}
	}
	w.columns = append(w.columns, &column{Series: report.Series{Name: "confirmed", Unit: "msg/s", Of: "all queues"}})
	every, last := w.duration/soakMarks, uint64(0)
	sample := min(soakSample, every)
	w.confirms.take()
	w.arrivals.take()
	for k := range soakMarks {
		until := began + time.Duration(k+1)*every
		rolled := w.rolling.Load()
		var least []float64
		for {
			must(pause(ctx, min(sample, until-clock())))
			if w.rolling.Load() {
				rolled = true
			} else if now, err := w.gauges(ctx); err == nil {
				least = lower(least, now)
			} else if !w.rolling.Load() && ctx.Err() == nil {
				must(err)
			}
			if clock() >= until {
				break
			}
		}
		sum := uint64(0)
		for _, p := range w.parts {
			p.mu.Lock()
			sum += p.confirmed
			p.mu.Unlock()
		}
		rate := float64(sum-last) / every.Seconds()
		last = sum
		w.mark((until - began).Seconds(), rolled, least, rate)
	}
}

// gauges reads the numbers of all nodes.
func (w *watch) gauges(ctx context.Context) (all []float64, err error) {
	pages := make([]map[string]float64, len(w.own.Nodes))
	for i, n := range w.own.Nodes {
		at, err := n.Metrics()
		if err != nil {
			return nil, err
		}
		text, err := fetch(ctx, http.MethodGet, "http://"+at+"/metrics")
		if err != nil {
			return nil, err
		}
		if pages[i], err = seriesIn(string(text)); err != nil {
			return nil, err
		}
	}
	for _, g := range gauges {
		for i, n := range w.own.Nodes {
			v, err := g.of(n, pages[i])
			if err != nil {
				return nil, fmt.Errorf("%s of %s: %w", g.name, n.Name(), err)
			}
			all = append(all, v)
		}
	}
	return all, nil
}

// lower returns the lesser ones of two lists.
func lower(a, b []float64) []float64 {
	for i := range a {
		b[i] = min(a[i], b[i])
	}
	return b
}

// mark ends an interval. What was not read in it, because nodes were restarted all the time, is as before.
func (w *watch) mark(at float64, rolled bool, least []float64, rate float64) {
	w.rolled = append(w.rolled, rolled)
	values := least
	for i := len(values); i < len(gauges)*len(w.own.Nodes); i++ {
		before := 0.0
		if n := len(w.columns[i].Values); n > 0 {
			before = w.columns[i].Values[n-1]
		}
		values = append(values, before)
	}
	for _, s := range []*samples{&w.confirms, &w.arrivals} {
		q := s.quantiles()
		if q == nil {
			q = &report.Quantiles{}
		}
		values = append(values, q.P50, q.P99, q.Max)
	}
	values = append(values, rate)
	for i, c := range w.columns {
		c.At, c.Values = append(c.At, at), append(c.Values, values[i])
	}
	nodes := len(w.own.Nodes)
	sums := make([]float64, len(gauges))
	for i := range sums {
		for _, v := range values[i*nodes : (i+1)*nodes] {
			sums[i] += v
		}
	}
	note := ""
	if rolled {
		note = "  restart"
	}
	times := values[len(gauges)*nodes:]
	fmt.Printf("%7.0f s %6.0f msg/s  confirm p50 %.1f p99 %.1f max %.0f ms  delivery p99 %.1f ms  RSS %.0f heap %.0f disk %.0f MiB  goroutines %.0f  files %.0f%s\n",
		at, rate, times[0], times[1], times[2], times[4], sums[0], sums[1], sums[2], sums[3], sums[4], note)
}

// flat compares the median of the last sixth with that of the second, without the intervals in which nodes were
// restarted. It returns an error if the number has grown.
func (c *column) flat(rolled []bool) error {
	sixth := len(c.Values) / 6
	early, late := c.calm(rolled, sixth, 2*sixth), c.calm(rolled, len(c.Values)-sixth, len(c.Values))
	if len(early) == 0 || len(late) == 0 {
		return fmt.Errorf("%s %s: too few intervals without restarts", c.Name, c.Of)
	}
	from, to := report.Median(early), report.Median(late)
	grows := c.slack > 0 && to > from*flatFactor+c.slack
	fmt.Printf("%s, %s: second sixth %.1f, last sixth %.1f %s\n", c.Name, c.Of, from, to, c.Unit)
	if grows {
		return fmt.Errorf("%s, %s, grows from %.1f to %.1f %s", c.Name, c.Of, from, to, c.Unit)
	}
	return nil
}

// calm lists the values from an interval to below another one in which no node was restarted.
func (c *column) calm(rolled []bool, from, to int) (values []float64) {
	for i := from; i < to; i++ {
		if !rolled[i] {
			values = append(values, c.Values[i])
		}
	}
	return values
}
