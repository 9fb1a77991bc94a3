package report

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Each number that was measured has a bar, as long as it is large beside the others.
func TestCharts(t *testing.T) {
	dir := t.TempDir()
	results := []Result{
		{Name: `1 queue <&"`, Broker: "quorate", PerSecond: 40_000},
		{Name: `1 queue <&"`, Broker: "other", PerSecond: 10_000},
		{Name: "window 1", Broker: "quorate", PerSecond: 1000, Times: &Quantiles{P50: 2}},
	}
	if err := Charts(results, dir, "p-"); err != nil {
		t.Fatal(err)
	}
	const full = chartWidth - chartLabels - chartValues
	for name, want := range map[string][]int{"p-rate.svg": {full, full / 4, full / 40}, "p-p50.svg": {full}} {
		if have := barLengths(t, filepath.Join(dir, name)); !slices.Equal(have, want) {
			t.Errorf("%s: bars of %v, want %v", name, have, want)
		}
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "*.svg")); len(files) != 2 {
		t.Errorf("drawn: %v", files)
	}
}

// Series of one name are lines of one chart, without what was not read.
func TestSeries(t *testing.T) {
	dir := t.TempDir()
	line := func(of string, values ...float64) Series {
		return Series{Name: "live heap", Of: of, Unit: "MiB", At: []float64{1, 2, 3}, Values: values}
	}
	results := []Result{{Name: "soak", Series: []Series{line("n1", 10, 0, 20), line("n2", 5, 5, 5)}}}
	if err := Charts(results, dir, "p-"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "p-live-heap.svg"))
	if err != nil {
		t.Fatal(err)
	}
	var svg struct {
		Lines []struct {
			Points string `xml:"points,attr"`
		} `xml:"polyline"`
	}
	if err := xml.Unmarshal(text, &svg); err != nil {
		t.Fatal(err)
	}
	var points []int
	for _, l := range svg.Lines {
		points = append(points, len(strings.Fields(l.Points)))
	}
	if !slices.Equal(points, []int{2, 3}) {
		t.Errorf("lines of %v points", points)
	}
}

// barLengths reads a chart, which must be XML, and lists its bars without those of the legend.
func barLengths(t *testing.T, file string) (all []int) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var svg struct {
		Rects []struct {
			X     int    `xml:"x,attr"`
			Width string `xml:"width,attr"`
		} `xml:"rect"`
	}
	if err := xml.Unmarshal(text, &svg); err != nil {
		t.Fatal(err)
	}
	for _, r := range svg.Rects {
		if n, err := strconv.Atoi(r.Width); r.X == chartLabels && err == nil {
			all = append(all, n)
		}
	}
	return all
}
