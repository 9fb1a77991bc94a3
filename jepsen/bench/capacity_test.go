package main

import (
	"flag"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/quorate/quorate/cmd/tidy/page"
)

var _ = flag.Bool("rewrite", false, "write what follows from measurements into docs/scale.md anew")

// measurements is the page of what was measured.
type measurements struct {
	*testing.T
	text string
}

// number is one in a cell.
var number = regexp.MustCompile(`\d[\d,]*(?:\.\d+)?`)

// cell returns the numbers of a row in the last table of a section that is not of an earlier build, of
// the column with that index behind the row's name.
func (r measurements) cell(section, row string, column int) (numbers []float64) {
	r.Helper()
	_, text, ok := strings.Cut(r.text, "\n### "+section+"\n")
	text, _, _ = strings.Cut(text, "\n### ")
	text, _, _ = strings.Cut(text, "\nAn earlier build")
	at := strings.LastIndex(text, "\n| "+row+" |")
	if !ok || at < 0 {
		r.Fatalf("%s has no row %q", section, row)
	}
	line, _, _ := strings.Cut(text[at+1:], "\n")
	for _, found := range number.FindAllString(strings.Split(line, "|")[1+column], -1) {
		n, err := strconv.ParseFloat(strings.ReplaceAll(found, ",", ""), 64)
		if err != nil {
			r.Fatal(err)
		}
		numbers = append(numbers, n)
	}
	if len(numbers) == 0 {
		r.Fatalf("%s, %s: no number in column %d", section, row, column)
	}
	return numbers
}

// grouped writes a whole number as pages do.
func grouped(n float64) string {
	text := strconv.Itoa(int(math.Round(n)))
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// What the pages about sizes say is what was measured: docs/evidence/benchmarks.md has the numbers, and these
// pages have them from there, with what follows from them.
func TestCapacity(t *testing.T) {
	pages := page.Pages(t, "../..")
	r := measurements{t, pages["docs/evidence/benchmarks.md"]}
	rate, cpu, written := map[string]float64{}, map[string]float64{}, map[string]float64{}
	for _, queues := range []string{"1 queue", "10 queues"} {
		for _, size := range []string{"100 B", "1 KB", "10 KB"} {
			row := queues + ", " + size
			rate[row] = r.cell("Beside RabbitMQ 4.3.6", row, 1)[0]
			cpu[row] = r.cell("Beside RabbitMQ 4.3.6", row, 4)[0]
			written[row] = r.cell("Beside RabbitMQ 4.3.6", row, 5)[0] / 1000
		}
	}
	many := r.queueCosts()
	connection := r.cell("Idle connections", "resident memory of the node per connection, 5,000 of them", 1)[0]
	channel := r.cell("Idle connections", "… per channel, 20,000 of them", 1)[0]
	slow := r.cell("Growth", "1 active queue", 1)[0]
	small := r.cell("Beside RabbitMQ 4.3.6", "end to end at 2,000/s", 5)[0] / 1000
	waiting := r.cell("Time, failures, backlog", "1,000,000 of 1 KB wait", 1)[2]
	largest := 0.7 * 12 * 1e6 / cpu["1 queue, 1 KB"]
	resting := many.resting(1e5, 3) / 1024 // MiB
	sent := 4 * largest * 1024 / 3 / 1e6   // MB/s
	for _, want := range []struct{ page, format string }{
		{"docs/scale.md", fmt.Sprintf("%.1f s for a million messages of 100 B through one queue, %.1f s for 1 KB, %.1f s for 10 KB", cpu["1 queue, 100 B"], cpu["1 queue, 1 KB"], cpu["1 queue, 10 KB"])},
		{"docs/scale.md", fmt.Sprintf("%.1f to %.1f KB for a message of 100 B, %.1f to %.1f KB for 1 KB, %.0f to %.0f KB for 10 KB",
			written["10 queues, 100 B"], written["1 queue, 100 B"], written["10 queues, 1 KB"], written["1 queue, 1 KB"], written["10 queues, 10 KB"], written["1 queue, 10 KB"])},
		{"docs/scale.md", fmt.Sprintf("| %.1f KiB for a queue that nobody has used, %.1f KiB for one that is awake |", many.rest, many.use)},
		{"docs/scale.md", fmt.Sprintf("%.1f %% of a core without queues, and at most %.1f %% for every 10,000 queues that sleep", many.empty, 1e4*many.idle)},
		{"docs/scale.md", fmt.Sprintf("take %.0f MiB of a node, and %.1f GiB if all of its replicas are awake", resting, (many.resting(1e5, 3)+1e5*(many.use-many.rest))/(1<<20))},
		{"docs/scale.md", fmt.Sprintf("| %.0f KiB for a connection, %.1f KiB for a channel, idle |", connection, channel)},
		{"docs/scale.md", fmt.Sprintf("| %.0f B for a message that waits;", waiting)},
		{"docs/scale.md", fmt.Sprintf("%.2f ms of processor, and with thirty at a time %.2f ms of time, for a queue", many.declare, 1000/many.declared)},
		{"docs/scale.md", fmt.Sprintf("18 M × %.0f B = %.1f GB", waiting, 18e6*waiting/1e9)},
		{"docs/scale.md", fmt.Sprintf("200 × %.1f KiB = %.0f MB", many.use, 200*many.use*1024/1e6)},
		{"docs/scale.md", fmt.Sprintf("2,000 × (%.0f + 4 × %.1f) KiB = %.0f MB", connection, channel, 2000*(math.Round(connection)+4*channel)*1.024/1e3)},
		{"docs/scale.md", fmt.Sprintf("5,000 × %.1f µs = %.2f cores", cpu["1 queue, 1 KB"], 5000*cpu["1 queue, 1 KB"]/1e6)},
		{"docs/scale.md", fmt.Sprintf("plan with %.0f s per million ([growth](evidence/benchmarks.md#growth)): %.1f cores", slow, 5000*slow/1e6)},
		{"docs/scale.md", fmt.Sprintf("5,000 × %.1f KB = %.0f MB/s over three nodes", written["1 queue, 1 KB"], 5*written["1 queue, 1 KB"])},
		{"docs/scale.md", fmt.Sprintf("2,000 a second were %.1f KB each, %.0f MB/s", small, 2*small)},
		{"docs/scale.md", fmt.Sprintf("takes %.0f MB/s and syncs", 2*small/3)},
		{"docs/scale.md", fmt.Sprintf("| %s through one queue, %s through ten |", grouped(rate["1 queue, 1 KB"]), grouped(rate["10 queues, 1 KB"]))},
		{"docs/scale.md", fmt.Sprintf("| %s; %s |", grouped(rate["1 queue, 100 B"]), grouped(rate["10 queues, 100 B"]))},
		{"docs/scale.md", fmt.Sprintf("| one queue | %.1f | %.1f | %.1f |", cpu["1 queue, 100 B"], cpu["1 queue, 1 KB"], cpu["1 queue, 10 KB"])},
		{"docs/scale.md", fmt.Sprintf("| ten queues | %.1f | %.1f | %.1f |", cpu["10 queues, 100 B"], cpu["10 queues, 1 KB"], cpu["10 queues, 10 KB"])},
		{"docs/scale.md", fmt.Sprintf("0.7 × 12 × 1,000,000 / %.1f = %s msg/s", cpu["1 queue, 1 KB"], grouped(math.Round(largest/1000)*1000))},
		{"docs/scale.md", fmt.Sprintf("1 KB at %s msg/s over three nodes: %.0f MB/s, %.1f Gbit/s", grouped(math.Round(largest/1000)*1000), sent, sent*8/1000)},
		{"docs/scale.md", fmt.Sprintf("q × %.1f KiB + q × r/N × %.1f KiB + a × %.1f KiB + w × r/N × %.0f B + k × (%.0f + %.1f × h) KiB", many.known, many.rest-many.known, many.use-many.rest, waiting, connection, channel)},
		{"docs/scale.md", fmt.Sprintf("ten queues carry %.1f times the rate of one with 1 KB and %.1f times with 100 B", rate["10 queues, 1 KB"]/rate["1 queue, 1 KB"], rate["10 queues, 100 B"]/rate["1 queue, 100 B"])},
	} {
		if !strings.Contains(strings.Join(strings.Fields(pages[want.page]), " "), want.format) {
			t.Errorf("%s does not say %q, as docs/evidence/benchmarks.md does", want.page, want.format)
		}
	}
}

// queueCosts are what queues cost: in KiB for each on a node with a replica, in percent of a core for all nodes, in
// ms of processor time, and in seconds.
//
// Those at rest have never been used, and sleep.
type queueCosts struct {
	rest, use, known  float64 // known: on every node, and in rest, too
	idle, empty       float64 // idle: for each queue
	declare, declared float64 // processor time of one, and how many in a second
	restart           float64 // for each replica on the node
}

// garbage is how much larger the heap becomes than what lives in it.
const garbage = 1.5

func (r measurements) queueCosts() (c queueCosts) {
	r.Helper()
	cells := func(row string) []float64 { return r.cell("Ten thousand queues", row, 1) }
	queues, idle, declare := cells("queues")[0], cells("idle, three nodes; without queues"), cells("declare 30 at a time: the same")
	heap := cells("… of it on every node, and for a replica")
	c.known = garbage * heap[0]
	c.rest = c.known + garbage*heap[1]
	c.use = cells("after a message to each: the same")[0]
	c.idle, c.empty = (idle[0]-idle[1])/queues, idle[1]
	c.declared, c.declare = declare[0], declare[2] // between them, of how many queues
	c.restart = r.cell("Ten thousand queues", "restart of a node, all queues asleep: serves", 2)[0] / 1e4
	return c
}

// resting is the memory of a node with all queues at rest, in KiB.
func (c queueCosts) resting(queues, nodes float64) float64 {
	return 300*1024 + queues*c.known + queues*replicas/nodes*(c.rest-c.known)
}

// sizes is the table of what many queues need, by formula.
func (c queueCosts) sizes() string {
	const inUse = 2000
	text := "| queues | nodes | memory of a node, no queue used yet | … 2,000 of its replicas awake | … all awake | idle, all nodes, at most | declaring all | restart of a node |\n|---|---|---|---|---|---|---|---|\n"
	for _, q := range []float64{1e4, 1e5, 1e6} {
		for _, nodes := range []float64{3, 5} {
			on, rest := q*replicas/nodes, c.resting(q, nodes)
			text += fmt.Sprintf("| %s | %.0f | %s | %s | %s | %.0f %% of a core | %s | %s |\n", grouped(q), nodes,
				gigabytes(rest), gigabytes(rest+inUse*(c.use-c.rest)), gigabytes(rest+on*(c.use-c.rest)),
				c.empty*nodes/3+c.idle*q, lasting(q/c.declared), lasting(on*c.restart))
		}
	}
	return text
}

// gigabytes writes KiB.
func gigabytes(kib float64) string {
	if g := kib / (1 << 20); g >= 10 {
		return grouped(g) + " GiB"
	}
	return fmt.Sprintf("%.1f GiB", kib/(1<<20))
}

// lasting writes seconds.
func lasting(s float64) string {
	switch {
	case s < 120:
		return fmt.Sprintf("%.0f s", math.Ceil(s))
	case s < 2*3600:
		return fmt.Sprintf("%.0f min", s/60)
	}
	return fmt.Sprintf("%.1f h", s/3600)
}

// docs/scale.md has what many queues need as it follows from the measurements. -rewrite writes it.
func TestManyQueuesDocument(t *testing.T) {
	r := measurements{t, page.Pages(t, "../..")["docs/evidence/benchmarks.md"]}
	page.Hold(t, "../../docs/scale.md", "sizes", r.queueCosts().sizes())
}
