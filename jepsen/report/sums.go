package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Sums are what a run, or several, add up to.
type Sums struct {
	Runs      int     `json:"runs"`
	Failed    int     `json:"failed"`     // of the runs
	Wall      float64 `json:"wall_ms"`    // how long they lasted, added up
	Virtual   float64 `json:"virtual_ms"` // of simulated time
	Published int     `json:"published"`
	Confirmed int     `json:"confirmed"` // messages
	Delivered int     `json:"delivered"` // again those that were delivered before

	// LeaderChanges counts the leaders of queues that were seen after the first one;
	// Elections the terms from the first one on, those without a leader included.
	LeaderChanges int            `json:"leader_changes"`
	Elections     int            `json:"elections"`
	Faults        map[string]int `json:"faults"` // by kind; those of several nodes at once count for each node
	// PowerAll counts losses of power of all nodes at once, PowerOne those of single nodes.
	PowerAll int   `json:"power_losses_all"`
	PowerOne int   `json:"power_losses_one"`
	BitFlips int   `json:"bit_flips"`
	Found    Found `json:"found"`
}

// Found is what checkers have found, in problems. All of it should be 0.
type Found struct {
	Lost             int `json:"lost"`
	Ghosts           int `json:"ghosts"`  // delivered, and not published, damaged, or refused
	Doubled          int `json:"doubled"` // again without a mark, or after a proven ack
	Disorder         int `json:"disorder"`
	Early            int `json:"early"`
	DeliveredExpired int `json:"delivered_expired"`
	Late             int `json:"late"`     // more than a second and three stalls
	Diverged         int `json:"diverged"` // replicas that are not equal in the end
	Stuck            int `json:"stuck"`    // messages without an answer or an end, queues that do not resume
	Other            int `json:"other"`    // found by other checkers
}

// PowerLoss and BitFlip are kinds of faults that have sums of their own.
const (
	PowerLoss = "power loss"
	BitFlip   = "bit flip"
)

// sums adds up a report that has everything else.
func sums(r Report, lasted time.Duration) Sums {
	s := Sums{Runs: 1, Wall: ms(lasted), Faults: map[string]int{}}
	if !r.Passed {
		s.Failed = 1
	}
	for _, w := range r.Workloads {
		s.Published += w.Published
		s.Confirmed += w.Confirmed
		s.Delivered += w.Delivered
	}
	for _, f := range r.Faults {
		s.Faults[f.Kind]++
	}
	s.BitFlips = s.Faults[BitFlip]
	s.PowerAll, s.PowerOne = powerLosses(r.Faults, r.Nodes)
	s.LeaderChanges, s.Elections = elections(r.Leaders)
	for _, v := range r.Verdicts {
		*s.Found.of(v.Checker) += v.Count
	}
	return s
}

// of is the sum to which a checker's problems belong.
func (f *Found) of(checker string) *int {
	switch checker {
	case "lost":
		return &f.Lost
	case "ghost":
		return &f.Ghosts
	case "doubled", "redelivered", "returned":
		return &f.Doubled
	case "disorder", "group order":
		return &f.Disorder
	case "early":
		return &f.Early
	case "expired":
		return &f.DeliveredExpired
	case "late":
		return &f.Late
	case "replicas":
		return &f.Diverged
	case "unanswered", "finished", "stuck", "resume":
		return &f.Stuck
	}
	return &f.Other
}

// powerLosses tells losses of power that hit all nodes at once from others.
func powerLosses(faults []Fault, nodes int) (all, single int) {
	var losses []Fault
	for _, f := range faults {
		if f.Kind == PowerLoss {
			losses = append(losses, f)
		}
	}
	for len(losses) > 0 {
		hit, n := map[int]bool{}, 0
		for n < len(losses) && (n == 0 || losses[n].At < losses[0].Healed) {
			hit[losses[n].Node] = true
			n++
		}
		if len(hit) == nodes || hit[0] {
			all++
		} else {
			single += len(hit)
		}
		losses = losses[n:]
	}
	return all, single
}

// elections counts what happened between the first and the last leader of each queue.
func elections(leaders []Leader) (changes, terms int) {
	type span struct {
		first, last uint64
		leaders     int
	}
	by := map[string]span{}
	for _, l := range leaders {
		s, ok := by[l.Queue]
		if !ok {
			s.first = l.Term
		}
		s.first, s.last, s.leaders = min(s.first, l.Term), max(s.last, l.Term), s.leaders+1
		by[l.Queue] = s
	}
	for _, s := range by {
		changes += s.leaders - 1
		terms += int(s.last - s.first)
	}
	return changes, terms
}

// Add adds the sums of another run.
func (s *Sums) Add(o Sums) {
	if s.Faults == nil {
		s.Faults = map[string]int{}
	}
	for kind, n := range o.Faults {
		s.Faults[kind] += n
	}
	s.Wall += o.Wall
	s.Virtual += o.Virtual
	mine, theirs := s.counts(), o.counts()
	for i := range mine {
		*mine[i].n += *theirs[i].n
	}
}

// count is one of the sums.
type count struct {
	name string
	n    *int
	zero bool // it should be 0
}

// counts are all sums that are numbers.
func (s *Sums) counts() []count {
	return []count{
		{"runs", &s.Runs, false}, {"failed runs", &s.Failed, true},
		{"published", &s.Published, false}, {"confirmed", &s.Confirmed, false}, {"delivered", &s.Delivered, false},
		{"leader changes", &s.LeaderChanges, false}, {"elections", &s.Elections, false},
		{"power losses of all nodes", &s.PowerAll, false}, {"power losses of single nodes", &s.PowerOne, false}, {"bit flips", &s.BitFlips, false},
		{"lost", &s.Found.Lost, true}, {"ghosts", &s.Found.Ghosts, true}, {"doubled, unmarked", &s.Found.Doubled, true}, {"out of order", &s.Found.Disorder, true},
		{"early", &s.Found.Early, true}, {"delivered expired", &s.Found.DeliveredExpired, true}, {"late", &s.Found.Late, true},
		{"diverged", &s.Found.Diverged, true}, {"stuck", &s.Found.Stuck, true}, {"other problems", &s.Found.Other, true},
	}
}

// Row is a line of the table of sums.
type Row struct {
	Name, Value string
	Bad         bool
}

// Rows are the table of sums.
func (s Sums) Rows() []Row {
	rows := []Row{{Name: "wall time", Value: hours(s.Wall)}}
	if s.Virtual > 0 {
		rows = append(rows, Row{Name: "virtual time", Value: hours(s.Virtual)})
	}
	for _, c := range s.counts() {
		rows = append(rows, Row{Name: c.name, Value: number(*c.n), Bad: c.zero && *c.n > 0})
	}
	for _, kind := range slices.Sorted(maps.Keys(s.Faults)) {
		rows = append(rows, Row{Name: "fault: " + kind, Value: number(s.Faults[kind])})
	}
	return rows
}

// hours writes milliseconds for readers.
func hours(millis float64) string {
	d := time.Duration(millis * float64(time.Millisecond))
	if d >= time.Hour {
		return fmt.Sprintf("%.1f h", d.Hours())
	}
	return d.Round(time.Second).String()
}

// number writes a number with commas.
func number(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// Markdown is a table with a column for each test, in the order of their names, and one
// for all. Several reports of one test are added up.
func Markdown(reports []Report) string {
	by, total := map[string]*Sums{}, &Sums{}
	for _, r := range reports {
		if by[r.Test] == nil {
			by[r.Test] = &Sums{}
		}
		by[r.Test].Add(r.Sums)
		total.Add(r.Sums)
	}
	tests := slices.SortedFunc(maps.Keys(by), cmp.Compare[string])
	columns := []*Sums{total}
	var b strings.Builder
	b.WriteString("| | all |")
	for _, test := range tests {
		fmt.Fprintf(&b, " %s |", cell(test))
		columns = append(columns, by[test])
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(columns)) + "\n")
	for _, row := range total.Rows() {
		fmt.Fprintf(&b, "| %s |", cell(row.Name))
		for _, s := range columns {
			fmt.Fprintf(&b, " %s |", s.value(row.Name))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// value is the value of a row; 0 if there is none.
func (s Sums) value(name string) string {
	for _, row := range s.Rows() {
		if row.Name == name {
			return row.Value
		}
	}
	return "0"
}

// cell is a text that does not break a table.
func cell(text string) string { return strings.NewReplacer("|", `\|`, "\n", " ").Replace(text) }
