package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"html"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// chart is what one number of all results is drawn as: bars, a group of them for each run, a bar
// for each broker.
type chart struct {
	file  string
	title string
	value func(r *result) float64
}

// charts are drawn where any result has the number.
var charts = []chart{
	{"rate", "messages per second", func(r *result) float64 { return r.PerSecond }},
	{"cpu", "server processor seconds per million messages", func(r *result) float64 { return r.ServerCPU }},
	{"p50", "median, milliseconds", func(r *result) float64 { return timesOf(r).P50 }},
	{"p99", "99th percentile, milliseconds", func(r *result) float64 { return timesOf(r).P99 }},
	{"memory", "peak memory of all servers, MiB", func(r *result) float64 { return float64(r.PeakRSS) / (1 << 20) }},
}

// runCharts draws the results that another command has written as JSON.
func runCharts(_ context.Context, fs *flag.FlagSet, args []string) error {
	from := fs.String("results", "", "`file` that -json of another command has written")
	dir := fs.String("to", ".", "`folder` for the charts, one SVG file for each number")
	prefix := fs.String("prefix", "", "how the files' `names` begin")
	only := fs.String("only", "", "draw only the runs whose names, without commas, hold one of these comma-separated `texts`")
	if err := parse(fs, args); err != nil {
		return err
	}
	if *from == "" {
		return errors.New("-results: no file is named")
	}
	text, err := os.ReadFile(*from)
	if err != nil {
		return err
	}
	var all []result
	if err := json.Unmarshal(text, &all); err != nil {
		return fmt.Errorf("%s: %w", *from, err)
	}
	all = slices.DeleteFunc(all, func(r result) bool { return !selected(r.Name, *only) })
	for _, c := range charts {
		if !slices.ContainsFunc(all, func(r result) bool { return c.value(&r) > 0 }) {
			continue
		}
		f, err := os.Create(filepath.Join(*dir, *prefix+c.file+".svg"))
		if err != nil {
			return err
		}
		if err := errors.Join(c.draw(f, all), f.Close()); err != nil {
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

// draw writes the chart as SVG. What was not measured has no bar.
func (c *chart) draw(w io.Writer, results []result) error {
	var brokers []string
	most := 0.0
	for i := range results {
		most = max(most, c.value(&results[i]))
		if !slices.Contains(brokers, results[i].Broker) {
			brokers = append(brokers, results[i].Broker)
		}
	}
	p := &printer{w: w}
	names := slices.DeleteFunc(runNames(results), func(run string) bool {
		return !slices.ContainsFunc(brokers, func(b string) bool { r := resultOf(results, run, b); return c.value(&r) > 0 })
	})
	height := chartHead + len(names)*(len(brokers)*barHeight+groupGap)
	p.print(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" role="img" aria-label="%s" font-family="sans-serif" font-size="12">`,
		chartWidth, height, chartWidth, html.EscapeString(c.title))
	p.print(`<style>text{fill:#222}@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>`)
	p.text(8, 18, "start", c.title)
	x := 8
	for i, b := range brokers {
		if b == "" {
			continue
		}
		p.bar(x, 30, barHeight-2, i)
		p.text(x+barHeight+2, 40, "start", b)
		x += 40 + 8*len(b)
	}
	y := chartHead
	for _, run := range names {
		p.text(chartLabels-8, y+len(brokers)*barHeight/2+4, "end", run)
		for i, b := range brokers {
			r := resultOf(results, run, b)
			if v := c.value(&r); v > 0 {
				length := max(1, int(v/most*(chartWidth-chartLabels-chartValues)))
				p.bar(chartLabels, y, length, i)
				p.text(chartLabels+length+4, y+barHeight-3, "start", strconv.FormatFloat(v, 'f', decimals(v), 64))
			}
			y += barHeight
		}
		y += groupGap
	}
	p.print("</svg>")
	return p.err
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

// printer writes lines of SVG and keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) print(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

func (p *printer) text(x, y int, anchor, text string) {
	p.print(`<text x="%d" y="%d" text-anchor="%s">%s</text>`, x, y, anchor, html.EscapeString(text))
}

func (p *printer) bar(x, y, length, colour int) {
	p.print(`<rect x="%d" y="%d" width="%d" height="%d" fill="%s"/>`, x, y, length, barHeight-2, barColours[colour%len(barColours)])
}
