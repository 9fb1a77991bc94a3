package mutants

import (
	"bufio"
	"encoding/json"
	"io"
	"strings"
)

// Kill is how tests end that find a bug.
type Kill string

// What can come of a run of tests.
const (
	None    Kill = ""        // they pass
	Failure Kill = "failure" // a test says what is wrong
	Panic   Kill = "panic"   // the code, or an assertion in it, panics, or the process ends
	Timeout Kill = "timeout" // a test does not end
	NoBuild Kill = "does not compile"
)

// event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
}

// evaluate reads the events of one go test and returns what came of it, and the
// test that found it; empty if that is unknown.
func evaluate(events io.Reader) (kill Kill, test string) {
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue
		}
		switch e.Action {
		case "build-fail":
			return NoBuild, ""
		case "output":
			if k := kindOf(e.Output); k != None {
				kill, test = k, running(e, test)
			}
		case "fail":
			if kill == None {
				kill = Failure
			}
			if test == "" { // subtests end before their test
				test = e.Test
			}
		}
	}
	return kill, test
}

// kindOf returns what a line of output says; None: nothing.
func kindOf(line string) Kill {
	switch {
	case strings.HasPrefix(line, "panic: test timed out after"):
		return Timeout
	case strings.HasPrefix(line, "panic: "), strings.HasPrefix(line, "fatal error: "):
		return Panic
	}
	return None
}

// running is the test that a line belongs to, unless another was found before.
func running(e event, before string) string {
	if before != "" {
		return before
	}
	return e.Test
}
