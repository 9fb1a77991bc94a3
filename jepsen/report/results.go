package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Result is what one run of a benchmark measured. Zero fields were not measured.
type Result struct {
	Name      string     `json:"name"`
	Broker    string     `json:"broker,omitempty"` // where several are compared
	Messages  float64    `json:"messages"`
	Seconds   float64    `json:"seconds"`
	PerSecond float64    `json:"per_second"`
	Times     *Quantiles `json:"milliseconds,omitempty"`
	// Processor seconds per million messages, of all servers and of the clients.
	ServerCPU float64 `json:"server_cpu_per_million,omitempty"`
	ClientCPU float64 `json:"client_cpu_per_million"`
	// PeakRSS is the highest sum over all servers.
	PeakRSS float64 `json:"peak_rss_bytes,omitempty"`
	// Written is the number of bytes that all servers wrote to disk, per message.
	Written float64 `json:"written_per_message,omitempty"`
	// Switches is how often threads of all servers waited, per message.
	Switches float64 `json:"context_switches_per_message,omitempty"`
	Notes    []Note  `json:"notes,omitempty"`
	// Series are what changed while it ran.
	Series []Series `json:"series,omitempty"`
}

// Note is a number that only one kind of run has.
type Note struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// Note adds a number.
func (r *Result) Note(name string, value float64, unit string) {
	r.Notes = append(r.Notes, Note{name, value, unit})
}

// Quantiles are quantiles of times, in milliseconds.
type Quantiles struct {
	Min float64 `json:"min"`
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// QuantilesOf sorts times. It returns nil if there are none.
func QuantilesOf(times []time.Duration) *Quantiles {
	if len(times) == 0 {
		return nil
	}
	slices.Sort(times)
	at := func(p int) float64 { return times[(len(times)-1)*p/100].Seconds() * 1e3 }
	return &Quantiles{at(0), at(50), at(99), at(100)}
}

func (r *Result) times() *Quantiles { return cmp.Or(r.Times, &Quantiles{}) }

// columns are what tables show of a run, each with its unit and its decimals.
var columns = []struct {
	name     string
	decimals int
	of       func(*Result) float64
}{
	{"messages", 0, func(r *Result) float64 { return r.Messages }},
	{"seconds", 1, func(r *Result) float64 { return r.Seconds }},
	{"msg/s", 0, func(r *Result) float64 { return r.PerSecond }},
	{"p50 ms", 2, func(r *Result) float64 { return r.times().P50 }},
	{"p99 ms", 2, func(r *Result) float64 { return r.times().P99 }},
	{"max ms", 2, func(r *Result) float64 { return r.times().Max }},
	{"server CPU s/M", 1, func(r *Result) float64 { return r.ServerCPU }},
	{"client CPU s/M", 1, func(r *Result) float64 { return r.ClientCPU }},
	{"peak RSS MiB", 0, func(r *Result) float64 { return r.PeakRSS / (1 << 20) }},
	{"written B/msg", 0, func(r *Result) float64 { return r.Written }},
	{"switches/msg", 1, func(r *Result) float64 { return r.Switches }},
}

// shown are the columns of a comparison, and those of its ratios.
var (
	shown  = []int{2, 3, 4, 5, 6, 7, 9, 8}
	ratios = []int{2, 3, 4, 5, 6, 9, 8}
)

// value is what a column shows of a run: missing, if it was not measured.
func value(column int, r *Result, missing string) string {
	v := columns[column].of(r)
	if v == 0 {
		return missing
	}
	return strconv.FormatFloat(v, 'f', columns[column].decimals, 64)
}

// Publish prints the machine's load and the table for people, and writes the JSON if a file is named.
// What was not measured stays empty.
func Publish(w io.Writer, results []Result, file string) error {
	fmt.Fprintln(w, Heading())
	head := []string{"run"}
	for _, c := range columns {
		head = append(head, c.name)
	}
	rows := [][]string{head}
	for _, r := range results {
		row := []string{r.Name}
		for k := range columns {
			row = append(row, value(k, &r, ""))
		}
		rows = append(rows, row)
	}
	return write(w, rows, results, file)
}

// Compare prints for each run what every broker measured and, beside it, the ratio of the first broker's
// value to it, and writes the JSON if a file is named. A dash stands for what was not measured.
func Compare(w io.Writer, brokers []string, results []Result, file string) error {
	head := []string{"run", "broker"}
	for _, k := range shown {
		head = append(head, columns[k].name)
	}
	rows := [][]string{append(head, "|", brokers[0]+" / it: msg/s", "p50", "p99", "max", "CPU", "written", "RSS")}
	for _, run := range runNames(results) {
		first := resultOf(results, run, brokers[0])
		for _, b := range brokers {
			r := resultOf(results, run, b)
			row := []string{run, b}
			for _, k := range shown {
				row = append(row, value(k, &r, "–"))
			}
			row = append(row, "|")
			for _, k := range ratios {
				row = append(row, ratio(b == brokers[0], columns[k].of(&first), columns[k].of(&r)))
			}
			rows = append(rows, row)
		}
	}
	return write(w, rows, results, file)
}

// ratio is empty where nothing is compared, and a dash if one of the two was not measured.
func ratio(itself bool, a, b float64) string {
	switch {
	case itself:
		return ""
	case a == 0 || b == 0:
		return "–"
	}
	return fmt.Sprintf("%.2f", a/b)
}

// write writes a table with the notes below it.
func write(w io.Writer, rows [][]string, results []Result, file string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range rows {
		fmt.Fprintln(t, strings.Join(row, "\t")+"\t")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, r := range results {
		name := r.Name
		if r.Broker != "" {
			name += ", " + r.Broker
		}
		for _, n := range r.Notes {
			fmt.Fprintf(w, "%s: %s %.4g %s\n", name, n.Name, n.Value, n.Unit)
		}
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

// Heading says when and on what machine a measurement was made.
func Heading() string {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		load = []byte("unknown")
	}
	return fmt.Sprint(time.Now().Format("2006-01-02 15:04"), " – processors: ", runtime.NumCPU(), " – load average: ", strings.TrimSpace(string(load)))
}

// runNames lists the names of all runs, each once, in the order of the results.
func runNames(results []Result) (names []string) {
	for _, r := range results {
		if !slices.Contains(names, r.Name) {
			names = append(names, r.Name)
		}
	}
	return names
}

// resultOf returns an empty result if the broker has no such run.
func resultOf(results []Result, run, broker string) Result {
	i := slices.IndexFunc(results, func(r Result) bool { return r.Name == run && r.Broker == broker })
	if i < 0 {
		return Result{}
	}
	return results[i]
}

// Medians returns one result for each run, with the medians over its rounds, which hold the same kinds of
// numbers.
func Medians(rounds []Result) (all []Result) {
	for _, name := range runNames(rounds) {
		of := slices.DeleteFunc(slices.Clone(rounds), func(r Result) bool { return r.Name != name })
		m := of[0]
		m.Notes = slices.Clone(m.Notes)
		if m.Times != nil {
			m.Times = new(*m.Times)
		}
		for i, n := range m.numbers() {
			values := make([]float64, len(of))
			for k := range of {
				values[k] = *of[k].numbers()[i]
			}
			*n = Median(values)
		}
		all = append(all, m)
	}
	return all
}

// numbers are all that were measured.
func (r *Result) numbers() []*float64 {
	all := []*float64{&r.Messages, &r.Seconds, &r.PerSecond, &r.ServerCPU, &r.ClientCPU, &r.PeakRSS, &r.Written, &r.Switches}
	if t := r.Times; t != nil {
		all = append(all, &t.Min, &t.P50, &t.P99, &t.Max)
	}
	for i := range r.Notes {
		all = append(all, &r.Notes[i].Value)
	}
	return all
}

// Median sorts values, of which there is at least one.
func Median(values []float64) float64 {
	slices.Sort(values)
	half := len(values) / 2
	if len(values)%2 == 1 {
		return values[half]
	}
	return (values[half-1] + values[half]) / 2
}

// chart is what one number of all results is drawn as: bars, a group of them for each run, a bar for each
// broker.
type chart struct {
	file  string
	title string
	value func(r *Result) float64
}

// charts are drawn where any result has the number.
var charts = []chart{
	{"rate", "messages per second", func(r *Result) float64 { return r.PerSecond }},
	{"cpu", "server processor seconds per million messages", func(r *Result) float64 { return r.ServerCPU }},
	{"p50", "median, milliseconds", func(r *Result) float64 { return r.times().P50 }},
	{"p99", "99th percentile, milliseconds", func(r *Result) float64 { return r.times().P99 }},
	{"memory", "peak memory of all servers, MiB", func(r *Result) float64 { return r.PeakRSS / (1 << 20) }},
}

// Charts draws results into a folder, one SVG file for each number and each name of series. prefix begins the
// files' names.
func Charts(results []Result, dir, prefix string) error {
	for _, c := range charts {
		if !slices.ContainsFunc(results, func(r Result) bool { return c.value(&r) > 0 }) {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, prefix+c.file+".svg"), c.draw(results), 0o644); err != nil {
			return err
		}
	}
	for _, r := range results {
		for name, all := range byName(r.Series) {
			file := filepath.Join(dir, prefix+strings.ReplaceAll(name, " ", "-")+".svg")
			if err := os.WriteFile(file, drawSeries(all), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// Measures of a chart, in pixels.
const (
	chartWidth  = 860
	chartLabels = 270 // for the names of the runs
	chartValues = 80  // beside the longest bar
	chartHead   = 56
	barHeight   = 14
	groupGap    = 12
)

// barColours are told apart on light and dark pages, and by people who see few colours.
var barColours = []string{"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"}

// draw returns the chart as SVG. What was not measured has no bar.
func (c *chart) draw(results []Result) []byte {
	var brokers []string
	most := 0.0
	for i := range results {
		most = max(most, c.value(&results[i]))
		if !slices.Contains(brokers, results[i].Broker) {
			brokers = append(brokers, results[i].Broker)
		}
	}
	names := slices.DeleteFunc(runNames(results), func(run string) bool {
		return !slices.ContainsFunc(results, func(r Result) bool { return r.Name == run && c.value(&r) > 0 })
	})
	d := &drawing{}
	height := chartHead + len(names)*(len(brokers)*barHeight+groupGap)
	d.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" role="img" aria-label="%s" font-family="sans-serif" font-size="12">`,
		chartWidth, height, chartWidth, html.EscapeString(c.title))
	d.add(`<style>text{fill:#222}@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>`)
	d.text(8, 18, "start", c.title)
	bar := func(x, y, length, colour int) {
		d.add(`<rect x="%d" y="%d" width="%d" height="%d" fill="%s"/>`, x, y, length, barHeight-2, barColours[colour%len(barColours)])
	}
	x := 8
	for i, b := range brokers {
		if b != "" {
			bar(x, 30, barHeight-2, i)
			d.text(float64(x+barHeight+2), 40, "start", b)
			x += 40 + 8*len(b)
		}
	}
	y := chartHead
	for _, run := range names {
		d.text(chartLabels-8, float64(y+len(brokers)*barHeight/2+4), "end", run)
		for i, b := range brokers {
			r := resultOf(results, run, b)
			if v := c.value(&r); v > 0 {
				length := max(1, int(v/most*(chartWidth-chartLabels-chartValues)))
				bar(chartLabels, y, length, i)
				d.text(float64(chartLabels+length+4), float64(y+barHeight-3), "start", strconv.FormatFloat(v, 'f', decimals(v), 64))
			}
			y += barHeight
		}
		y += groupGap
	}
	d.add("</svg>")
	return []byte(d.String())
}

// decimals of a value: three digits that count are enough.
func decimals(v float64) int {
	switch {
	case v >= 100:
		return 0
	case v >= 10:
		return 1
	}
	return 2
}
