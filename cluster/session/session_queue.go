package session

import (
	"cmp"
	"context"
	"slices"

	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// getToken marks the consumer numbers that stand for a session's gets at one of its queues: the
// remaining bits are that queue's index.
const getToken = 1 << 63

// streams are the streams of a session, by queue. The session's lock guards them.
//
// Invariant: order is ascending by index and holds what byQueue holds; the index
// of a queue is used once.
type streams struct {
	session   *Session
	routes    *stream.Table
	available *availability

	queues    map[fsm.QueueID]*sessionQueue
	order     []*sessionQueue // those not known to be gone, by index
	lastIndex uint64          // of the newest one
	ended     bool            // the session's boot is over: no queue accepts anything from it
}

// queue finds or creates the session's record of a queue with its stream. The lock is held.
func (x *streams) queue(q *catalog.Queue) *sessionQueue {
	if u := x.queues[q.ID]; u != nil {
		return u
	}
	r := x.routes.Route(q)
	u := &sessionQueue{session: x.session, of: traffic.QueueCounts{VHost: q.VHost, Queue: q.ID, Local: q.Local}}
	u.stream = stream.New(u, u, x.session.id, r)
	u.stream.Patient(x.session.conn.consumes.Load)
	if x.ended {
		u.stream.Abandon()
		return u
	}
	if r.Attach(u.stream); u.stream.Gone() {
		return u
	}
	x.lastIndex++
	u.index = x.lastIndex
	x.order = append(x.order, u)
	x.queues[q.ID] = u
	return u
}

// find returns the position of a queue in order. The lock is held.
func (x *streams) find(index uint64) (int, bool) {
	return slices.BinarySearchFunc(x.order, index, func(q *sessionQueue, index uint64) int { return cmp.Compare(q.index, index) })
}

// remove forgets a queue that is gone. The lock is held.
func (x *streams) remove(q *sessionQueue) {
	x.session.tally.TakeQueue(q.of, &q.counts, &q.routes)
	if i, ok := x.find(q.index); ok && x.queues[q.stream.Queue()] == q {
		delete(x.queues, q.stream.Queue())
		x.order = slices.Delete(x.order, i, i+1)
	}
}

// request sends a command. It takes the lock.
func (x *streams) request(q *catalog.Queue, c *logpb.Command) (*stream.Route, *stream.Call) {
	x.session.mu.Lock()
	defer x.session.mu.Unlock()
	to := x.queue(q).stream
	return to.Route(), to.Request(c)
}

// do sends a command and waits for its answer. It takes the lock.
func (x *streams) do(ctx context.Context, q *catalog.Queue, c *logpb.Command) (*stream.Call, error) {
	r, k := x.request(q, c)
	return k, x.available.await(ctx, q, r, k)
}

// end tells the queues that do not know it yet that the session ends. waiting: some publishes wait
// for the end of their queue. The lock is held.
func (x *streams) end() (calls []*stream.Call, waiting bool) {
	for _, q := range x.order {
		waiting = waiting || len(q.strays) > 0
		if to := q.stream; to.Over() || to.Ending() || to.Next() == 1 {
			continue
		}
		calls = append(calls, q.stream.Request(&logpb.Command{Kind: logpb.Command_SESSION_DOWN}))
	}
	return calls, waiting
}

// abandon ends all streams at once because the session's boot is over. The lock is held.
func (x *streams) abandon() {
	x.ended = true
	for _, q := range x.order {
		q.strays = nil // nobody waits for them any more
		if !q.stream.Over() {
			q.stream.Abandon()
		}
		q.stream.Route().Detach(q.stream)
	}
}

// detach removes the streams from their routes. The lock is held.
func (x *streams) detach() {
	for _, q := range x.order {
		q.stream.Route().Detach(q.stream)
	}
}

// sessionQueue is one queue as used by a session: its stream, owned under the session's lock, and
// the publishes that came too late for the queue.
type sessionQueue struct {
	session *Session
	stream  *stream.Stream
	index   uint64  // among the queues of its session, from 1
	strays  []stray // see Answered
	needs   needs
	counts  traffic.Counts // since they were added to the tally
	routes  traffic.Routes // likewise
	of      traffic.QueueCounts

	enqueue logpb.Enqueue // reused
	command logpb.Command
}

var (
	_ stream.Owner    = (*sessionQueue)(nil)
	_ stream.Receiver = (*sessionQueue)(nil)
)

// Lock takes the session's lock.
func (q *sessionQueue) Lock() { q.session.lock() }

// Unlock releases it, and passes on to the client what has happened meanwhile.
func (q *sessionQueue) Unlock() {
	q.session.rebalance()
	q.session.unlock()
}

// publish queues an enqueue. ceiling is the longest TTL allowed by the exchanges on the path + 1;
// 0: unlimited. store: the queue is that of a delayed exchange. group is that of the message in the queue; empty:
// none. The lock is held.
func (q *sessionQueue) publish(p *fsm.Publish, fan *fanout, ceiling uint64, store bool, group string) {
	q.add(p, ceiling, store, group, noteOf(p, fan))
}

// add is publish with a note for the answer.
func (q *sessionQueue) add(p *fsm.Publish, ceiling uint64, store bool, group string, note any) {
	q.enqueue = logpb.Enqueue{
		Size: uint32(len(p.Payload)), Head: uint32(fsm.Payload(p.Payload).HeadSize()), TtlPlusOne: uint64(p.TTL + 1),
		PriorityPlusOne: uint32(p.Priority + 1), HasExpiration: p.HasExpiration,
		Routed: p.Exchange != "", TtlCeilingPlusOne: ceiling, GroupId: group,
	}
	if q.needs.as.Label {
		q.enqueue.MessageId, q.enqueue.CorrelationId = p.MessageID, p.CorrelationID
	}
	if store {
		q.enqueue.DelayPlusOne = uint64(p.Delay.For) + 1
		q.enqueue.ScheduleId, q.enqueue.Conflict = p.Delay.ID, p.Delay.Conflict
	} else if s := p.Schedule; s != nil {
		q.enqueue.DueAt, q.enqueue.DelayPlusOne = int64(s.At), uint64(s.Delay+1)
		q.enqueue.ScheduleId, q.enqueue.Conflict = s.ID, s.Conflict
	}
	q.session.tell(&q.enqueue, p.Payload, q.needs.as)
	q.command = logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &q.enqueue}
	q.stream.Add(&q.command, stream.Pending{Payload: p.Payload, Number: p.Number, Mandatory: p.Mandatory, Note: note})
}

// Answered handles the answer to one command.
func (q *sessionQueue) Answered(p *stream.Pending, r fsm.Result) {
	s := q.session
	if k := p.Call; k != nil {
		if k.Cancels != 0 {
			q.stream.ReturnUnseen(k.Cancels)
			s.consumerOver(k.Cancels)
		}
		if k.Got != nil {
			if k.Got.LockedUntil != 0 {
				q.addToken(k.Got, s.consumers.node.view().LockSecret())
			}
			k.Got.Consumer = getToken | q.index
		}
		// The waiting caller goes on after the events that came before the answer.
		s.add(event{kind: eventAnswered, call: k, result: r})
	} else if a, is := p.Note.(*commandPart); is {
		s.exchange.answered(a, r)
	} else if a, is := p.Note.(limitAnswer); is {
		s.limitHeard(a)
	} else if _, is := p.Note.(ownMessage); is {
		// Nobody waits for it.
	} else if _, is := p.Note.(strictSettle); is {
		if isNotDone(r.Code) {
			s.lose(errLateSettle)
		}
	} else if p.Payload != nil {
		s.answered(q, p, r)
	}
}

// Lost ends the session: a queue has given it up, with everything it held. After SESSION_DOWN a
// repeated command gets this answer.
func (q *sessionQueue) Lost() {
	q.stream.Abandon()
	q.session.lose(errLost)
}

// Failed ends the session: the state of its stream may be half changed.
func (q *sessionQueue) Failed() {
	q.stream.Abandon()
	q.session.lose(errFault)
}

// Noticed handles a notice about a consumer.
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
		suspend := s.suspends(q, n.Consumer)
		s.broker().late.last.served(s, n.Consumer, suspend)
		s.add(event{kind: eventTimedOut, consumer: number, ids: n.IDs, limit: n.Limit, suspend: suspend})
	case peerpb.Notice_CANCELLED:
		s.cancelled(q, n.Consumer)
	case peerpb.Notice_READY:
		s.wanted(n.Consumer)
	}
}

// Gone ends everything the session has at a queue that is gone.
func (q *sessionQueue) Gone() {
	s := q.session
	s.lock()
	defer s.unlock()
	s.queueGone(q)
	s.remove(q)
	s.takeStrays(q)
}

// Accept counts a message for a consumer, if the channel has space for it.
func (q *sessionQueue) Accept(bytes int) bool { return q.session.consumers.window.accept(bytes) }

// CanTake reports whether the channel has space for a number of answers. If not, Written will find
// that a consumer is waiting.
func (q *sessionQueue) CanTake(answers int) bool { return q.session.consumers.window.fits(answers) }

// strictSettle is the note of a settlement that fails if it comes too late.
type strictSettle struct{}

// errLateSettle is the channel's error for one that has failed.
var errLateSettle = fsm.Refuse(fsm.Precondition, "a delivery was settled after its lock had been lost")

// settleEach settles deliveries of a consumer whose late settlements are errors: each by a command
// of its own, so that every one of them is found. The lock is held.
func (q *sessionQueue) settleEach(number uint64, ids []uint64, outcome fsm.Outcome) {
	if q.stream.Over() {
		return
	}
	for _, id := range ids {
		q.stream.Add(&logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{
			Outcome: outcome, Consumer: number, Ranges: []uint64{id, 1}, Strict: true,
		}}, stream.Pending{Note: strictSettle{}})
	}
}

// addToken adds a lock token to a message. Its consumer is the one that the queue knows.
func (q *sessionQueue) addToken(m *fsm.Message, secret []byte) {
	of := fsm.ConsumerID{Session: q.session.id, Number: m.Consumer}
	m.LockToken = lockToken{queue: q.stream.Queue(), of: of, delivery: m.ID}.text(secret)
}

// addTokens adds lock tokens to the messages of consumers that have asked for them.
func (q *sessionQueue) addTokens(messages []fsm.Message) {
	var secret []byte
	for i := range messages {
		m := &messages[i]
		if c := q.session.known[m.Consumer]; c == nil || !c.info {
			continue
		}
		if secret == nil {
			secret = q.session.consumers.node.view().LockSecret()
		}
		q.addToken(m, secret)
	}
}

// Deliver passes messages on to the channel.
func (q *sessionQueue) Deliver(messages []fsm.Message) {
	q.addTokens(messages)
	q.countDelivered(messages)
	q.session.noteActive(messages)
	q.session.add(event{kind: eventDeliver, messages: messages})
}
