package main

import (
	"regexp"
	"strings"
)

// output is what a test has written: its last lines and, where it has crashed, those from there on.
type output struct {
	last  []string // at most 2 * shown
	crash []string // at most shown
}

// crashes begins what a process says when it ends by a bug.
var crashes = regexp.MustCompile(`^(panic: |fatal error: |WARNING: DATA RACE|SIG[A-Z]+: )`)

// framing is what go test writes around a test.
var framing = regexp.MustCompile(`^ *(=== (RUN|PAUSE|CONT|NAME)|--- (PASS|FAIL|SKIP): )`)

// position is where a test says something.
var position = regexp.MustCompile(`^ *[\w.-]+\.go:\d+: `)

// add adds a line.
func (o *output) add(text string) {
	line := strings.TrimRight(text, "\n")
	if framing.MatchString(line) {
		return
	}
	if n := len(o.crash); n < shown && (n > 0 || crashes.MatchString(line)) {
		o.crash = append(o.crash, line)
	}
	if o.last = append(o.last, line); len(o.last) > 2*shown {
		o.last = append(o.last[:0], o.last[shown:]...)
	}
}

// excerpt returns the lines that tell most of why the test failed.
func (o *output) excerpt() []string {
	if len(o.crash) > 0 {
		return o.crash
	}
	return o.last[max(0, len(o.last)-shown):]
}

// reason returns what a skipped test said last.
func (o *output) reason() string {
	for i := len(o.last) - 1; i >= 0; i-- {
		if position.MatchString(o.last[i]) {
			said := append([]string{position.ReplaceAllString(o.last[i], "")}, o.last[i+1:]...)
			return strings.Join(strings.Fields(strings.Join(said, " ")), " ")
		}
	}
	return "no reason given"
}
