package main

import (
	"cmp"
	"fmt"
	"html"
	"maps"
	"slices"
	"strings"
	"time"
)

// hop is a kind of goroutine that messages wake. Followers are taken together.
type hop struct {
	follows      bool
	name, number string
}

// hopTable has a row for each hop that happens for every third message or more, in the order in which they begin.
func hopTable(all []*passage) string {
	type times struct {
		calls             int
		at, wait, running []time.Duration
	}
	hops := map[hop]*times{}
	for _, p := range all {
		for _, t := range p.bursts {
			k := hop{t.node > 0, t.name, t.number}
			if hops[k] == nil {
				hops[k] = &times{}
			}
			h := hops[k]
			h.calls += len(t.calls)
			h.at, h.wait, h.running = append(h.at, t.from-p.from), append(h.wait, t.from-t.ready), append(h.running, t.to-t.from)
		}
	}
	median := func(times []time.Duration) float64 {
		slices.Sort(times)
		return micros(times[(len(times)-1)/2])
	}
	var b strings.Builder
	b.WriteString("| hop | node | goroutine | runs | system calls | begins after | waits | runs for |\n|---|---|---|---|---|---|---|---|\n")
	for _, k := range slices.SortedFunc(maps.Keys(hops), func(a, b hop) int { return cmp.Compare(median(hops[a].at), median(hops[b].at)) }) {
		h, n, node := hops[k], float64(len(all)), "leader"
		if k.follows {
			n, node = 2*n, "follower"
		}
		if float64(len(h.at)) > n/3 {
			fmt.Fprintf(&b, "| %s | %s | %s | %.1f | %.1f | %.0f µs | %.1f µs | %.1f µs |\n", k.number, node, k.name,
				float64(len(h.at))/n, float64(h.calls)/n, median(h.at), median(h.wait), median(h.running))
		}
	}
	return b.String()
}

func micros(d time.Duration) float64 { return d.Seconds() * 1e6 }

// Sizes of the picture, in pixels of a screen on which it is 1000 wide.
const (
	hopsLeft, hopsRight = 190, 985
	hopsRow, hopsBar    = 16, 10
)

// hopsStyle is readable on light and dark screens.
const hopsStyle = `
text{font:11px system-ui,sans-serif;fill:#444}.node{font-weight:bold}.line{stroke:#8885}
.wait{fill:#c77b0a88}.run{fill:#2a78b8}.call{fill:#c0392b}
@media (prefers-color-scheme:dark){text{fill:#ccc}.run{fill:#6db5ea}.call{fill:#f07b6d}}
`

// draw returns an SVG: a row for each node and kind of goroutine that runs before the confirm is written.
func (p *passage) draw() []byte {
	type row struct {
		node int
		name string
	}
	var rows []row
	for _, t := range p.bursts {
		if l := (row{t.node, t.name}); t.from < p.to && !slices.Contains(rows, l) {
			rows = append(rows, l)
		}
	}
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(a.node, b.node) })
	var b strings.Builder
	add := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	x := func(at time.Duration) float64 {
		return hopsLeft + (hopsRight-hopsLeft)*(max(p.from, min(at, p.to))-p.from).Seconds()/p.lasted().Seconds()
	}
	text := func(x, y float64, class, anchor, s string) {
		add(`<text class="%s" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`, class, x, y, anchor, html.EscapeString(s))
	}
	bar := func(class string, y, height float64, s span) {
		add(`<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.0f"><title>%.1f to %.1f µs</title></rect>`, class,
			x(s.from), y, max(0.6, x(s.to)-x(s.from)), height, micros(s.from-p.from), micros(s.to-p.from))
	}
	height := float64(hopsRow * (len(rows) + rows[len(rows)-1].node + 5))
	add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 %.0f" role="img" aria-label="one message, hop by hop">`, height)
	add("<style>%s</style>", hopsStyle)
	step := time.Microsecond
	for i := 0; p.lasted() > 12*step; i++ {
		step = step * []time.Duration{4, 5, 4}[i%3] / 2 // 1, 2, 5, 10
	}
	for at := time.Duration(0); at <= p.lasted(); at += step {
		add(`<line class="line" x1="%[1].1f" x2="%[1].1f" y1="%d" y2="%.0f"/>`, x(p.from+at), hopsRow, height-3*hopsRow)
		text(x(p.from+at), height-2.2*hopsRow, "", "middle", fmt.Sprintf("%.0f µs", micros(at)))
	}
	y, node := 0.0, -1
	for _, l := range rows {
		if y += hopsRow; l.node != node {
			node = l.node
			text(4, y+hopsRow, "node", "start", place(node))
			y += hopsRow
		}
		text(hopsLeft-8, y+hopsBar, "", "end", l.name)
		for _, t := range p.bursts {
			if (row{t.node, t.name}) != l || t.from > p.to {
				continue
			}
			bar("wait", y+hopsBar/2, 2, span{t.ready, t.from})
			bar("run", y, hopsBar, t.span)
			for _, c := range t.calls {
				bar("call", y+hopsBar/2, hopsBar/2, c)
			}
		}
	}
	legend := height - hopsRow
	for i, of := range []struct{ class, text string }{
		{"wait", "ready, or on the way between nodes"}, {"run", "runs"}, {"call", "in a system call"},
	} {
		at := float64(hopsLeft + 230*i)
		add(`<rect class="%s" x="%.0f" y="%.1f" width="14" height="8"/>`, of.class, at, legend)
		text(at+20, legend+8, "", "start", of.text)
	}
	add("</svg>")
	return []byte(b.String())
}
