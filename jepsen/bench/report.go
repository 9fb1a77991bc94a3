package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"text/tabwriter"
	"time"
)

// result is what one run measured. Zero fields were not measured.
type result struct {
	Name      string     `json:"name"`
	Broker    string     `json:"broker,omitempty"` // where several are compared
	Messages  int        `json:"messages"`
	Seconds   float64    `json:"seconds"`
	PerSecond float64    `json:"per_second"`
	Times     *quantiles `json:"milliseconds,omitempty"`
	// Processor seconds per million messages, of all servers and of this client.
	ServerCPU float64 `json:"server_cpu_per_million,omitempty"`
	ClientCPU float64 `json:"client_cpu_per_million"`
	// PeakRSS is the highest sum over all servers.
	PeakRSS int64 `json:"peak_rss_bytes,omitempty"`
	// Written is the number of bytes that all servers wrote to disk, per message.
	Written float64 `json:"written_per_message,omitempty"`
	// Switches is how often threads of all servers waited, per message.
	Switches float64 `json:"context_switches_per_message,omitempty"`
	Notes    []note  `json:"notes,omitempty"`
}

// note is a number that only one kind of run has.
type note struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

func (r *result) note(name string, value float64, unit string) {
	r.Notes = append(r.Notes, note{name, value, unit})
}

// quantiles are quantiles of times, in milliseconds.
type quantiles struct {
	Min float64 `json:"min"`
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// samples collects times; it may be read while it is filled.
type samples struct {
	mu    sync.Mutex
	times []time.Duration
}

func (s *samples) add(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times = append(s.times, d)
}

// take returns the times since the last take.
func (s *samples) take() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.times
	s.times = nil
	return t
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

// table writes results for people; what was not measured stays empty.
func table(w io.Writer, results []result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "run\tmessages\tseconds\tmsg/s\tp50 ms\tp99 ms\tmax ms\tserver CPU s/M\tclient CPU s/M\tpeak RSS MiB\twritten B/msg\tswitches/msg\t")
	for _, r := range results {
		q := r.Times
		if q == nil {
			q = &quantiles{}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", r.Name,
			cell(0, float64(r.Messages)), cell(1, r.Seconds), cell(0, r.PerSecond), cell(2, q.P50), cell(2, q.P99), cell(2, q.Max),
			cell(1, r.ServerCPU), cell(1, r.ClientCPU), cell(0, float64(r.PeakRSS)/(1<<20)), cell(0, r.Written), cell(1, r.Switches))
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

func cell(decimals int, v float64) string {
	if v == 0 {
		return ""
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

// collection holds the results of several rounds of the same runs.
type collection struct {
	names []string // in the order of their first round
	runs  map[string][]result
}

// add keeps a result and reports it, after the label.
func (c *collection) add(label string, r result) {
	if c.runs == nil {
		c.runs = map[string][]result{}
	}
	if len(c.runs[r.Name]) == 0 {
		c.names = append(c.names, r.Name)
	}
	c.runs[r.Name] = append(c.runs[r.Name], r)
	if label != "" {
		label += ": "
	}
	progress("%s%s: %d messages in %.1f s", label, r.Name, r.Messages, r.Seconds)
}

// progress reports on standard error how far a command is.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

// medians returns one result for each run, with the medians over its rounds.
func (c *collection) medians() []result {
	var all []result
	for _, name := range c.names {
		all = append(all, medianOf(c.runs[name]))
	}
	return all
}

// medianOf takes rounds of one run, which hold the same kinds of values.
func medianOf(rounds []result) result {
	of := func(figure func(r *result) float64) float64 {
		values := make([]float64, len(rounds))
		for i := range rounds {
			values[i] = figure(&rounds[i])
		}
		return median(values)
	}
	m := rounds[0]
	m.Messages = int(of(func(r *result) float64 { return float64(r.Messages) }))
	m.Seconds = of(func(r *result) float64 { return r.Seconds })
	m.PerSecond = of(func(r *result) float64 { return r.PerSecond })
	m.ServerCPU = of(func(r *result) float64 { return r.ServerCPU })
	m.ClientCPU = of(func(r *result) float64 { return r.ClientCPU })
	m.PeakRSS = int64(of(func(r *result) float64 { return float64(r.PeakRSS) }))
	m.Written = of(func(r *result) float64 { return r.Written })
	m.Switches = of(func(r *result) float64 { return r.Switches })
	if m.Times != nil {
		m.Times = &quantiles{
			Min: of(func(r *result) float64 { return r.Times.Min }), P50: of(func(r *result) float64 { return r.Times.P50 }),
			P99: of(func(r *result) float64 { return r.Times.P99 }), Max: of(func(r *result) float64 { return r.Times.Max }),
		}
	}
	m.Notes = slices.Clone(m.Notes)
	for i := range m.Notes {
		m.Notes[i].Value = of(func(r *result) float64 { return r.Notes[i].Value })
	}
	return m
}

// median sorts values, of which there is at least one.
func median(values []float64) float64 {
	slices.Sort(values)
	half := len(values) / 2
	if len(values)%2 == 1 {
		return values[half]
	}
	return (values[half-1] + values[half]) / 2
}

// heading says when and on what machine a measurement was made.
func heading() string {
	return fmt.Sprint(time.Now().Format("2006-01-02 15:04"), " – processors: ", runtime.NumCPU(), " – load average: ", loadAverage())
}

// publishResults prints the machine's load and the table, and writes the JSON if a file is named.
func publishResults(results []result, file string) error {
	fmt.Println(heading())
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
