package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrNoLock is returned for what has no lock that could be renewed.
var ErrNoLock = errors.New("it has no lock")

// minRenewal is the shortest time between two renewals.
const minRenewal = 100 * time.Millisecond

// holding is a lock that is renewed in the background.
type holding struct {
	client *Client
	turn   chan struct{} // full while a command about what is held is under way

	mu   sync.Mutex
	stop context.CancelCauseFunc // ends the renewals; nil: there are none
}

func newHolding(c *Client) holding { return holding{client: c, turn: make(chan struct{}, 1)} }

// begin renews now, and goes on until the context that it returns is cancelled.
func (h *holding) begin(ctx context.Context, renew func(context.Context) (time.Duration, error)) (context.Context, error) {
	began := time.Now()
	left, err := renew(ctx)
	if err != nil {
		return nil, err
	}
	if left == 0 {
		return nil, ErrNoLock
	}
	held, stop := context.WithCancelCause(ctx)
	h.over(context.Canceled) // the one before
	h.mu.Lock()
	h.stop = stop
	h.mu.Unlock()
	go func() { stop(h.keep(held, began.Add(left), renew)) }()
	return held, nil
}

// keep renews until held is done, and returns why it ends.
func (h *holding) keep(held context.Context, ends time.Time, renew func(context.Context) (time.Duration, error)) error {
	for {
		left := time.Until(ends)
		select {
		case <-held.Done():
			return nil
		case <-h.client.done:
			return h.client.why
		case <-time.After(min(left, max(left/2, minRenewal))):
		}
		until, cancel := context.WithDeadline(held, ends)
		began := time.Now()
		err := h.inTurn(until, func() (err error) {
			left, err = renew(until)
			return err
		})
		cancel()
		switch {
		case held.Err() != nil:
			return nil
		case err == nil && left > 0:
			ends = began.Add(left)
		case errors.Is(err, ErrUnknown): // until the lock ends, which is another error
		case err == nil:
			return ErrLockLost // it is at the end of its longest time
		default:
			return fmt.Errorf("%w: %w", ErrLockLost, err)
		}
	}
}

// end sends what gives up what is held. If that fails, the renewals go on.
func (h *holding) end(ctx context.Context, send func(context.Context) error) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	return h.inTurn(ctx, func() error {
		err := send(ctx)
		switch {
		case err == nil:
			h.over(context.Canceled)
		case errors.Is(err, ErrLockLost):
			h.over(err)
		}
		return err
	})
}

// inTurn sends one command at a time.
func (h *holding) inTurn(ctx context.Context, send func() error) error {
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
		if err := context.Cause(ctx); err != nil {
			return err
		}
		return send()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (h *holding) over(why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stop != nil {
		h.stop(why)
	}
}
