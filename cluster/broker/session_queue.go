package broker

import (
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// sessionQueue is one queue as a session uses it: its stream there, which it owns
// under the session's lock, and the publishes that came too late for the queue.
type sessionQueue struct {
	session *Session
	stream  *stream.Stream
	index   uint64  // among the queues of its session, from 1
	strays  []stray // see Answered

	enqueue logpb.Enqueue // reused
	command logpb.Command
}

var (
	_ stream.Owner    = (*sessionQueue)(nil)
	_ stream.Receiver = (*sessionQueue)(nil)
)

// Lock takes the session's lock.
func (q *sessionQueue) Lock() { q.session.lock() }

// Unlock gives it back, and tells the client what has happened meanwhile.
func (q *sessionQueue) Unlock() { q.session.unlock() }

// publish queues an enqueue. ceiling is the longest TTL that the exchanges on the
// way allow + 1; 0: any. store: the queue is that of a delayed exchange. The lock
// is held.
func (q *sessionQueue) publish(p *fsm.Publish, fan *fanout, ceiling uint64, store bool) {
	q.enqueue = logpb.Enqueue{
		Size: uint32(len(p.Payload)), Head: uint32(fsm.Payload(p.Payload).HeadSize()), TtlPlusOne: uint64(p.TTL + 1),
		PriorityPlusOne: uint32(p.Priority + 1), HasExpiration: p.HasExpiration,
		Routed: p.Exchange != "", TtlCeilingPlusOne: ceiling,
	}
	if store {
		q.enqueue.DelayPlusOne = uint64(p.Delay.For) + 1
		q.enqueue.ScheduleId, q.enqueue.Conflict = p.Delay.ID, p.Delay.Conflict
	} else if s := p.Schedule; s != nil {
		q.enqueue.DueAt, q.enqueue.DelayPlusOne = int64(s.At), uint64(s.Delay+1)
		q.enqueue.ScheduleId, q.enqueue.Conflict = s.ID, s.Conflict
	}
	q.command = logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &q.enqueue}
	q.stream.Add(&q.command, stream.Pending{Payload: p.Payload, Number: p.Number, Mandatory: p.Mandatory, Note: noteOf(p, fan)})
}

// Answered takes the answer to one command.
func (q *sessionQueue) Answered(p *stream.Pending, r fsm.Result) {
	s := q.session
	if k := p.Call; k != nil {
		if k.Cancels != 0 {
			q.stream.ReturnUnseen(k.Cancels)
			s.consumerOver(k.Cancels)
		}
		if k.Got != nil {
			k.Got.Consumer = getToken | q.index
		}
		// Whoever waits goes on after the events that came before the answer.
		s.events = append(s.events, event{kind: eventAnswered, call: k, result: r})
	} else if a, is := p.Note.(*asked); is {
		s.commandDone(a, r)
	} else if p.Payload != nil {
		s.publishAnswered(q, p, r)
	}
}

// Lost ends the session: a queue has given it up, and with it what it held.
// After SESSION_DOWN that is how the repeated command is answered.
func (q *sessionQueue) Lost() {
	q.stream.Abandon()
	q.session.lose(errLost)
}

// Failed ends the session: what its stream holds may be half changed.
func (q *sessionQueue) Failed() {
	q.stream.Abandon()
	q.session.lose(errFault)
}

// Noticed takes a notice about a consumer.
func (q *sessionQueue) Noticed(n stream.Notice) {
	s := q.session
	s.lock()
	defer s.unlock()
	switch n.Kind {
	case peerpb.Notice_TIMED_OUT:
		number := n.Consumer
		if number == 0 {
			number = getToken | q.index
		}
		s.events = append(s.events, event{kind: eventTimedOut, consumer: number, ids: n.IDs, limit: n.Limit})
	case peerpb.Notice_CANCELLED:
		s.cancelled(q, n.Consumer)
	case peerpb.Notice_GONE:
		s.queueGone(q)
	}
}

// Accept counts a message for a consumer, if the channel has room for it.
func (q *sessionQueue) Accept(bytes int) bool { return q.session.window.accept(bytes) }

// HasRoom reports whether there is room for one answer more than those that are
// on their way. If not, Written will find somebody hungry.
func (q *sessionQueue) HasRoom(asked int) bool { return q.session.window.fits(asked + 1) }

// Deliver passes messages on to the channel.
func (q *sessionQueue) Deliver(messages []fsm.Message) {
	q.session.events = append(q.session.events, event{kind: eventDeliver, messages: messages})
}
