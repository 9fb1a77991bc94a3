package amqptest

import (
	"runtime"
	"strings"
	"testing"
	"time"
)

// CheckGoroutines fails the test if, at its end, one of Goroutines is left.
func CheckGoroutines(t testing.TB) {
	t.Cleanup(func() {
		var left []string
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
			if left = Goroutines(); len(left) == 0 {
				return
			}
			<-time.After(time.Millisecond) // what has ended may not be gone yet
		}
		t.Errorf("%d goroutines left:\n%s", len(left), strings.Join(left, "\n\n"))
	})
}

// Goroutines returns the stacks of goroutines that packages below amqp have started, tests included.
func Goroutines() (found []string) {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	for stack := range strings.SplitSeq(string(buf), "\n\n") {
		if strings.Contains(stack, "created by github.com/quorate/quorate/amqp") {
			found = append(found, stack)
		}
	}
	return found
}
