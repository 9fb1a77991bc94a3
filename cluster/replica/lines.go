package replica

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// linesPerSecond is how many of raft's lines a node logs at most. The failure of a node is thousands of
// elections, each with some lines that say so.
const linesPerSecond = 20

// LogGate lets some of the lines through that the rafts of a node would log, and counts the others.
type LogGate struct {
	Now func() time.Time

	mu     sync.Mutex
	second int64
	lines  int
	left   int // out, since the last line that was logged
}

// pass reports whether a line may be logged, and how many have been left out before it.
func (g *LogGate) pass() (left int, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.Now().Unix(); now != g.second {
		g.second, g.lines = now, 0
	}
	if g.lines >= linesPerSecond {
		g.left++
		return 0, false
	}
	g.lines++
	left, g.left = g.left, 0
	return left, true
}

// raftLogger logs what a raft warns of, as far as its node's gate allows. What does not pass is not even
// formatted.
type raftLogger struct {
	hclog.Logger // that logs nothing
	gate         *LogGate
	to           *slog.Logger
}

// nothing is a logger that logs nothing, for all rafts.
var nothing = hclog.NewNullLogger()

// NewLogger returns what a raft logs with, as far as a node's gate lets it.
func NewLogger(gate *LogGate, to *slog.Logger) hclog.Logger { return raftLogger{nothing, gate, to} }

// Warn implements hclog.Logger.
func (l raftLogger) Warn(line string, args ...any) {
	if isUsual(line) {
		l.to.Debug("raft", append([]any{"line", line}, args...)...)
		return
	}
	l.log(slog.LevelWarn, line, args)
}

// Error implements hclog.Logger.
func (l raftLogger) Error(line string, args ...any) { l.log(slog.LevelError, line, args) }

// IsWarn implements hclog.Logger.
func (l raftLogger) IsWarn() bool { return true }

// IsError implements hclog.Logger.
func (l raftLogger) IsError() bool { return true }

// isUsual reports whether a line is about what happens at every start and every
// join, although raft warns of it: a follower that hears of no leader yet stands
// for election, and a new one has no entries that could be compared. One that has slept is told again what it has
// applied.
func isUsual(line string) bool {
	switch line {
	case "heartbeat timeout reached, starting election", "failed to get previous log", "skipping application of old log":
		return true
	}
	return false
}

func (l raftLogger) log(level slog.Level, line string, args []any) {
	for _, a := range args {
		if err, ok := a.(error); ok && errors.Is(err, errLags) {
			return // it is wanted
		}
	}
	if !l.to.Enabled(context.Background(), level) {
		return
	}
	left, ok := l.gate.pass()
	if !ok {
		return
	}
	to := l.to
	if left > 0 {
		to = to.With("left_out", left)
	}
	to.Log(context.Background(), level, "raft", append([]any{"line", line}, args...)...)
}
