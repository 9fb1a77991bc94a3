package session

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stream"
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
	tooVaried
	noneWaits // the message that the command is about is not there
	forwards
	otherwise // what the command is about belongs to somebody else
	redriven  // it is already, by another request
	notServed // the consumer that the command is about gets no messages at present
)

// meanings lists every answer that a client's command can get. NoSession is not in it: it ends the
// stream and the client's channel.
var meanings = map[logpb.Command_Kind]map[fsm.Code]meaning{
	logpb.Command_CONSUME: {fsm.OK: success, fsm.Gone: queueGone, fsm.InUse: inExclusiveUse, fsm.Crowded: crowded, fsm.Forwards: forwards, fsm.TooMany: tooVaried, fsm.Reserved: otherwise},
	// Ending what has already ended is a success.
	logpb.Command_CANCEL: {fsm.OK: success, fsm.Gone: success, fsm.NotFound: success},
	logpb.Command_GET:    {fsm.OK: success, fsm.Empty: success, fsm.NotYet: success, fsm.Gone: queueGone, fsm.Reserved: reserved, fsm.Crowded: crowded, fsm.Forwards: forwards},
	logpb.Command_PURGE:  {fsm.OK: success, fsm.Gone: queueGone},
	logpb.Command_DELETE: {fsm.OK: success, fsm.Gone: success, fsm.InUse: inUse, fsm.NotEmpty: notEmpty},
	logpb.Command_TOUCH:  {fsm.OK: success, fsm.Gone: queueGone},
	// A command that is repeated after it was refused is Rejected.
	logpb.Command_SCHEDULE:         {fsm.OK: success, fsm.NotFound: noneWaits, fsm.Rejected: noneWaits, fsm.Gone: queueGone},
	logpb.Command_RENEW:            {fsm.OK: success, fsm.NotFound: noneWaits, fsm.Rejected: noneWaits, fsm.Gone: queueGone},
	logpb.Command_SETTLE:           {fsm.OK: success, fsm.NotFound: noneWaits, fsm.Rejected: noneWaits, fsm.InUse: otherwise, fsm.Gone: queueGone},
	logpb.Command_RECEIVE_DEFERRED: {fsm.OK: success, fsm.NotFound: noneWaits, fsm.Rejected: noneWaits, fsm.InUse: otherwise, fsm.Reserved: notServed, fsm.Crowded: crowded, fsm.Gone: queueGone},
	logpb.Command_UNIT:             {fsm.OK: success, fsm.NotFound: noneWaits, fsm.Rejected: noneWaits, fsm.InUse: otherwise, fsm.Gone: queueGone},
	logpb.Command_KICK:             {fsm.OK: success, fsm.Gone: queueGone},
	logpb.Command_UNPARK:           {fsm.OK: success, fsm.Gone: queueGone},
	logpb.Command_PAUSE:            {fsm.OK: success, fsm.Gone: queueGone},
	logpb.Command_TAKE:             {fsm.OK: success, fsm.Gone: queueGone},
	logpb.Command_REDRIVE:          {fsm.OK: success, fsm.InUse: redriven, fsm.Gone: queueGone},
	logpb.Command_GROUP:            {fsm.OK: success, fsm.NotFound: noneWaits, fsm.Rejected: noneWaits, fsm.InUse: otherwise, fsm.Gone: queueGone},
}

// answers waits for the answers of queues, and says what they mean.
type answers struct {
	node     *self.Node
	queues   *queues.Queues
	commands atomic.Uint64 // that have not taken effect
}

// await waits for the answer to a call, which may be a refusal. It gives up early if for longer
// than the grace the queue has had no leader, or only one that may still believe that it leads but
// has lost its majority. The command stays in its stream.
func (a *answers) await(ctx context.Context, q *catalog.Queue, to *stream.Route, k *stream.Call) error {
	grace := time.NewTicker(a.node.Grace / 5)
	defer grace.Stop()
	alone := int64(0) // since when too few members are alive; 0: enough are
	for {
		select {
		case <-k.Done():
			if k.Result.Code == fsm.NoSession {
				return errLost
			}
			k.Refused = a.refusal(k.Kind, q, k.Result.Code)
			return nil
		case <-ctx.Done():
			return queues.Leaderless(q)
		case <-grace.C:
			leader, since, _ := to.Leader()
			if a.queues.Leaders.HasMajority(q) {
				alone = 0
			} else if alone == 0 {
				alone = a.node.Now()
			}
			without := leader == ""
			if alone != 0 && (!without || alone < since) {
				without, since = true, alone
			}
			if without && a.node.Now()-since > a.node.Grace.Milliseconds() {
				return queues.Leaderless(q)
			}
		}
	}
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
		return queues.NoQueue(q)
	case inUse:
		return fsm.Refuse(fsm.Precondition, q.String()+" in use")
	case inExclusiveUse:
		return fsm.Refuse(fsm.AccessRefused, q.String()+" in exclusive use")
	case notEmpty:
		return fsm.Refuse(fsm.Precondition, q.String()+" not empty")
	case reserved:
		return fsm.Refuse(fsm.Locked, "cannot obtain access to locked "+q.String()+
			". basic.get operations are not supported by \"quorum\" queues with single active consumer")
	case forwards:
		return fsm.Refuse(fsm.Locked, "cannot obtain access to locked "+q.String()+". Its messages are forwarded: consumers and basic.get are not supported")
	case crowded:
		return fsm.Refuse(fsm.Precondition, q.String()+" has reached the limit of consumers of a queue")
	case tooVaried:
		return fsm.Refuse(fsm.Precondition, "the consumers of "+q.String()+" have reached the limit of different values of 'x-min-ttl'")
	case noneWaits:
		return errNoneWaits
	case otherwise:
		return fsm.Refuse(fsm.Locked, "the delivery is held by another consumer of "+q.String())
	case redriven:
		return fsm.Refuse(fsm.Precondition, "a redrive of "+q.String()+" goes on already")
	case notServed:
		return fsm.Refuse(fsm.Locked, "the consumer cannot receive at present: it has timed out, is not the active one, or holds too many messages of "+q.String())
	}
	a.queues.OddAnswer(q.ID, kind.String(), code)
	return fsm.Refuse(fsm.Internal, fmt.Sprintf("%s refused the command", q))
}

// errNoneWaits is the answer to a command about a message that is not, or no longer, waiting.
var errNoneWaits = fsm.Refuse(fsm.NotFoundKind, "no such message is waiting there")
