package jepsen

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/report"
)

var (
	reportDir  = flag.String("jepsen.report", "../report/jepsen", "where runs leave their reports; the failed ones also histories and logs")
	keepReport = flag.Bool("jepsen.keep", false, "a run leaves its report even if it has not failed")
)

// sampled is how often stalls of the machine are noted in the history.
const sampled = time.Second

// evidence is what a run's report is made of, besides its own history.
type evidence struct {
	mu        sync.Mutex // of the first three
	verdicts  []checker.Verdict
	failures  []string // that are no verdicts
	workloads []report.Workload
	more      *history.History // faults that excuse nothing, for the report alone
	seed      uint64
	seedFlag  string
	watching  sync.WaitGroup
	unwatch   context.CancelFunc
}

// check fails the test for every problem, and keeps the verdicts for the report.
func (r *run) check(verdicts ...checker.Verdict) {
	r.Helper()
	r.evidence.mu.Lock()
	r.verdicts = append(r.verdicts, verdicts...)
	r.evidence.mu.Unlock()
	for _, v := range verdicts {
		for _, p := range v.Problems {
			r.T.Error(p)
		}
	}
}

// noted keeps why the run has failed, other than by a verdict.
func (r *run) noted(why string) string {
	r.evidence.mu.Lock()
	defer r.evidence.mu.Unlock()
	r.failures = append(r.failures, why)
	return why
}

// Error is that of the test, and in the report.
func (r *run) Error(args ...any) {
	r.Helper()
	r.T.Error(r.noted(strings.TrimSpace(fmt.Sprintln(args...))))
}

// Errorf is that of the test, and in the report.
func (r *run) Errorf(format string, args ...any) {
	r.Helper()
	r.T.Error(r.noted(fmt.Sprintf(format, args...)))
}

// Fatal is that of the test, and in the report.
func (r *run) Fatal(args ...any) {
	r.Helper()
	r.T.Fatal(r.noted(strings.TrimSpace(fmt.Sprintln(args...))))
}

// Fatalf is that of the test, and in the report.
func (r *run) Fatalf(format string, args ...any) {
	r.Helper()
	r.T.Fatal(r.noted(fmt.Sprintf(format, args...)))
}

// found makes what a test has checked by itself the verdict of a checker with a name,
// and fails the test for every problem. Without problems it held.
func (r *run) found(name string, problems ...string) {
	r.Helper()
	v := checker.Verdict{Checker: name, Count: len(problems)}
	for _, p := range problems {
		v.Problems = append(v.Problems, name+": "+p)
	}
	r.check(v)
}

// beside starts the history of a workload that runs beside that of r.History, and is
// in the report under its own name.
func (r *run) beside(name string) *history.History {
	h := r.Beside()
	r.reportOn(name, h)
	return h
}

// reportOn adds a workload to the report. Its history must be on the clock of r.History.
func (r *run) reportOn(name string, h *history.History) {
	r.evidence.mu.Lock()
	defer r.evidence.mu.Unlock()
	r.workloads = append(r.workloads, report.Workload{Name: name, History: h})
}

// draws returns the seed of a run, which is in its report: the value of a flag, or, if
// that is 0, one from the clock.
func (r *run) draws(flag string, given uint64) uint64 {
	if r.seed, r.seedFlag = given, flag; given == 0 {
		r.seed = uint64(time.Now().UnixNano())
	}
	r.Logf("-%s %d", flag, r.seed)
	return r.seed
}

// reportFault records a fault for the report alone: checkers excuse nothing by it, so
// that it may last.
func (r *run) reportFault(kind string, node int) (healed func()) { return r.more.Fault(kind, node) }

// watch notes leaders and stalls until unwatch is called.
func (r *run) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	r.unwatch = cancel
	for _, n := range r.Nodes {
		r.watching.Go(func() { cluster.WatchLeaders(ctx, n, r.Lead) })
	}
	r.watching.Go(func() {
		tick := time.NewTicker(sampled)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case at := <-tick.C:
				r.Sample(machine.Longest(at.Add(-sampled)))
			}
		}
	})
}

// printSums prints what the run adds up to in one line.
func (r *run) printSums() {
	text, err := json.Marshal(r.made().Sums)
	if err != nil {
		r.Error(err)
	}
	r.Logf("sums: %s", text)
}

// leaveReport writes the report, and for a failed run also histories and logs.
func (r *run) leaveReport() {
	if !r.Failed() && !*keepReport {
		return
	}
	dir := filepath.Join(*reportDir, strings.ReplaceAll(r.Name(), "/", "-"))
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755), r.writeReport(dir)); err != nil {
		r.Logf("report: %v", err)
		return
	}
	if r.Logf("report: %s; again: %s", filepath.Join(dir, report.PageName), r.again()); !r.Failed() {
		return
	}
	if err := errors.Join(r.writeHistories(dir), r.CollectLogs(dir)); err != nil {
		r.Logf("report: %v", err)
	}
}

// made makes the report.
func (r *run) made() report.Report {
	return report.Make(report.Run{
		Test: r.Name(), Commit: commit(), Binary: *given, Seed: r.seed, Again: r.again(), Began: r.began, Lasted: time.Since(r.began),
		Nodes: len(r.Nodes), Failed: r.Failed(), Verdicts: r.verdicts, Problems: r.failures,
		Workloads: append([]report.Workload{{Name: "main", History: r.History}, {Name: "more faults", History: r.more}}, r.workloads...),
	})
}

// writeReport writes the files of the report.
func (r *run) writeReport(dir string) error {
	files, err := r.made().Files()
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), text, 0o644))
	}
	return err
}

func (r *run) writeHistories(dir string) error {
	errs := []error{writeHistory(filepath.Join(dir, "history.jsonl"), r.History)}
	for _, w := range r.workloads {
		errs = append(errs, writeHistory(filepath.Join(dir, "history-"+strings.ReplaceAll(w.Name, "/", "-")+".jsonl"), w.History))
	}
	return errors.Join(errs...)
}

func writeHistory(path string, h *history.History) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(h.Write(f), f.Close())
}

// again is the command that runs the test again: with the flags that were given, and the
// seed that was drawn.
func (r *run) again() string {
	first, _, _ := strings.Cut(r.Name(), "/")
	words := []string{"go test ./jepsen -run '^" + first + "$' -count 1 -v -timeout 0"}
	flag.Visit(func(f *flag.Flag) {
		if strings.HasPrefix(f.Name, "jepsen.") && f.Name != r.seedFlag && f.Name != "jepsen.report" {
			words = append(words, fmt.Sprintf("-%s=%s", f.Name, f.Value))
		}
	})
	if r.seed != 0 {
		words = append(words, fmt.Sprintf("-%s=%d", r.seedFlag, r.seed))
	}
	return strings.Join(words, " ")
}

// commit names the source from which the server was built, with a plus sign if files
// were changed since.
var commit = sync.OnceValue(func() string {
	out, err := exec.Command("git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
})
