package v10

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// conditions maps what the broker refuses to conditions.
var conditions = map[fsm.Kind]string{
	fsm.Internal:       wire.ConditionInternal,
	fsm.NotFoundKind:   wire.ConditionNotFound,
	fsm.AccessRefused:  wire.ConditionUnauthorized,
	fsm.Locked:         wire.ConditionResourceLocked,
	fsm.Precondition:   wire.ConditionPreconditionFailed,
	fsm.NotAllowed:     wire.ConditionUnauthorized,
	fsm.NotImplemented: wire.ConditionNotImplemented,
	fsm.Unavailable:    wire.ConditionPreconditionFailed,
	fsm.Forced:         wire.ConditionConnectionForced,
	fsm.NoVHost:        wire.ConditionUnauthorized,
	fsm.NoAccess:       wire.ConditionUnauthorized,
	fsm.LimitReached:   wire.ConditionResourceLimit,
}

// protocolError returns what a client sees of err. An error that is not a refusal is internal to the broker:
// the client learns only that there was one, the log has the details.
func protocolError(err error) *wire.Error {
	e, refusal, queue := new(wire.Error), new(fsm.Refusal), new(fsm.NotTaken)
	switch {
	case errors.As(err, &queue):
		return notTaken(queue)
	case errors.Is(err, fsm.ErrNoCommand):
		return wire.Errorf(wire.ConditionNotImplemented, "no such command")
	case errors.As(err, &e):
		return e
	case errors.As(err, &refusal) && conditions[refusal.Kind] != "":
		return wire.Errorf(conditions[refusal.Kind], "%s", worded(refusal.Text))
	case errors.Is(err, context.DeadlineExceeded):
		return wire.Errorf(wire.ConditionPreconditionFailed, "operation timed out")
	}
	return wire.Errorf(wire.ConditionInternal, "internal error")
}

// worded returns the text of a refusal as this protocol has it, where that differs from 0-9-1.
func worded(text string) string {
	if rest, ok := strings.CutPrefix(text, "cannot publish to internal "); ok {
		return "forbidden to publish to internal " + rest
	}
	return text
}

// openError returns what a client sees that may not open a vhost. That it has no permission comes before the limits.
func openError(err error, user, vhost string) *wire.Error {
	causes := []error{err}
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		causes = several.Unwrap()
	}
	e := protocolError(causes[0])
	for _, cause := range causes {
		r := new(fsm.Refusal)
		if !errors.As(cause, &r) {
			continue
		}
		switch r.Kind {
		case fsm.NoVHost:
			e = wire.Errorf(wire.ConditionUnauthorized, "AMQP 1.0 connection failed: virtual host '%s' does not exist", vhost)
		case fsm.NoAccess:
			e = wire.Errorf(wire.ConditionUnauthorized, "Access for user '%s' was refused: insufficient permissions", user)
		case fsm.LimitReached:
			if limit, ok := strings.CutPrefix(r.Text, fmt.Sprintf("access to vhost '%s' refused for user '%s': ", vhost, user)); ok {
				e = wire.Errorf(wire.ConditionResourceLimit, "access to vhost '%s' refused for user '%s': vhost %s", vhost, user, limit)
			}
		}
	}
	return e
}

// isInternal reports whether protocolError hides err from the client.
func isInternal(err error) bool {
	return !errors.As(err, new(*wire.Error)) && !errors.As(err, new(*fsm.Refusal)) && !errors.As(err, new(*fsm.NotTaken)) &&
		!errors.Is(err, fsm.ErrNoCommand) && !errors.Is(err, context.DeadlineExceeded)
}
