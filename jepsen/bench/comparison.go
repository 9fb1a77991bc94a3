package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// comparison writes for each run what every broker measured and, beside it, the ratio of the first
// broker's value to it. A dash stands for what was not measured.
func comparison(w io.Writer, brokers []string, results []result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "run\tbroker\tmsg/s\tp50 ms\tp99 ms\tmax ms\tserver CPU s/M\tclient CPU s/M\twritten B/msg\tpeak RSS MiB\t|\t%s / it: msg/s\tp50\tp99\tmax\tCPU\twritten\tRSS\t\n", brokers[0])
	for _, run := range runNames(results) {
		first := resultOf(results, run, brokers[0])
		for _, b := range brokers {
			r := resultOf(results, run, b)
			x, y := timesOf(&first), timesOf(&r)
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t|", run, b,
				dash(cell(0, r.PerSecond)), dash(cell(2, y.P50)), dash(cell(2, y.P99)), dash(cell(2, y.Max)),
				dash(cell(1, r.ServerCPU)), dash(cell(1, r.ClientCPU)), dash(cell(0, r.Written)), dash(cell(0, float64(r.PeakRSS)/(1<<20))))
			if b == brokers[0] {
				fmt.Fprint(t, "\t\t\t\t\t\t\t\t\n")
				continue
			}
			fmt.Fprintf(t, "\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", ratio(first.PerSecond, r.PerSecond),
				ratio(x.P50, y.P50), ratio(x.P99, y.P99), ratio(x.Max, y.Max), ratio(first.ServerCPU, r.ServerCPU),
				ratio(first.Written, r.Written), ratio(float64(first.PeakRSS), float64(r.PeakRSS)))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, r := range results {
		for _, f := range r.Notes {
			fmt.Fprintf(w, "%s, %s: %s %.4g %s\n", r.Name, r.Broker, f.Name, f.Value, f.Unit)
		}
	}
	return nil
}

// runNames lists the names of all runs, each once, in the order of the results.
func runNames(results []result) []string {
	var names []string
	for _, r := range results {
		if !slices.Contains(names, r.Name) {
			names = append(names, r.Name)
		}
	}
	return names
}

// resultOf returns an empty result if the broker has no such run.
func resultOf(results []result, run, broker string) result {
	i := slices.IndexFunc(results, func(r result) bool { return r.Name == run && r.Broker == broker })
	if i < 0 {
		return result{}
	}
	return results[i]
}

func timesOf(r *result) *quantiles { return cmp.Or(r.Times, &quantiles{}) }

func dash(cell string) string { return cmp.Or(cell, "–") }

// ratio returns a dash if one of the two was not measured.
func ratio(a, b float64) string {
	if a == 0 || b == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", a/b)
}
