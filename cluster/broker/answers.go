package broker

import (
	"fmt"
	"sync/atomic"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// meaning is what a queue's answer to a command means for the client.
type meaning uint8

const (
	impossible meaning = iota // no command of a client can get this answer
	success
	queueGone
	inUse
	inExclusiveUse
	notEmpty
	reserved
	crowded
	noneWaits // the message that the command is about is not there
)

// meanings lists every answer that a client's command can get. NoSession is not in it: it ends the
// stream and the client's channel.
var meanings = map[logpb.Command_Kind]map[fsm.Code]meaning{
	logpb.Command_CONSUME: {fsm.OK: success, fsm.Gone: queueGone, fsm.InUse: inExclusiveUse, fsm.Crowded: crowded},
	// Ending what has already ended is a success.
	logpb.Command_CANCEL:   {fsm.OK: success, fsm.Gone: success, fsm.NotFound: success},
	logpb.Command_GET:      {fsm.OK: success, fsm.Empty: success, fsm.NotYet: success, fsm.Gone: queueGone, fsm.Reserved: reserved, fsm.Crowded: crowded},
	logpb.Command_PURGE:    {fsm.OK: success, fsm.Gone: queueGone},
	logpb.Command_DELETE:   {fsm.OK: success, fsm.Gone: success, fsm.InUse: inUse, fsm.NotEmpty: notEmpty},
	logpb.Command_TOUCH:    {fsm.OK: success, fsm.Gone: queueGone},
	logpb.Command_SCHEDULE: {fsm.OK: success, fsm.NotFound: noneWaits, fsm.Gone: queueGone},
}

// answers interprets the answers of queues, and counts those that no command can get.
type answers struct {
	*node
	odd atomic.Uint64
}

// refusal returns the client's error for an answer; nil: the command succeeded. An answer that is
// not listed is a bug in this program: it is logged, and is not a success.
func (a *answers) refusal(kind logpb.Command_Kind, q *catalog.Queue, code fsm.Code) error {
	if code == fsm.NoSession {
		return errLost
	}
	switch meanings[kind][code] {
	case success:
		return nil
	case queueGone:
		return noQueue(q)
	case inUse:
		return fsm.Refuse(fsm.Precondition, q.String()+" in use")
	case inExclusiveUse:
		return fsm.Refuse(fsm.AccessRefused, q.String()+" in exclusive use")
	case notEmpty:
		return fsm.Refuse(fsm.Precondition, q.String()+" not empty")
	case reserved:
		return fsm.Refuse(fsm.Locked, "cannot obtain access to locked "+q.String()+
			". basic.get operations are not supported by \"quorum\" queues with single active consumer")
	case crowded:
		return fsm.Refuse(fsm.Precondition, q.String()+" has as many consumers as a queue may have")
	case noneWaits:
		return errNoneWaits
	}
	a.unexpected(q.ID, kind.String(), code)
	return fsm.Refuse(fsm.Internal, fmt.Sprintf("%s did not do what it was asked for", q))
}

// errNoneWaits is the answer to a command about a message that is not, or no longer, waiting.
var errNoneWaits = fsm.Refuse(fsm.NotFoundKind, "no such message waits there")

func noQueue(q *catalog.Queue) error { return fsm.Refuse(fsm.NotFoundKind, "no "+q.String()) }

// unexpected logs an answer that no command of this node can get.
func (a *answers) unexpected(queue fsm.QueueID, command string, code fsm.Code) {
	a.odd.Add(1)
	a.slog.Error("unexpected answer of a queue", "queue", uint64(queue), "command", command, "code", int(code))
}
