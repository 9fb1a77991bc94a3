package report

import (
	"fmt"
	"html"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Sizes of the timeline, in pixels of a screen on which it is 1000 wide.
const (
	width, left, right = 1000, 64, 990
	bandHeight         = 24 // of a node
	confirmHeight      = 130
	rateHeight         = 70
	stallHeight        = 40
	gap                = 26 // between charts, for their titles
)

// fewest are the milliseconds at the bottom of the chart of confirms.
const fewest = 0.1

// drawing writes an SVG.
type drawing struct {
	strings.Builder
	scale float64 // pixels of a millisecond
	y     float64 // of what is drawn next
}

func (d *drawing) add(format string, args ...any) { fmt.Fprintf(d, format+"\n", args...) }

// x is where an instant is.
func (d *drawing) x(millis float64) float64 { return left + millis*d.scale }

// text writes a text; anchor is start, middle or end.
func (d *drawing) text(x, y float64, anchor, text string) {
	d.add(`<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`, x, y, anchor, html.EscapeString(text))
}

// SVG returns the timeline: a band for each node with bars for its faults and ticks for
// the leaderships that it got, and below it the confirms and the stalls of the machine.
func (r Report) SVG() []byte {
	lasts := max(r.Timeline.Step*float64(len(r.Timeline.Steps)), 1)
	d := &drawing{scale: (right - left) / lasts}
	kinds := slices.Sorted(maps.Keys(r.Sums.Faults))
	height := gap + float64(r.Nodes)*bandHeight + 3*gap + confirmHeight + rateHeight + stallHeight + gap + 18*float64((len(kinds)+5)/6+1)
	d.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" role="img" aria-label="timeline">`, width, height)
	d.add("<style>%s</style>", style)
	d.y = gap
	d.bands(r, kinds)
	d.confirms(r.Timeline)
	d.bars("confirmed per second", rateHeight, r.Timeline, func(s Step) float64 { return float64(s.Confirmed) / r.Timeline.Step * 1000 })
	d.bars("stall of the machine, ms", stallHeight, r.Timeline, func(s Step) float64 { return s.Stall })
	d.axis(lasts)
	d.legend(kinds)
	d.add("</svg>")
	return []byte(d.String())
}

// style is readable on light and dark screens.
const style = `
text{font:11px system-ui,sans-serif;fill:#444}
.band{fill:#8884}.line{stroke:#8886;fill:none}.tick{stroke:#111;stroke-width:1.5}
.p50{stroke:#2a78b8;fill:none}.p99{stroke:#c77b0a;fill:none}.max{stroke:#c0392b;fill:none;stroke-width:.7}
.bar{fill:#2a78b8}
.kind{fill-opacity:.75}
@media (prefers-color-scheme:dark){text{fill:#ccc}.tick{stroke:#eee}.p50{stroke:#6db5ea}.p99{stroke:#f0b354}.max{stroke:#f07b6d}.bar{fill:#6db5ea}}
`

// color is that of a kind of fault: no two of them look alike.
func color(kinds []string, kind string) string {
	return fmt.Sprintf("hsl(%d,60%%,%d%%)", max(0, slices.Index(kinds, kind))*360/max(1, len(kinds)), 42+10*(slices.Index(kinds, kind)%2))
}

func (d *drawing) bands(r Report, kinds []string) {
	d.text(left, d.y-8, "start", "faults of nodes; ticks: the node became the leader of queues")
	for node := 1; node <= r.Nodes; node++ {
		y := d.y + float64(node-1)*bandHeight
		d.text(left-6, y+bandHeight/2+3, "end", fmt.Sprintf("node %d", node))
		d.add(`<rect class="band" x="%d" y="%.1f" width="%d" height="%d"/>`, left, y, right-left, bandHeight-4)
	}
	for _, f := range r.Faults {
		first, last := f.Node, f.Node
		if f.Node == 0 {
			first, last = 1, r.Nodes
		}
		end := f.Healed
		if end == 0 {
			end = (right - left) / d.scale
		}
		for node := first; node <= last; node++ {
			d.add(`<rect class="kind" fill="%s" x="%.1f" y="%.1f" width="%.1f" height="%d"><title>%s, %s to %s</title></rect>`,
				color(kinds, f.Kind), d.x(f.At), d.y+float64(node-1)*bandHeight+4, max(1.5, (end-f.At)*d.scale), bandHeight-12,
				html.EscapeString(f.Kind), seconds(f.At), seconds(end))
		}
	}
	d.ticks(r)
	d.y += float64(r.Nodes) * bandHeight
}

// ticks draws leaderships, those that would lie upon each other once.
func (d *drawing) ticks(r Report) {
	type place struct {
		node int
		x    float64
	}
	var order []place
	queues := map[place][]string{}
	for _, l := range r.Leaders {
		p := place{l.Node, math.Round(d.x(l.At))}
		if queues[p] == nil {
			order = append(order, p)
		}
		queues[p] = append(queues[p], fmt.Sprintf("%s (term %d)", l.Queue, l.Term))
	}
	for _, p := range order {
		names, more := queues[p], ""
		if n := len(names) - 10; n > 0 {
			names, more = names[:10], fmt.Sprintf(" and %d more", n)
		}
		y := d.y + float64(p.node-1)*bandHeight
		d.add(`<line class="tick" x1="%.0f" x2="%.0f" y1="%.1f" y2="%.1f"><title>leads %s</title></line>`,
			p.x, p.x, y, y+bandHeight-4, html.EscapeString(strings.Join(names, ", ")+more))
	}
}

// confirms draws how long confirms took, with a logarithmic scale.
func (d *drawing) confirms(t Timeline) {
	d.y += gap
	d.text(left, d.y-8, "start", "from publish to confirm, ms: p50 blue, p99 orange, max red")
	top := 10.0
	for _, s := range t.Steps {
		for s.Confirm.Max > top {
			top *= 10
		}
	}
	height := func(millis float64) float64 {
		return d.y + confirmHeight*(1-math.Log10(max(millis, fewest)/fewest)/math.Log10(top/fewest))
	}
	for at := fewest; at <= top*1.01; at *= 10 {
		d.add(`<line class="line" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>`, left, right, height(at), height(at))
		d.text(left-6, height(at)+4, "end", fmt.Sprintf("%g", math.Round(at*10)/10))
	}
	for _, c := range []struct {
		class string
		of    func(Percentiles) float64
	}{
		{"max", func(p Percentiles) float64 { return p.Max }},
		{"p99", func(p Percentiles) float64 { return p.P99 }},
		{"p50", func(p Percentiles) float64 { return p.P50 }},
	} {
		var path strings.Builder
		next := "M"
		for i, s := range t.Steps {
			if s.Confirmed == 0 {
				next = "M" // nothing was confirmed: the line is broken
				continue
			}
			fmt.Fprintf(&path, "%s%.1f %.1f", next, d.x((float64(i)+.5)*t.Step), height(c.of(s.Confirm)))
			if next == "M" {
				path.WriteString("h1")
			}
			next = "L"
		}
		d.add(`<path class="%s" d="%s"/>`, c.class, path.String())
	}
	d.y += confirmHeight
}

// bars draws a value of each step.
func (d *drawing) bars(title string, height float64, t Timeline, of func(Step) float64) {
	d.y += gap
	top := 1.0
	for _, s := range t.Steps {
		top = max(top, of(s))
	}
	d.text(left, d.y-8, "start", title)
	d.text(left-6, d.y+8, "end", fmt.Sprintf("%.0f", top))
	d.text(left-6, d.y+height, "end", "0")
	d.add(`<line class="line" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>`, left, right, d.y+height, d.y+height)
	for i, s := range t.Steps {
		if v := of(s) / top * height; v > 0 {
			d.add(`<rect class="bar" x="%.1f" y="%.1f" width="%.2f" height="%.1f"/>`, d.x(float64(i)*t.Step), d.y+height-v, max(.5, t.Step*d.scale-.5), v)
		}
	}
	d.y += height
}

// axis draws the times.
func (d *drawing) axis(lasts float64) {
	d.y += 14
	every := time.Second
	for _, longer := range []time.Duration{2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 4 * 3600, 24 * 3600} {
		if lasts/ms(every) > 14 {
			every = longer * time.Second
		}
	}
	for at := 0.0; at < lasts; at += ms(every) {
		d.text(d.x(at), d.y, "middle", seconds(at))
	}
	d.y += 8
}

// legend names the kinds of faults.
func (d *drawing) legend(kinds []string) {
	for i, kind := range kinds {
		x, y := float64(left+i%6*155), d.y+18*float64(i/6)
		d.add(`<rect class="kind" fill="%s" x="%.0f" y="%.1f" width="12" height="12"/>`, color(kinds, kind), x, y)
		d.text(x+17, y+10, "start", kind)
	}
}

// seconds writes milliseconds since the beginning.
func seconds(millis float64) string {
	return time.Duration(millis * float64(time.Millisecond)).Round(100 * time.Millisecond).String()
}
