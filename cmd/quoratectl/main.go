// Quoratectl shows the state of a node and its queues, and changes what is common to the cluster.
// It uses the node's HTTP API.
//
//	quoratectl [OPTIONS] VERB [ARGUMENTS]
//
// Called by the name of one of RabbitMQ's programs, such as rabbitmqctl, it takes that program's
// verbs and options.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Exit codes, those of sysexits.h, as scripts for rabbitmqctl expect them.
const (
	exitOK          = 0
	exitUsage       = 64
	exitData        = 65
	exitNoUser      = 67
	exitUnavailable = 69
	exitFailed      = 70
	exitTemporary   = 75
	exitDenied      = 77
)

// exitError is an error that determines the exit code.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func usageError(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// errReported is returned if another program has said what is wrong.
var errReported = errors.New("")

// errUnrouted is the reason why a message that was published is nowhere.
var errUnrouted = errors.New("the message reached no queue: no binding matches, or no queue has this name")

func exitCodeOf(err error) int {
	var e *exitError
	if errors.As(err, &e) {
		return e.code
	}
	return exitFailed
}

func main() {
	p := &program{name: filepath.Base(os.Args[0]), getenv: os.Getenv, in: os.Stdin, out: os.Stdout, errOut: os.Stderr, progressEvery: progressEvery}
	os.Exit(p.run(os.Args[1:]))
}
