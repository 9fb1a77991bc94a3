package report

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"html/template"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/history"
)

// Version is that of the JSON form. It grows when a field changes its meaning or goes.
const Version = 1

// Run is what a report is made of.
type Run struct {
	Test   string
	Commit string // of the source
	Binary string // the server under test, if it was not built from that source
	Seed   uint64 // 0: nothing was drawn
	Again  string // the command that runs it again
	Began  time.Time
	Lasted time.Duration
	Nodes  int
	Failed bool
	// Workloads are on one clock. Faults, leaders and stalls are those of all.
	Workloads []Workload
	Verdicts  []checker.Verdict
	Problems  []string // other reasons why it failed
}

// Workload is what some clients did.
type Workload struct {
	Name string
	*history.History
}

// Report is the JSON form. Times are in milliseconds from the beginning of the run,
// unless a field says otherwise.
type Report struct {
	Version int       `json:"version"` // of this form
	Test    string    `json:"test"`
	Passed  bool      `json:"passed"`
	Began   time.Time `json:"began"`
	Commit  string    `json:"commit"`
	Binary  string    `json:"binary,omitempty"` // the server under test, if it was not built from the commit
	Seed    uint64    `json:"seed,omitempty"`   // 0: nothing was drawn
	Again   string    `json:"again"`            // the command that runs it again
	Nodes   int       `json:"nodes"`

	Sums      Sums              `json:"sums"`
	Promises  []PromiseVerdict  `json:"promises"`
	Verdicts  []checker.Verdict `json:"verdicts"`           // one for each checker that has run
	Problems  []string          `json:"problems,omitempty"` // what else went wrong
	Workloads []WorkloadSums    `json:"workloads"`
	Faults    []Fault           `json:"faults"`  // in the order of their beginnings
	Skipped   []history.Skipped `json:"skipped"` // faults that were not available
	Leaders   []Leader          `json:"leaders"` // in the order in which they were seen
	Timeline  Timeline          `json:"timeline"`
}

// WorkloadSums describe what the clients of one workload did and saw.
type WorkloadSums struct {
	Name        string         `json:"name"`
	Queues      []string       `json:"queues"` // where its messages arrive
	Published   int            `json:"published"`
	Confirmed   int            `json:"confirmed"`
	Refused     int            `json:"refused"`    // basic.nack, or returned
	Unanswered  int            `json:"unanswered"` // the connection ended first
	Delivered   int            `json:"delivered"`
	Redelivered int            `json:"redelivered"` // of those, marked as such
	Ops         map[string]int `json:"ops,omitempty"`
	Confirm     Percentiles    `json:"confirm_ms"`
	Gap         float64        `json:"gap_ms"` // the longest time without a confirm
}

// Percentiles of durations, in milliseconds.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Fault is a fault that was injected.
type Fault struct {
	Kind   string  `json:"kind"`
	Node   int     `json:"node"` // 0: all
	At     float64 `json:"at_ms"`
	Healed float64 `json:"healed_ms,omitempty"` // 0: not before the end of the run
}

// Leader says that a node was seen to lead a queue.
type Leader struct {
	Queue string  `json:"queue"`
	Node  int     `json:"node"`
	Term  uint64  `json:"term"` // of the queue's raft group
	At    float64 `json:"at_ms"`
}

// Make makes the report of a run.
func Make(r Run) Report {
	rep := Report{
		Version: Version, Test: r.Test, Passed: !r.Failed, Began: r.Began.UTC().Truncate(time.Millisecond), Commit: r.Commit, Binary: r.Binary,
		Seed: r.Seed, Again: r.Again, Nodes: r.Nodes, Problems: r.Problems,
		Verdicts: merge(r.Verdicts), Timeline: timeline(r), Skipped: []history.Skipped{}, Faults: []Fault{}, Leaders: []Leader{},
	}
	for _, w := range r.Workloads {
		if len(w.Attempts)+len(w.Deliveries)+len(w.Ops)+w.Past.Published > 0 {
			rep.Workloads = append(rep.Workloads, sumUp(w))
		}
		for _, s := range w.Skipped {
			if !slices.Contains(rep.Skipped, s) {
				rep.Skipped = append(rep.Skipped, s)
			}
		}
		for _, f := range w.Faults {
			if f := (Fault{Kind: f.Kind, Node: f.Node, At: ms(f.At), Healed: ms(f.Healed)}); !slices.Contains(rep.Faults, f) {
				rep.Faults = append(rep.Faults, f) // workloads may share them
			}
		}
		for _, l := range w.Leaders {
			rep.Leaders = append(rep.Leaders, Leader{Queue: l.Queue, Node: l.Node, Term: l.Term, At: ms(l.At)})
		}
	}
	slices.SortStableFunc(rep.Faults, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	rep.Sums = sums(rep, r.Lasted)
	rep.Promises = promisesOf(rep)
	return rep
}

// JSON returns the report as it is kept.
func (r Report) JSON() ([]byte, error) {
	text, err := json.MarshalIndent(r, "", " ")
	return append(text, '\n'), err
}

// merge adds up the verdicts of each checker, in the order of their names.
func merge(verdicts []checker.Verdict) []checker.Verdict {
	by := map[string]checker.Verdict{}
	for _, v := range verdicts {
		all := by[v.Checker]
		all.Checker, all.Count, all.Problems = v.Checker, all.Count+v.Count, append(all.Problems, v.Problems...)
		by[v.Checker] = all
	}
	merged := make([]checker.Verdict, 0, len(by))
	for _, v := range by {
		merged = append(merged, v)
	}
	slices.SortFunc(merged, func(a, b checker.Verdict) int { return strings.Compare(a.Checker, b.Checker) })
	return merged
}

// sumUp describes one workload.
func sumUp(w Workload) WorkloadSums {
	s := WorkloadSums{Name: w.Name, Queues: []string{}, Published: len(w.Attempts) + w.Past.Published, Confirmed: w.Past.Confirmed, Delivered: len(w.Deliveries) + w.Past.Delivered, Redelivered: w.Past.Redelivered, Gap: ms(w.LongestGap())}
	var took []time.Duration
	for _, a := range w.Attempts {
		if !slices.Contains(s.Queues, a.Queue) {
			s.Queues = append(s.Queues, a.Queue)
		}
		switch a.Result {
		case history.OK:
			s.Confirmed++
			took = append(took, a.Return-a.Call)
		case history.No:
			s.Refused++
		default:
			s.Unanswered++
		}
	}
	for _, queue := range w.ConfirmedTo() {
		if !slices.Contains(s.Queues, queue) { // its messages were only counted
			s.Queues = append(s.Queues, queue)
		}
	}
	slices.Sort(s.Queues)
	for _, c := range w.Seconds {
		took = append(took, c.Took...)
	}
	for _, d := range w.Deliveries {
		if d.Redelivered {
			s.Redelivered++
		}
	}
	for _, o := range w.Ops {
		if o.Kind == history.Deliver {
			s.Delivered++
			if o.Again {
				s.Redelivered++
			}
			continue
		}
		if s.Ops == nil {
			s.Ops = map[string]int{}
		}
		s.Ops[o.Kind]++
	}
	s.Confirm = percentiles(took)
	return s
}

// percentiles sorts durations.
func percentiles(all []time.Duration) Percentiles {
	if len(all) == 0 {
		return Percentiles{}
	}
	slices.Sort(all)
	at := func(percent int) float64 { return ms(all[(len(all)-1)*percent/100]) }
	return Percentiles{P50: at(50), P99: at(99), Max: at(100)}
}

// ms is a duration in milliseconds, to a tenth of one.
func ms(d time.Duration) float64 {
	return float64(d.Round(100*time.Microsecond)) / float64(time.Millisecond)
}

// Names of the files of a report.
const (
	FileName = "report.json"
	PageName = "report.html"
	SVGName  = "report.svg"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// HTML returns the page for readers: one file without scripts.
func (r Report) HTML() ([]byte, error) {
	outcome := "passed"
	if !r.Passed {
		outcome = "failed"
	}
	found := append([]string{}, r.Problems...)
	for _, v := range r.Verdicts {
		found = append(found, v.Problems...)
	}
	var b bytes.Buffer
	err := page.Execute(&b, struct {
		Report
		Outcome string
		Found   []string
		Picture template.HTML
	}{r, outcome, found, template.HTML(r.SVG())}) // SVG escapes its texts
	return b.Bytes(), err
}

// Files returns the files of a report by their names.
func (r Report) Files() (map[string][]byte, error) {
	text, err := r.JSON()
	if err != nil {
		return nil, err
	}
	html, err := r.HTML()
	return map[string][]byte{FileName: text, PageName: html, SVGName: r.SVG()}, err
}

// maxSteps bounds the steps of a timeline.
const maxSteps = 600

// Timeline is what happened in equal steps of time.
type Timeline struct {
	Step  float64 `json:"step_ms"` // how long one lasts
	Steps []Step  `json:"steps"`
}

// Step is one of them.
type Step struct {
	Confirmed int         `json:"confirmed"`  // messages
	Delivered int         `json:"delivered"`  // messages, again those that were delivered before
	Confirm   Percentiles `json:"confirm_ms"` // of the messages that were confirmed in this step
	Stall     float64     `json:"stall_ms"`   // the longest time for which the machine kept the tester from running
}

// timeline adds up all workloads of a run. A step lasts a second, or longer in a long run.
func timeline(r Run) Timeline {
	lasted := max(r.Lasted, end(r))
	step := time.Second
	if more := lasted / maxSteps; more > step {
		step = more.Truncate(time.Second) + time.Second
	}
	t := Timeline{Step: ms(step), Steps: make([]Step, lasted/step+1)}
	took := make([][]time.Duration, len(t.Steps))
	for _, w := range r.Workloads {
		for _, a := range w.Attempts {
			if a.Result == history.OK {
				t.Steps[a.Return/step].Confirmed++
				took[a.Return/step] = append(took[a.Return/step], a.Return-a.Call)
			}
		}
		for _, d := range w.Deliveries {
			t.Steps[d.At/step].Delivered++
		}
		for _, o := range w.Ops {
			if o.Kind == history.Deliver {
				t.Steps[o.Return/step].Delivered++
			}
		}
		for _, s := range w.Seconds {
			at := &t.Steps[s.At/step]
			at.Confirmed += s.Confirmed
			at.Delivered += s.Delivered
			took[s.At/step] = append(took[s.At/step], s.Took...)
		}
		for _, s := range w.Stalls {
			at := &t.Steps[s.At/step]
			at.Stall = max(at.Stall, ms(s.Longest))
		}
	}
	for i := range t.Steps {
		t.Steps[i].Confirm = percentiles(took[i])
	}
	return t
}

// end is when the last thing happened.
func end(r Run) (last time.Duration) {
	for _, w := range r.Workloads {
		for _, a := range w.Attempts {
			last = max(last, a.Return)
		}
		for _, d := range w.Deliveries {
			last = max(last, d.At)
		}
		for _, o := range w.Ops {
			last = max(last, o.Return)
		}
		for _, s := range w.Seconds {
			last = max(last, s.At)
		}
		for _, s := range w.Stalls {
			last = max(last, s.At)
		}
		for _, f := range w.Faults {
			last = max(last, f.At, f.Healed)
		}
		for _, l := range w.Leaders {
			last = max(last, l.At)
		}
	}
	return last
}
