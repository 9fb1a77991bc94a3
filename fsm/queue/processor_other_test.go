//go:build !linux

package queue

import "time"

var started = time.Now()

// processorTime is the time that passes, where the system does not say more.
func processorTime() time.Duration { return time.Since(started) }
