package peer

import (
	"errors"
	"fmt"
)

var (
	// ErrDown is returned when there is no link to the node.
	ErrDown = errors.New("peer: no link to the node")
	// ErrBroken is returned when the link broke before the answer came.
	ErrBroken = errors.New("peer: link broke")
	// ErrBacklog is returned when too much waits to be sent to the node.
	ErrBacklog = errors.New("peer: backlog of the link is full")
	// ErrTooLarge is returned for a message above MaxMessage.
	ErrTooLarge = errors.New("peer: message too large")
	// ErrUnknownNode is returned for a node that is not a peer.
	ErrUnknownNode = errors.New("peer: unknown node")
	// ErrTimeout is returned when a raft request was not answered in time.
	ErrTimeout = errors.New("peer: no answer in time")
	// ErrClosed is returned once the mesh or the group's transport is closed.
	ErrClosed = errors.New("peer: closed")

	// ErrUnknownGroup: the node has no such raft group (in a RemoteError).
	ErrUnknownGroup = errors.New("unknown group")
	// ErrBusy: the node or group has too many requests waiting (in a
	// RemoteError).
	ErrBusy = errors.New("too many requests waiting")
	// ErrLearner: the group's member on that node must not lead (in a
	// RemoteError).
	ErrLearner = errors.New("the member must neither vote nor lead")
	// ErrSuperseded: the node has a newer snapshot of the group than the one that
	// it was to install (in a RemoteError).
	ErrSuperseded = errors.New("a newer snapshot is there already")
	// ErrNoHandler: the node knows no such kind of call (in a RemoteError).
	ErrNoHandler = errors.New("no handler for this kind of call")

	// errStranger: the other side is of another version or cluster.
	errStranger = errors.New("peer: not of this cluster")
	// errAbandoned: the waiting side gave up.
	errAbandoned = errors.New("peer: abandoned")
	// errUnproven: the other side says that it is a node that it has not proved
	// to be.
	errUnproven = errors.New("peer: the node has not proved its name")
	// errHandshake: a connection has not proved to be a node's.
	errHandshake = errors.New("peer: handshake failed")
	// errCrowd: too many connections have not proved anything yet.
	errCrowd = errors.New("peer: too many connections that have not proved to be nodes")
	// errInvitation: a token must not be shown to the node that answers.
	errInvitation = errors.New("peer: token withheld")
	// errProtocol: the other side sent something that cannot be.
	errProtocol = errors.New("peer: protocol violation")
)

// misbehaved reports whether a stream ended because of what came over it.
func misbehaved(err error) bool {
	for _, wrong := range []error{errProtocol, errShort, errTooMuch, errCrowded, ErrBacklog} {
		if errors.Is(err, wrong) {
			return true
		}
	}
	return false
}

// RemoteError is a refusal that came from another node.
type RemoteError struct {
	Node string
	Text string
	code uint32
}

func (e *RemoteError) Error() string { return fmt.Sprintf("peer: node %s: %s", e.Node, e.Text) }

// Unwrap returns ErrUnknownGroup, ErrBusy, ErrNoHandler or ErrSuperseded, or nil
// if the error is the handler's or raft's own.
func (e *RemoteError) Unwrap() error {
	if e.code > 0 && int(e.code) < len(failureCodes) {
		return failureCodes[e.code]
	}
	return nil
}

// failureCodes are the refusals with a number of their own on the wire.
var failureCodes = [...]error{nil, ErrUnknownGroup, ErrBusy, ErrNoHandler, ErrSuperseded}

func failureCode(err error) uint32 {
	for i, e := range failureCodes {
		if i > 0 && errors.Is(err, e) {
			return uint32(i)
		}
	}
	return 0
}
