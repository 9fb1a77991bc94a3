//go:build !testoptions

package main

import (
	"flag"
	"log/slog"
	"time"

	"github.com/quorate/quorate/fsm"
)

// testSettings would be settings for tests. They exist with the build tag
// testoptions only: what users run has no switch that breaks a promise.
type testSettings struct{}

var testRows []setting

func testFlags(*flag.FlagSet) *bool { return new(bool) }

func (testSettings) check(bool) error { return nil }

// versions are the versions of the replicated state that the program supports.
func (testSettings) versions() fsm.Versions { return fsm.Supported }

// wallClock is the node's wall clock; stop ends its goroutine.
func wallClock(*settings, *slog.Logger) (wall func() time.Time, stop func(), err error) {
	return time.Now, func() {}, nil
}
