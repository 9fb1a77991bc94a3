package report

import (
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

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
