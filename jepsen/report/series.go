package report

import (
	"html"
	"slices"
	"strconv"
	"time"
)

// Series is how one number of a run changed over time.
type Series struct {
	Name   string    `json:"name"` // those of one name are drawn in one chart
	Of     string    `json:"of"`   // a node, or a quantile
	Unit   string    `json:"unit"`
	At     []float64 `json:"at"`     // seconds since the start, increasing
	Values []float64 `json:"values"` // 0: not read
}

// byName puts together what is drawn in one chart.
func byName(all []Series) map[string][]Series {
	names := map[string][]Series{}
	for _, s := range all {
		names[s.Name] = append(names[s.Name], s)
	}
	return names
}

// seriesHeight is that of the area in which lines are drawn, seriesLines how many grid lines it has.
const (
	seriesHeight = 240
	seriesLines  = 4
)

// drawSeries returns series of one name and unit as SVG, a line for each.
func drawSeries(all []Series) []byte {
	most, lasts := 0.0, 0.0
	for _, s := range all {
		most, lasts = max(most, slices.Max(append(s.Values, 0))), max(lasts, slices.Max(append(s.At, 0)))
	}
	d, bottom := &drawing{}, float64(chartHead+seriesHeight)
	scale, title := float64(right-left-150)/max(lasts, 1), all[0].Name
	if all[0].Unit != "" {
		title += ", " + all[0].Unit
	}
	d.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" width="%d" role="img" aria-label="%s" font-family="sans-serif" font-size="12">`,
		chartWidth, bottom+30, chartWidth, html.EscapeString(title))
	d.add(`<style>text{fill:#222}@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>`)
	d.text(8, 18, "start", title)
	for k := range seriesLines + 1 {
		part := float64(k) / seriesLines
		y := bottom - part*seriesHeight
		d.add(`<path d="M%d %.1fh%.1f" stroke="#888" stroke-opacity=".4"/>`, left, y, lasts*scale)
		d.text(left-6, y+4, "end", strconv.FormatFloat(part*most, 'f', decimals(most), 64))
		at := time.Duration(part * lasts * float64(time.Second)).Round(time.Second)
		d.text(left+part*lasts*scale, bottom+18, "middle", at.String())
	}
	x := float64(left)
	for i, s := range all {
		colour := barColours[i%len(barColours)]
		d.add(`<rect x="%.0f" y="30" width="%d" height="%d" fill="%s"/>`, x, barHeight-2, barHeight-2, colour)
		d.text(x+barHeight+2, 40, "start", s.Of)
		x += float64(40 + 8*len(s.Of))
		d.add(`<polyline fill="none" stroke="%s" stroke-width="1.5" points="`, colour)
		for k, v := range s.Values {
			if v > 0 {
				d.add("%.1f,%.1f", left+s.At[k]*scale, bottom-v/most*seriesHeight)
			}
		}
		d.add(`"/>`)
	}
	d.add("</svg>")
	return []byte(d.String())
}
