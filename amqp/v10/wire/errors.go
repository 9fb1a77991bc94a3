package wire

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Conditions of errors.
const (
	ConditionInternal           = "amqp:internal-error"
	ConditionNotFound           = "amqp:not-found"
	ConditionUnauthorized       = "amqp:unauthorized-access"
	ConditionDecode             = "amqp:decode-error"
	ConditionResourceLimit      = "amqp:resource-limit-exceeded"
	ConditionNotAllowed         = "amqp:not-allowed"
	ConditionInvalidField       = "amqp:invalid-field"
	ConditionNotImplemented     = "amqp:not-implemented"
	ConditionResourceLocked     = "amqp:resource-locked"
	ConditionPreconditionFailed = "amqp:precondition-failed"
	ConditionResourceDeleted    = "amqp:resource-deleted"
	ConditionIllegalState       = "amqp:illegal-state"
	ConditionFrameSizeTooSmall  = "amqp:frame-size-too-small"

	ConditionConnectionForced = "amqp:connection:forced"
	ConditionFraming          = "amqp:connection:framing-error"

	ConditionWindowViolation  = "amqp:session:window-violation"
	ConditionErrantLink       = "amqp:session:errant-link"
	ConditionHandleInUse      = "amqp:session:handle-in-use"
	ConditionUnattachedHandle = "amqp:session:unattached-handle"

	ConditionDetachForced  = "amqp:link:detach-forced"
	ConditionTransferLimit = "amqp:link:transfer-limit-exceeded"
	ConditionMessageSize   = "amqp:link:message-size-exceeded"
)

// maxDescription is the longest description of an error in bytes.
const maxDescription = 1024

// Errorf returns an error whose description is valid UTF-8 of at most 1024 bytes;
// a longer one is cut between two runes.
func Errorf(condition, format string, args ...any) *Error {
	s := strings.ToValidUTF8(fmt.Sprintf(format, args...), "\uFFFD")
	if n := maxDescription; len(s) > n {
		for !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	return &Error{Condition: condition, Description: s}
}

// Error returns the condition and the description of e.
func (e *Error) Error() string {
	if e.Description == "" {
		return e.Condition
	}
	return e.Condition + ": " + e.Description
}

// framingError is the error for what is no frame.
func framingError(format string, args ...any) *Error {
	return Errorf(ConditionFraming, format, args...)
}

// decodeError is the error for what cannot be decoded.
func decodeError(format string, args ...any) *Error {
	return Errorf(ConditionDecode, format, args...)
}
