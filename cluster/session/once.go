package session

import (
	"context"
	"errors"

	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// takeBytes bounds what is taken at once.
const takeBytes = 16 << 20

// Open starts a session for requests of a logged-in user that did not come over AMQP. The caller
// closes it, and audits what it is used for.
func (x *Sessions) Open(ctx context.Context, user, vhost string) (*Session, error) {
	return x.openFor(ctx, user, vhost, noEvents{})
}

func (x *Sessions) openFor(ctx context.Context, user, vhost string, client fsm.SessionEvents) (*Session, error) {
	c, err := x.Connect(ctx, user, vhost)
	if err != nil {
		return nil, err
	}
	c.audited = true
	return c.OpenSession(client)
}

// PublishOne publishes one message for a user, and waits for its outcome. routed is false if no
// queue has the message. It fails in the same cases as basic.publish, and if a queue has refused
// the message.
func (x *Sessions) PublishOne(ctx context.Context, user, vhost string, p *fsm.Publish) (routed bool, err error) {
	outcome := &publishEvents{over: make(chan error, 1)}
	s, err := x.openFor(ctx, user, vhost, outcome)
	if err != nil {
		return false, err
	}
	defer s.Close(ctx)
	p.Number, p.Mandatory, p.Holdings = 1, true, nothingHeld{}
	if routed, err = s.Publish(p); errors.Is(err, fsm.ErrNotFresh) {
		if err = s.Refresh(ctx); err == nil {
			p.Fresh = true
			routed, err = s.Publish(p)
		}
	}
	if err != nil || !routed {
		return false, err
	}
	select {
	case why := <-outcome.over:
		switch {
		case why == fsm.ErrNoCommand:
			why = &fsm.Refusal{Kind: fsm.NotFoundKind, Text: why.Error()}
		case errors.As(why, new(*fsm.NotTaken)):
			why = fsm.Refuse(fsm.Precondition, "a queue refused the message")
		case why == fsm.ErrUnroutable:
			return false, nil
		}
		return why == nil, why
	case <-ctx.Done():
		return false, fsm.Refuse(fsm.Unavailable, "the message was not confirmed: "+ctx.Err().Error())
	}
}

// nothingHeld are the holdings of who has no channel.
type nothingHeld struct{}

func (nothingHeld) First() uint64                { return 1 }
func (nothingHeld) Consumer(string) uint64       { return 0 }
func (nothingHeld) Find(uint64) (fsm.Held, bool) { return fsm.Held{}, false }
func (nothingHeld) UpTo(uint64) []fsm.Held       { return nil }
func (nothingHeld) Of(uint64) []fsm.Held         { return nil }
func (nothingHeld) Take(uint64) (fsm.Held, bool) { return fsm.Held{}, false }

// publishEvents is the client of a session that publishes one message.
type publishEvents struct {
	noEvents
	over chan error // takes one outcome, the first, as of SessionEvents.Confirmed
}

func (e *publishEvents) end(err error) {
	select {
	case e.over <- err:
	default:
	}
}

func (e *publishEvents) Confirmed(_, _ uint64, why error) { e.end(why) }

func (e *publishEvents) Lost(err error) { e.end(err) }

// Take gets up to count messages for a user, and then settles all of them at once. Like basic.get,
// it fails in the same cases and counts as use. admit is asked for the memory of all messages so far: the one that it
// refuses goes back, and its error is returned if that is the first one.
func (x *Sessions) Take(ctx context.Context, user, vhost, name string, count int, outcome fsm.Outcome, admit func(bytes int) error) ([]fsm.Message, error) {
	c, err := x.Connect(ctx, user, vhost)
	if err != nil {
		return nil, err
	}
	s, err := c.OpenSession(noEvents{})
	if err != nil {
		return nil, err
	}
	defer s.Close(ctx)
	var list []fsm.Message
	for bytes := 0; len(list) < count && bytes < takeBytes; {
		m, ok, err := s.Get(ctx, name, false)
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		bytes += len(m.Payload)
		if err := admit(bytes); err != nil && len(list) == 0 {
			return nil, err
		} else if err != nil {
			break // it goes back when the session is closed
		}
		list = append(list, m)
	}
	ids := make([]uint64, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	if len(ids) > 0 {
		s.Settle(list[0].Consumer, ids, outcome)
	}
	return list, nil
}

// noEvents is the client of a session that only waits for answers.
type noEvents struct{}

func (noEvents) Confirmed(uint64, uint64, error)             {}
func (noEvents) Refused(fsm.Payload, *fsm.Refusal)           {}
func (noEvents) Returned(fsm.Payload)                        {}
func (noEvents) Kept([]fsm.Held)                             {}
func (noEvents) Deliver([]fsm.Message)                       {}
func (noEvents) Cancelled(uint64)                            {}
func (noEvents) Gone(fsm.QueueID)                            {}
func (noEvents) Revoked(uint64, error)                       {}
func (noEvents) TimedOut(uint64, []uint64, fsm.Millis, bool) {}
func (noEvents) Credited(uint64, fsm.LinkState)              {}
func (noEvents) Settled(uint64, []uint64)                    {}
func (noEvents) News(uint64, *fsm.News)                      {}
func (noEvents) Lost(error)                                  {}

// NameLocked makes a command be about the delivery that a lock token names. It returns false if the
// token is none of this queue.
func (x *Sessions) NameLocked(q *catalog.Queue, token string, c *logpb.Command) bool {
	t, ok := parseLockToken(token, x.node.View().LockSecret())
	if ok = ok && t.queue == q.ID; ok {
		t.name(c)
	}
	return ok
}

// Command executes commands at a queue in a session of its own, one after the other, and returns
// their answers: OK, or NotFound if the object of the command is not there. Any other answer is an
// error.
func (x *Sessions) Command(ctx context.Context, q *catalog.Queue, commands ...*logpb.Command) ([]fsm.Result, error) {
	conn := &Connection{in: x, vhost: q.VHost, number: x.lastConnection.Add(1)}
	s, err := conn.OpenSession(noEvents{})
	if err != nil {
		return nil, err
	}
	defer s.Close(ctx)
	s.mu.Lock()
	to := s.queue(q).stream
	calls := make([]*stream.Call, len(commands))
	for i, c := range commands {
		calls[i] = to.Request(c)
	}
	s.mu.Unlock()
	results := make([]fsm.Result, len(calls))
	for i, k := range calls {
		if err := x.answers.await(ctx, q, to.Route(), k); err != nil {
			return nil, err
		}
		if k.Refused != nil && k.Result.Code != fsm.NotFound {
			return nil, k.Refused
		}
		results[i] = k.Result
	}
	return results, nil
}
