package deadletter

import (
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
)

// transfers are the letters on their way to one target, in a stream that they own
// under the sender's lock. The number of a transfer is that of its command.
//
// Invariant: reported ≤ answered ≤ sent.
type transfers struct {
	from         *outboxSender
	stream       *stream.Stream // nil: there was none, and the target is gone
	ended        bool           // the target is gone, and nothing in the stream is unanswered
	sent         uint64         // number of the newest transfer in the stream
	bytes        int            // of the payloads in the stream
	answered     uint64         // number of the newest transfer that the target has taken or refused
	refused      []uint64       // transfers that the target has refused, ascending
	reported     uint64         // number of the newest one that was reported to the source's log
	reportedAt   int64          // ms; 0: never
	reportedGone bool           // that the target is gone was reported to the source's log
}

// Lock takes the sender's lock.
func (tr *transfers) Lock() { tr.from.lock() }

// Unlock gives it back.
func (tr *transfers) Unlock() { tr.from.unlock() }

// known reports whether the sender has this stream still. The lock is held.
func (tr *transfers) known() bool { return tr.from.streams[tr.stream.Queue()] == tr }

// Answered takes a target's answer to one transfer: it has it, or refuses it. A
// transfer to a target that is gone has not arrived: it stays unsettled until the
// view has lost the target.
func (tr *transfers) Answered(p *stream.Pending, r fsm.Result) {
	if !tr.known() {
		return
	}
	tr.from.again = true
	tr.bytes -= len(p.Payload)
	switch r.Code {
	case fsm.OK:
	case fsm.Gone:
		return
	case fsm.Rejected:
		tr.refused = append(tr.refused, p.Number)
	default:
		tr.from.sender.host.OddAnswer(tr.stream.Queue(), "transfer", r.Code)
		tr.refused = append(tr.refused, p.Number)
	}
	tr.answered = max(tr.answered, p.Number)
}

// Gone: the catalog has lost the target.
func (tr *transfers) Gone() {
	x := tr.from
	x.lock()
	defer x.unlock()
	if tr.known() {
		tr.ended = true
	}
	x.again = true
}

// Lost: a target that knows other transfers of this source than its log says.
// Nothing is sent there any more.
func (tr *transfers) Lost() {
	x := tr.from
	x.sender.slog.Error("target refuses the dead letters of a queue",
		"queue", x.group.Spec().Name, "target", uint64(tr.stream.Queue()))
	tr.stream.Abandon()
	x.again = true
}

// Failed ends the sender: another one begins where the log says.
func (tr *transfers) Failed() {
	x := tr.from
	tr.stream.Abandon()
	x.sender.host.Spawn("send dead letters anew", func() {
		x.sender.Drop(x.group.Spec().Queue)
		x.sender.Forward(x.group)
	})
}
