package workload

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/history"
)

// Getter takes messages from a queue with basic.get. When its connection is lost it goes
// on at the next broker, as another client of the history.
type Getter struct {
	Name  string
	URIs  []string
	First int // position of the first broker
	Queue string
	// As, if set, is the queue that deliveries are recorded of.
	As string
	// Pause follows each basic.get.
	Pause func() time.Duration
	// Do, if set, is called with each message and ends it by commands; otherwise it is
	// acked. It returns false to end the session. It knows the turn of a message only if
	// the queue is a quorum queue.
	Do func(ctx context.Context, s *Session, t Taken) bool
}

// Run gets until ctx ends. An error means that a command was refused.
func (g *Getter) Run(ctx context.Context, h *history.History) error {
	for epoch := 1; ctx.Err() == nil; epoch++ {
		s, err := Open(ctx, h, fmt.Sprintf("%s %d", g.Name, epoch), g.URIs[(g.First+epoch-1)%len(g.URIs)])
		if err != nil {
			Wait(ctx, 100*time.Millisecond)
			continue
		}
		acked, err := g.session(ctx, s, epoch)
		if err == nil && s.ch.Close() == nil {
			h.Settled(acked)
		}
		h.Acked(acked)
		if g.Do != nil {
			s.lose()
		} else {
			s.Close()
		}
		if s.Err != nil {
			return fmt.Errorf("%s: %w", s.Name, s.Err)
		}
		Wait(ctx, 50*time.Millisecond)
	}
	return nil
}

var errLeft = errors.New("the session was left")

// session gets until ctx ends, or something is lost. It returns the positions of the
// deliveries that it has acked.
func (g *Getter) session(ctx context.Context, s *Session, epoch int) (acked []int, err error) {
	for ctx.Err() == nil {
		call := s.h.Now()
		d, ok, err := s.ch.Get(g.Queue, false)
		switch {
		case err != nil:
			return acked, err
		case !ok:
		case g.Do != nil:
			s.free = call
			if !g.Do(ctx, s, s.took(d, g.Queue, "", 0)) || s.Lost() || s.Err != nil {
				return nil, errLeft
			}
		default:
			acked = append(acked, s.h.Deliver(g.record(d, call, epoch)))
			if err := d.Ack(false); err != nil {
				return acked, err
			}
		}
		Wait(ctx, g.Pause())
	}
	return acked, nil
}

func (g *Getter) record(d amqp.Delivery, call time.Duration, epoch int) history.Delivery {
	queue := g.Queue
	if g.As != "" {
		queue = g.As
	}
	r := client.Record(d, queue, g.Name, epoch)
	r.Call = call
	return r
}
