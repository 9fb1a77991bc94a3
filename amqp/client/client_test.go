package client

import (
	"errors"
	"fmt"
	"testing"
)

// What the broker's words mean to a caller.
func TestErrorKinds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		verb string
		code int
		text string
		kind error // nil: an error like any other
	}{
		{"lock.renew", 404, "NOT_FOUND - unknown delivery tag 9", ErrLockLost},
		{"lock.renew", 405, "RESOURCE_LOCKED - the delivery is held by another consumer", ErrLockLost},
		{"lock.renew", 406, "PRECONDITION_FAILED - queue 'q' in vhost '/' has no leader", ErrUnknown},
		{"lock.renew", 406, "PRECONDITION_FAILED - invalid x-lock-duration", nil},
		{"lock.renew", 403, "ACCESS_REFUSED", nil},
		{"group.renew", 404, "NOT_FOUND", ErrLockLost},
		{"group.renew", 405, "RESOURCE_LOCKED", ErrLockLost},
		{"group.set-state", 404, "NOT_FOUND - or no space for its state", nil},
		{"message.settle", 404, "NOT_FOUND", ErrLockLost},
		{"message.retry", 404, "NOT_FOUND", ErrLockLost},
		{"message.defer", 404, "NOT_FOUND", ErrLockLost},
		{"message.defer", 405, "RESOURCE_LOCKED - the token is taken", nil},
		{"message.receive-deferred", 404, "NOT_FOUND", nil},
		{"schedule.cancel", 404, "NOT_FOUND", nil},
		{"queue.pause", 406, "PRECONDITION_FAILED - queue 'q' in vhost '/' has no leader", ErrUnknown},
	} {
		err := fmt.Errorf("in a call: %w", &Error{Verb: c.verb, Code: c.code, Text: c.text})
		for _, kind := range []error{ErrLockLost, ErrUnknown} {
			if errors.Is(err, kind) != (kind == c.kind) {
				t.Errorf("%v: is it %q? %t", err, kind, kind != c.kind)
			}
		}
	}
}
