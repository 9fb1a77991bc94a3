package v10

import (
	"context"
	"errors"

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
		return wire.Errorf(conditions[refusal.Kind], "%s", refusal.Text)
	case errors.Is(err, context.DeadlineExceeded):
		return wire.Errorf(wire.ConditionPreconditionFailed, "operation timed out")
	}
	return wire.Errorf(wire.ConditionInternal, "internal error")
}

// isInternal reports whether protocolError hides err from the client.
func isInternal(err error) bool {
	return !errors.As(err, new(*wire.Error)) && !errors.As(err, new(*fsm.Refusal)) && !errors.As(err, new(*fsm.NotTaken)) &&
		!errors.Is(err, fsm.ErrNoCommand) && !errors.Is(err, context.DeadlineExceeded)
}
