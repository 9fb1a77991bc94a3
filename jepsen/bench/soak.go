package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
)

const (
	soakQueues = 5
	// soakPart is the part of the highest rate that is held.
	soakPart = 0.7
)

// soak holds a rate for a long time.
type soak struct {
	*lab
	duration time.Duration
	every    time.Duration
	size     int

	ledger   *ledger
	confirms samples
	marks    []mark
}

// mark is a set of measurements at one moment.
type mark struct {
	rate float64 // messages a second since the previous mark
	p99  float64 // of confirms since then, ms
	rss  float64 // MiB, all servers
	disk float64 // MiB, all servers
}

func runSoak(ctx context.Context, fs *flag.FlagSet, args []string) error {
	s := &soak{lab: labFlags(fs)}
	fs.DurationVar(&s.duration, "duration", 30*time.Minute, "how `long` the rate is held")
	fs.DurationVar(&s.every, "every", 30*time.Second, "how `often` a line is printed")
	fs.IntVar(&s.size, "size", 1024, "`bytes` per body")
	if err := parse(fs, args); err != nil {
		return err
	}
	if s.every < time.Second || s.duration < 8*s.every || s.size < bodyHead {
		return fmt.Errorf("-every must be at least 1s, -duration 8 times that, -size %d", bodyHead)
	}
	var results []result
	err := s.with(ctx, func() error {
		var err error
		results, err = s.run(ctx)
		return err
	})
	if printErr := publishResults(results, s.json); err == nil {
		err = printErr
	}
	if err != nil {
		return err
	}
	return verdict(s.marks)
}

func (s *soak) run(ctx context.Context) ([]result, error) {
	if err := warmUp(ctx, s.target, warmTime); err != nil {
		return nil, err
	}
	shape := defaultShape
	shape.queues, shape.size = soakQueues, s.size
	most, err := throughput(ctx, s.target, shape)
	if err != nil {
		return nil, err
	}
	rate := most.PerSecond * soakPart
	fmt.Printf("at most %.0f msg/s; %.0f msg/s for %v\n", most.PerSecond, rate, s.duration)
	held, err := s.hold(ctx, rate)
	return []result{most, held}, err
}

func (s *soak) hold(ctx context.Context, rate float64) (result, error) {
	r := result{Name: fmt.Sprintf("soak, %d queues, %d bytes, %.0f/s", soakQueues, s.size, rate)}
	s.ledger = newLedger(soakQueues, s.size)
	l := &load{ledger: s.ledger}
	var queues []queue
	for i := range soakQueues {
		q := queue{name: fmt.Sprintf("bench-soak-%d", i+1)}
		queues = append(queues, q)
		l.publishers = append(l.publishers, &publisher{
			id: uint32(i), uri: s.target.uri(i), queues: []string{q.name}, size: s.size, window: 5000,
			more: during(s.duration), interval: time.Duration(soakQueues / rate * float64(time.Second)), taken: &s.confirms,
		})
		l.consumers = append(l.consumers, &consumer{
			uri: s.target.uri(i + 1), queue: q.name, prefetch: 500, ackEvery: 50, ledger: s.ledger,
		})
	}
	if err := s.target.declare(queues...); err != nil {
		return r, err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	watched := make(chan error, 1)
	go func() { watched <- s.watch(watching) }()
	err := l.run(ctx, s.target.pids, &r)
	stop()
	if err = errors.Join(err, <-watched); err != nil {
		return r, fmt.Errorf("%s: %w", r.Name, err)
	}
	return r, s.target.remove(queues...)
}

// watch prints a line at regular intervals until ctx ends.
func (s *soak) watch(ctx context.Context) error {
	began, before, last := clock(), clock(), uint64(0)
	for {
		if pause(ctx, s.every) != nil {
			return nil // the run is over
		}
		resident, err := residentBytes(s.target.pids)
		if err != nil {
			return err
		}
		disk, err := cluster.DiskBytes(s.data)
		if err != nil {
			return err
		}
		now, n := clock(), s.ledger.received()
		m := mark{rate: float64(n-last) / (now - before).Seconds(), rss: float64(resident) / (1 << 20), disk: float64(disk) / (1 << 20)}
		if q := quantilesOf(s.confirms.take()); q != nil {
			m.p99 = q.P99
		}
		before, last = now, n
		s.marks = append(s.marks, m)
		fmt.Printf("%8s  %7.0f msg/s  confirm p99 %7.2f ms  RSS %6.0f MiB  disk %7.0f MiB\n",
			(now - began).Truncate(time.Second), m.rate, m.p99, m.rss, m.disk)
	}
}

// How much the last quarter may exceed the first, as a factor and in units.
const (
	flatFactor = 1.3
	flatRSS    = 64 // MiB
	flatDisk   = 256
	flatP99    = 5 // ms
)

// verdict compares the medians of the last quarter with those of the first. It returns an error if
// something grows.
func verdict(marks []mark) error {
	quarter := len(marks) / 4
	if quarter == 0 {
		return errors.New("too few lines for a verdict")
	}
	var errs []error
	for _, c := range []struct {
		name  string
		of    func(mark) float64
		slack float64
	}{
		{"RSS, MiB", func(m mark) float64 { return m.rss }, flatRSS},
		{"disk, MiB", func(m mark) float64 { return m.disk }, flatDisk},
		{"confirm p99, ms", func(m mark) float64 { return m.p99 }, flatP99},
	} {
		var first, last []float64
		for i := range quarter {
			first = append(first, c.of(marks[i]))
			last = append(last, c.of(marks[len(marks)-1-i]))
		}
		f, l := median(first), median(last)
		flat := l <= f*flatFactor+c.slack
		fmt.Printf("%s: first quarter %.1f, last quarter %.1f: flat %t\n", c.name, f, l, flat)
		if !flat {
			errs = append(errs, fmt.Errorf("%s grows from %.1f to %.1f", c.name, f, l))
		}
	}
	return errors.Join(errs...)
}
