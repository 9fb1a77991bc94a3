package report

import (
	"html"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

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

// Charts draws results into a folder, one SVG file for each number. prefix begins the files' names.
func Charts(results []Result, dir, prefix string) error {
	for _, c := range charts {
		if !slices.ContainsFunc(results, func(r Result) bool { return c.value(&r) > 0 }) {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, prefix+c.file+".svg"), c.draw(results), 0o644); err != nil {
			return err
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
