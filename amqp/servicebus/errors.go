package servicebus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// Conditions that programs know besides those of AMQP.
const (
	conditionTimeout       = "com.microsoft:timeout"
	conditionBusy          = "com.microsoft:server-busy"
	conditionArgument      = "com.microsoft:argument-error"
	conditionLockLost      = "com.microsoft:message-lock-lost"
	conditionSessionLost   = "com.microsoft:session-lock-lost"
	conditionSessionLocked = "com.microsoft:session-cannot-be-locked"
	conditionNoMessage     = "com.microsoft:message-not-found"
	conditionDisabled      = "com.microsoft:entity-disabled"
	conditionExists        = "com.microsoft:entity-already-exists"

	conditionUnknownID = "amqp:transaction:unknown-id"
	conditionRollback  = "amqp:transaction:rollback"
	conditionTooLate   = "amqp:transaction:timeout"
)

// Texts that programs look for.
const (
	textNotFound    = "The messaging entity 'sb://%s/%s' could not be found."
	textLockLost    = "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue."
	textSessionLost = "The session lock has expired on the session. Accept a new session."
	textNoSession   = "It is not possible for an entity that requires sessions to create a non-sessionful message receiver."
	textBusy        = "The server is busy. Please retry the operation."
	textSessionID   = "The SessionId was not set on a message, and it cannot be sent to the entity. Entities that have session support " +
		"enabled can only receive messages that have the SessionId set to a valid value."
)

// statuses are the codes with which requests are answered that fail with a condition.
var statuses = map[string]int32{
	wire.ConditionNotFound: 404, wire.ConditionUnauthorized: 401, wire.ConditionNotAllowed: 400, wire.ConditionNotImplemented: 501,
	wire.ConditionResourceLimit: 403, wire.ConditionMessageSize: 403, wire.ConditionDecode: 400, wire.ConditionInternal: 500,
	conditionTimeout: 408, conditionBusy: 503, conditionArgument: 400, conditionLockLost: 410, conditionSessionLost: 410,
	conditionSessionLocked: 409, conditionNoMessage: 404, conditionDisabled: 403, conditionExists: 409,
}

// statusOf returns the code for a condition.
func statusOf(condition string) int32 {
	if code := statuses[condition]; code != 0 {
		return code
	}
	return 500
}

// refuse returns an error for the client. Its text ends with an id by which the log names it.
func (s *side) refuse(condition, format string, args ...any) *wire.Error {
	return s.refuseFor("", condition, format, args...)
}

// refuseFor is refuse for a reason that the log alone has.
func (s *side) refuseFor(reason, condition, format string, args ...any) *wire.Error {
	id, text := entity.NewTrackingID(), fmt.Sprintf(format, args...)
	of := []any{slog.String("condition", condition), slog.String("text", fsm.Short(text)), slog.String("tracking", id)}
	if reason != "" {
		of = append(of, slog.String("reason", fsm.Short(reason)))
	}
	s.client.Log.Info("servicebus: refused", of...)
	return wire.Errorf(condition, "%.800s"+trackingID+"%s", text, id)
}

// trackingID comes before the id in a text.
const trackingID = " TrackingId:"

// track gives an error an id, unless its text ends with one.
func (s *side) track(e *wire.Error) *wire.Error {
	at := len(e.Description) - len(entity.NewTrackingID()) - len(trackingID)
	if at >= 0 && strings.HasPrefix(e.Description[at:], trackingID) {
		return e
	}
	return s.refuse(e.Condition, "%s", e.Description)
}

// lost and lostSession are the answers to outcomes that come too late.
func (s *side) lost() *wire.State { return rejection(s.refuse(conditionLockLost, textLockLost)) }
func (s *side) lostSession() *wire.State {
	return rejection(s.refuse(conditionSessionLost, textSessionLost))
}

func rejection(e *wire.Error) *wire.State {
	return &wire.State{Kind: wire.StateRejected, Rejected: wire.Rejected{Error: e}}
}

// notFound is the error for an entity that is not there.
func (s *side) notFound(p entity.Path) *wire.Error {
	return s.refuse(wire.ConditionNotFound, textNotFound, s.host, p)
}

// kinds maps what the broker refuses to conditions, and to texts: its own name queues and vhosts.
var kinds = map[fsm.Kind]struct{ condition, text string }{
	fsm.NotFoundKind:   {wire.ConditionNotFound, "The messaging entity could not be found."},
	fsm.AccessRefused:  {wire.ConditionUnauthorized, "Unauthorized access."},
	fsm.Locked:         {conditionDisabled, "The messaging entity cannot be used in this way at present."},
	fsm.Precondition:   {conditionArgument, "The request does not fit the messaging entity."},
	fsm.NotAllowed:     {wire.ConditionNotAllowed, "The messaging entity does not allow this operation."},
	fsm.NotImplemented: {wire.ConditionNotImplemented, "The messaging entity does not support this operation."},
	fsm.Unavailable:    {conditionBusy, textBusy},
	fsm.LimitReached:   {conditionBusy, textBusy},
	fsm.Forced:         {wire.ConditionConnectionForced, "The connection is closed by the server."},
	fsm.NoVHost:        {wire.ConditionNotFound, "The namespace could not be found."},
	fsm.NoAccess:       {wire.ConditionUnauthorized, "Unauthorized access."},
}

// Explain implements v10.Side.
func (s *side) Explain(err error) *wire.Error {
	known, refusal, queue := new(wire.Error), new(fsm.Refusal), new(fsm.NotTaken)
	switch {
	case err == v10.ErrDeleted:
		return s.refuse(wire.ConditionNotFound, textNotFound, s.host, "")
	case errors.As(err, &known):
		return s.track(known)
	case errors.Is(err, fsm.ErrNotHeld):
		return s.refuse(conditionLockLost, textLockLost)
	case errors.As(err, &queue):
		return s.notTaken(queue)
	case errors.As(err, &refusal) && kinds[refusal.Kind].text != "":
		kind := kinds[refusal.Kind]
		return s.refuseFor(refusal.Text, kind.condition, "%s", kind.text)
	case errors.Is(err, context.DeadlineExceeded):
		return s.refuse(conditionBusy, "The server could not do it in time. Please retry the operation.")
	}
	s.client.Log.Error("servicebus: operation failed", slog.Any("error", err))
	return s.refuse(wire.ConditionInternal, "The server was unable to process the request.")
}

// notTaken returns what a client sees of a queue's refusal.
func (s *side) notTaken(n *fsm.NotTaken) *wire.Error {
	switch n.Reason {
	case fsm.TooLong:
		return s.refuse(wire.ConditionResourceLimit, "The maximum entity size has been reached or exceeded.")
	case fsm.NoGroup:
		return s.refuse(wire.ConditionNotAllowed, textSessionID)
	}
	return s.refuse(conditionBusy, "The entity cannot take messages at present. Please retry the operation.")
}

// Unroutable implements v10.Side.
func (s *side) Unroutable() *wire.Error {
	return s.refuse(wire.ConditionNotFound, textNotFound, s.host, "")
}

// Waits implements v10.Side: locks are renewed and tokens are put during an alarm, too.
func (s *side) Waits() bool { return false }

// patience is how long messages wait for a new leader: 5 s at most, as it is measured.
const patience = 4 * time.Second

// Patience implements v10.Side.
func (s *side) Patience() time.Duration { return patience }

// short is the error for messages during an alarm; nil: there is none. Programs wait before they send again.
func (s *side) short() *wire.Error {
	if s.client.Alarm() == nil {
		return nil
	}
	return s.refuse(conditionBusy, "The server is short of memory or disk space. Please retry the operation.")
}

// Forgotten implements v10.Side: a delivery of which nothing is known is not held any more.
func (s *side) Forgotten(*wire.State) wire.State { return *s.lost() }
