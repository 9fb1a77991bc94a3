package jepsen

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/workload"
)

// chaosPlays returns all workloads, each with queues of its own. Those of mustFlowWhile
// come first.
func (r *run) chaosPlays(draw *rand.Rand) []*play {
	return []*play{
		r.plainPlay(bounded(300), 1024), r.expiryPlay(bounded(150), recovering),
		r.totalPlay(draw), r.manyPlay(draw), r.flipPlay(draw, "brief", "at-least-once"), r.flipPlay(draw, "fleeting", "at-most-once"),
		r.timeoutPlay(draw), r.activePlay(draw), r.delayPlay(draw),
		r.mutexPlay(draw), r.leasePlay(draw), r.refusePlay(draw), r.dropPlay(draw), r.fanPlay(), r.registerPlay(draw),
		r.lockPlay(draw), r.groupPlay(draw), r.deferPlay(draw), r.schedulePlay(draw),
	}
}

// seeded returns dice of a workload.
func seeded(draw *rand.Rand, stream uint64) *dice {
	return &dice{draw: rand.New(rand.NewPCG(draw.Uint64(), stream))}
}

// isEmpty reports whether a queue has no messages. A node that does not answer says
// nothing.
func (r *run) isEmpty(queues ...string) bool {
	for _, name := range queues {
		if q, err := r.Nodes[0].Queue(r.ctx, name); err != nil || q.Messages != 0 {
			return false
		}
	}
	return true
}

// totalPlay has four publishers, consumers that ack, reject and return at random, and
// getters, at one queue.
func (r *run) totalPlay(draw *rand.Rand) *play {
	const queue = "total"
	d := seeded(draw, 11)
	p := &play{History: r.beside(queue), name: queue, queues: []workload.Queue{{Name: queue}}, serves: []string{queue}}
	for i := range 4 {
		p.publisher(r, fmt.Sprint("publisher ", i+1), i, bounded(25), mixed(queue, 100, 16))
	}
	for i, prefetch := range []int{1, 20} {
		p.consumer(r, client.Consumer{Name: fmt.Sprint("consumer ", i+1), First: i, Queue: queue, Prefetch: prefetch, Settle: func(m amqp.Delivery) (bool, error) {
			switch n := d.below(100); {
			case n < 80:
				return true, m.Ack(false)
			case n < 85:
				return true, m.Reject(false)
			}
			return false, m.Nack(false, true)
		}})
	}
	for i := range 2 {
		p.getter(r, workload.Getter{Name: fmt.Sprint("getter ", i+1), First: i + 1, Queue: queue, Pause: func() time.Duration { return d.within(0, 100*time.Millisecond) }})
	}
	p.over = func() bool { return p.Missing() == 0 && r.isEmpty(queue) }
	p.drains(r, queue)
	p.checks = []check{checker.Lost, checker.Unanswered, checker.Ghosts, checker.Doubled}
	return p
}

// getter makes a play take messages through one more channel.
func (p *play) getter(r *run, g workload.Getter) {
	g.URIs = r.URIs()
	p.consume = append(p.consume, func(ctx context.Context) error { return g.Run(ctx, p.History) })
}

// queuesOfMany is how many queues manyPlay has: those of a short run are enough to see
// that they are all served.
func queuesOfMany() int {
	if short() {
		return 40
	}
	return 220
}

// manyPlay has eight publishers at very many queues that are seldom used, and at one that
// is hot. Each channel's messages arrive in order.
func (r *run) manyPlay(draw *rand.Rand) *play {
	const publishers, consumers = 8, 3
	d := seeded(draw, 12)
	p := &play{History: r.beside("many"), name: "many"}
	names := []string{"hot"}
	for i := range queuesOfMany() {
		names = append(names, fmt.Sprint("many-", i+1))
	}
	for _, name := range names {
		p.queues, p.serves = append(p.queues, workload.Queue{Name: name}), append(p.serves, name)
	}
	for i := range publishers {
		turn, hot := i, mixed("hot", 64, 16)
		p.publisher(r, fmt.Sprint("publisher ", i+1), i, bounded(25), func() client.Message {
			if turn += publishers; d.below(5) == 0 {
				return hot()
			}
			return plain(names[1+turn%(len(names)-1)], 64)()
		})
	}
	for i := range consumers {
		c := client.Consumer{Name: fmt.Sprint("consumer ", i+1), First: i, Prefetch: 20}
		for k := i; k < len(names); k += consumers {
			c.More = append(c.More, names[k])
		}
		c.Queue, c.More = c.More[0], c.More[1:]
		p.consumer(r, c)
	}
	p.drains(r, "hot", "many-1")
	p.checks = []check{checker.Lost, checker.Unanswered, checker.Ghosts, checker.Doubled, checker.Disorder}
	return p
}

// timeoutPlay has consumers that ack too late, when their timeout passes, or never,
// because they die.
func (r *run) timeoutPlay(draw *rand.Rand) *play {
	d := seeded(draw, 13)
	p := r.newPlay("slow", nil, 80*time.Millisecond, plainJob)
	for i, timeout := range []time.Duration{300 * time.Millisecond, time.Second, 3 * time.Second} {
		at := len(p.workers)
		p.work(r, 2, r.lazy(d, timeout, 1))
		for k, w := range p.workers[at:] {
			w.Name, w.First = fmt.Sprintf("slow-%d-%d", i+1, k+1), i+k
		}
	}
	p.over = func() bool { return p.allSettled() && r.isEmpty(p.name) }
	p.checks = []check{checker.Locks, checker.Finished, func(h *history.History) checker.Verdict { return checker.TimedOut(h, recovering) }}
	return p
}

// lazy is a worker that acks in time, mostly.
func (r *run) lazy(d *dice, timeout time.Duration, prefetch int) workload.Worker {
	return workload.Worker{
		Prefetch: prefetch, Lock: timeout, Arguments: amqp.Table{"x-consumer-timeout": timeout.Milliseconds()},
		Do: func(ctx context.Context, s *workload.Session, t workload.Taken) {
			switch d.below(20) {
			case 0: // too late
				workload.Wait(ctx, timeout+d.within(0, 500*time.Millisecond))
			case 1: // the ack meets the timeout
				workload.Wait(ctx, timeout+d.within(-30*time.Millisecond, 30*time.Millisecond))
			case 2:
				s.Die()
				return
			default:
				workload.Wait(ctx, d.within(0, min(timeout/4, 100*time.Millisecond)))
			}
			s.Settle(t)
		},
	}
}

// activePlay has consumers of which one at a time is active. They take a sixth of a second for a message,
// since some of them time out: publishing must be slower, or more would wait the longer a run is.
func (r *run) activePlay(draw *rand.Rand) *play {
	p := r.newPlay("single", amqp.Table{"x-single-active-consumer": true}, 300*time.Millisecond, plainJob)
	p.work(r, 3, r.lazy(seeded(draw, 14), time.Second, 2))
	p.over = func() bool { return p.allSettled() && r.isEmpty(p.name) }
	p.checks = []check{
		checker.Locks, checker.Finished,
		func(h *history.History) checker.Verdict { return checker.TimedOut(h, recovering) },
		func(h *history.History) checker.Verdict { return checker.Active(h, recovering) },
	}
	return p
}

// delayPlay publishes through a delayed exchange.
func (r *run) delayPlay(draw *rand.Rand) *play {
	d := seeded(draw, 15)
	p := &play{History: r.beside("delayed"), name: "delayed", queues: []workload.Queue{{Name: "delayed"}}, serves: []string{"delayed"}}
	p.setup = r.declaring(func(ch *amqp.Channel) error {
		return errors.Join(
			ch.ExchangeDeclare("later", "x-delayed-message", true, false, false, false, amqp.Table{"x-delayed-type": "direct"}),
			ch.QueueBind("delayed", "delayed", "later", false, nil))
	})
	p.publisher(r, "publisher", 2, bounded(50), func() client.Message {
		delay := d.within(50*time.Millisecond, 4*time.Second).Truncate(time.Millisecond)
		return client.Message{Exchange: "later", RoutingKey: "delayed", Queue: "delayed", Delay: delay, Size: 80}
	})
	p.consumer(r, client.Consumer{Name: "consumer", First: 1, Queue: "delayed"})
	p.drains(r, "delayed")
	p.checks = []check{checker.Lost, checker.Unanswered, checker.Ghosts, checker.Doubled, checker.Early, lateBy(recovering)}
	return p
}

// declaring returns what declares through the first node.
func (r *run) declaring(what func(*amqp.Channel) error) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := client.Connect(ctx, r.Nodes[0].URI())
		if err != nil {
			return err
		}
		defer conn.Close()
		ch, err := conn.Channel()
		if err != nil {
			return err
		}
		return what(ch)
	}
}

// mutexPlay has clients that take a message, hold it, and return it. After some rounds it
// is acked, and another one takes its place. There are fewer messages than the clients get
// through while a busy machine has faults, too.
func (r *run) mutexPlay(draw *rand.Rand) *play {
	d := seeded(draw, 16)
	p := r.newPlay("mutex", nil, 3*time.Second, plainJob)
	for i := range perPlay {
		p.getter(r, workload.Getter{
			Name: fmt.Sprint("holder ", i+1), First: i, Queue: p.name,
			Pause: func() time.Duration { return d.within(0, 60*time.Millisecond) },
			Do: func(ctx context.Context, s *workload.Session, t workload.Taken) bool {
				workload.Wait(ctx, d.within(0, 30*time.Millisecond))
				outcome, kind := "requeue", history.Requeue
				if d.below(10) == 0 {
					outcome, kind = "ack", history.Settle
				}
				return s.Ask(ctx, "message.settle", amqp.Table{"x-delivery-tag": int64(t.Tag), "x-outcome": outcome}, t.About(kind, 0)) != history.Unknown
			},
		})
	}
	p.over = func() bool { return p.allSettled() && r.isEmpty(p.name) }
	p.checks = []check{checker.Mutex, checker.Finished}
	return p
}

// shortQueue is the limit of the queues that refuse or drop what is beyond it.
const shortQueue = 10

// limitPlay publishes more to a short queue than is taken from it.
func (r *run) limitPlay(draw *rand.Rand, name, overflow string) *play {
	d := seeded(draw, 17)
	p := &play{History: r.beside(name), name: name, serves: []string{name}}
	p.queues = []workload.Queue{{Name: name, Arguments: amqp.Table{"x-max-length": shortQueue, "x-overflow": overflow}}}
	// What is refused is published again until it is confirmed: so little that on a slow
	// machine, too, one getter is through with it soon.
	p.publish = append(p.publish, func(ctx context.Context, enough <-chan struct{}) error {
		c := client.Publisher{Name: "publisher", URIs: r.URIs(), First: 1, Rate: bounded(60), Window: 2 * shortQueue}
		return c.Run(ctx, p.History, workload.Until(enough, plain(name, 64)))
	})
	// What one getter has taken is not returned behind another one's back, so that the
	// queue is never longer than its limit by returns.
	p.getter(r, workload.Getter{Name: "getter", First: 2, Queue: name, Pause: func() time.Duration { return d.within(0, 40*time.Millisecond) }})
	p.drains(r, name)
	return p
}

// refusePlay is a short queue that refuses what is beyond its limit.
func (r *run) refusePlay(draw *rand.Rand) *play {
	p := r.limitPlay(draw, "refusing", "reject-publish")
	p.checks = []check{checker.Limit(shortQueue), checker.Lost, checker.Unanswered, checker.Ghosts, checker.Doubled, checker.Disorder}
	p.tried = func() error {
		for _, a := range p.Attempts {
			if a.Result == history.No {
				return nil
			}
		}
		return errors.New("nothing was refused")
	}
	return p
}

// dropPlay is a short queue that drops its oldest messages.
func (r *run) dropPlay(draw *rand.Rand) *play {
	p := r.limitPlay(draw, "dropping", "drop-head")
	p.over = func() bool { return r.isEmpty(p.name) }
	p.checks = []check{checker.Limit(shortQueue), checker.Dropped(shortQueue), checker.Unanswered, checker.Ghosts, checker.Doubled, checker.Disorder}
	p.tried = func() error {
		if p.Missing() == 0 {
			return errors.New("nothing was dropped")
		}
		return nil
	}
	return p
}

// fanPlay publishes to an exchange that sends each message to five queues.
func (r *run) fanPlay() *play {
	p := &play{History: r.beside("fan"), name: "fan"}
	var names []string
	for i := range 5 {
		names = append(names, fmt.Sprint("fan-", i+1))
		p.queues = append(p.queues, workload.Queue{Name: names[i]})
	}
	all := strings.Join(names, " ")
	p.serves = []string{all}
	p.setup = r.declaring(func(ch *amqp.Channel) error {
		err := ch.ExchangeDeclare("fan", amqp.ExchangeFanout, true, false, false, false, nil)
		for _, name := range names {
			err = errors.Join(err, ch.QueueBind(name, "", "fan", false, nil))
		}
		return err
	})
	p.publisher(r, "publisher", 0, bounded(40), func() client.Message {
		return client.Message{Exchange: "fan", Queue: all, Size: 64}
	})
	p.consumer(r, client.Consumer{Name: "consumer 1", First: 1, Queue: names[0], More: names[1:3], Prefetch: 20})
	p.consumer(r, client.Consumer{Name: "consumer 2", First: 2, Queue: names[3], More: names[4:], Prefetch: 20})
	p.drains(r, names...)
	p.checks = []check{checker.Fanout, checker.Unanswered, checker.Disorder}
	return p
}
