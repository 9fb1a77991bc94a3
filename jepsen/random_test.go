package jepsen

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/nemesis"
	"github.com/quorate/quorate/jepsen/workload"
)

// Queues of the random histories. Whatever dies in one of them goes to the last.
const (
	rndGroups  = "random-groups"  // groups that expire together, delays that grow, a delivery limit
	rndLinger  = "random-linger"  // groups that linger, with locks
	rndOnce    = "random-once"    // no duplicates, priorities, messages that wait, TTLs
	rndSingle  = "random-single"  // a single active consumer
	rndForward = "random-forward" // goes on to the next
	rndTarget  = "random-target"  // groups, often full
	rndLocks   = "random-locks"   // locks, by deadline
	rndFan     = "random-fan"     // bound to an exchange beside queues that come and go
	rndPark    = "random-park"    // groups and others, parks what fails too often
	rndDead    = "random-dead"
)

// rndWindow is how long duplicates are recognized: longer than a publisher is without a node.
const rndWindow = time.Minute

// rndLives are the rules of the queues.
var rndLives = checker.Lives{
	Dead: rndDead, Forwards: map[string]string{rndForward: rndTarget}, Once: map[string]time.Duration{rndOnce: rndWindow},
	Refuses: map[string]bool{rndGroups: true}, Orders: map[string]bool{rndGroups: true, rndLinger: true, rndSingle: true, rndPark: true},
}

// rndQueues are the queues with their arguments, quorum queues and classic ones. All remember how every message ended.
func rndQueues() []workload.Queue {
	all := []workload.Queue{
		{Name: rndGroups, Arguments: amqp.Table{
			"x-message-groups": true, "x-group-expiry": "group", "x-delivery-limit": 3, "x-overflow": "reject-publish-dlx",
			"x-delayed-retry-type": "all", "x-delayed-retry-strategy": "exponential", "x-delayed-retry-min": 50, "x-delayed-retry-max": 800, "x-delayed-retry-jitter": 30,
		}},
		{Name: rndLinger, Arguments: amqp.Table{
			"x-message-groups": true, "x-group-linger": 200, "x-lock-duration": lockTime.Milliseconds(), "x-delivery-limit": 4, "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
		}},
		{Name: rndOnce, Arguments: amqp.Table{
			"x-queue-type": "quorum", "x-dedup-window": rndWindow.Milliseconds(), "x-delivery-limit": 5, "x-delayed-retry-type": "failed", "x-delayed-retry-min": 100, "x-delayed-retry-max": 400, "x-delayed-retry-jitter": 50,
		}},
		{Name: rndSingle, Arguments: amqp.Table{"x-single-active-consumer": true, "x-delivery-limit": -1}},
		{Name: rndForward, Arguments: amqp.Table{"x-forward-to-exchange": "", "x-forward-to-routing-key": rndTarget}},
		{Name: rndTarget, Arguments: amqp.Table{"x-message-groups": true, "x-overflow": "reject-publish", "x-dead-letter-strategy": "at-least-once"}},
		{Name: rndLocks, Arguments: amqp.Table{"x-queue-type": "quorum", "x-queue-order": "deadline", "x-lock-duration": 1000, "x-count-lock-expiry": true}},
		{Name: rndFan, Arguments: amqp.Table{"x-queue-type": "quorum"}},
		{Name: rndPark, Arguments: amqp.Table{"x-queue-type": "quorum", "x-message-groups": true}},
	}
	for i := range all {
		a := all[i].Arguments
		a["x-audit-max"] = 100_000
		if all[i].Name != rndForward && all[i].Name != rndPark {
			a["x-dead-letter-exchange"], a["x-dead-letter-routing-key"] = "", rndDead
		}
	}
	return append(all, workload.Queue{Name: rndDead, Arguments: amqp.Table{"x-delivery-limit": -1}})
}

// rndPolicies are what is set in turn while messages flow. None of them makes a message end
// otherwise than by its queue's rules, but for a length limit that drops.
var rndPolicies = map[string][]map[string]any{
	rndGroups: {{"delivery-limit": 2}, {"delivery-limit": 8, "delayed-retry-type": "failed", "delayed-retry-min": 20, "delayed-retry-max": 100}, {"max-length": 60, "dispatch": "least-loaded"}, {"lock-duration": 60_000}},
	rndLinger: {{"max-length": 40}, {"delivery-limit": 1}, {"dead-letter-strategy": "at-most-once"}, {"consumer-timeout": 600_000}},
	rndOnce:   {{"delivery-limit": 1}, {"delayed-retry-type": "returned", "delayed-retry-min": 30}, {"dead-letter-strategy": "at-least-once", "overflow": "reject-publish"}, {"max-length": 1_000_000}},
	rndSingle: {{"delayed-retry-type": "all", "delayed-retry-min": 50, "delayed-retry-max": 200}, {"delivery-limit": 30}, {"max-length": 50, "overflow": "reject-publish"}},
	rndTarget: {{"max-length": 15}, {"max-length": 3, "delivery-limit": 4}, {"delivery-limit": 2}},
	rndLocks:  {{"max-length": 20, "dispatch": "least-loaded"}, {"max-length": 5, "overflow": "drop-head"}, {"delivery-limit": 2, "max-length": 30}, {"dead-letter-strategy": "at-least-once", "overflow": "reject-publish", "max-length": 25}},
	rndFan:    {{"max-length": 30, "overflow": "reject-publish"}, {"delivery-limit": 6, "dispatch": "least-loaded"}},
	// Where dead letters go somewhere, what was parked goes there, too.
	rndPark: {{"dead-letter-exchange": "", "dead-letter-routing-key": rndDead}, {"delayed-retry-type": "failed", "delayed-retry-min": 10, "delayed-retry-max": 40}, {"consumer-timeout": 600_000}},
}

const (
	// The time from one kill to the next, and that between changes of policies.
	rndKilledFrom, rndKilledTo   = 5 * time.Second, 9 * time.Second
	rndChangedFrom, rndChangedTo = time.Second, 3 * time.Second
	rndShort                     = 5 * time.Second // how long a short run breaks things
	rndPublishers                = 12
	rndRate                      = 12 // of each publisher, in a second
	rndGroupsPerQueue            = 10
)

// Clients do at random what features permit, in pairs and all at once: groups, delayed retries, delivery limits,
// locks, deadlines, deferral, parking, forwarding to a queue that is full, duplicates, priorities, delays, a single active
// consumer, limits for whole channels, dead letters. Policies change meanwhile, other queues are purged and
// deleted, and every 5 to 9 seconds a node is killed or frozen. Each message is followed by its id from its publish
// to its end; of what is missing the queues' records of ends and its life are printed.
func TestRandomHistory(t *testing.T) {
	t.Parallel()
	r := mustStart(t, *chaosTime+4*time.Minute)
	draw := rand.New(rand.NewPCG(r.draws("jepsen.seed", *chaosSeed), 31))
	changed := make(chan string)
	p, ends := r.randomPlay(draw, changed)
	t.Cleanup(r.printSums)
	r.mustPlayWhile([]*play{p}, func(ctx context.Context) error {
		return r.killRandomly(ctx, draw, changed)
	})
	dropped, gone := rndLives.Dropped(p.History)
	t.Logf("%d confirmed messages were dropped by a length limit; of %d the letter, which is sent once, did not arrive: %.200s", dropped, len(gone), fmt.Sprint(gone))
	if t.Failed() {
		ends.explainMissed()
	}
}

// killRandomly kills or freezes a node every few seconds: often the leader of a queue whose
// policy has just changed. Now and then a node stays away while that goes on, so that no
// majority is left for a while.
func (r *run) killRandomly(ctx context.Context, draw *rand.Rand, changed <-chan string) error {
	queues := rndQueues()
	var back func() error // brings the node back that is away
	away := 0             // faults until then
	lasts := *chaosTime
	if short() {
		lasts = rndShort
	}
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		next := time.Now().Add(rndKilledFrom + time.Duration(draw.Int64N(int64(rndKilledTo-rndKilledFrom))))
		queue := queues[draw.IntN(len(queues))].Name
		if draw.IntN(2) == 0 {
			select {
			case queue = <-changed:
			case <-time.After(rndChangedTo):
			}
			if err := pauseFor(ctx, time.Duration(draw.Int64N(int64(time.Second)))); err != nil {
				return err
			}
		}
		paused := nemesis.PauseLeader(queue, time.Duration(200+draw.IntN(2800))*time.Millisecond)
		faults := []nemesis.Fault{
			nemesis.KillOne(draw.IntN), paused, nemesis.KillLeader(queue), nemesis.KillLeader(queue), nemesis.KillTwo(draw.IntN),
			// Letters are on their way when their senders die.
			nemesis.Pair(nemesis.PauseLeader(rndDead, time.Second), nemesis.KillLeader(queue)),
		}
		if back != nil {
			faults = faults[:2] // the others wait for a majority, or for all
		}
		f := faults[draw.IntN(len(faults))]
		r.Logf("%v %s", r.Now().Round(time.Millisecond), f.Name)
		if err := f.Run(ctx, r.Cluster, r.History); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		away--
		switch {
		case back != nil && away <= 0:
			if err := back(); err != nil {
				return err
			}
			back = nil
		case back == nil && draw.IntN(6) == 0:
			away = 1 + draw.IntN(3)
			back = r.sendAway(ctx, r.Nodes[draw.IntN(len(r.Nodes))])
		}
		if err := pauseFor(ctx, min(time.Until(next), time.Until(end))); err != nil {
			return err
		}
	}
	if back != nil {
		return back()
	}
	return nil
}

// sendAway kills a node and returns what starts it again.
func (r *run) sendAway(ctx context.Context, n *cluster.Node) (back func() error) {
	r.Logf("%v node %d is away", r.Now().Round(time.Millisecond), n.Number)
	n.TryTake() // no other fault has it
	healed := r.Fault(nemesis.Kill, n.Number)
	err := n.Kill(ctx)
	return func() error {
		defer n.Release()
		defer healed()
		r.Logf("%v node %d comes back", r.Now().Round(time.Millisecond), n.Number)
		return errors.Join(err, n.Restart(), n.AwaitReady(ctx))
	}
}

// randomPlay is the workload of random histories.
func (r *run) randomPlay(draw *rand.Rand, changed chan<- string) (*play, *endReader) {
	p := &play{History: r.beside("random"), name: "random", queues: rndQueues()}
	long := rndBacklog{long: map[string]bool{}}
	p.setup = r.declaring(func(ch *amqp.Channel) error {
		return errors.Join(ch.ExchangeDeclare(rndFan, amqp.ExchangeFanout, true, false, false, false, nil), ch.QueueBind(rndFan, "", rndFan, false, nil))
	})
	for i := range rndPublishers {
		d := seeded(draw, 32+uint64(i))
		p.publisher(r, fmt.Sprint("publisher ", i+1), i, bounded(rndRate), func() client.Message { return rndMessage(d, &long) })
	}
	r.rndWorkers(p, draw)
	r.rndGetters(p, draw)
	changes, passes, ends := seeded(draw, 50), seeded(draw, 51), &endReader{r: r, p: p, after: map[string]uint64{}}
	p.publish = append(p.publish,
		func(ctx context.Context, enough <-chan struct{}) error {
			return r.changePolicies(ctx, changes, changed, enough)
		},
		func(ctx context.Context, enough <-chan struct{}) error { return r.pass(ctx, passes, enough) })
	unparks := seeded(draw, 52)
	p.consume = append(p.consume, ends.follow, func(ctx context.Context) error { return r.watchBacklog(ctx, &long) },
		func(ctx context.Context) error { return r.unpark(ctx, p.History, unparks) })
	p.over = func() bool { return r.isEmpty(rndNames()...) }
	p.last = func(ctx context.Context) error { return errors.Join(r.rndRest(ctx, p), ends.readAll(ctx)) }
	p.checks = []check{rndLives.Lost, checker.Unanswered, rndLives.Ghosts, rndLives.Doubled, rndLives.Held, rndLives.Early, rndLives.Order, rndLives.Parked}
	p.tried = func() error { return rndTried(p) }
	return p, ends
}

func rndNames() (names []string) {
	for _, q := range rndQueues() {
		names = append(names, q.Name)
	}
	return names
}

// rndTried says what a run has not seen.
func rndTried(p *play) error {
	seen := map[string]int{}
	for _, o := range p.Ops {
		switch o.Kind {
		case history.Deliver:
			seen["deliveries from "+o.Queue]++
		case history.Ended:
			seen[o.Why]++
		default:
			seen[o.Kind+" "+string(o.Result)]++
		}
	}
	for _, q := range rndNames() {
		if q != rndForward && seen["deliveries from "+q] == 0 {
			return fmt.Errorf("nothing came from %s: %v", q, seen)
		}
	}
	for _, what := range []string{history.Parked, history.Unpark} {
		if seen[what+" "+string(history.OK)] == 0 {
			return fmt.Errorf("there is no %s: %v", what, seen)
		}
	}
	return nil
}

// rndBacklog has the queues in which so much waits that nothing is published to them: how fast
// they are depends on the machine.
type rndBacklog struct {
	mu   sync.Mutex
	long map[string]bool
}

// rndWaiting is how much may wait.
const rndWaiting = 150

func (b *rndBacklog) has(queue string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.long[queue] || queue == rndForward && b.long[rndTarget] || b.long[rndDead]
}

// watchBacklog keeps the backlog until ctx ends.
func (r *run) watchBacklog(ctx context.Context, b *rndBacklog) error {
	for turn := 0; ctx.Err() == nil; turn++ {
		n := r.Nodes[turn%len(r.Nodes)]
		for _, name := range rndNames() {
			if q, err := n.Queue(ctx, name); err == nil { // or the node is down
				b.mu.Lock()
				b.long[name] = q.Messages > rndWaiting
				b.mu.Unlock()
			}
		}
		workload.Wait(ctx, 500*time.Millisecond)
	}
	return nil
}

// rndMessage draws a message for a queue in which not too much waits.
func rndMessage(d *dice, long *rndBacklog) client.Message {
	names := []string{rndGroups, rndLinger, rndOnce, rndSingle, rndForward, rndLocks, rndLocks, rndFan, rndPark}
	m := client.Message{Queue: names[d.below(len(names))], Size: 12 + d.below(300)}
	for tries := 0; tries < len(names) && long.has(m.Queue); tries++ {
		m.Queue = names[d.below(len(names))]
	}
	if d.below(40) == 0 {
		m.Size = largeSize
	}
	m.RoutingKey = m.Queue
	ttl := func(of int) {
		if d.below(of) == 0 {
			m.TTL = d.within(time.Millisecond, 2*time.Second).Truncate(time.Millisecond)
		}
	}
	switch m.Queue {
	case rndGroups, rndLinger:
		m.Group = fmt.Sprint("g", d.below(rndGroupsPerQueue))
		ttl(10)
	case rndForward:
		m.Group = fmt.Sprint("g", d.below(rndGroupsPerQueue))
		m.Priority = uint8(d.below(6))
	case rndOnce:
		m.Once, m.Priority = true, uint8(d.below(10))
		if d.below(3) == 0 {
			m.Wait = d.within(time.Millisecond, 1500*time.Millisecond).Truncate(time.Millisecond)
		}
		ttl(6)
	case rndPark:
		if d.below(2) == 0 {
			m.Group = fmt.Sprint("g", d.below(rndGroupsPerQueue))
		}
	case rndLocks:
		ttl(2)
	case rndFan:
		m.Exchange, m.RoutingKey = rndFan, ""
	}
	return m
}

// rndWorkers gives the play its consumers.
func (r *run) rndWorkers(p *play, draw *rand.Rand) {
	add := func(n int, w workload.Worker) {
		for range n {
			one := w
			one.Name, one.URIs, one.First = fmt.Sprint(w.Queue, "-", len(p.workers)+1), r.URIs(), len(p.workers)
			h := &rndHand{p: p, d: seeded(draw, 60+uint64(len(p.workers))), worker: &one, deferred: map[string]rndDeferred{}}
			one.Do, one.Idle = h.work, h.idle
			p.workers = append(p.workers, &one)
		}
	}
	add(3, workload.Worker{Queue: rndGroups, Prefetch: 3, Lock: history.Forever, Arguments: amqp.Table{"x-max-groups": 2}})
	add(3, workload.Worker{Queue: rndLinger, Prefetch: 2, Lock: lockTime})
	add(3, workload.Worker{Queue: rndOnce, Prefetch: 4, Lock: history.Forever})
	for priority := range 3 {
		add(1, workload.Worker{Queue: rndSingle, Prefetch: 5, Lock: history.Forever, Alone: true, Arguments: amqp.Table{"x-priority": priority}})
	}
	add(2, workload.Worker{Queue: rndTarget, Prefetch: 2, Lock: history.Forever})
	add(2, workload.Worker{Queue: rndLocks, Prefetch: 3, Lock: time.Second})
	add(1, workload.Worker{Queue: rndLocks, Prefetch: 3, Lock: time.Second, Arguments: amqp.Table{"x-min-ttl": 300, "x-lock-detach-grace": 500}})
	add(2, workload.Worker{Queue: rndFan, Prefetch: 3, Lock: history.Forever})
	add(3, workload.Worker{Queue: rndPark, Prefetch: 3, Lock: history.Forever, Arguments: amqp.Table{"x-max-groups": 2}})
	add(1, workload.Worker{Queue: rndOnce, More: []string{rndFan}, Prefetch: 5, Global: true, Lock: history.Forever})
	add(1, workload.Worker{Queue: rndGroups, More: []string{rndFan}, Prefetch: 1, Global: true, Lock: history.Forever})
	add(3, workload.Worker{Queue: rndDead, Prefetch: 50, Lock: history.Forever})
}

// rndRest settles what the workers have left, if a run is stuck: it is not lost.
func (r *run) rndRest(ctx context.Context, p *play) error {
	ctx, cancel := context.WithTimeout(ctx, drainedWithin)
	defer cancel()
	var rest sync.WaitGroup
	for i, name := range rndNames() {
		if name == rndForward || r.isEmpty(name) {
			continue
		}
		w := workload.Worker{
			Name: "rest of " + name, URIs: r.URIs(), First: i, Queue: name, Prefetch: 100,
			Do: func(ctx context.Context, s *workload.Session, t workload.Taken) {
				s.Ask(ctx, "message.settle", amqp.Table{"x-delivery-tag": int64(t.Tag), "x-outcome": "ack"}, t.About(history.Settle, 0))
			},
			Idle: func(context.Context, *workload.Session) {
				if r.isEmpty(rndNames()...) {
					cancel()
				}
			},
		}
		rest.Go(func() { _ = w.Run(ctx, p.History) })
	}
	rest.Wait()
	return nil
}

// rndGetters gives the play clients that take messages one by one.
func (r *run) rndGetters(p *play, draw *rand.Rand) {
	for i, queue := range []string{rndOnce, rndLocks, rndFan} {
		d := seeded(draw, 90+uint64(i))
		p.getter(r, workload.Getter{
			Name: queue + " getter", First: i, Queue: queue, Pause: func() time.Duration { return d.within(0, 300*time.Millisecond) },
			Do: func(ctx context.Context, s *workload.Session, t workload.Taken) bool {
				outcome, kind := "ack", history.Settle
				if d.below(5) == 0 {
					outcome, kind = "requeue", history.Requeue
				}
				return s.Ask(ctx, "message.settle", amqp.Table{"x-delivery-tag": int64(t.Tag), "x-outcome": outcome}, t.About(kind, 0)) != history.Unknown
			},
		})
	}
}

// rndDeferred is a message that was deferred.
type rndDeferred struct {
	queue string
	key   uint64
}

// rndHand is what a worker does.
type rndHand struct {
	p        *play
	d        *dice
	worker   *workload.Worker
	deferred map[string]rndDeferred // by the token
}

// One of so many messages in rndPark fails so often that it is parked once, or twice, and then
// some more times.
const rndPoisoned = 6

var rndFailures = [2]int{25, 45}

// defers reports whether messages of a queue are put aside.
func (h *rndHand) defers() bool {
	return h.worker.Queue == rndOnce && len(h.worker.More) == 0 || h.worker.Queue == rndLocks
}

func (h *rndHand) work(ctx context.Context, s *workload.Session, t workload.Taken) {
	tag := amqp.Table{"x-delivery-tag": int64(t.Tag)}
	settle := func(outcome, kind string) {
		tag["x-outcome"] = outcome
		s.Ask(ctx, "message.settle", tag, t.About(kind, 0))
	}
	if t.Queue == rndDead { // what is dead stays until it is settled
		if h.d.below(3) == 0 {
			settle("ack", history.Settle)
		} else {
			s.Settle(t)
		}
		return
	}
	if t.Queue == rndPark && t.Key%rndPoisoned == 0 && t.Turn < rndFailures[t.Key/rndPoisoned%2] {
		s.Return(t, true)
		return
	}
	workload.Wait(ctx, h.d.within(0, 30*time.Millisecond))
	if t.Queue == rndLinger && !h.renew(ctx, s, t) {
		return
	}
	switch n := h.d.below(100); {
	case n < 45:
		settle("ack", history.Settle)
	case n < 60:
		s.Settle(t)
	case n < 67:
		settle("requeue", history.Requeue)
	case n < 73:
		s.Return(t, n%2 == 0)
	case n < 78 && t.Queue != rndPark: // where a dead letter goes nowhere
		settle("reject", history.Reject)
	case n < 84:
		delay := h.d.within(20*time.Millisecond, 700*time.Millisecond).Truncate(time.Millisecond)
		o := t.About(history.Retry, 0)
		tag["x-delay"], o.Due = delay.Milliseconds(), delay
		s.Ask(ctx, "message.retry", tag, o)
	case n < 90 && h.defers():
		token := fmt.Sprint(h.worker.Name, "-", t.On)
		tag["x-deferral-token"] = token
		if s.Ask(ctx, "message.defer", tag, t.About(history.Defer, 0)) != history.No {
			h.deferred[token] = rndDeferred{t.Queue, t.Key}
		}
	case n < 92: // longer than a lock
		workload.Wait(ctx, h.d.within(800*time.Millisecond, 1300*time.Millisecond))
		settle("ack", history.Settle)
	case n < 93:
		s.Die()
	case n < 94:
		s.Close()
	case n < 96 && t.Group != "" && !h.worker.Alone:
		s.Ask(ctx, "group.release", group(t), t.About(history.Requeue, 0))
		s.Close() // what it holds of the group is no longer its own
	case n < 98 && t.Queue == rndLocks:
		s.Ask(ctx, "lock.renew", tag, t.About(history.Renew, h.worker.Lock))
		settle("ack", history.Settle)
	default:
		settle("ack", history.Settle)
	}
}

// group names the group of a delivery in commands.
func group(t workload.Taken) amqp.Table {
	return amqp.Table{"x-queue": t.Queue, "x-group-id": t.Group, "x-consumer-tag": t.Consumer}
}

// renew makes sure that the worker holds the group of a delivery.
func (h *rndHand) renew(ctx context.Context, s *workload.Session, t workload.Taken) bool {
	renewed := s.Ask(ctx, "group.renew", group(t), t.About(history.Renew, h.worker.Lock))
	if renewed == history.Unknown && !s.Lost() {
		s.Die()
	}
	return renewed == history.OK
}

// idle asks for what was put aside.
func (h *rndHand) idle(ctx context.Context, s *workload.Session) {
	for token, m := range h.deferred {
		if h.d.below(4) > 0 {
			continue
		}
		o := history.Op{Kind: history.Receive, Queue: m.queue, Key: m.key}
		headers := amqp.Table{"x-queue": m.queue, "x-consumer-tag": s.Consumer, "x-deferral-token": token}
		if s.Ask(ctx, "message.receive-deferred", headers, o) != history.Unknown {
			delete(h.deferred, token)
		}
		return
	}
}

// unpark lists what is parked, and makes some or all of it ready now and then, until ctx ends.
func (r *run) unpark(ctx context.Context, h *history.History, d *dice) error {
	path := "/api/queues/%2F/" + rndPark
	for turn := 1; ctx.Err() == nil; turn++ {
		workload.Wait(ctx, d.within(50*time.Millisecond, 700*time.Millisecond))
		n, client := r.Nodes[d.below(len(r.Nodes))], fmt.Sprint("operator ", turn)
		var list struct {
			Items []struct {
				Acquired   int `json:"acquired_count"`
				Properties struct {
					CorrelationID string `json:"correlation_id"` // the key of the attempt
				} `json:"properties"`
			} `json:"items"`
		}
		o := history.Op{Kind: history.Parked, Client: client, Queue: rndPark, Call: h.Now(), Result: history.OK}
		if n.Call(ctx, http.MethodGet, path+"/messages/peek?state=parked&limit=100", nil, &list) != nil {
			continue // the node may be down
		}
		o.Return = h.Now()
		for _, m := range list.Items {
			o.Key, _ = strconv.ParseUint(m.Properties.CorrelationID, 10, 64)
			o.Turn = m.Acquired
			h.Did(o)
		}
		if len(list.Items) == 0 || d.below(3) == 0 {
			continue
		}
		var asked any // all of them
		if d.below(4) > 0 {
			asked = map[string]any{"count": 1 + d.below(3)}
		}
		var made struct{ Messages int }
		o = history.Op{Kind: history.Unpark, Client: client, Queue: rndPark, Call: h.Now(), Result: history.Unknown}
		if n.Call(ctx, http.MethodPost, path+"/unpark", asked, &made) == nil {
			o.Result, o.Return, o.Turn = history.OK, h.Now(), made.Messages
		}
		h.Did(o)
	}
	return nil
}

// changePolicies sets and clears policies until enough is closed, and leaves none. It tells
// which queues' policies have changed, if somebody waits for that.
func (r *run) changePolicies(ctx context.Context, d *dice, changed chan<- string, enough <-chan struct{}) error {
	var all []cluster.Policy
	for _, q := range rndNames() {
		if len(rndPolicies[q]) > 0 {
			all = append(all, cluster.Policy{Name: q, Pattern: "^" + q + "$", ApplyTo: "queues"})
		}
	}
	for next := time.NewTimer(0); ; next.Reset(d.within(rndChangedFrom, rndChangedTo)) {
		select {
		case <-enough:
			return await.Until(ctx, 50*time.Millisecond, "policies to be cleared", func() (done bool, err error) {
				for _, n := range r.Nodes {
					if done, err = clearAll(ctx, n, all); done {
						break
					}
				}
				return done, err
			})
		case <-next.C:
		}
		p, n := all[d.below(len(all))], r.Nodes[d.below(len(r.Nodes))]
		if d.below(4) == 0 {
			_ = n.ClearPolicy(ctx, p) // a node may be down, and policies not there
			continue
		}
		p.Definition = rndPolicies[p.Name][d.below(len(rndPolicies[p.Name]))]
		if n.SetPolicy(ctx, p) == nil {
			select {
			case changed <- p.Name:
			default:
			}
		}
	}
}

// clearAll removes policies through a node, whether they are there or not.
func clearAll(ctx context.Context, n *cluster.Node, all []cluster.Policy) (done bool, err error) {
	for _, p := range all {
		status, body, err := n.Do(ctx, http.MethodDelete, p.Path(), nil)
		if err != nil || status/100 != 2 && status != http.StatusNotFound {
			return false, errors.Join(err, fmt.Errorf("clear policy %s: %d: %.200s", p.Name, status, body))
		}
	}
	return true, nil
}

// pass declares, binds, purges and deletes queues beside the others until enough is closed.
func (r *run) pass(ctx context.Context, d *dice, enough <-chan struct{}) error {
	for next := time.NewTimer(0); ; next.Reset(d.within(50*time.Millisecond, 400*time.Millisecond)) {
		select {
		case <-enough:
			return nil
		case <-next.C:
			_ = r.passOnce(ctx, d) // a node may be down
		}
	}
}

func (r *run) passOnce(ctx context.Context, d *dice) error {
	ch, leave, err := channelAt(ctx, r.Nodes[d.below(len(r.Nodes))])
	if err != nil {
		return err
	}
	defer leave()
	name := fmt.Sprint("random-passing-", d.below(3))
	if _, err = ch.QueueDeclare(name, true, false, false, false, nil); err == nil {
		err = ch.QueueBind(name, "", rndFan, false, nil)
	}
	workload.Wait(ctx, d.within(0, 500*time.Millisecond))
	if err == nil {
		_, err = ch.QueuePurge(name, false)
	}
	if err == nil && d.below(2) == 0 {
		_, err = ch.QueueDelete(name, false, false, false)
	}
	return err
}
