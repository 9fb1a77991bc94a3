package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	groupSize = 100
	// groupConsumers hold groupsEach groups each at a time.
	groupConsumers, groupsEach = 6, 100
)

func runGroups(ctx context.Context, fs *flag.FlagSet, args []string) error {
	t := targetFlags(fs)
	n := fs.Int("groups", 100_000, "`groups` of one message each")
	if err := parse(fs, args); err != nil {
		return err
	}
	if *n < 1 {
		return errors.New("-groups must be at least 1")
	}
	r, err := groups(ctx, t, *n)
	if err != nil {
		return err
	}
	return publishResults([]result{r}, t.json)
}

// groups fills a queue with messages of n groups, measures what a group costs in memory compared to
// a message without one, and how many groups a second are handed to consumers.
func groups(ctx context.Context, t *target, n int) (result, error) {
	r := result{Name: fmt.Sprintf("%d groups, hand-outs", n)}
	plain := queue{name: "bench-groupless"}
	grouped := queue{name: "bench-groups", args: amqp.Table{"x-message-groups": true}}
	if err := t.declare(plain, grouped); err != nil {
		return r, err
	}
	var next atomic.Int64
	inGroups := openWithHeaders(func(time.Duration) amqp.Table {
		return amqp.Table{"x-group-id": "group-" + strconv.FormatInt(next.Add(1), 10)}
	})
	var filled [2]filling
	for i, q := range []queue{plain, grouped} {
		var err error
		filled[i], err = fill(ctx, t, n, func(p *publisher) {
			p.queues, p.size = []string{q.name}, groupSize
			if i == 1 {
				p.open = inGroups
			}
		})
		if err != nil {
			return r, fmt.Errorf("%s: %w", r.Name, err)
		}
	}
	l := &load{ledger: newLedger(fillers, groupSize)}
	for i := range fillers {
		l.published = append(l.published, uint64(n*(i+1)/fillers-n*i/fillers))
	}
	for i := range groupConsumers {
		l.consumers = append(l.consumers, &consumer{
			uri: t.uri(i), queue: grouped.name, prefetch: groupsEach, ackEvery: 1, ledger: l.ledger,
			args: amqp.Table{"x-max-groups": int32(groupsEach)},
		})
	}
	if err := l.run(ctx, t.pids, &r); err != nil {
		return r, fmt.Errorf("%s: %w", r.Name, err)
	}
	filled[1].notes(&r, "message of a group")
	if filled[1].bytes != 0 {
		r.note("resident memory per group and server, without its message", filled[1].bytes-filled[0].bytes, "bytes")
	}
	return r, t.remove(plain, grouped)
}
