package main

import (
	"context"
	"errors"
	"flag"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// forwardSize is the size of messages that go from one queue to another.
const forwardSize = 100

func runForward(ctx context.Context, fs *flag.FlagSet, args []string) error {
	t := targetFlags(fs)
	n := fs.Int("messages", 100_000, "`messages` to publish in each run")
	if err := parse(fs, args); err != nil {
		return err
	}
	if *n < 1 {
		return errors.New("-messages must be at least 1")
	}
	all, err := forwarded(ctx, t, *n)
	if err != nil {
		return err
	}
	return publishResults(all, t.json)
}

// forwarded publishes n messages to a queue from which they are forwarded, or dead-lettered at once,
// to another one that is consumed, and measures how fast they come, beside messages that are
// published there. Each message must come once.
func forwarded(ctx context.Context, t *target, n int) (all []result, err error) {
	to := queue{name: "bench-forward-to"}
	for _, way := range []struct {
		name string
		args amqp.Table
	}{
		{"forwarded", amqp.Table{"x-forward-to-exchange": "", "x-forward-to-routing-key": to.name}},
		{"dead-lettered", amqp.Table{"x-message-ttl": int32(0), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": to.name}},
		{"published there", nil},
	} {
		from := queue{name: "bench-forward", args: way.args}
		if err := t.declare(to, from); err != nil {
			return nil, err
		}
		into := from.name
		if way.args == nil {
			into = to.name
		}
		r := result{Name: fmt.Sprintf("%d messages %s", n, way.name)}
		l := &load{ledger: newLedger(fillers, forwardSize)}
		for i := range fillers {
			l.publishers = append(l.publishers, &publisher{
				id: uint32(i), uri: t.uri(i), queues: []string{into}, size: forwardSize, window: 500,
				more: upTo(n*(i+1)/fillers - n*i/fillers),
			})
		}
		l.consumers = []*consumer{{uri: t.uri(1), queue: to.name, prefetch: 500, ackEvery: 50, ledger: l.ledger}}
		if err := l.run(ctx, t.pids, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", r.Name, err)
		}
		if err := t.remove(from, to); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}
