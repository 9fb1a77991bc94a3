package session

import (
	"context"
	"errors"

	"github.com/quorate/quorate/fsm"
)

// Open starts a session for requests of a logged-in user that did not come over AMQP. The caller
// closes it, and audits what it is used for.
func (b *Broker) Open(ctx context.Context, user, vhost string) (*Session, error) {
	return b.openFor(ctx, user, vhost, noEvents{})
}

func (b *Broker) openFor(ctx context.Context, user, vhost string, client fsm.SessionEvents) (*Session, error) {
	c, err := b.Connect(ctx, user, vhost)
	if err != nil {
		return nil, err
	}
	c.audited = true
	return c.OpenSession(client)
}

// PublishOne publishes one message for a user, and waits for its outcome. routed is false if no
// queue has the message. It fails in the same cases as basic.publish, and if a queue has refused
// the message.
func (b *Broker) PublishOne(ctx context.Context, user, vhost string, p *fsm.Publish) (routed bool, err error) {
	outcome := &publishEvents{over: make(chan error, 1)}
	s, err := b.openFor(ctx, user, vhost, outcome)
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
	case err := <-outcome.over:
		return err == nil && !outcome.returned, err
	case <-ctx.Done():
		return false, fsm.Refuse(fsm.Unavailable, "the message is not confirmed: "+ctx.Err().Error())
	}
}

// nothingHeld are the holdings of who has no channel.
type nothingHeld struct{}

func (nothingHeld) Consumer(string) uint64       { return 0 }
func (nothingHeld) Find(uint64) (fsm.Held, bool) { return fsm.Held{}, false }
func (nothingHeld) UpTo(uint64) []fsm.Held       { return nil }
func (nothingHeld) Of(uint64) []fsm.Held         { return nil }
func (nothingHeld) Take(uint64) (fsm.Held, bool) { return fsm.Held{}, false }

// publishEvents is the client of a session that publishes one message. Its other fields are read
// after over.
type publishEvents struct {
	noEvents
	over     chan error // takes one outcome, the first; nil: the message is confirmed
	returned bool
	refusal  *fsm.Refusal
}

func (e *publishEvents) end(err error) {
	select {
	case e.over <- err:
	default:
	}
}

func (e *publishEvents) Returned(fsm.Payload) { e.returned = true }

func (e *publishEvents) Refused(_ fsm.Payload, why *fsm.Refusal) {
	if e.refusal = why; why == nil {
		e.refusal = &fsm.Refusal{Kind: fsm.NotFoundKind, Text: "no such command"}
	}
}

func (e *publishEvents) Confirmed(_, _ uint64, ok bool) {
	switch {
	case ok:
		e.end(nil)
	case e.refusal != nil:
		e.end(e.refusal)
	default:
		e.end(fsm.Refuse(fsm.Precondition, "a queue has refused the message"))
	}
}

func (e *publishEvents) Lost(err error) { e.end(err) }
