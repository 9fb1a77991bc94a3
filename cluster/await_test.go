package cluster

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/quorate/quorate/fsm"
)

// patience is how long a test waits for what must happen.
const patience = 4 * time.Minute

// deadline is a context that ends when the test has waited long enough.
func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// until waits for a condition that nobody announces.
func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(patience)
	defer end.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("not in time: %s", what)
		}
	}
}

// soon waits until a look finds nothing wrong.
func soon(t testing.TB, what string, look func() (wrong string)) {
	t.Helper()
	last := ""
	defer func() {
		if t.Failed() {
			t.Log(last)
		}
	}()
	until(t, what, func() bool { last = look(); return last == "" })
}

// retried does what may be done twice until it is answered: on a busy machine a
// leader may be elected, of a queue or of the catalog, for longer than a node
// waits. It returns what the answer was.
func retried(t testing.TB, f func(context.Context) error) error {
	t.Helper()
	ctx := deadline(t)
	for {
		err := f(ctx)
		var refusal *fsm.Refusal
		if err == nil || errors.As(err, &refusal) && refusal.Kind != fsm.Unavailable && refusal.Kind != fsm.Internal {
			return err
		}
		t.Logf("asked again after: %v", err)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}
