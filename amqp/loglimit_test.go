package amqp

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Whoever has not logged in fills no log, and is counted.
func TestLogLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		n, c := &logLimiter{}, &Conn{Log: slog.New(slog.NewTextHandler(&text, nil)), ctx: context.Background()}
		for range 100 {
			n.log(c, slog.LevelInfo, "junk")
		}
		n.log(c, slog.LevelDebug, "not enabled")
		if got := strings.Count(text.String(), "junk"); got != logLinesPerSecond {
			t.Errorf("%d lines", got)
		}
		time.Sleep(time.Second)
		text.Reset()
		n.log(c, slog.LevelInfo, "junk", slog.String("a", "b"))
		n.log(c, slog.LevelInfo, "junk")
		if got := text.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "a=b unlogged=80") || !strings.Contains(got, "msg=junk unlogged=0") {
			t.Errorf("%s", got)
		}
	})
}
