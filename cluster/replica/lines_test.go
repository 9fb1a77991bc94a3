package replica

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// What raft warns of at every start and every join is no warning, and what its transport wants it to meet is
// none either; all else is.
func TestUsualLinesAreNoWarnings(t *testing.T) {
	var log bytes.Buffer
	l := NewLogger(&LogGate{Now: time.Now}, slog.New(slog.NewTextHandler(&log, nil)))
	l.Warn("heartbeat timeout reached, starting election", "last-leader-addr", "", "last-leader-id", "")
	l.Warn("failed to get previous log", "previous-index", 3, "last-index", 0, "error", "log not found")
	l.Warn("skipping application of old log", "index", 3)
	l.Error("failed to pipeline appendEntries", "peer", "n2", "error", fmt.Errorf("no pipeline: %w", errLags))
	l.Info("entering follower state")
	l.Warn("failed to contact", "server-id", "n2", "time", "501ms")
	l.Error("failed to commit logs", "error", "disk full")
	got := log.String()
	if strings.Count(got, "\n") != 2 || !strings.Contains(got, `level=WARN msg=raft line="failed to contact" server-id=n2`) ||
		!strings.Contains(got, `level=ERROR msg=raft line="failed to commit logs"`) {
		t.Errorf("%s", got)
	}
}

// formatted counts how often it is.
type formatted int

func (f *formatted) String() string {
	*f++
	return "n2"
}

// All rafts of a node together log no more than some lines a second; the others cost nothing, and are
// counted.
func TestRaftLinesAreFew(t *testing.T) {
	var log bytes.Buffer
	now := time.Unix(1000, 0)
	gate, to := &LogGate{Now: func() time.Time { return now }}, slog.New(slog.NewTextHandler(&log, nil))
	storm := func(rafts int) (times formatted) {
		for i := range rafts {
			l := NewLogger(gate, to.With("group", i))
			l.Warn("failed to contact", "peer", &times)
			l.Error("failed to make requestVote RPC", "target", &times)
		}
		return times
	}
	if times := storm(1000); times != linesPerSecond || strings.Count(log.String(), "\n") != linesPerSecond {
		t.Errorf("%d lines are formatted, and logged: %s", times, log.String())
	}
	now = now.Add(time.Second)
	log.Reset()
	storm(1)
	if got := log.String(); strings.Count(got, "\n") != 2 || strings.Count(got, "left_out=") != 1 || !strings.Contains(got, fmt.Sprint("group=0 left_out=", 2000-linesPerSecond, " ")) {
		t.Errorf("a second later: %s", got)
	}
}
