package main

import (
	"log/slog"
	"os"
	"strings"
	"syscall"
)

// monitorOption keeps the thread by which Go's runtime watches its processors from going to sleep when
// all of them are idle for a moment: waking it again costs a server that has a message now and then a
// third of its processor time, see cluster/DESIGN.md, "The runtime's monitor". The number is how many
// milliseconds pass between two lines SCHED that the option writes to standard error; it is the largest
// one.
const monitorOption = "schedtrace=2147483647"

// monitored adds the option to those of the runtime, unless they have it, and reports whether they are
// others now.
func monitored(environment []string) ([]string, bool) {
	const name = "GODEBUG="
	options := monitorOption
	var rest []string
	for _, v := range environment {
		if !strings.HasPrefix(v, name) {
			rest = append(rest, v)
			continue
		}
		for _, o := range strings.Split(v[len(name):], ",") {
			if strings.HasPrefix(o, "schedtrace=") {
				return environment, false
			}
		}
		if v != name {
			options = v[len(name):] + "," + monitorOption
		}
	}
	return append(rest, name+options), true
}

// keepMonitorAwake starts the program again in the same process, with the option: the runtime reads it
// when a program starts, and never again. It returns if the option is there or cannot be had.
func keepMonitorAwake() {
	environment, changed := monitored(os.Environ())
	if !changed {
		return
	}
	path, err := os.Executable()
	if err == nil {
		err = syscall.Exec(path, os.Args, environment)
	}
	slog.Debug("the runtime's monitor may sleep", "error", err)
}
