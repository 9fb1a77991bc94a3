package report

import (
	"slices"

	"github.com/quorate/quorate/jepsen/checker"
)

// Promise is something that users may rely on, whatever breaks.
type Promise struct {
	ID   string
	Text string
	// Checkers have verdicts about it.
	Checkers []string
	// Faults: it is tried only if a fault of one of these kinds was injected. nil: always.
	Faults []string
}

// Promises are all of them.
var Promises = []Promise{
	{ID: "S1", Text: "a confirmed message is not lost", Checkers: []string{"lost", "finished", "fan-out", "dropped", "parked"}},
	{ID: "S2", Text: "what is delivered was published, byte by byte", Checkers: []string{"ghost"}},
	{ID: "S3", Text: "a publish is enqueued at most once in each queue; a refused one never", Checkers: []string{"doubled", "redelivered", "ghost", "limit"}},
	{ID: "S4", Text: "what was acked is not delivered again; each redelivery has a cause, and is marked and counted", Checkers: []string{"doubled", "redelivered", "returned", "renewal", "deferred"}},
	{ID: "S5", Text: "order of first deliveries; returned messages go where they belong", Checkers: []string{"disorder", "group order"}},
	{ID: "S6", Text: "a message, a group, and the place of the single active consumer have one holder", Checkers: []string{"holders", "lock", "renewal", "mutex", "active"}},
	{ID: "S7", Text: "nothing is delivered past its expiry", Checkers: []string{"expired"}},
	{ID: "S8", Text: "dead letters arrive: at least once, and once in a queue of this cluster", Checkers: []string{"death"}},
	{ID: "S9", Text: "a delivery is taken back when its time is over, not before", Checkers: []string{"lock", "timeout"}},
	{ID: "S10", Text: "nothing that is delayed comes early", Checkers: []string{"early", "schedule"}},
	{ID: "S11", Text: "a queue in use is not deleted by its lease", Checkers: []string{"lease"}},
	{ID: "S12", Text: "equal logs, equal states", Checkers: []string{"replicas"}},
	{ID: "S13", Text: "clocks do not run back, and a wrong one has a bounded effect", Checkers: []string{"early", "late", "schedule", "lock"}, Faults: []string{"clock offset", "clock drift"}},
	{
		ID: "S14", Text: "changes of leaders, nodes and members break nothing", Checkers: []string{"lost", "doubled", "replicas", "register"},
		Faults: []string{"kill", "stop", "pause", "partition", "one-way partition", "rolling restart", "drain", "node wiped", "membership change", "node forgotten"},
	},
	{
		ID: "S15", Text: "a replica with a damaged or lost store neither votes nor leads", Checkers: []string{"lost", "doubled", "replicas"},
		Faults: []string{"bit flip", "node wiped", "part of a node wiped"},
	},
	{
		ID: "S16", Text: "after a failed write, or in a state that nobody knows, nothing goes on", Checkers: []string{"lost", "exit"},
		Faults: []string{"power loss", "disk full", "disk read-only", "disk hung"},
	},
	{ID: "L1", Text: "service resumes", Checkers: []string{"resume", "unanswered"}},
	{ID: "L2", Text: "replicas become equal, and free what is not needed", Checkers: []string{"replicas"}},
	{ID: "L3", Text: "due timers fire", Checkers: []string{"late"}},
	{ID: "L4", Text: "the dead hold nothing", Checkers: []string{"finished", "stuck", "timeout"}},
	{ID: "L5", Text: "one slow part does not slow the others", Checkers: []string{"slow"}},
	{ID: "L6", Text: "a rolling restart is short", Checkers: []string{"pause"}, Faults: []string{"rolling restart", "drain"}},
}

// What came of a promise.
const (
	Kept     = "kept"
	Broken   = "broken"
	NotTried = "not tried"
)

// PromiseVerdict is what came of a promise in a run.
type PromiseVerdict struct {
	ID       string   `json:"id"`
	Promise  string   `json:"promise"`
	Verdict  string   `json:"verdict"`            // kept, broken or not tried
	Checkers []string `json:"checkers,omitempty"` // those that have run
	Problems int      `json:"problems"`           // that they have found
}

// promisesOf says what the verdicts of a report mean for each promise.
func promisesOf(r Report) []PromiseVerdict {
	all := make([]PromiseVerdict, 0, len(Promises))
	for _, p := range Promises {
		v := PromiseVerdict{ID: p.ID, Promise: p.Text, Verdict: NotTried}
		if p.Faults == nil || slices.ContainsFunc(r.Faults, func(f Fault) bool { return slices.Contains(p.Faults, f.Kind) }) {
			v.evaluate(p, r.Verdicts)
		}
		all = append(all, v)
	}
	return all
}

// evaluate takes over what the promise's checkers have found.
func (v *PromiseVerdict) evaluate(p Promise, verdicts []checker.Verdict) {
	for _, c := range verdicts {
		if !slices.Contains(p.Checkers, c.Checker) {
			continue
		}
		v.Checkers = append(v.Checkers, c.Checker)
		v.Problems += c.Count
	}
	switch {
	case v.Problems > 0:
		v.Verdict = Broken
	case len(v.Checkers) > 0:
		v.Verdict = Kept
	}
}
