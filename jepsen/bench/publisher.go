package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

var (
	errNacked = errors.New("the broker refused a message")
	errClosed = errors.New("the broker closed the channel")
)

// publisher publishes with confirms, to its queues in turn.
type publisher struct {
	id     uint32
	uri    string
	queues []string
	size   int
	window int // unconfirmed messages
	// more reports whether message n, counted from 0, is to be published.
	more func(n uint64) bool
	// ttl, if set, draws a message's time to live; always more than 0.
	ttl func() time.Duration
	// open, if set, connects in place of openSender.
	open func(uri string, window int) (sender, error)
	// interval is the time between publishes; 0: as fast as the window allows.
	interval time.Duration
	// taken, if set, gets the time from each publish to its confirm.
	taken *samples
	// gap is the longest time without a confirm, valid when run has returned.
	gap time.Duration
}

// run publishes until more returns false, and returns how many were confirmed.
func (p *publisher) run(ctx context.Context) (uint64, error) {
	open := p.open
	if open == nil {
		open = openSender
	}
	out, err := open(p.uri, p.window)
	if err != nil {
		return 0, err
	}
	defer out.drop()
	confirmed, err := p.drive(ctx, out)
	if err == nil {
		err = out.finish()
	}
	return confirmed, err
}

func (p *publisher) drive(ctx context.Context, out sender) (confirmed uint64, err error) {
	answers := out.answers()
	body, calls := make([]byte, p.size), make([]time.Duration, p.window)
	wake := time.NewTimer(0)
	defer wake.Stop()
	began := clock()
	last := began
	var sent uint64
	for more := p.more(0); ; {
		for more && sent-confirmed < uint64(p.window) && p.due(began, sent) <= clock() {
			call := clock()
			if err := p.publish(out, body, sent, call); err != nil {
				return confirmed, fmt.Errorf("publish: %w", err)
			}
			calls[sent%uint64(p.window)] = call
			sent++
			more = p.more(sent)
		}
		if !more && sent == confirmed {
			return confirmed, nil
		}
		if more && sent-confirmed < uint64(p.window) {
			wake.Reset(p.due(began, sent) - clock())
		}
		select {
		case <-wake.C:
		case a, ok := <-answers:
			if !ok {
				return confirmed, errors.Join(errClosed, out.reason())
			}
			if !a.Ack {
				return confirmed, errors.Join(errNacked, out.reason())
			}
			now := clock()
			if p.taken != nil {
				p.taken.add(now - calls[confirmed%uint64(p.window)])
			}
			confirmed++
			p.gap, last = max(p.gap, now-last), now
		case <-ctx.Done():
			return confirmed, context.Cause(ctx)
		}
	}
}

// due is the earliest time at which message n is published.
func (p *publisher) due(began time.Duration, n uint64) time.Duration {
	return began + time.Duration(n)*p.interval
}

// publish reuses body: the sender no longer needs it when it returns.
func (p *publisher) publish(out sender, body []byte, n uint64, call time.Duration) error {
	due := call
	var ttl time.Duration
	if p.ttl != nil {
		ttl = p.ttl()
		due += ttl
	}
	stamp(body, p.id, n, call, due)
	return out.publish(p.queues[n%uint64(len(p.queues))], body, ttl)
}
