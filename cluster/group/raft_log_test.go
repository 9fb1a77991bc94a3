package group

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// What raft warns of at every start and every join is no warning; all else is.
func TestUsualLinesAreNoWarnings(t *testing.T) {
	var log bytes.Buffer
	l := &lineLogger{to: slog.New(slog.NewTextHandler(&log, nil))}
	for _, line := range []string{
		"[WARN]  raft: heartbeat timeout reached, starting election: last-leader-addr= last-leader-id=\n",
		"[WARN]  raft: failed to get previous log: previous-index=3 last-index=0 error=\"log not found\"\n",
		"[WARN]  raft: failed to contact: server-id=n2 time=501ms\n",
	} {
		if _, err := l.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "failed to contact") {
		t.Errorf("%s", got)
	}
}
