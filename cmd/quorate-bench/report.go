package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
	"time"
)

// result is what one run measured. Zero fields were not measured.
type result struct {
	Name      string     `json:"name"`
	Messages  int        `json:"messages"`
	Seconds   float64    `json:"seconds"`
	PerSecond float64    `json:"per_second"`
	Times     *quantiles `json:"milliseconds,omitempty"`
	// Processor seconds per million messages, of all servers and of this client.
	ServerCPU float64 `json:"server_cpu_per_million,omitempty"`
	ClientCPU float64 `json:"client_cpu_per_million"`
	// PeakRSS is the highest sum over all servers.
	PeakRSS int64    `json:"peak_rss_bytes,omitempty"`
	Notes   []figure `json:"notes,omitempty"`
}

// figure is a number that only one kind of run has.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

func (r *result) note(name string, value float64, unit string) {
	r.Notes = append(r.Notes, figure{name, value, unit})
}

// quantiles of times in milliseconds.
type quantiles struct {
	Min float64 `json:"min"`
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// quantilesOf sorts times.
func quantilesOf(times []time.Duration) *quantiles {
	if len(times) == 0 {
		return nil
	}
	slices.Sort(times)
	at := func(p int) float64 { return times[(len(times)-1)*p/100].Seconds() * 1e3 }
	return &quantiles{at(0), at(50), at(99), at(100)}
}

// table writes results for people.
func table(w io.Writer, results []result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "run\tmessages\tseconds\tmsg/s\tp50 ms\tp99 ms\tmax ms\tserver CPU s/M\tclient CPU s/M\tpeak RSS MiB\t")
	for _, r := range results {
		fmt.Fprintf(t, "%s\t%d\t%.1f\t%.0f\t", r.Name, r.Messages, r.Seconds, r.PerSecond)
		if q := r.Times; q != nil {
			fmt.Fprintf(t, "%.2f\t%.2f\t%.2f\t", q.P50, q.P99, q.Max)
		} else {
			fmt.Fprint(t, "\t\t\t")
		}
		fmt.Fprintf(t, "%.1f\t%.1f\t%d\t\n", r.ServerCPU, r.ClientCPU, r.PeakRSS>>20)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, r := range results {
		for _, f := range r.Notes {
			fmt.Fprintf(w, "%s: %s %.4g %s\n", r.Name, f.Name, f.Value, f.Unit)
		}
	}
	return nil
}

// publishResults prints the table, and writes the JSON if a file is named.
func publishResults(results []result, file string) error {
	if err := table(os.Stdout, results); err != nil {
		return err
	}
	if file == "" {
		return nil
	}
	text, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
