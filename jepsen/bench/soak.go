package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/report"
)

const (
	soakQueues = 5
	// soakPart is the part of the highest rate that is held.
	soakPart = 0.7
	// soakMarks is how many intervals a soak has, and soakSample how often numbers of the nodes are read in one.
	soakMarks  = 60
	soakSample = 5 * time.Second
	// soakRest is how long after a restart nodes are not like those before it.
	soakRest = time.Minute
	// soakStall is how long all messages may take to come to their ends when no more are published.
	soakStall = 2 * time.Minute
	// soakHeld is how many messages a second are held by locks, soakWoken how many queues a second are woken.
	soakHeld, soakWoken = 8, 4
	// One message of so many fails always, and another one once; retryLimit is after how many failures one is dead.
	retryEvery, retryLimit = 10, 5
)

// soak is a mixed load of a cluster for long.
type soak struct {
	*bench
	duration, restarts time.Duration
	rate, size         int
	sleepers           int
	checkLatency       bool // the machine is known to have nothing else to do

	parts              []*part
	confirms, arrivals samples
	publishers         sync.WaitGroup
	consumers          sync.WaitGroup
	rolling            atomic.Bool // nodes are restarted
	rolls              int
	fail               context.CancelCauseFunc
}

// soakVerb holds a rate for a long time, and fails if something grows, or goes wrong.
func soakVerb(f flags) func(context.Context) error {
	s := &soak{sleepers: 1000}
	run := onCluster(func(f flags, l *lab) func(*bench) {
		l.settings = []string{"raft.awake_target=0"} // unused queues sleep however few there are
		f.DurationVar(&s.duration, "duration", 30*time.Minute, "how `long` the rate is held, at least a minute")
		f.DurationVar(&s.restarts, "restart-every", 0, "how `often` the nodes are restarted one after the other; 0: never")
		f.Var(bounded{&s.rate, 0, 1_000_000}, "rate", "`messages` a second, of which latencies are shown and not judged; 0: 70 % of the highest rate")
		f.Var(bounded{&s.sleepers, 0, 100_000}, "sleepers", "`queues` that sleep, and are woken by a message now and then")
		f.Var(bounded{&s.size, smallest, 128 << 20}, "size", "`bytes` per body (default 1024)")
		s.size = 1024
		return func(b *bench) {
			s.bench = b
			if s.rate == 0 {
				s.checkLatency = true
				b.warmUp(warmTime)
				most := defaultShape
				most.queues, most.size = soakQueues, s.size
				limit := b.throughput(most)
				b.keep(limit)
				s.rate = int(limit.PerSecond * soakPart)
			}
			s.run()
		}
	})(f)
	return func(ctx context.Context) error {
		if s.duration < time.Minute {
			return errors.New("-duration must be at least 1m")
		}
		return run(ctx)
	}
}

// run loads the cluster, watches its nodes, and judges what it has seen.
func (s *soak) run() {
	r := report.Result{Name: fmt.Sprintf("soak, %d/s of %d bytes, %d queues that sleep", s.rate, s.size, s.sleepers)}
	ctx, fail := context.WithCancelCause(s.ctx)
	defer fail(nil)
	s.fail = fail
	consuming, stop := context.WithCancel(ctx)
	defer s.consumers.Wait()
	defer stop()
	locks := s.start(ctx, consuming)
	began := clock()
	if s.restarts > 0 {
		s.publishers.Go(func() { s.orFail(s.roll(ctx, began)) })
	}
	w := &watch{soak: s}
	err := try(func() { w.watch(ctx, began) })
	s.publishers.Wait()
	r.Seconds = (clock() - began).Seconds()
	err = errors.Join(err, s.settled(ctx))
	stop()
	s.consumers.Wait()
	whole := ctx.Err() == nil
	if !whole {
		err = errors.Join(context.Cause(ctx), err)
	}
	for _, p := range s.parts {
		r.Messages += float64(p.confirmed)
		err = errors.Join(err, p.check(whole))
		for _, n := range p.numbers() {
			r.Note(p.name+": "+n.Name, n.Value, n.Unit)
		}
	}
	r.PerSecond = r.Messages / r.Seconds
	err = errors.Join(err, locks.check(&r))
	r.Note("restarts of all nodes", float64(s.rolls), "")
	for _, c := range w.columns {
		r.Series = append(r.Series, c.Series)
		if !c.latency || s.checkLatency {
			err = errors.Join(err, c.flat(w.rolled))
		}
	}
	s.keep(r)
	must(err)
}

// orFail ends the soak if there is an error.
func (s *soak) orFail(err error) {
	if err != nil {
		s.fail(err)
	}
}

// part adds a part of the load.
func (s *soak) part(name string) *part {
	p := &part{name: name, id: len(s.parts), open: map[uint64]attempt{}, wrong: map[string]int{}}
	s.parts = append(s.parts, p)
	return p
}

// publish publishes to queues in turn for as long as the soak lasts.
func (s *soak) publish(ctx context.Context, to client.Recorder, rate int, set func(m *client.Message), queues ...string) {
	more, n := during(s.duration), 0
	p := client.Publisher{Name: queues[0], URIs: s.uris, First: len(s.parts), Dial: client.Gather, Window: 5000, Rate: max(rate, 1), Steady: true, Plain: true}
	s.publishers.Go(func() {
		s.orFail(p.Run(ctx, to, func() (client.Message, bool) {
			queue := queues[n%len(queues)]
			m := client.Message{RoutingKey: queue, Queue: queue, Size: s.size}
			if set != nil {
				set(&m)
			}
			n++
			return m, more(0)
		}))
	})
}

// consume consumes a queue until the soak is over. settle, if set, is called in place of an ack.
func (s *soak) consume(ctx context.Context, to client.Recorder, queue string, settle func(amqp.Delivery) (bool, error)) {
	c := client.Consumer{Name: queue, URIs: s.uris, First: len(s.parts) + 1, Dial: client.Gather, Queue: queue, Prefetch: 500, Batch: 50, Settle: settle}
	s.consumers.Go(func() { s.orFail(c.Run(ctx, to)) })
}

// start declares the queues, and starts all that publishes to them and consumes. Of the rate, a fifth goes to the
// queues whose messages expire, and to the one whose consumer fails; the locks and the queues that sleep have theirs
// beside it.
func (s *soak) start(ctx, consuming context.Context) *holder {
	names, asleep := numbered("bench-soak-", soakQueues), numbered("bench-soak-asleep-", s.sleepers)
	s.declare(append(asleep, names...)...) // before the first load, which lasts from then on
	for _, q := range names {
		p := s.part(q.name)
		p.confirms, p.arrivals = &s.confirms, &s.arrivals
		s.consume(consuming, p, q.name, nil)
		s.publish(ctx, p, s.rate*8/10/soakQueues, nil, q.name)
	}
	s.expire(ctx, consuming)
	s.retry(ctx, consuming)
	if s.sleepers > 0 {
		s.wake(ctx, consuming, asleep)
	}
	return s.hold(ctx, consuming)
}

// expire loads two queues with the same dead letters: in one all messages expire, in the other, whose consumer takes
// them in time, none does.
func (s *soak) expire(ctx, consuming context.Context) {
	letters := queue{name: "bench-soak-expired"}
	fleeting, kept := lettersTo(letters.name, "bench-soak-fleeting"), lettersTo(letters.name, "bench-soak-kept")
	s.declare(letters, fleeting, kept)
	die, live := s.part("messages that expire"), s.part("messages with a life of an hour")
	die.evaluate = func(d history.Delivery) (bool, string) {
		if d.Death == nil || d.Death.Reason != "expired" || d.Death.Queue != fleeting.name {
			return false, "no letter that has expired"
		}
		return true, ""
	}
	s.consume(consuming, die, letters.name, nil) // where a message of the other part would be a foreign one
	s.consume(consuming, live, kept.name, nil)
	longest := min(20*time.Second, s.duration/10)
	s.publish(ctx, die, s.rate/20, func(m *client.Message) { m.TTL = between(200*time.Millisecond, longest).Truncate(time.Millisecond) }, fleeting.name)
	s.publish(ctx, live, s.rate/20, func(m *client.Message) { m.TTL = time.Hour }, kept.name)
}

// retry loads a queue whose consumer fails at a part of the messages always, which become dead letters, and at another
// part once.
func (s *soak) retry(ctx, consuming context.Context) {
	dead := queue{name: "bench-soak-failed"}
	work := lettersTo(dead.name, "bench-soak-retries")
	work.args["x-delivery-limit"] = retryLimit
	s.declare(dead, work)
	p := s.part("messages that are retried")
	p.failing = true
	fails := func(key uint64, redelivered bool) bool {
		return alwaysFails(key) || key%retryEvery == 1 && !redelivered
	}
	p.evaluate = func(d history.Delivery) (bool, string) {
		switch {
		case d.Death == nil:
			return !fails(d.Key, d.Redelivered), ""
		case d.Death.Reason != "delivery_limit" || !alwaysFails(d.Key):
			return false, "a dead letter that has not failed so often"
		}
		return true, ""
	}
	s.consume(consuming, p, dead.name, nil)
	s.consume(consuming, p, work.name, func(d amqp.Delivery) (bool, error) {
		if key, _ := client.Key(d.Body); fails(key, d.Redelivered) {
			return false, d.Reject(true)
		}
		return true, d.Ack(false)
	})
	s.publish(ctx, p, s.rate/10, nil, work.name)
}

func alwaysFails(key uint64) bool { return key%retryEvery == 0 }

// wake sends messages to queues that sleep, in turn, and gets each when it is confirmed.
func (s *soak) wake(ctx, consuming context.Context, queues []queue) {
	w := &woken{part: s.part("queues that sleep"), confirmed: make(chan history.Attempt, s.sleepers+1000), queues: map[uint64]string{}}
	s.publish(ctx, w, soakWoken, nil, namesOf(queues)...)
	s.consumers.Go(func() {
		for node := 0; consuming.Err() == nil; node++ {
			w.take(consuming, s.uri(node)) // the connection is lost: that of another node
			_ = pause(consuming, settlePoll)
		}
	})
}

// woken gets messages from the queues that it is told.
type woken struct {
	*part
	confirmed chan history.Attempt

	mu     sync.Mutex
	queues map[uint64]string // by key
	now    history.Attempt   // is taken next, if it has a key
}

// Begin records where a message goes.
func (w *woken) Begin(a history.Attempt) uint64 {
	key := w.part.Begin(a)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queues[key] = a.Queue
	return key
}

// End has a message taken.
func (w *woken) End(key uint64, r history.Result) {
	w.part.End(key, r)
	w.mu.Lock()
	defer w.mu.Unlock()
	if r == history.OK {
		w.confirmed <- history.Attempt{Key: key, Queue: w.queues[key]}
	}
	delete(w.queues, key)
}

// take gets messages over a connection until it is lost.
func (w *woken) take(ctx context.Context, uri string) {
	conn, ch, err := open(ctx, nil, uri)
	if err != nil {
		return
	}
	defer conn.Close()
	for {
		if w.now.Key == 0 {
			select {
			case w.now = <-w.confirmed:
			case <-ctx.Done():
				return
			}
		}
		for !w.has(w.now.Key) {
			d, ok, err := ch.Get(w.now.Queue, false)
			if err != nil || ctx.Err() != nil {
				return
			}
			if ok {
				w.Deliver(client.Record(d, w.now.Queue, "", 0))
				if d.Ack(false) != nil {
					return
				}
			} else if pause(ctx, 10*settlePoll) != nil {
				return
			}
		}
		w.now = history.Attempt{}
	}
}

// roll restarts all nodes, one after the other, as often as is due.
func (s *soak) roll(ctx context.Context, began time.Duration) error {
	for next := began + s.restarts; next < began+s.duration; next += s.restarts {
		if pause(ctx, next-clock()) != nil {
			return nil
		}
		s.rolling.Store(true)
		if err := s.own.Roll(ctx, false); err != nil {
			return fmt.Errorf("rolling restart: %w", err)
		}
		s.own.findProcesses()
		s.rolls++
		_ = pause(ctx, min(soakRest, s.restarts/6)) // clients come back, and queues sleep again
		s.rolling.Store(false)
		progress("all nodes were restarted after %s, in %s", (next - began).Round(time.Second), (clock() - next).Round(time.Second))
	}
	return nil
}

// settled waits until all that is confirmed has come to its end.
func (s *soak) settled(ctx context.Context) error {
	for end := clock() + soakStall; ; {
		left := 0
		for _, p := range s.parts {
			left += p.left()
		}
		if left == 0 || clock() > end {
			return nil // what is left is found to be lost
		}
		if err := pause(ctx, 10*settlePoll); err != nil {
			return err
		}
	}
}
