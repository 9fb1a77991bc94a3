// Package await waits for a state that only polling can see.
package await

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Until calls done at an interval until it reports true. An error from done is not
// final: it becomes the reason if ctx ends first.
func Until(ctx context.Context, every time.Duration, what string, done func() (bool, error)) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var last error
	for {
		ok, err := done()
		if ok {
			return nil
		}
		if err != nil && (last == nil || ctx.Err() == nil) {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, errors.Join(ctx.Err(), last))
		case <-ticker.C:
		}
	}
}
