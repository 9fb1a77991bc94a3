package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// slowQueues and slowPerChannel spread the consumers of the run timeouts.
	slowQueues     = 100
	slowPerChannel = 100
	// slowSetup is the time to register one of them on a busy machine, and slowMargin is added for
	// all.
	slowSetup  = 2 * time.Millisecond
	slowMargin = 6 * time.Second
	// slowCalm is how long confirms elsewhere are measured before the timeouts.
	slowCalm = 3 * time.Second
	// slowAtLeast is the minimum time they are measured from then on.
	slowAtLeast = time.Second
	// slowProbe is the interval between publishes to another queue, and slowWindow how many of them
	// may wait for their confirms.
	slowProbe  = 2 * time.Millisecond
	slowWindow = 1000
	slowSize   = 100
	maxSlow    = 100_000
)

var errSetupTooSlow = errors.New("consumers were to time out before all of them had their message")

func runTimeouts(ctx context.Context, fs *flag.FlagSet, args []string) error {
	t := targetFlags(fs)
	n := fs.Int("consumers", 10_000, "`consumers` on the first node, each with one message")
	if err := parse(fs, args); err != nil {
		return err
	}
	if *n < 1 || *n > maxSlow {
		return fmt.Errorf("-consumers must be between 1 and %d", maxSlow)
	}
	r, err := timeouts(ctx, t, *n)
	if err != nil {
		return err
	}
	return publishResults([]result{r}, t.json)
}

// timeouts makes consumers of one node hold a message each for too long, all until the same
// instant. It measures how long after that the last message is at another consumer and the last
// client is notified, and how long confirms of another queue take before and meanwhile.
func timeouts(ctx context.Context, t *target, n int) (r result, err error) {
	r.Name = fmt.Sprintf("%d consumers time out at once", n)
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	s := &slowRun{target: t, n: n, notices: make([]atomic.Int32, n), changed: make(chan struct{}, 1)}
	defer func() {
		s.close()
		if err != nil {
			err = fmt.Errorf("%s: %w", r.Name, err)
		}
	}()
	if err := s.prepare(ctx, fail); err != nil {
		return r, err
	}
	var normally, meanwhile []time.Duration
	var probed samples
	var over atomic.Bool
	var probing sync.WaitGroup
	probing.Go(func() {
		p := publisher{uri: t.uri(0), queues: []string{slowElsewhere}, size: slowSize, window: slowWindow, interval: slowProbe, taken: &probed,
			more: func(uint64) bool { return !over.Load() }}
		if _, err := p.run(ctx); err != nil {
			fail(fmt.Errorf("another queue: %w", err))
		}
	})
	stop := sync.OnceFunc(func() { over.Store(true); probing.Wait() })
	defer stop()
	if err := pause(ctx, s.due-clock()-slowCalm); err != nil {
		return r, err
	}
	probed.take()
	if err := pause(ctx, s.due-clock()); err != nil {
		return r, err
	}
	normally = probed.take()
	m, err := startMeter(t.pids)
	if err != nil {
		return r, err
	}
	err = errors.Join(s.await(ctx), m.end(&r, n))
	if err == nil {
		err = pause(ctx, s.due+slowAtLeast-clock())
	}
	if err != nil {
		return r, err
	}
	meanwhile = probed.take()
	stop()
	if err := s.check(); err != nil {
		return r, err
	}
	r.Times = quantilesOf(meanwhile)
	before := quantilesOf(normally)
	if r.Times == nil || before == nil {
		return r, errors.New("another queue confirmed nothing")
	}
	r.note("the last message is with another consumer after", (time.Duration(s.lastBack.Load()) - s.due).Seconds(), "s")
	r.note("the last client is told after", (time.Duration(s.lastNotice.Load()) - s.due).Seconds(), "s")
	r.note("clients that were told once", float64(n), "")
	r.note("confirms of another queue meanwhile", float64(len(meanwhile)), "")
	r.note("normally, confirms of another queue p50", before.P50, "ms")
	r.note("normally, confirms of another queue p99", before.P99, "ms")
	return r, t.remove(s.queues()...)
}

// slowElsewhere is a queue without consumers that time out.
const slowElsewhere = "bench-slow-elsewhere"

// slowRun holds the consumers that are too slow, and those that get their messages.
type slowRun struct {
	*target
	n     int
	due   time.Duration // of all messages, by clock
	conns []*amqp.Connection
	chans []*amqp.Channel // of the slow consumers

	notices              []atomic.Int32 // by consumer
	noticedAll, back     atomic.Int32
	lastNotice, lastBack atomic.Int64 // by clock
	changed              chan struct{}
}

func (s *slowRun) queue(i int) string { return fmt.Sprintf("bench-slow-%d", i%min(slowQueues, s.n)) }

func (s *slowRun) queues() []queue {
	all := []queue{{name: slowElsewhere, args: amqp.Table{"x-max-length": 1000}}}
	for i := range min(slowQueues, s.n) {
		all = append(all, queue{name: s.queue(i)})
	}
	return all
}

// prepare fills the queues and has the slow consumers take what is in them.
func (s *slowRun) prepare(ctx context.Context, fail context.CancelCauseFunc) error {
	if err := s.declare(s.queues()...); err != nil {
		return err
	}
	names := make([]string, 0, slowQueues)
	for _, q := range s.queues()[1:] {
		names = append(names, q.name)
	}
	l := &load{publishers: []*publisher{{uri: s.uri(0), queues: names, size: slowSize, window: 1000, more: upTo(s.n)}}}
	if l.publish(ctx, fail); context.Cause(ctx) != nil {
		return context.Cause(ctx)
	}
	s.due = (clock() + time.Duration(s.n)*slowSetup + slowMargin + slowCalm).Truncate(time.Millisecond)
	if err := s.onChannels(func(ch *amqp.Channel, first, last int) error { return s.beSlow(ctx, ch, first, last) }); err != nil {
		return err
	}
	if clock() > s.due-slowCalm {
		return errSetupTooSlow
	}
	return s.takeBack()
}

// onChannels opens channels to the first node, ten per connection, and calls do for each
// concurrently, with the numbers of its consumers.
func (s *slowRun) onChannels(do func(ch *amqp.Channel, first, last int) error) error {
	var all sync.WaitGroup
	var errs []error
	var mu sync.Mutex
	for first, i := 0, 0; first < s.n; first, i = first+slowPerChannel, i+1 {
		if i%10 == 0 {
			conn, ch, err := connect(s.uri(0), true)
			if err != nil {
				return err
			}
			_ = ch.Close() // another one is opened below
			s.conns = append(s.conns, conn)
		}
		ch, err := s.conns[len(s.conns)-1].Channel()
		if err != nil {
			return err
		}
		s.chans = append(s.chans, ch)
		all.Go(func() {
			if err := do(ch, first, min(first+slowPerChannel, s.n)); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// beSlow registers consumers, each of which gets a message and keeps it.
func (s *slowRun) beSlow(ctx context.Context, ch *amqp.Channel, first, last int) error {
	cancelled := ch.NotifyCancel(make(chan string, 2*slowPerChannel))
	go func() { // ends with the channel
		for tag := range cancelled {
			s.tell(tag)
		}
	}()
	if err := ch.Qos(1, 0, false); err != nil {
		return err
	}
	for i := first; i < last; i++ {
		left := s.due - clock()
		if left <= 0 {
			return errSetupTooSlow
		}
		from, err := ch.Consume(s.queue(i), strconv.Itoa(i), false, false, false, false, amqp.Table{"x-consumer-timeout": left.Milliseconds()})
		if err != nil {
			return err
		}
		select {
		case _, ok := <-from:
			if !ok {
				return errClosed
			}
		case <-time.After(left):
			return errSetupTooSlow
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// tell records that a consumer was cancelled.
func (s *slowRun) tell(tag string) {
	if i, err := strconv.Atoi(tag); err == nil && i < s.n {
		s.notices[i].Add(1)
	}
	s.lastNotice.Store(int64(clock()))
	s.noticedAll.Add(1)
	s.wake()
}

// takeBack makes consumers of another node wait for what goes back.
func (s *slowRun) takeBack() error {
	conn, ch, err := connect(s.uri(1), true)
	if err != nil {
		return err
	}
	s.conns = append(s.conns, conn)
	for _, q := range s.queues()[1:] {
		from, err := ch.Consume(q.name, "back-"+q.name, true, false, false, false, nil)
		if err != nil {
			return err
		}
		go func() { // ends with the channel
			for range from {
				s.lastBack.Store(int64(clock()))
				s.back.Add(1)
				s.wake()
			}
		}()
	}
	return nil
}

func (s *slowRun) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// await waits until all messages are back and all clients are notified.
func (s *slowRun) await(ctx context.Context) error {
	quiet := time.NewTimer(stall)
	defer quiet.Stop()
	for int(s.back.Load()) < s.n || int(s.noticedAll.Load()) < s.n {
		select {
		case <-s.changed:
			quiet.Reset(stall)
		case <-quiet.C:
			return fmt.Errorf("%d messages of %d are back, %d clients told: %w", s.back.Load(), s.n, s.noticedAll.Load(), errStalled)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// check uses each channel, so that everything in transit has arrived, and checks that every client
// was notified once and every message came back once.
func (s *slowRun) check() error {
	for _, ch := range s.chans {
		if err := ch.Qos(1, 0, false); err != nil {
			return err
		}
	}
	for i := range s.notices {
		if times := s.notices[i].Load(); times != 1 {
			return fmt.Errorf("the client of consumer %d was told %d times", i, times)
		}
	}
	if back := int(s.back.Load()); back != s.n {
		return fmt.Errorf("%d messages came back, of %d", back, s.n)
	}
	return nil
}

func (s *slowRun) close() {
	for _, c := range s.conns {
		_ = c.Close() // the run is over
	}
}
