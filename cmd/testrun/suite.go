package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// shown is how many lines of a failed test are printed.
const shown = 40

// suite is what is known of a run of tests.
type suite struct {
	out                     io.Writer
	logs                    *logs
	packages                map[string]*pkg     // those that run
	builds                  map[string]*output  // by import path: what the compiler has said
	reasons                 map[string][]string // of skipped tests, with their names
	failures                []string            // names of failed tests, with what they said
	times                   []timed             // of tests that have ended
	passed, failed, skipped int
}

// pkg is a package whose tests run. Tests are counted that have no subtests, and those that fail
// though none of their subtests did.
type pkg struct {
	tests                   map[string]*test // that have begun and not ended
	output                  output           // that belongs to no test
	passed, failed, skipped int
}

// test is a test or subtest that has not ended.
type test struct {
	output
	parent bool // it has subtests
	failed bool // one of its subtests has failed
}

// timed is how long a test took, the time for which it waited for its turn included.
type timed struct {
	name string
	took time.Duration
}

func newSuite(out io.Writer, l *logs) *suite {
	return &suite{out: out, logs: l, packages: map[string]*pkg{}, builds: map[string]*output{}, reasons: map[string][]string{}}
}

// take takes the next event.
func (s *suite) take(e event) error {
	if e.Action == "build-output" {
		if s.builds[e.ImportPath] == nil {
			s.builds[e.ImportPath] = &output{}
		}
		s.builds[e.ImportPath].add(e.Output)
		return nil
	}
	if e.Package == "" {
		return nil
	}
	p := s.packages[e.Package]
	if p == nil {
		p = &pkg{tests: map[string]*test{}}
		s.packages[e.Package] = p
	}
	if e.Action == "output" {
		p.outputOf(e.Test).add(e.Output)
		return s.logs.write(e.Package, e.Output)
	}
	if e.Test == "" {
		s.packageEnds(p, e)
	} else {
		s.testChanges(p, e)
	}
	return nil
}

// outputOf returns the output of a test, or of the package.
func (p *pkg) outputOf(name string) *output {
	if t := p.tests[name]; t != nil {
		return &t.output
	}
	return &p.output
}

// testChanges takes what has happened to a test.
func (s *suite) testChanges(p *pkg, e event) {
	switch e.Action {
	case "run":
		p.tests[e.Test] = &test{}
		if above := p.above(e.Test); above != nil {
			above.parent = true
		}
	case "pass", "fail", "skip":
		t := p.tests[e.Test]
		if t == nil {
			return
		}
		delete(p.tests, e.Test)
		s.times = append(s.times, timed{short(e.Package) + " " + e.Test, seconds(e.Elapsed)})
		s.testEnds(p, t, e)
	}
}

// testEnds counts a test that has ended.
func (s *suite) testEnds(p *pkg, t *test, e event) {
	switch {
	case e.Action == "skip":
		p.skipped++
		reason := t.reason()
		s.reasons[reason] = append(s.reasons[reason], short(e.Package)+" "+e.Test)
	case e.Action == "fail":
		if above := p.above(e.Test); above != nil {
			above.failed = true
		}
		if !t.failed {
			s.fails(p, e.Package, e.Test, &t.output)
		}
	case !t.parent:
		p.passed++
	}
}

// above returns the test whose subtest has this name.
func (p *pkg) above(name string) *test {
	return p.tests[name[:max(0, strings.LastIndexByte(name, '/'))]]
}

// fails prints and counts a failure.
func (s *suite) fails(p *pkg, pkg, name string, o *output) {
	p.failed++
	name = strings.TrimSpace(short(pkg) + " " + name)
	fmt.Fprintf(s.out, "--- FAIL: %s\n", name)
	said := ""
	for _, line := range o.excerpt() {
		fmt.Fprintf(s.out, "    %s\n", line)
		if said == "" || strings.Contains(line, "_test.go:") {
			said = strings.TrimSpace(line)
		}
	}
	s.failures = append(s.failures, strings.TrimSuffix(name+": "+said, ": "))
	if at := s.logs.path(pkg); at != "" {
		fmt.Fprintf(s.out, "    (all of it: %s)\n", at)
	}
}

// packageEnds prints the line of a package that has ended. Tests that have not ended then failed.
func (s *suite) packageEnds(p *pkg, e event) {
	if e.Action != "pass" && e.Action != "fail" {
		return // it begins, or has no tests
	}
	for _, name := range slices.Sorted(maps.Keys(p.tests)) {
		if t := p.tests[name]; e.Action == "fail" && !t.parent {
			s.fails(p, e.Package, name+" (has not ended)", &t.output)
		}
	}
	if e.Action == "fail" && p.failed == 0 {
		o := &p.output
		if b := s.builds[e.FailedBuild]; b != nil {
			o = b
		}
		s.fails(p, e.Package, "", o)
	}
	delete(s.packages, e.Package)
	s.logs.ends(e.Package)
	s.passed, s.failed, s.skipped = s.passed+p.passed, s.failed+p.failed, s.skipped+p.skipped
	word := "ok  "
	if e.Action == "fail" {
		word = "FAIL"
	}
	fmt.Fprintf(s.out, "%s %6.1fs  %s\n", word, e.Elapsed, short(e.Package)+" "+sums(p.passed, p.failed, p.skipped))
}

func sums(passed, failed, skipped int) string {
	text := fmt.Sprintf("%d passed, %d failed", passed, failed)
	if skipped > 0 {
		text += fmt.Sprintf(", %d skipped", skipped)
	}
	return text
}

// close prints the slowest tests, why tests were skipped, which have failed, and the sums.
func (s *suite) close(took time.Duration, slowest int) {
	slices.SortStableFunc(s.times, func(a, b timed) int { return cmp.Compare(b.took, a.took) })
	for _, t := range s.times[:min(slowest, len(s.times))] {
		fmt.Fprintf(s.out, "%6.1fs  %s\n", t.took.Seconds(), t.name)
	}
	for _, reason := range slices.Sorted(maps.Keys(s.reasons)) {
		names := s.reasons[reason]
		fmt.Fprintf(s.out, "skipped %d: %s: %s\n", len(names), reason, strings.Join(names, ", "))
	}
	for _, f := range s.failures {
		fmt.Fprintf(s.out, "failed %s\n", f)
	}
	fmt.Fprintf(s.out, "%v: %s\n", took.Round(time.Second), sums(s.passed, s.failed, s.skipped))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// short is a package's path below the module.
func short(pkg string) string {
	if _, below, ok := strings.Cut(strings.TrimPrefix(pkg, "github.com/"), "/"); ok {
		if _, below, ok = strings.Cut(below, "/"); ok {
			return below
		}
	}
	return pkg
}
