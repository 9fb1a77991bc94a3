package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	rabbit "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/history"
)

// usual are the flows of a script that names none.
var usual = []string{"orders", "waiting"}

// flowKinds are the kinds of flows, by their names.
var flowKinds = map[string]func(w *world) *flow{
	"orders": orders, "waiting": waiting, "quiet": quiet, "still": still, "large": large, "doomed": doomed, "odd": odd,
	"brief": brief, "delayed": delayed, "held": held,
	"orders 1.0": linked, "orders to 0-9-1": sent, "waiting to 1.0": taken,
}

// linked is orders in AMQP 1.0.
func linked(w *world) *flow {
	f := sent(w)
	f.consumes10 = true
	return f
}

// sent is orders published in AMQP 1.0, and consumed in 0-9-1.
func sent(w *world) *flow {
	f := orders(w)
	f.publishes10 = true
	return f
}

// taken is waiting with dead letters consumed in AMQP 1.0.
func taken(w *world) *flow {
	f := waiting(w)
	f.consumes10 = true
	return f
}

// orders is published and consumed.
func orders(*world) *flow {
	return &flow{
		publishTo: "orders", consume: "orders", queues: []declared{{"orders", nil}}, perSecond: 5,
		make: func(*rand.Rand) client.Message {
			return client.Message{RoutingKey: "orders", Queue: "orders", Size: 256}
		},
		check: func(h *history.History) []checker.Verdict { return []checker.Verdict{checker.Disorder(h)} },
	}
}

// deadTo are the arguments of a queue whose dead letters go to another one at least
// once.
func deadTo(queue string) rabbit.Table {
	return rabbit.Table{
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue, "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
	}
}

// expiring publishes messages that live for up to that long to one queue, and
// consumes their dead letters.
func expiring(w *world, from, to string, longest time.Duration) *flow {
	return &flow{
		publishTo: from, consume: to, queues: []declared{{to, nil}, {from, deadTo(to)}}, perSecond: 5,
		make: func(rng *rand.Rand) client.Message {
			return client.Message{RoutingKey: from, Queue: to, Size: 100, TTL: 200*time.Millisecond + time.Duration(rng.Int64N(int64(longest.Milliseconds())))*time.Millisecond}
		},
		check: func(h *history.History) []checker.Verdict {
			return []checker.Verdict{w.early(h), checker.Deaths(h, checker.Expired(from))}
		},
	}
}

// waiting expires and is dead-lettered.
func waiting(w *world) *flow { return expiring(w, "waiting", "dead", 5*time.Second) }

// quiet is like waiting, but when the script is over, nothing but the passing of
// time moves it: what is due comes in time.
func quiet(w *world) *flow {
	f := expiring(w, "quiet", "quiet-dead", 20*time.Second)
	f.idle = true
	judge := f.check
	f.check = func(h *history.History) []checker.Verdict {
		return append(judge(h), checker.Late(h, confirmsWithin))
	}
	return f
}

// still keeps everything, and its replicas become complete without anything that is
// new.
func still(*world) *flow {
	return &flow{
		publishTo: "still", consume: "still", queues: []declared{{"still", nil}}, perSecond: 5, idle: true, kept: true,
		make: func(*rand.Rand) client.Message {
			return client.Message{RoutingKey: "still", Queue: "still", Size: 100}
		},
		receive: func(ctx context.Context) error { <-ctx.Done(); return nil },
	}
}

// large has messages of which few make a snapshot worth its cost.
func large(*world) *flow {
	return &flow{
		publishTo: "large", consume: "large", queues: []declared{{"large", nil}}, perSecond: 15,
		make: func(*rand.Rand) client.Message {
			return client.Message{RoutingKey: "large", Queue: "large", Size: 300 << 10}
		},
	}
}

// delay is that of the flow delayed.
const delay = 1500 * time.Millisecond

// delayed is delivered when its delay has passed, and not before.
func delayed(w *world) *flow {
	return &flow{
		publishTo: "delayed", consume: "delayed", perSecond: 5,
		queues: []declared{{"delayed", rabbit.Table{"x-delivery-delay": delay.Milliseconds()}}},
		make: func(*rand.Rand) client.Message {
			return client.Message{RoutingKey: "delayed", Queue: "delayed", Size: 100}
		},
		check: func(h *history.History) []checker.Verdict {
			found := checker.Verdict{Checker: "early"}
			for _, d := range h.Deliveries {
				if d.Key == 0 || d.Key > uint64(len(h.Attempts)) {
					continue // a ghost
				}
				if a := h.Attempts[d.Key-1]; d.At < a.Call+delay-w.wrongBy-checker.Grain {
					found.Count++
					found.Problems = append(found.Problems, fmt.Sprintf("early: key %d, published at %v, came at %v", a.Key, a.Call, d.At))
				}
			}
			return []checker.Verdict{found}
		},
	}
}

// brief expires where nobody takes it in time. Each get shows what was there when
// it was called: nothing that had expired by then.
func brief(w *world) *flow {
	asked := map[uint64]time.Duration{} // key → when the get that returned it was called
	f := &flow{publishTo: "brief", consume: "brief", queues: []declared{{"brief", nil}}, perSecond: 5, spare: func() int { return math.MaxInt }}
	f.make = func(rng *rand.Rand) client.Message {
		return client.Message{RoutingKey: "brief", Queue: "brief", Size: 100, TTL: time.Duration(100+rng.IntN(2900)) * time.Millisecond}
	}
	f.receive = func(ctx context.Context) error {
		return w.polling(ctx, "brief", func(ch *rabbit.Channel) error {
			called := f.history.Now()
			d, ok, err := ch.Get("brief", false)
			if err != nil || !ok {
				return err
			}
			r := client.Record(d, "brief", "getter", 1)
			asked[r.Key] = called
			f.history.Deliver(r)
			return d.Ack(false)
		})
	}
	f.check = func(h *history.History) []checker.Verdict {
		found := checker.Verdict{Checker: "expired"}
		for key, called := range asked {
			if key == 0 || key > uint64(len(h.Attempts)) {
				continue // a ghost
			}
			if a := h.Attempts[key-1]; a.Result == history.OK && a.TTL > 0 && called > a.Return+a.TTL+maxSkew {
				found.Count++
				found.Problems = append(found.Problems, fmt.Sprintf("expired: key %d, confirmed at %v for %v, was there at %v", key, a.Return, a.TTL, called))
			}
		}
		return []checker.Verdict{found}
	}
	return f
}

// polling calls f a few times a second with a channel, until ctx ends.
func (w *world) polling(ctx context.Context, name string, f func(*rabbit.Channel) error) error {
	dial := w.dialer("polling-" + name)
	for ctx.Err() == nil {
		conn, ch, err := w.connect(ctx, dial, w.names...)
		if err != nil {
			break
		}
		for err == nil {
			if err = f(ch); err == nil {
				err = sleep(ctx, 200*time.Millisecond)
			}
		}
		_ = conn.CloseDeadline(time.Now().Add(time.Second))
	}
	return nil
}

// doomed is dead-lettered to a queue that is deleted, when it is empty, and
// declared again, over and over.
func doomed(w *world) *flow {
	f := expiring(w, "doomed", "target", time.Second)
	f.perSecond = 20
	target := declared{"target", nil}
	var broken atomic.Int64 // connections, with one message each that a deletion may have met
	f.spare = func() int { return int(broken.Load()) }
	f.receive = func(ctx context.Context) error {
		dial := w.dialer("deleter")
		for {
			err := f.takeAndDelete(ctx, dial, target)
			if ctx.Err() != nil {
				return w.declareQueues(context.Background(), f.queues[:1])
			}
			if !errors.Is(err, errNotEmpty) {
				broken.Add(1)
			}
		}
	}
	return f
}

var errNotEmpty = errors.New("the queue is not empty")

// takeAndDelete takes what is in a queue and deletes it while it is empty.
func (f *flow) takeAndDelete(ctx context.Context, dial client.Dialer, q declared) error {
	conn, ch, err := f.w.connect(ctx, dial, f.w.names...)
	if err != nil {
		return err
	}
	defer conn.CloseDeadline(time.Now().Add(time.Second))
	for ctx.Err() == nil {
		if err := q.declare(ch); err != nil {
			return err
		}
		if err := f.take(ctx, ch, q.name); err != nil {
			return err
		}
		if _, err := ch.QueueDelete(q.name, false, true, false); err != nil {
			if refused := new(rabbit.Error); errors.As(err, &refused) && refused.Code == rabbit.PreconditionFailed {
				return errNotEmpty
			}
			return err
		}
		_ = sleep(ctx, 300*time.Millisecond)
	}
	return ctx.Err()
}

// take takes what comes to a queue within half a second, and what is there then.
func (f *flow) take(ctx context.Context, ch *rabbit.Channel, queue string) error {
	for enough := time.Now().Add(500 * time.Millisecond); ; {
		d, ok, err := ch.Get(queue, true)
		switch {
		case err != nil:
			return err
		case ok:
			f.history.Deliver(client.Record(d, queue, "getter", 1))
		case time.Now().After(enough):
			return nil
		default:
			err = sleep(ctx, 20*time.Millisecond)
		}
		if err != nil {
			return err
		}
	}
}

// odd is dead-lettered with a routing key that is too long, if the broker takes
// that, and otherwise with one that is as long as may be.
func odd(w *world) *flow {
	f := expiring(w, "odd", "odd-dead", time.Second)
	f.prepare = func(ctx context.Context) error {
		conn, ch, err := w.connect(ctx, w.dialer("declarer"), w.names...)
		if err != nil {
			return err
		}
		defer conn.CloseDeadline(time.Now().Add(time.Second))
		if err := f.queues[0].declare(ch); err != nil {
			return err
		}
		if err := ch.QueueBind("odd-dead", "", "amq.fanout", false, nil); err != nil {
			return err
		}
		source := func(key string) error {
			arguments := deadTo(key)
			arguments["x-dead-letter-exchange"] = "amq.fanout"
			return declared{"odd", arguments}.declare(ch)
		}
		refused := new(rabbit.Error)
		if err := source(strings.Repeat("é", 150)); !errors.As(err, &refused) || refused.Code != rabbit.PreconditionFailed {
			return err
		}
		if ch, err = conn.Channel(); err != nil {
			return err
		}
		return source(strings.Repeat("é", 127))
	}
	return f
}
