package mutants

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Verdict is what came of a mutant.
type Verdict string

// All verdicts.
const (
	Killed   Verdict = "killed"
	Survived Verdict = "survived"
	Broken   Verdict = "broken"  // it cannot be tried: it does not fit, or does not compile
	Unsound  Verdict = "unsound" // the test that found it fails without it, too
)

// Result is one line of the table.
type Result struct {
	ID      string
	Verdict Verdict
	How     Kill
	By      string // package and test; or why there is no other verdict
	Seconds float64
}

// Runner runs tests against mutants.
type Runner struct {
	Root  string        // of the module
	Dir   string        // for overlays
	Limit time.Duration // for one call of go test; compiling does not count
	// Further are the packages whose tests run when those of a mutant's own package
	// have not found it, by the mutant's package.
	Further map[string][]Run
	Depth   Depth
	// Trusting: what finds a mutant is not run without it.
	Trusting bool

	mu      sync.Mutex
	control map[Run]func() Kill // runs without a mutant; each is made once
}

// Depth is how much is run against a mutant that nothing has found yet.
type Depth int

// The depths; each includes those before it.
const (
	Named   Depth = iota + 1 // the tests that its entry names
	Package                  // those of its package
	Further                  // those of further packages
)

// building is what compiling may take beyond the limit of the tests.
const building = 5 * time.Minute

// Try runs the tests that may find m: those named in its entry, then all of its
// package, then further packages. The first that does ends it.
func (r *Runner) Try(ctx context.Context, m Mutant) Result {
	began := time.Now()
	res := r.try(ctx, m)
	res.ID, res.Seconds = m.ID, time.Since(began).Seconds()
	return res
}

func (r *Runner) try(ctx context.Context, m Mutant) Result {
	overlay, err := m.Change.Overlay(r.Dir, m.ID)
	if err != nil {
		return Result{Verdict: Broken, By: err.Error()}
	}
	for _, run := range r.runs(m) {
		kill, test, out := r.test(ctx, run, overlay)
		switch {
		case ctx.Err() != nil:
			return Result{Verdict: Broken, By: ctx.Err().Error()}
		case kill == None:
			continue
		case kill == NoBuild:
			return Result{Verdict: Broken, How: kill, By: firstLine(out)}
		}
		by := Run{run.Package, exactly(test)}
		if test == "" || kill == Timeout {
			by = run
		}
		if !r.Trusting && r.withoutMutant(ctx, by) != None {
			return Result{Verdict: Unsound, How: kill, By: run.Package + " " + test}
		}
		return Result{Verdict: Killed, How: kill, By: strings.TrimSpace(run.Package + " " + test)}
	}
	return Result{Verdict: Survived}
}

// runs are the calls of go test for m, narrow ones first.
func (r *Runner) runs(m Mutant) []Run {
	own, all := path.Dir(m.Change.File), slices.Clone(m.Runs)
	if r.Depth >= Package {
		all = append(all, Run{Package: own})
	}
	if r.Depth >= Further {
		all = append(all, r.Further[own]...)
	}
	return all
}

// test calls go test, with an overlay unless that is empty. The overlay is in
// the environment, so that it also changes the servers that tests build.
func (r *Runner) test(ctx context.Context, run Run, overlay string) (kill Kill, test, output string) {
	args := []string{"test", "-json", "-failfast", "-vet=off", "-timeout", r.Limit.String()}
	if !strings.HasPrefix(run.Package, "jepsen") {
		args = append(args, "-tags", "invariants")
	}
	if run.Pattern != "" {
		args = append(args, "-run", run.Pattern)
	}
	args = append(args, "./"+run.Package)
	if r.usesRapid(run.Package) {
		args = append(args, "-rapid.shrinktime", "1ms")
	}
	ctx, cancel := context.WithTimeout(ctx, r.Limit+building)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = r.Root
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	if overlay != "" {
		cmd.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay))
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	kill, test = evaluate(bytes.NewReader(out.Bytes()))
	switch {
	case ctx.Err() != nil:
		kill = Timeout
	case err != nil && kill == None:
		kill = NoBuild // go test itself has failed
	}
	return kill, test, out.String()
}

// withoutMutant runs tests against the source as it is: what they find then is not
// the bug.
func (r *Runner) withoutMutant(ctx context.Context, run Run) Kill {
	r.mu.Lock()
	if r.control == nil {
		r.control = map[Run]func() Kill{}
	}
	once := r.control[run]
	if once == nil {
		once = sync.OnceValue(func() Kill {
			kill, _, _ := r.test(ctx, run, "")
			return kill
		})
		r.control[run] = once
	}
	r.mu.Unlock()
	return once()
}

// usesRapid says whether the tests of a package take the flags of rapid, whose
// shortening of a failed history nobody reads here.
func (r *Runner) usesRapid(pkg string) bool {
	files, _ := filepath.Glob(filepath.Join(r.Root, filepath.FromSlash(pkg), "*_test.go"))
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && bytes.Contains(text, []byte(`"pgregory.net/rapid"`))
	})
}

// exactly is the pattern of one test, without its subtests: those may have names
// that go test changes.
func exactly(test string) string {
	name, _, _ := strings.Cut(test, "/")
	return "^" + name + "$"
}

// firstLine returns what the compiler says first.
func firstLine(output string) string {
	for line := range strings.Lines(output) {
		var e event
		if json.Unmarshal([]byte(line), &e) == nil && strings.HasPrefix(e.Output, "#") {
			continue
		}
		if text := strings.TrimSpace(e.Output); text != "" {
			return text
		}
	}
	return strings.TrimSpace(output)
}
