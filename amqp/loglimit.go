package amqp

import (
	"log/slog"
	"sync"
	"time"
)

// logLimiter bounds how often the log speaks of clients that have not logged in:
// they may come as often as they like.
type logLimiter struct {
	mu      sync.Mutex
	since   time.Time // begin of the second
	written int       // lines in it, ≤ logLinesPerSecond
	dropped uint64    // lines since the last one that was written
}

// logLinesPerSecond is how many lines there may be in a second.
const logLinesPerSecond = 20

// log writes a line, or counts it for the next one that is written.
func (l *logLimiter) log(c *conn, level slog.Level, message string, attrs ...any) {
	if !c.log.Enabled(c.ctx, level) {
		return
	}
	if write, dropped := l.admit(); write {
		c.log.Log(c.ctx, level, message, append(attrs, slog.Uint64("unlogged", dropped))...)
	}
}

// admit reports whether a line may be written, and how many were not before it.
func (l *logLimiter) admit() (write bool, dropped uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.since) >= time.Second {
		l.since, l.written = now, 0
	}
	if l.written == logLinesPerSecond {
		l.dropped++
		return false, 0
	}
	dropped, l.dropped = l.dropped, 0
	l.written++
	return true, dropped
}
