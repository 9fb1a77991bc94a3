package group

import (
	"testing"
	"time"
)

// TestLatency: the mean begins with the first entry, and follows the latest.
func TestLatency(t *testing.T) {
	var l latency
	if l.mean() != 0 {
		t.Error(l.mean())
	}
	l.observe(10 * time.Millisecond)
	if l.mean() != 10*time.Millisecond {
		t.Error(l.mean())
	}
	for range 10 * weight {
		l.observe(time.Millisecond)
	}
	if m := l.mean(); m < time.Millisecond || m > time.Millisecond+10*time.Microsecond {
		t.Error(m)
	}
}
