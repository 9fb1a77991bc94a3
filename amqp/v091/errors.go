package v091

import (
	"context"
	"errors"
	"fmt"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

// Every reply code the server sends is in this file: codes of refusals in
// refusalCodes, errors this package finds itself below, and those of frames and
// encodings in package wire.

// refusalCodes maps what the broker refuses to reply codes.
var refusalCodes = map[fsm.Kind]uint16{
	fsm.Internal:       wire.CodeInternalError,
	fsm.NotFoundKind:   wire.CodeNotFound,
	fsm.AccessRefused:  wire.CodeAccessRefused,
	fsm.Locked:         wire.CodeResourceLocked,
	fsm.Precondition:   wire.CodePreconditionFailed,
	fsm.NotAllowed:     wire.CodeNotAllowed,
	fsm.NotImplemented: wire.CodeNotImplemented,
	fsm.Unavailable:    wire.CodePreconditionFailed,
	fsm.Forced:         wire.CodeConnectionForced,
	fsm.NoVHost:        wire.CodeNotAllowed,
	fsm.NoAccess:       wire.CodeNotAllowed,
	fsm.LimitReached:   wire.CodeNotAllowed,
}

// endsConnection reports whether an error with this code closes the
// connection; the others close their channel. 506 is one of the latter here: other channels
// are not to blame for what one holds.
func endsConnection(code uint16) bool {
	return code >= 500 && code != wire.CodeResourceError || code == wire.CodeConnectionForced || code == wire.CodeInvalidPath
}

// protocolError returns what a client sees of err, raised by the method with
// this id (0: none). An error that is not a refusal is internal to the broker:
// the client learns only that there was one, the log has the details.
func protocolError(err error, id uint32) *wire.Error {
	if e := new(wire.Error); errors.As(err, &e) {
		return e
	}
	e := &wire.Error{ClassID: uint16(id >> 16), MethodID: uint16(id)}
	refusal := new(fsm.Refusal)
	switch {
	case errors.As(err, &refusal) && refusalCodes[refusal.Kind] != 0:
		e.Code, e.Text = refusalCodes[refusal.Kind], refusal.Text
	case errors.Is(err, context.DeadlineExceeded):
		e.Code, e.Text = wire.CodePreconditionFailed, "operation timed out"
	default:
		return fault(id, wire.CodeInternalError, "internal error")
	}
	return e
}

// returnReason is the reason given with a returned message.
func returnReason(why *fsm.Refusal) (code uint16, text string) {
	if why == nil {
		return wire.CodeNoRoute, wire.ReplyName(wire.CodeNoRoute)
	}
	code = refusalCodes[why.Kind]
	return code, wire.ReplyText(code, why.Text)
}

// isInternal reports whether protocolError hides err from the client.
func isInternal(err error) bool {
	return !errors.As(err, new(*wire.Error)) && !errors.As(err, new(*fsm.Refusal)) &&
		!errors.Is(err, context.DeadlineExceeded)
}

// fault is an error raised by the method with this id; 0: by none.
func fault(id uint32, code uint16, format string, args ...any) *wire.Error {
	return &wire.Error{Code: code, Text: fmt.Sprintf(format, args...), ClassID: uint16(id >> 16), MethodID: uint16(id)}
}

// Connection errors.

func errForced(reason string) *wire.Error {
	return fault(0, wire.CodeConnectionForced, "%s", reason)
}

func errLoginRefused(mechanism string) *wire.Error {
	return fault(0, wire.CodeAccessRefused,
		"Login was refused using authentication mechanism %s. For details see the broker logfile.", mechanism)
}

func errUnknownMechanism(name string) *wire.Error {
	return fault(0, wire.CodeCommandInvalid, "unknown authentication mechanism '%s'", name)
}

func errInvalidResponse(mechanism string) *wire.Error {
	return fault(0, wire.CodeSyntaxError, "response to authentication mechanism %s invalid", mechanism)
}

func errMissingLogin() *wire.Error {
	return fault(0, wire.CodeSyntaxError, "AMQPLAIN auth info is missing LOGIN or PASSWORD field")
}

func errTune(format string, args ...any) *wire.Error {
	return fault(wire.IDConnectionTune, wire.CodeNotAllowed, format, args...)
}

func errUnexpectedMethod(id uint32, state string) *wire.Error {
	return fault(id, wire.CodeChannelError, "unexpected method in connection state %s", state)
}

func errUnimplementedMethod(id uint32) *wire.Error {
	return fault(id, wire.CodeCommandInvalid, "unimplemented method")
}

func errTooManyChannels(open int, limit uint16) *wire.Error {
	return fault(0, wire.CodeNotAllowed,
		"number of channels opened (%d) has reached the negotiated channel_max (%d)", open, limit)
}

func errExpectedOpen(id uint32) *wire.Error {
	return fault(id, wire.CodeChannelError, "expected 'channel.open'")
}

func errSecondOpen() *wire.Error {
	return fault(wire.IDChannelOpen, wire.CodeChannelError, "second 'channel.open' seen")
}

func errNotImplemented(id uint32, what string) *wire.Error {
	return fault(id, wire.CodeNotImplemented, "%s", what)
}

func errPrefetchSize(size uint32) *wire.Error {
	return fault(wire.IDBasicQos, wire.CodeNotImplemented, "prefetch_size!=0 (%d)", size)
}

func errTagReuse(tag string) *wire.Error {
	return fault(wire.IDBasicConsume, wire.CodeNotAllowed, "attempt to reuse consumer tag '%s'", tag)
}

func errTooManyConsumers(limit int) *wire.Error {
	return fault(wire.IDBasicConsume, wire.CodeNotAllowed, "reached maximum (%d) of consumers per channel", limit)
}

// Channel errors.

func errMessageSize(size uint64, limit int) *wire.Error {
	return fault(wire.IDBasicPublish, wire.CodePreconditionFailed,
		"message size %d is larger than configured max size %d", size, limit)
}

func errPropertiesSize(size, limit int) *wire.Error {
	return fault(wire.IDBasicPublish, wire.CodePreconditionFailed,
		"properties of %d bytes exceed the limit of %d", size, limit)
}

func errUnfit(id uint32, size int, frameMax uint32) *wire.Error {
	return fault(id, wire.CodeContentTooLarge,
		"message properties of %d bytes do not fit into frames of %d bytes; the message was returned as a failed delivery", size, frameMax)
}

func errUnknownTag(id uint32, tag uint64) *wire.Error {
	return fault(id, wire.CodePreconditionFailed, "unknown delivery tag %d", tag)
}

func errTxMode(id uint32, what string) *wire.Error {
	return fault(id, wire.CodePreconditionFailed, "%s", what)
}

func errTxTooLarge() *wire.Error {
	return fault(wire.IDBasicPublish, wire.CodePreconditionFailed,
		"a transaction holds at most %d publishes", maxTxPublishes)
}

// errHeld is the error of a channel that holds, or wants to hold, too much.
func errHeld(id uint32, over *amqp.Account) *wire.Error {
	return &wire.Error{Code: wire.CodeResourceError, Text: amqp.AboutHeld(over), ClassID: uint16(id >> 16), MethodID: uint16(id)}
}

// errAlarm is the error of a channel that holds what an alarm is about.
func errAlarm() *wire.Error {
	return fault(0, wire.CodeResourceError, "memory alarm: the channel's incomplete message, waiting methods and transaction were discarded")
}

func errNoQueue(id uint32) *wire.Error {
	return fault(id, wire.CodeNotFound, "no previously declared queue")
}

func errConsumerTimeout(channel uint16, limit fsm.Millis) *wire.Error {
	return fault(0, wire.CodePreconditionFailed,
		"delivery acknowledgement on channel %d timed out. Timeout value used: %d ms. "+
			"This timeout value can be configured, see consumers doc guide to learn more", channel, limit)
}

func errTooManyUnsettled(channel uint16, count int) *wire.Error {
	return fault(0, wire.CodePreconditionFailed,
		"channel %d has %d unsettled deliveries, most of them with ended locks: these must be settled as well", channel, count)
}

// Refusals that the broker returns at its own point in the order of checks; see
// fsm.Publish.

func refuseUserID(given []byte, login string) error {
	return fsm.Refuse(fsm.Precondition,
		fmt.Sprintf("user_id property set to '%s' but authenticated user was '%s'", given, login))
}
