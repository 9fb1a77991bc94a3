package session

import (
	"context"

	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// Take gets up to count messages for a user, and then settles all of them at once. Like basic.get,
// it fails in the same cases and counts as use. admit is asked for the memory of all messages so far: the one that it
// refuses goes back, and its error is returned if that is the first one.
func (b *Broker) Take(ctx context.Context, user, vhost, name string, count int, outcome fsm.Outcome, admit func(bytes int) error) ([]fsm.Message, error) {
	c, err := b.Connect(ctx, user, vhost)
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

func (noEvents) Confirmed(uint64, uint64, bool)              {}
func (noEvents) Refused(fsm.Payload, *fsm.Refusal)           {}
func (noEvents) Returned(fsm.Payload)                        {}
func (noEvents) Kept([]fsm.Held)                             {}
func (noEvents) Deliver([]fsm.Message)                       {}
func (noEvents) Cancelled(uint64)                            {}
func (noEvents) Revoked(uint64, error)                       {}
func (noEvents) TimedOut(uint64, []uint64, fsm.Millis, bool) {}
func (noEvents) Lost(error)                                  {}

// NameLocked makes a command be about the delivery that a lock token names. It returns false if the
// token is none of this queue.
func (b *Broker) NameLocked(q *catalog.Queue, token string, c *logpb.Command) bool {
	t, ok := parseLockToken(token, b.view().LockSecret())
	if ok = ok && t.queue == q.ID; ok {
		t.name(c)
	}
	return ok
}

// Command executes commands at a queue in a session of its own, one after the other, and returns
// their answers: OK, or NotFound if the object of the command is not there. Any other answer is an
// error.
func (b *Broker) Command(ctx context.Context, q *catalog.Queue, commands ...*logpb.Command) ([]fsm.Result, error) {
	conn := &Connection{broker: b, vhost: q.VHost, number: b.clients.lastConnection.Add(1)}
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
		if err := b.available.await(ctx, q, to.Route(), k); err != nil {
			return nil, err
		}
		if k.Refused != nil && k.Result.Code != fsm.NotFound {
			return nil, k.Refused
		}
		results[i] = k.Result
	}
	return results, nil
}
